/* Where descriptors, memory or room on the stack run out: the errors, and that nothing is lost with them. */
#include "waiters.h"
#include <dirent.h>
#include <sys/syscall.h>

static int open_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

/* From now on no number is free. */
static void use_up(void) {
    struct rlimit few = {64, 64};
    MUST(setrlimit(RLIMIT_NOFILE, &few));
    while (dup(0) >= 0)
        ;
}

CASE(limits, every_call, BIT(connected) | BIT(waiting) | BIT(fresh)) {
    int pair[2];
    int before = open_descriptors();
    use_up();
    for (int i = 0; i < 2; i++) {
        T(socket(AF_INET, SOCK_STREAM, 0));
        T(socket(AF_UNIX, SOCK_STREAM, 0));
        T(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
        T(accept(w->s, NULL, NULL));
        T(accept4(w->s, NULL, NULL, SOCK_NONBLOCK));
        T(dup(w->s));
        T(fcntl(w->s, F_DUPFD, 0));
        T(fcntl(w->s, F_DUPFD_CLOEXEC, 0));
        T(dup2(w->s, 64));
        T(dup3(w->s, 64, O_CLOEXEC));
        T(epoll_create1(0));
        T(pipe(pair));
    }
    for (int fd = 3; fd < 64; fd++)
        if (fd != w->s && fd != w->p && fd != w->l)
            close(fd);
    say("lost %d", open_descriptors() > before);
}

CASE(limits, accept_a_hundred_times, BIT(waiting)) {
    // The connection waits on, and can be accepted when there is room.
    int free_one = dup(0), failed = 0;
    use_up();
    for (int i = 0; i < 100; i++)
        failed += accept(w->s, NULL, NULL) < 0 && errno == EMFILE;
    say("failed %d", failed);
    MUST(close(free_one));
    int fd = accept(w->s, NULL, NULL);
    say("accepted: %s, the number that is free %d", fd >= 0 ? "ok" : errno_name(errno), fd == free_one);
    MUST(send(w->p, "word", 4, 0));
    until(fd, POLLIN);
    T(recv(fd, bytes, 8, MSG_DONTWAIT));
}

CASE(limits, connect_without_a_number, BIT(fresh)) {
    // connect needs none; what this library needs for itself it has to do without.
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 4, &at, &len), free_one = dup(0);
    use_up();
    block(w);
    T(connect(w->s, (void *)&at, len));
    MUST(close(free_one));
    int s = accept(l, NULL, NULL);
    say("accept: %s", s >= 0 ? "ok" : errno_name(errno));
    T(send(w->s, "word", 4, 0));
    until(s, POLLIN);
    T(recv(s, bytes, 8, MSG_DONTWAIT));
}

CASE(limits, accept_from_a_stranger, BIT(listening)) {
    // One number is free, and what the two processes share has to come first.
    int free_one = dup(0), turn[2], status = -1;
    char word = 'x';
    MUST(pipe(turn));
    pid_t child = fork();
    if (child == 0) {
        MUST(read(turn[0], &word, 1));
        int s = socket(w->family, SOCK_STREAM, 0);
        MUST(connect(s, (void *)&w->at, w->at_len));
        MUST(send(s, "word", 4, 0));
        // Said by how it ends: both sides write at the same time else.
        _exit(recv(s, bytes, 8, 0) == 6 ? 7 : 8);
    }
    MUST(child);
    use_up();
    MUST(write(turn[1], &word, 1));
    until(w->s, POLLIN);
    T(accept(w->s, NULL, NULL));
    MUST(close(free_one));
    nonblock(w->s, 0);
    int fd = accept(w->s, NULL, NULL);
    say("accepted: %s, the number that is free %d", fd >= 0 ? "ok" : errno_name(errno), fd == free_one);
    T(recv(fd, bytes, 8, 0));
    T(send(fd, "answer", 6, 0));
    MUST(waitpid(child, &status, 0));
    say("it ends with %d", WEXITSTATUS(status));
}

static void *write_late(void *at) {
    const struct world *w = at;
    for (int i = 0; i < 5; i++) {
        nap(3);
        MUST(send(w->p, "late", 4, 0));
    }
    return NULL;
}

/* Waits in every way where no descriptor may be had any more, and `poll` thinks that one is too many. */
static void wait_with_none(struct world *w, int set) {
    pthread_t thread;
    fd_set read_from;
    nonblock(w->s, 0);
    MUST(-pthread_create(&thread, NULL, write_late, w));
    T(recv(w->s, bytes, 4, 0));
    FD_ZERO(&read_from);
    FD_SET(w->s, &read_from);
    T(select(w->s + 1, &read_from, NULL, NULL, NULL));
    T(recv(w->s, bytes, 4, 0));
    T(epoll_wait(set, &event, 1, -1));
    T(read(w->s, bytes, 4));
    T(poll(&(struct pollfd){w->s, POLLIN, 0}, 1, 1000));
    T(poll(NULL, 0, 1));
    T(recv(w->s, bytes, 8, MSG_WAITALL));
    pthread_join(thread, NULL);
    T(poll(&(struct pollfd){w->s, POLLOUT, 0}, 1, 0));
    T(send(w->s, "word", 4, 0));
    T(recv(w->p, bytes, 8, 0));
    T(socket(AF_INET, SOCK_STREAM, 0));
    T(dup(w->s));
    T(epoll_create1(0));
}

static void none_from_now_on(rlim_t hard) {
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, hard}));
}

CASE(limits, no_descriptor, BIT(connected) | BIT(accepted)) {
    int set = set_of(w->s);
    none_from_now_on(0);
    wait_with_none(w, set);
}

CASE(limits, no_descriptor_for_a_while, BIT(connected)) {
    struct rlimit before;
    int other[2], set = set_of(w->s);
    MUST(getrlimit(RLIMIT_NOFILE, &before));
    none_from_now_on(before.rlim_max);
    wait_with_none(w, set);
    MUST(setrlimit(RLIMIT_NOFILE, &before));
    T(poll(&(struct pollfd){w->s, POLLOUT, 0}, 1, 1000));
    join(AF_INET, other);
    T(send(other[0], "word", 4, 0));
    until(other[1], POLLIN);
    T(recv(other[1], bytes, 8, MSG_DONTWAIT));
}

CASE(limits, no_descriptor_in_a_child, BIT(connected) | BIT(accepted)) {
    int status = -1, set = set_of(w->s);
    pid_t child = fork();
    if (child == 0) {
        none_from_now_on(0);
        wait_with_none(w, set);
        T(close(w->s));
        _exit(7);
    }
    MUST(child);
    close(w->s);
    MUST(waitpid(child, &status, 0));
    say("it ends with %d", WEXITSTATUS(status));
    T(recv(w->p, bytes, 8, MSG_DONTWAIT));
}

CASE(limits, no_descriptor_for_one_of_two, BIT(connected)) {
    // One process sleeps when the other, which has said nothing before, has news for it.
    int status[2] = {-1, -1};
    pid_t reader = fork();
    if (reader == 0) {
        nonblock(w->p, 0);
        _exit(recv(w->p, bytes, 8, 0) == 4 && send(w->p, "back", 4, 0) == 4 ? 7 : 8);
    }
    MUST(reader);
    pid_t writer = fork();
    if (writer == 0) {
        none_from_now_on(0);
        nap(30);
        nonblock(w->s, 0);
        T(send(w->s, "word", 4, 0));
        T(recv(w->s, bytes, 8, 0));
        _exit(7);
    }
    MUST(writer);
    MUST(waitpid(reader, &status[0], 0));
    MUST(waitpid(writer, &status[1], 0));
    say("they end with %d %d", WEXITSTATUS(status[0]), WEXITSTATUS(status[1]));
}

/* Much to and fro, and another connection. */
static void work(struct world *w) {
    int other[2];
    long sent = 0, got = 0;
    for (int round = 0; round < 20000 && got < 4 << 20; round++) {
        long n = sent < 4 << 20 ? send(w->s, large, 60000, MSG_DONTWAIT) : 0;
        sent += n > 0 ? n : 0;
        n = recv(w->p, bytes, sizeof bytes, MSG_DONTWAIT);
        got += n > 0 ? n : 0;
        // Whoever carries them may not have a processor.
        if (n <= 0)
            usleep(50);
    }
    say("all came %d", sent == got && got >= 4 << 20);
    join(AF_INET, other);
    T(send(other[0], "word", 4, 0));
    until(other[1], POLLIN);
    T(recv(other[1], bytes, 8, MSG_DONTWAIT));
}

/* Not a byte more than there is, but for what malloc may want. */
static void limit_address_space(rlim_t more) {
    long pages = 0;
    FILE *status = fopen("/proc/self/statm", "r");
    MUST(fscanf(status, "%ld", &pages) == 1 ? 0 : -1);
    fclose(status);
    rlim_t most = (rlim_t)pages * 4096 + more;
    // As the kernel counts.
    MUST(syscall(SYS_setrlimit, RLIMIT_AS, &(struct rlimit){most, most}));
}

CASE(limits, address_space, BIT(connected)) {
    limit_address_space(1 << 20);
    work(w);
}

CASE(limits, address_space_of_a_child, BIT(connected)) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        limit_address_space(1 << 20);
        nonblock(w->s, 0);
        _exit(send(w->s, "word", 4, 0) == 4 && recv(w->s, bytes, 8, 0) == 4 ? 7 : 8);
    }
    MUST(child);
    close(w->s);
    nonblock(w->p, 0);
    T(recv(w->p, bytes, 8, 0));
    MUST(send(w->p, "back", 4, 0));
    MUST(waitpid(child, &status, 0));
    say("it ends with %d", WEXITSTATUS(status));
    T(recv(w->p, bytes, 8, 0));
}

CASE(limits, address_space_of_all, NONE) {
    struct world c;
    limit_address_space(1 << 20);
    reach(&c, STATE_connected);
    work(&c);
}

CASE(limits, little_address_space, NONE) {
    // Enough for a small program, and far less than is taken where there is no limit.
    struct world c;
    limit_address_space(48 << 20);
    reach(&c, STATE_connected);
    work(&c);
}

CASE(limits, address_space_of_its_own, BIT(connected)) {
    // What it has set holds for its own memory.
    struct rlimit limit = {100 << 20, RLIM_INFINITY}, seen, before;
    struct world c;
    T(setrlimit(RLIMIT_AS, &limit));
    T(getrlimit(RLIMIT_AS, &seen));
    say("%ld %d", (long)seen.rlim_cur, seen.rlim_max == RLIM_INFINITY);
    T(malloc(50 << 20) ? 0 : -1);
    T(malloc(150 << 20) ? 0 : -1);
    work(w);
    reach(&c, STATE_connected);
    work(&c);
    limit = (struct rlimit){120 << 20, 200 << 20};
    T(prlimit(0, RLIMIT_AS, &limit, &before));
    say("%ld %d", (long)before.rlim_cur, before.rlim_max == RLIM_INFINITY);
    T(prlimit(0, RLIMIT_AS, NULL, &seen));
    say("%ld %ld", (long)seen.rlim_cur, (long)seen.rlim_max);
    limit.rlim_cur = 300 << 20;
    T(setrlimit(RLIMIT_AS, &limit));
    T(setrlimit(RLIMIT_AS, NULL));
    T(getrlimit(RLIMIT_AS, (void *)8));
}

CASE(limits, address_space_of_a_server, BIT(connected)) {
    // It limits itself when it has sockets already, and then serves another process.
    struct world *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int line[2], status = -1;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, line));
    pid_t child = fork();
    if (child == 0) {
        MUST(setrlimit(RLIMIT_AS, &(struct rlimit){100 << 20, 100 << 20}));
        c->s = listener(AF_INET, 4, &c->at, &c->at_len);
        nonblock(c->s, 0);
        MUST(write(line[0], "x", 1));
        int s = MUST(accept(c->s, NULL, NULL));
        MUST(recv(s, bytes, 8, 0));
        MUST(send(s, "served", 6, 0));
        _exit(7);
    }
    MUST(child);
    MUST(read(line[1], bytes, 1));
    int s = fresh(AF_INET);
    T(connect(s, (void *)&c->at, c->at_len));
    nonblock(s, 0);
    T(send(s, "word", 4, 0));
    T(recv(s, bytes, 8, 0));
    MUST(waitpid(child, &status, 0));
    say("it ends with %d", WEXITSTATUS(status));
}

CASE(limits, file_size, NONE) {
    // Memory that two processes share is a file, too.
    struct rlimit few = {4096, 4096};
    struct world c;
    MUST(setrlimit(RLIMIT_FSIZE, &few));
    reach(&c, STATE_connected);
    work(&c);
}

CASE(limits, locked_memory, NONE) {
    struct rlimit none = {0, 0};
    struct world c;
    MUST(setrlimit(RLIMIT_MEMLOCK, &none));
    reach(&c, STATE_connected);
    work(&c);
}

static void *work_there(void *at) {
    struct world *w = at;
    struct world c;
    reach(&c, STATE_connected);
    work(&c);
    struct pollfd p[64];
    for (int i = 0; i < 64; i++)
        p[i] = (struct pollfd){w->s, POLLIN, 0};
    T(poll(p, 64, 5));
    T(epoll_wait(set_of(w->s), &event, 1, 5));
    T(select_on(w->s, 0));
    MUST(send(w->p, "x", 1, 0));
    until(w->s, POLLIN);
    T(recv(w->s, bytes, 8, 0));
    return NULL;
}

CASE(limits, small_stack, BIT(connected)) {
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    MUST(-pthread_attr_setstacksize(&small, 64 << 10));
    MUST(-pthread_create(&thread, &small, work_there, w));
    pthread_join(thread, NULL);
}
