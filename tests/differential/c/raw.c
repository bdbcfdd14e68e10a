/* Programs that wait by system calls of their own, past the C library: they must hear of everything all the same. */
#include "differ.h"
#include <sys/syscall.h>

#if defined(__x86_64__)
static long raw(long n, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
static long raw(long n, long a, long b, long c, long d, long e, long f) {
    register long x8 __asm__("x8") = n;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}
#endif

static int make(void) { return (int)raw(SYS_epoll_create1, EPOLL_CLOEXEC, 0, 0, 0, 0, 0); }

static void watch(int set, int fd, unsigned events) {
    struct epoll_event e = {.events = events, .data.fd = fd};
    T((int)raw(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, (long)&e, 0, 0));
}

/* What comes within `ms`. */
static int hear(int set, int ms) {
    struct epoll_event e = {0};
    T((int)raw(SYS_epoll_pwait, set, (long)&e, 1, ms, 0, 8));
    say("%s", bits(e.events));
    return e.data.fd;
}

/* A connection to `at`, and what a program hears of it that waits for both ends in `set`. */
static void converse(int set, int l, struct sockaddr_storage *at, socklen_t len) {
    char b[64];
    int c = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    T(connect(c, (void *)at, len));
    watch(set, c, EPOLLIN | EPOLLOUT | EPOLLET);
    watch(set, l, EPOLLIN);
    for (int i = 0; i < 2; i++)
        say("%s", hear(set, 1000) == l ? "listener" : "connection");
    int s = MUST(accept4(l, NULL, NULL, SOCK_NONBLOCK));
    T(recv(s, b, sizeof b, 0));
    watch(set, s, EPOLLIN | EPOLLRDHUP);
    hear(set, 0);
    T(send(c, "hello", 5, 0));
    say("%d", hear(set, 1000) == s);
    T(recv(s, b, sizeof b, 0));
    T(send(s, "reply", 5, 0));
    say("%d", hear(set, 1000) == c);
    T(recv(c, b, sizeof b, 0));
    T(shutdown(c, SHUT_WR));
    say("%d", hear(set, 1000) == s);
    look(c);
    look(s);
}

/* The set is there before the sockets. */
CASE(raw, epoll, NONE) {
    struct sockaddr_storage at;
    socklen_t len = loopback(AF_INET, &at);
    int set = MUST(make());
    int l = fresh(AF_INET);
    MUST(bind(l, (void *)&at, len));
    MUST(listen(l, 5));
    MUST(getsockname(l, (void *)&at, &len));
    nonblock(l, 1);
    T(accept(l, NULL, NULL));
    converse(set, l, &at, len);
}

/* The listener is there before the set; what comes of its being made non-blocking, and of there being nothing to accept. */
static void listener_first(int set_before, int (*quiet)(int set, int l)) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 5, &at, &len);
    int set = set_before ? (int)MUST(make()) : -1;
    quiet(set, l);
    if (!set_before)
        set = MUST(make());
    T(accept(l, NULL, NULL));
    say("%s", fcntl(l, F_GETFL) & O_NONBLOCK ? "non-blocking" : "blocking");
    converse(set, l, &at, len);
}

static int by_libc(int set, int l) {
    (void)set;
    nonblock(l, 1);
    return 0;
}

/* As a program does that sets its flags itself. */
static int past_libc(int set, int l) {
    struct epoll_event e = {.events = 0};
    long flags = raw(SYS_fcntl, l, F_GETFL, 0, 0, 0, 0);
    raw(SYS_fcntl, l, F_SETFL, flags | O_NONBLOCK, 0, 0, 0);
    raw(SYS_epoll_ctl, set, EPOLL_CTL_ADD, l, (long)&e, 0, 0);
    T(accept(l, NULL, NULL));
    raw(SYS_epoll_ctl, set, EPOLL_CTL_DEL, l, 0, 0, 0);
    return 0;
}

CASE(raw, listener_then_set, NONE) { listener_first(1, by_libc); }
CASE(raw, listener_quiet_then_set, NONE) { listener_first(0, by_libc); }
CASE(raw, listener_made_quiet_past_libc, NONE) { listener_first(1, past_libc); }

/* Another set's number, which was a file's when it was looked at last. */
CASE(raw, number_again, NONE) {
    struct sockaddr_storage at;
    socklen_t len;
    int low = MUST(open("/dev/null", O_RDONLY | O_CLOEXEC));
    int l = listener(AF_INET, 5, &at, &len);
    nonblock(l, 1);
    T(accept(l, NULL, NULL));
    MUST(close(low));
    say("%s", make() == low ? "the same number" : "another number");
    converse(low, l, &at, len);
}

/* Workers that wait so for the listener of their parent, which waits for it itself afterwards. */
CASE(raw, workers, NONE) {
    struct sockaddr_storage at;
    socklen_t len;
    char b[64];
    int status, ready[2];
    int l = listener(AF_INET, 5, &at, &len);
    nonblock(l, 1);
    T(accept(l, NULL, NULL));
    MUST(pipe(ready));
    for (int i = 0; i < 2; i++) {
        pid_t worker = (pid_t)MUST(fork());
        if (worker == 0) {
            struct epoll_event e = {.events = EPOLLIN};
            int set = make();
            int is_bad = accept(l, NULL, NULL) >= 0;
            raw(SYS_epoll_ctl, set, EPOLL_CTL_ADD, l, (long)&e, 0, 0);
            MUST(write(ready[1], "x", 1));
            is_bad |= raw(SYS_epoll_pwait, set, (long)&e, 1, 2000, 0, 8) != 1;
            int s = accept(l, NULL, NULL);
            _exit(is_bad || s < 0 || send(s, "hello", 5, 0) != 5);
        }
        MUST(read(ready[0], b, 1));
        int c = fresh(AF_INET);
        T(connect(c, (void *)&at, len));
        T(recv(c, b, 5, MSG_WAITALL));
        MUST(waitpid(worker, &status, 0));
        say("the worker ends with %d", status);
        MUST(close(c));
    }
    int c = fresh(AF_INET);
    T(connect(c, (void *)&at, len));
    until(l, POLLIN);
    int s = (int)MUST(accept(l, NULL, NULL));
    T(send(s, "hello", 5, 0));
    T(recv(c, b, 5, MSG_WAITALL));
}
