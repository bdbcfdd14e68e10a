/* How many system calls ten requests make. A parent traces its child, which marks each case by `getppid`. */
#include "common.h"
#include <sys/ptrace.h>
#include <sys/syscall.h>

#define TIMES 10

static int f[2], set;
static char b[64];
static struct epoll_event event = {.events = EPOLLIN};

static void sends(void) { CHECK(send(f[0], b, 64, 0) == 64); }
static void receives(void) { CHECK(recv(f[1], b, 64, 0) == 64); }

static void finds_nothing(void) { CHECK(recv(f[1], b, 64, MSG_DONTWAIT) == -1 && errno == EAGAIN); }

static void writes_and_reads(void) {
    struct iovec parts[2] = {{b, 32}, {b + 32, 32}};
    CHECK(writev(f[0], parts, 2) == 64 && readv(f[1], parts, 2) == 64);
}

static void sends_messages(void) {
    struct iovec part = {b, 64};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    CHECK(sendmsg(f[0], &message, 0) == 64 && recvmsg(f[1], &message, 0) == 64);
}

static void asks_for_the_error(void) {
    int value;
    socklen_t len = sizeof value;
    CHECK(getsockopt(f[0], SOL_SOCKET, SO_ERROR, &value, &len) == 0);
}

static void sets_an_option(void) {
    int on = 1;
    CHECK(setsockopt(f[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
}

static void asks_for_the_names(void) {
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    CHECK(getsockname(f[0], (struct sockaddr *)&at, &len) == 0);
    len = sizeof at;
    CHECK(getpeername(f[0], (struct sockaddr *)&at, &len) == 0);
}

static void asks_for_the_amount(void) {
    int value;
    CHECK(ioctl(f[1], FIONREAD, &value) == 0);
}

static void changes(void) { CHECK(epoll_ctl(set, EPOLL_CTL_MOD, f[1], &event) == 0); }

static void removes_and_adds(void) {
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, f[1], NULL) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, f[1], &event) == 0);
}

static void waits(void) {
    struct epoll_event found;
    CHECK(epoll_wait(set, &found, 1, -1) == 1);
}

static void polls(void) {
    struct pollfd entry = {f[1], POLLIN, 0};
    CHECK(poll(&entry, 1, -1) == 1);
}

/* In this order: `waits` and `polls` find what the last `sends` has left. */
static const struct {
    const char *name;
    void (*run)(void);
} CASES[] = {
    {"nothing", NULL},
    {"send", sends},
    {"recv", receives},
    {"recv of nothing", finds_nothing},
    {"writev, readv", writes_and_reads},
    {"sendmsg, recvmsg", sends_messages},
    {"SO_ERROR", asks_for_the_error},
    {"TCP_NODELAY", sets_an_option},
    {"getsockname, getpeername", asks_for_the_names},
    {"FIONREAD", asks_for_the_amount},
    {"EPOLL_CTL_MOD", changes},
    {"EPOLL_CTL_DEL, EPOLL_CTL_ADD", removes_and_adds},
    {"send again", sends},
    {"epoll_wait", waits},
    {"poll", polls},
};
#define COUNT (int)(sizeof CASES / sizeof *CASES)

static int child(void) {
    pair(f);
    set = epoll_create1(0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, f[1], &event) == 0);
    if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0)
        return 77;
    raise(SIGSTOP);
    for (int i = 0; i < COUNT; i++) {
        getppid();
        for (int n = 0; n < TIMES && CASES[i].run; n++)
            CASES[i].run();
    }
    getppid();
    return 0;
}

int main(void) {
    int status, at = -1, made = 0;
    pid_t pid = fork();
    if (pid == 0)
        _exit(child());
    CHECK(waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        printf("skipped: no process may trace another here\n");
        return 0;
    }
    CHECK(WIFSTOPPED(status));
    CHECK(ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) == 0);
    for (;;) {
        struct __ptrace_syscall_info info;
        CHECK(ptrace(PTRACE_SYSCALL, pid, 0, 0) == 0);
        CHECK(waitpid(pid, &status, 0) == pid);
        if (!WIFSTOPPED(status))
            break;
        CHECK(WSTOPSIG(status) == (SIGTRAP | 0x80));
        CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) > 0);
        if (info.op != PTRACE_SYSCALL_INFO_ENTRY)
            continue;
        if (info.entry.nr == SYS_getppid) {
            if (at >= 0)
                printf("%s: %d\n", CASES[at].name, made);
            at++, made = 0;
        } else
            made++;
    }
    CHECK(status == 0 && at == COUNT);
    return 0;
}
