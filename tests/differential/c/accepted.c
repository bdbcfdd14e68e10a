/* Accepted connections, several at a time: each is a socket of its own, whatever is asked of it, and whoever asks. */
#include "differ.h"
#include <sys/syscall.h>

#define MANY 5

static char b[64];

/* Connections that the world's listener has accepted. */
static void accept_many(struct world *w, int fds[MANY]) {
    for (int i = 0; i < MANY; i++) {
        MUST(connect(fresh(AF_INET), (void *)&w->at, w->at_len));
        nonblock(w->s, 0);
        fds[i] = (int)MUST(accept(w->s, NULL, NULL));
    }
}

static ino_t file_number(int fd) {
    struct stat about;
    MUST(fstat(fd, &about));
    return S_ISSOCK(about.st_mode) ? about.st_ino : 0;
}

static int option(int fd, int level, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    MUST(getsockopt(fd, level, name, &value, &len));
    return value;
}

CASE(accepted, numbers_of_their_own, BIT(listening)) {
    int fds[MANY], same = 0, changed = 0;
    ino_t numbers[MANY];
    uint64_t cookies[MANY];
    accept_many(w, fds);
    for (int i = 0; i < MANY; i++) {
        socklen_t len = sizeof cookies[i];
        numbers[i] = file_number(fds[i]);
        MUST(getsockopt(fds[i], SOL_SOCKET, SO_COOKIE, &cookies[i], &len));
        for (int k = 0; k < i; k++)
            same += numbers[k] == numbers[i] || cookies[k] == cookies[i];
    }
    for (int i = 0; i < MANY; i++) {
        MUST(setsockopt(fds[i], SOL_SOCKET, SO_PRIORITY, &(int){3}, sizeof(int)));
        changed += file_number(fds[i]) != numbers[i] || numbers[i] == 0;
    }
    say("same %d, changed %d", same, changed);
}

CASE(accepted, flags_and_options_of_their_own, BIT(listening)) {
    int fds[MANY];
    accept_many(w, fds);
    nonblock(fds[1], 1);
    MUST(ioctl(fds[2], FIONBIO, &(int){1}));
    MUST(fcntl(fds[3], F_SETFL, O_NONBLOCK | O_APPEND));
    MUST(setsockopt(fds[3], SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int)));
    MUST(setsockopt(fds[4], SOL_SOCKET, SO_PRIORITY, &(int){5}, sizeof(int)));
    MUST(fcntl(fds[4], F_SETFD, FD_CLOEXEC));
    for (int i = 0; i < MANY; i++) {
        say("%d: flags %x, keepalive %d, priority %d, close-on-exec %d", i, (unsigned)fcntl(fds[i], F_GETFL),
            option(fds[i], SOL_SOCKET, SO_KEEPALIVE), option(fds[i], SOL_SOCKET, SO_PRIORITY), fcntl(fds[i], F_GETFD));
        say("a read would wait %d", i == 0 || (recv(fds[i], b, 1, 0) < 0 && errno == EAGAIN));
    }
    MUST(ioctl(fds[2], FIONBIO, &(int){0}));
    say("flags %x", (unsigned)fcntl(fds[2], F_GETFL));
    nonblock(fds[4], 1);
    say("flags %x, close-on-exec %d", (unsigned)fcntl(fds[4], F_GETFL), fcntl(fds[4], F_GETFD));
}

CASE(accepted, by_flags, BIT(listening)) {
    static const int each[] = {0, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_CLOEXEC | SOCK_NONBLOCK};
    for (int i = 0; i < 4; i++) {
        MUST(connect(fresh(AF_INET), (void *)&w->at, w->at_len));
        until(w->s, POLLIN);
        int fd = (int)MUST(accept4(w->s, NULL, NULL, each[i]));
        say("flags %x %x", (unsigned)fcntl(fd, F_GETFL), (unsigned)fcntl(fd, F_GETFD));
        say("keepalive %d", option(fd, SOL_SOCKET, SO_KEEPALIVE));
        say("flags %x %x", (unsigned)fcntl(fd, F_GETFL), (unsigned)fcntl(fd, F_GETFD));
    }
}

/* What one process sets the other has. */
CASE(accepted, options_over_fork, BIT(accepted) | BIT(connected) | BIT(accepted6)) {
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        MUST(setsockopt(w->s, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int)));
        MUST(setsockopt(w->s, SOL_SOCKET, SO_PRIORITY, &(int){4}, sizeof(int)));
        MUST(setsockopt(w->s, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)));
        nonblock(w->s, 1);
        _exit(0);
    }
    MUST(waitpid(child, NULL, 0));
    say("keepalive %d, priority %d, no delay %d, flags %x", option(w->s, SOL_SOCKET, SO_KEEPALIVE),
        option(w->s, SOL_SOCKET, SO_PRIORITY), option(w->s, IPPROTO_TCP, TCP_NODELAY), (unsigned)fcntl(w->s, F_GETFL));
}

CASE(accepted, options_without_a_free_number, BIT(listening)) {
    int fds[MANY];
    accept_many(w, fds);
    struct rlimit few = {1024, 1024};
    MUST(setrlimit(RLIMIT_NOFILE, &few));
    while (dup(0) >= 0)
        ;
    for (int i = 0; i < MANY; i++) {
        T(setsockopt(fds[i], SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int)));
        say("keepalive %d", option(fds[i], SOL_SOCKET, SO_KEEPALIVE));
        T(dup(fds[i]));
        T(dup2(fds[i], fds[0]) == fds[0]);
    }
    T(accept4(w->s, NULL, NULL, SOCK_NONBLOCK));
}

CASE(accepted, limit_lowered, BIT(listening)) {
    int fds[MANY];
    accept_many(w, fds);
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)fds[2], (rlim_t)fds[2]}));
    for (int i = 0; i < MANY; i++) {
        T(setsockopt(fds[i], SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int)));
        say("keepalive %d", option(fds[i], SOL_SOCKET, SO_KEEPALIVE));
    }
}

CASE(accepted, named_by_another_family, BIT(accepted) | BIT(accepted6) | BIT(listening)) {
    // What one is refused, or does, the next does not feel.
    struct sockaddr_storage other = {.ss_family = AF_UNSPEC};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fds[MANY] = {w->s, -1};
    if (w->state == STATE_listening)
        accept_many(w, fds);
    for (int i = 0; i < 2 && fds[i] >= 0; i++) {
        T(bind(fds[i], (void *)&other, sizeof(struct sockaddr_in)));
        T(bind(fds[i], (void *)&at, sizeof at));
        T(bind(fds[i], (void *)&at, sizeof other));
        T(connect(fds[i], (void *)&other, sizeof other));
        T(connect(fds[i], (void *)&at, 7));
        T(listen(fds[i], 1));
    }
}

CASE(accepted, nothing_to_write, BIT(listening)) {
    MUST(connect(fresh(AF_INET), (void *)&w->at, w->at_len));
    until(w->s, POLLIN);
    int fd = (int)MUST(accept4(w->s, NULL, NULL, SOCK_NONBLOCK));
    while (send(fd, &(char[60000]){0}, 60000, 0) > 0)
        ;
    T(write(fd, nowhere, 5));
    T(send(fd, nowhere, 5, 0));
}

CASE(accepted, used_by_a_child_past_the_c_library, BIT(listening)) {
    int fds[MANY];
    accept_many(w, fds);
    pid_t child = (pid_t)MUST(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (child == 0) {
        T(dup2(fds[0], 700));
        T(setsockopt(fds[1], SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int)));
        T(fcntl(fds[1], F_SETFL, O_NONBLOCK));
        _exit(0);
    }
    MUST(waitpid(child, NULL, 0));
    say("priority %d", option(fds[0], SOL_SOCKET, SO_PRIORITY));
}

CASE(accepted, replaced_inside_the_c_library, BIT(listening)) {
    int changed = 0;
    MUST(connect(fresh(AF_INET), (void *)&w->at, w->at_len));
    FILE *file = fopen("/dev/null", "r");
    MUST(close(fileno(file)));
    nonblock(w->s, 0);
    int fd = (int)MUST(accept(w->s, NULL, NULL));
    // It closes the number, and opens the file there.
    file = freopen("/dev/null", "r", file);
    say("the number again: %d", fileno(file) == fd);
    pid_t child = (pid_t)MUST(fork());
    struct stat about;
    changed += fstat(fd, &about) < 0 || !S_ISCHR(about.st_mode);
    if (child == 0)
        _exit(changed);
    int status = -1;
    MUST(waitpid(child, &status, 0));
    say("changed %d, in the child %d", changed, WEXITSTATUS(status));
}

static volatile int number = -1, is_over;

static void *set_options(void *none) {
    while (!is_over) {
        setsockopt(number, SOL_SOCKET, SO_PRIORITY, &(int){1}, sizeof(int));
        dup2(number, number + 20);
    }
    return none;
}

CASE(accepted, set_while_closed, BIT(listening)) {
    // Whatever happens to the number: a file that is opened there stays.
    pthread_t thread;
    int replaced = 0;
    MUST(pthread_create(&thread, NULL, set_options, NULL));
    for (int i = 0; i < 2000; i++) {
        struct stat about;
        int s = fresh(AF_INET);
        nonblock(s, 0);
        MUST(connect(s, (void *)&w->at, w->at_len));
        nonblock(w->s, 0);
        int fd = (int)MUST(accept(w->s, NULL, NULL));
        number = fd;
        for (volatile int k = 0; k < i; k++)
            ;
        MUST(close(fd));
        int null = open("/dev/null", O_RDONLY);
        for (int k = 0; k < 20; k++) {
            MUST(fstat(null, &about));
            replaced += !S_ISCHR(about.st_mode);
        }
        close(null);
        close(s);
    }
    is_over = 1;
    MUST(pthread_join(thread, NULL));
    say("replaced %d", replaced);
}

static int deferring(struct sockaddr_storage *at, socklen_t *len, int seconds) {
    int l = listener(AF_INET, 8, at, len);
    MUST(setsockopt(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds));
    nonblock(l, 1);
    return l;
}

static int connected_to(const struct sockaddr_storage *at, socklen_t len) {
    int c = fresh(AF_INET);
    MUST(connect(c, (const void *)at, len));
    return c;
}

/* TCP_DEFER_ACCEPT: of two clients one is silent, the other speaks at once. Both are accepted, in any order, and served. */
CASE(accept, deferred, NONE) {
    struct sockaddr_storage at, me, from;
    socklen_t len = sizeof at, n = sizeof me;
    char b[64];
    int l = deferring(&at, &len, 1), silent = connected_to(&at, len), c = connected_to(&at, len), served[2] = {-1, -1};
    look(silent);
    look(c);
    MUST(getsockname(silent, (void *)&me, &n));
    T(send(c, "at once", 7, 0));
    for (int i = 0; i < 2; i++) {
        struct pollfd one = {l, POLLIN, 0};
        MUST(poll(&one, 1, 5000));
        n = sizeof from;
        int s = (int)MUST(accept(l, (void *)&from, &n));
        served[memcmp(&from, &me, n) != 0] = s;
    }
    T(recv(served[0], b, 64, MSG_DONTWAIT));
    T(recv(served[1], b, 64, 0));
    T(send(served[1], "reply", 5, 0));
    T(recv(c, b, 64, 0));
    T(send(silent, "late", 4, 0));
    T(recv(served[0], b, 64, 0));
    T(send(served[0], "answer", 6, 0));
    T(recv(silent, b, 64, 0));
    T(accept(l, NULL, NULL));
}

/* The first poll is what differs. From then on it is as on Linux when the time is over. */
CASE(accept, deferred_for_a_second, NONE) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    char b[64];
    int l = deferring(&at, &len, 1), c = connected_to(&at, len);
    struct pollfd one = {l, POLLIN, 0};
    T(poll(&one, 1, 500));
    T(poll(&one, 1, 5000));
    int s = (int)MUST(accept(l, NULL, NULL));
    T(recv(s, b, 64, MSG_DONTWAIT));
    T(send(c, "late", 4, 0));
    until(s, POLLIN);
    T(recv(s, b, 64, 0));
}
