/* Where descriptors, memory or room on the stack run out: the errors, and that nothing is lost with them. */
#include "waiters.h"
#include <dirent.h>

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

/* Much to and fro, and another connection. */
static void work(struct world *w) {
    int other[2];
    long sent = 0, got = 0;
    for (int round = 0; round < 20000 && got < 4 << 20; round++) {
        long n = sent < 4 << 20 ? send(w->s, large, 60000, MSG_DONTWAIT) : 0;
        sent += n > 0 ? n : 0;
        n = recv(w->p, bytes, sizeof bytes, MSG_DONTWAIT);
        got += n > 0 ? n : 0;
    }
    say("all came %d", sent == got && got >= 4 << 20);
    join(AF_INET, other);
    T(send(other[0], "word", 4, 0));
    until(other[1], POLLIN);
    T(recv(other[1], bytes, 8, MSG_DONTWAIT));
}

/* Not a byte more than there is, but for what malloc may want. */
static void limit_address_space(void) {
    long pages = 0;
    FILE *status = fopen("/proc/self/statm", "r");
    MUST(fscanf(status, "%ld", &pages) == 1 ? 0 : -1);
    fclose(status);
    rlim_t most = (rlim_t)pages * 4096 + (1 << 20);
    MUST(setrlimit(RLIMIT_AS, &(struct rlimit){most, most}));
}

CASE(limits, address_space, BIT(connected)) {
    limit_address_space();
    work(w);
}

CASE(limits, address_space_of_all, NONE) {
    struct world c;
    limit_address_space();
    reach(&c, STATE_connected);
    work(&c);
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
