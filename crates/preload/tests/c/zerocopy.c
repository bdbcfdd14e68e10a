/* MSG_ZEROCOPY: what the error queue tells of sends whose bytes had to be copied, as on the kernel's loopback interface. */
#include "common.h"
#include <linux/errqueue.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif

static int is_on(int fd) {
    int on = -1;
    socklen_t len = sizeof on;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, &len) == 0);
    return on;
}

/* One message of the error queue: returns what recvmsg did. */
static long report(int fd, struct sock_extended_err *error, int *level, int *kind, int *flags) {
    char control[128];
    struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
    long n = recvmsg(fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT);
    struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&m);
    if (c) {
        CHECK(c->cmsg_len >= CMSG_LEN(sizeof *error));
        memcpy(error, CMSG_DATA(c), sizeof *error);
        *level = c->cmsg_level, *kind = c->cmsg_type, *flags = m.msg_flags;
    }
    return n;
}

static void send_and_hear(int from, int to, int times) {
    char b[10000], got[10000];
    memset(b, 'z', sizeof b);
    for (int i = 0; i < times; i++) {
        CHECK(send(from, b, sizeof b, MSG_ZEROCOPY) == sizeof b);
        CHECK(recv(to, got, sizeof got, MSG_WAITALL) == sizeof got && memcmp(b, got, sizeof b) == 0);
    }
    /* Notices may come together. */
    for (unsigned next = 0; next < (unsigned)times;) {
        struct pollfd p = {.fd = from};
        struct sock_extended_err e;
        int level, kind, flags;
        CHECK(poll(&p, 1, 5000) == 1 && p.revents & POLLERR);
        CHECK(report(from, &e, &level, &kind, &flags) == 0);
        CHECK(e.ee_info == next && e.ee_data >= next);
        CHECK(level == SOL_IP && kind == IP_RECVERR && flags == MSG_ERRQUEUE);
        CHECK(e.ee_errno == 0 && e.ee_origin == SO_EE_ORIGIN_ZEROCOPY && e.ee_code == SO_EE_CODE_ZEROCOPY_COPIED);
        next = e.ee_data + 1;
    }
    struct pollfd p = {.fd = from};
    struct sock_extended_err e;
    int level, kind, flags;
    printf("silent %d %s\n", poll(&p, 1, 0), said(report(from, &e, &level, &kind, &flags)));
}

static long result;

static void *receives(void *fd) {
    char b[8];
    begins_to_wait();
    result = recv(*(int *)fd, b, sizeof b, 0);
    return NULL;
}

static char many[1 << 20];

static void *sends(void *fd) {
    begins_to_wait();
    result = send(*(int *)fd, many, 1000, 0);
    return NULL;
}

static void *selects(void *fd) {
    fd_set urgent;
    FD_ZERO(&urgent);
    FD_SET(*(int *)fd, &urgent);
    begins_to_wait();
    result = select(*(int *)fd + 1, NULL, NULL, &urgent, NULL);
    return NULL;
}

/* A notice that the program has not taken ends no call that waits for something else. */
static void waits_beside_a_notice(int fd, int other) {
    struct pollfd p = {.fd = fd};
    pthread_t t;
    CHECK(send(fd, "z", 1, MSG_ZEROCOPY) == 1 && recv(other, many, 1, 0) == 1);
    CHECK(poll(&p, 1, 5000) == 1 && p.revents == POLLERR);
    CHECK(pthread_create(&t, NULL, receives, &fd) == 0);
    int sleeps = falls_asleep();
    CHECK(send(other, "late", 4, 0) == 4 && pthread_join(t, NULL) == 0);
    printf("recv sleeps %d and returns %ld\n", sleeps, result);
    CHECK(pthread_create(&t, NULL, selects, &fd) == 0);
    sleeps = falls_asleep();
    CHECK(send(other, "u", 1, MSG_OOB) == 1 && pthread_join(t, NULL) == 0);
    printf("select sleeps %d and returns %ld\n", sleeps, result);
    while (send(fd, many, sizeof many, MSG_DONTWAIT) > 0)
        ;
    CHECK(pthread_create(&t, NULL, sends, &fd) == 0);
    sleeps = falls_asleep();
    while (recv(other, many, sizeof many, MSG_DONTWAIT) > 0 || pthread_tryjoin_np(t, NULL) != 0)
        ;
    printf("send sleeps %d and returns %ld\n", sleeps, result);
}

int main(void) {
    int f[2], on = 1;
    struct sockaddr_in at;
    pair(f);
    /* Without the option the flag means nothing. */
    printf("off %d %s", is_on(f[0]), said(send(f[0], "plain", 5, MSG_ZEROCOPY)));
    printf(" %s\n", said(recv(f[1], (char[8]){0}, 8, 0)));
    CHECK(setsockopt(f[0], SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0);
    printf("on %d\n", is_on(f[0]));
    send_and_hear(f[0], f[1], 5);
    int two = 2;
    printf("two %s\n", said(setsockopt(f[0], SOL_SOCKET, SO_ZEROCOPY, &two, sizeof two)));

    /* Set on a listener. */
    int l = listener(&at);
    CHECK(setsockopt(l, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0);
    int c = connected(&at), s = accept(l, NULL, NULL);
    CHECK(s >= 0);
    printf("inherited %d\n", is_on(s));
    if (is_on(s))
        send_and_hear(s, c, 2);

    /* Set before connect. */
    c = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(setsockopt(c, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0);
    CHECK(connect(c, (struct sockaddr *)&at, sizeof at) == 0);
    s = accept(l, NULL, NULL);
    CHECK(s >= 0);
    send_and_hear(c, s, 3);
    waits_beside_a_notice(c, s);
    return 0;
}
