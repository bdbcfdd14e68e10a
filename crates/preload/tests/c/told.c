/* Signals about sockets (SIGIO, SIGURG), and identities of a program that asks for them: whatever sends the signals has no part in those. */
#include "common.h"
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef F_SETSIG
#define F_SETSIG 10
#endif

static volatile sig_atomic_t io, urgent, of;

static void told(int signal, siginfo_t *info, void *unused) {
    (void)unused;
    if (signal == SIGURG)
        urgent++;
    else
        io++;
    if (signal == SIGRTMIN)
        of = info->si_fd;
}

/* Whether that has come about, within a long time. */
static int within(volatile sig_atomic_t *count, int most) {
    for (int i = 0; i < 2000 && *count < most; i++)
        nap(5);
    return *count >= most;
}

static void asks(int fd) {
    CHECK(fcntl(fd, F_SETOWN, getpid()) == 0);
    CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC | O_NONBLOCK) == 0);
}

int main(void) {
    struct sigaction action = {.sa_sigaction = told, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct sockaddr_in at;
    char b[9];
    int f[2], own;
    CHECK(sigaction(SIGIO, &action, NULL) == 0 && sigaction(SIGURG, &action, NULL) == 0);
    CHECK(sigaction(SIGRTMIN, &action, NULL) == 0);
    pair(f);
    asks(f[1]);
    io = urgent = 0;
    CHECK(send(f[0], "data", 4, 0) == 4);
    printf("data: SIGIO %d, SIGURG %d\n", within(&io, 1), (int)urgent);
    CHECK(recv(f[1], b, 9, 0) == 4);
    CHECK(send(f[0], "!", 1, MSG_OOB) == 1);
    printf("urgent: SIGURG %d\n", within(&urgent, 1));
    CHECK(recv(f[1], b, 1, MSG_OOB) == 1);
    CHECK(fcntl(f[1], F_SETSIG, SIGRTMIN) == 0);
    io = of = 0;
    CHECK(send(f[0], "more", 4, 0) == 4);
    int is_told = within(&io, 1);
    printf("by its own signal: %d, of the socket %d\n", is_told, of == f[1]);
    io = 0;
    CHECK(recv(f[1], b, 9, 0) == 4);
    close(f[0]);
    printf("end: %d, read %s\n", within(&io, 1), said(recv(f[1], b, 9, 0)));
    close(f[1]);

    /* A listener, and a socket that asks before it is connected. */
    own = listener(&at);
    asks(own);
    io = 0;
    f[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fcntl(f[0], F_SETOWN, getpid()) == 0);
    CHECK(connect(f[0], (struct sockaddr *)&at, sizeof at) == 0);
    printf("listener: SIGIO %d\n", within(&io, 1));
    f[1] = accept(own, NULL, NULL);
    CHECK(f[1] >= 0);
    urgent = 0;
    CHECK(send(f[1], "!", 1, MSG_OOB) == 1);
    printf("asked before: SIGURG %d\n", within(&urgent, 1));

    /* As a server does that keeps one capability when it becomes another user, and becomes root again for a moment. */
    if (geteuid() == 0) {
        struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct caps[2] = {{1 << CAP_SETUID, 1 << CAP_SETUID, 0}};
        CHECK(prctl(PR_SET_KEEPCAPS, 1) == 0 && setresuid(65534, 65534, 65534) == 0);
        CHECK(syscall(SYS_capset, &header, caps) == 0);
        printf("root again: %s\n", said(seteuid(0)));
        printf("and no more: %s, %s\n", said(seteuid(65534)), said(setresuid(65533, 65533, 65533)));
        CHECK(syscall(SYS_capset, &header, &(struct __user_cap_data_struct[2]){{0, 0, 0}}) == 0);
        printf("refused alike: %s\n", said(seteuid(0)));
    }
    urgent = 0;
    CHECK(recv(f[0], b, 1, MSG_OOB) == 1);
    CHECK(send(f[1], "?", 1, MSG_OOB) == 1);
    printf("told still: SIGURG %d\n", within(&urgent, 1));
    return 0;
}
