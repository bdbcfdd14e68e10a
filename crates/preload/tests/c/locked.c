/* Processes that lock themselves in with seccomp in the middle of their connections. What they were doing goes on, by `read`, `write`
   and `poll` alone, and nobody is killed for a call that is not the program's. */
#include "common.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifdef __x86_64__
#define ARCHITECTURE AUDIT_ARCH_X86_64
#else
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

/* What the program does, and what the C library needs for memory, clocks and locks. */
static const int ALLOWED[] = {
    SYS_read,          SYS_write,  SYS_close,           SYS_shutdown,  SYS_ppoll,           SYS_exit_group, SYS_brk,
    SYS_mmap,          SYS_munmap, SYS_mprotect,        SYS_madvise,   SYS_mremap,          SYS_futex,      SYS_getpid,
    SYS_gettid,        SYS_uname,  SYS_clock_nanosleep, SYS_nanosleep, SYS_restart_syscall, SYS_getrandom,  SYS_clock_gettime,
    SYS_rt_sigprocmask,
#ifdef __x86_64__
    SYS_poll,          SYS_accept,
#else
    SYS_accept4,
#endif
};

static void lock_in(unsigned else_what, int by_number) {
    struct sock_filter code[2 * sizeof ALLOWED / sizeof *ALLOWED + 8];
    size_t n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < sizeof ALLOWED / sizeof *ALLOWED; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)ALLOWED[i], 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, else_what);
    struct sock_fprog program = {.len = n, .filter = code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (by_number)
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
    else
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void write_all(int fd, const char *at, size_t n) {
    while (n > 0) {
        ssize_t done = write(fd, at, n);
        if (done <= 0)
            _exit(20);
        at += done, n -= done;
    }
}

/* Gives back what comes, each time so late that the other end sleeps. Ends with 7. */
static void serve(int fd) {
    static char b[200000];
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 5) == 0)
            continue;
        if (!(p.revents & POLLIN))
            _exit(21);
        ssize_t n = read(fd, b, sizeof b);
        if (n == 0)
            break;
        if (n < 0)
            _exit(22);
        nap(20);
        write_all(fd, b, n);
    }
    write_all(fd, "bye", 3);
    /* The other end goes: writing ends with an error and not with this process. */
    for (int i = 0; i < 100; i++) {
        nap(5);
        if (write(fd, "?", 1) < 0)
            _exit(errno == EPIPE || errno == ECONNRESET ? 7 : 23);
    }
    _exit(24);
}

static void talk(int fd) {
    static char b[200000], c[200000];
    /* A blocking read. */
    CHECK(write(fd, "one", 3) == 3);
    printf("read %s\n", said(read(fd, b, sizeof b)));
    /* poll. */
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK(write(fd, "two", 3) == 3);
    printf("poll %s", said(poll(&p, 1, 5000)));
    printf(" %s %s\n", bits(p.revents), said(read(fd, b, sizeof b)));
    /* epoll, both ways. */
    for (int edge = 0; edge < 2; edge++) {
        int set = epoll_create1(0);
        struct epoll_event e = {.events = EPOLLIN | (edge ? EPOLLET : 0)}, got;
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e) == 0);
        for (int i = 0; i < 3; i++) {
            CHECK(write(fd, "three", 5) == 5);
            printf("epoll %s", said(epoll_wait(set, &got, 1, 5000)));
            printf(" %s %s\n", bits(got.events), said(read(fd, b, sizeof b)));
        }
        printf("epoll %s\n", said(epoll_wait(set, &got, 1, 20)));
        close(set);
    }
    /* More than a page. */
    for (size_t i = 0; i < sizeof b; i++)
        b[i] = i * 7 + i / 1000;
    write_all(fd, b, 100000);
    printf("bulk %s", said(recv(fd, c, 100000, MSG_WAITALL)));
    printf(" %d\n", memcmp(b, c, 100000));
    CHECK(shutdown(fd, SHUT_WR) == 0);
    printf("last %s", said(recv(fd, c, 3, MSG_WAITALL)));
    printf(" %.3s\n", c);
    close(fd);
}

/* How the child that is to be locked in comes to its connection. */
static void with_child(const char *what, unsigned else_what, int by_number, int few, int accepts) {
    struct sockaddr_in at;
    int f[2] = {-1, -1}, l = listener(&at), status;
    if (!accepts) {
        f[0] = connected(&at);
        f[1] = accept(l, NULL, NULL);
        CHECK(f[1] >= 0);
    }
    pid_t child = fork();
    if (child == 0) {
        if (accepts)
            CHECK((f[1] = accept(l, NULL, NULL)) >= 0);
        else
            close(f[0]);
        close(l);
        signal(SIGPIPE, SIG_IGN);
        struct rlimit one = {1, 1};
        if (few)
            CHECK(setrlimit(RLIMIT_NOFILE, &one) == 0);
        lock_in(else_what, by_number);
        serve(f[1]);
    }
    printf("%s\n", what);
    if (accepts)
        f[0] = connected(&at);
    else
        close(f[1]);
    if (few)
        nap(100);
    talk(f[0]);
    close(l);
    CHECK(waitpid(child, &status, 0) == child);
    printf("child %d signal %d\n", WEXITSTATUS(status), WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

/* Filters that are none. */
static void without(void) {
    struct sock_fprog none = {.len = 0};
    int f[2];
    char b[10];
    pair(f);
    printf("no filter %s", said(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL)));
    printf(" %s", said(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &none)));
    printf(" %s\n", said(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL)));
    CHECK(write(f[0], "still", 5) == 5);
    printf("read %s\n", said(read(f[1], b, 10)));
    printf("mode %s\n", said(prctl(PR_GET_SECCOMP)));
    close(f[0]), close(f[1]);
}

/* A server that locks itself in: whoever comes from then on is served by the kernel's socket. */
static void server(const char *what, unsigned else_what) {
    struct sockaddr_in at;
    int status, go[2];
    char b[10];
    CHECK(pipe(go) == 0);
    pid_t child = fork();
    if (child == 0) {
        int l = listener(&at);
        lock_in(else_what, 0);
        CHECK(write(go[1], &at, sizeof at) == sizeof at);
        for (int i = 0; i < 2; i++) {
            int s = accept(l, NULL, NULL);
            if (s < 0)
                _exit(8);
            write_all(s, b, read(s, b, sizeof b));
            close(s);
        }
        _exit(7);
    }
    CHECK(read(go[0], &at, sizeof at) == sizeof at);
    for (int i = 0; i < 2; i++) {
        int fd = connected(&at);
        nap(20);
        CHECK(write(fd, "late", 4) == 4);
        printf("%s %s\n", what, said(recv(fd, b, 4, MSG_WAITALL)));
        close(fd);
    }
    CHECK(waitpid(child, &status, 0) == child);
    printf("server %d signal %d\n", WEXITSTATUS(status), WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    close(go[0]), close(go[1]);
}

int main(void) {
    without();
    with_child("its parent's connection", SECCOMP_RET_KILL_PROCESS, 0, 0, 0);
    with_child("by the call's number", SECCOMP_RET_KILL_PROCESS, 1, 0, 0);
    with_child("without descriptors", SECCOMP_RET_KILL_PROCESS, 0, 1, 0);
    with_child("its own connection", SECCOMP_RET_KILL_PROCESS, 0, 0, 1);
    with_child("what is not allowed fails", SECCOMP_RET_ERRNO | EACCES, 0, 0, 1);
    server("killed for the rest", SECCOMP_RET_KILL_PROCESS);
    server("the rest fails", SECCOMP_RET_ERRNO | EACCES);
    return 0;
}
