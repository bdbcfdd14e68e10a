/* Readiness: epoll level, edge, oneshot; poll; select; a non-blocking connect; a full buffer. */
#include "common.h"

static int ep;
static const char *wait_for(int ms) {
    struct epoll_event e[8];
    static char text[256];
    int n = epoll_wait(ep, e, 8, ms);
    int at = snprintf(text, sizeof text, "%s", said(n));
    for (int i = 0; i < n; i++)
        at += snprintf(text + at, sizeof text - at, " %d:%s", (int)e[i].data.u64, bits(e[i].events));
    return text;
}
static void add(int op, int fd, unsigned events, int name) {
    struct epoll_event e = {.events = events, .data.u64 = name};
    printf("ctl %s\n", said(epoll_ctl(ep, op, fd, &e)));
}

static void *later(void *p) {
    nap(50);
    CHECK(send(*(int *)p, "late", 4, 0) == 4);
    return NULL;
}

static void *polls_in_vain(void *set) {
    struct pollfd p = {.fd = *(int *)set, .events = POLLOUT};
    begins_to_wait();
    poll(&p, 1, -1);
    return NULL;
}

int main(void) {
    int f[2];
    char b[65536] = {0};
    ep = epoll_create1(EPOLL_CLOEXEC);
    pair(f);
    nonblock(f[0]), nonblock(f[1]);
    add(EPOLL_CTL_ADD, f[1], EPOLLIN, 1);
    add(EPOLL_CTL_ADD, f[1], EPOLLIN, 1);
    printf("quiet %s\n", wait_for(20));
    CHECK(send(f[0], "abc", 3, 0) == 3);
    printf("level %s\n", wait_for(200));
    printf("level %s\n", wait_for(0));
    CHECK(recv(f[1], b, 9, 0) == 3);
    printf("level %s\n", wait_for(0));
    add(EPOLL_CTL_MOD, f[1], EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP, 2);
    printf("edge %s\n", wait_for(0));
    printf("edge %s\n", wait_for(0));
    CHECK(send(f[0], "abc", 3, 0) == 3);
    printf("edge %s\n", wait_for(200));
    printf("edge %s\n", wait_for(20));
    CHECK(send(f[0], "def", 3, 0) == 3);
    printf("edge %s\n", wait_for(200));
    CHECK(recv(f[1], b, 9, 0) == 6);
    printf("edge %s\n", wait_for(20));
    long full = 0, n;
    while ((n = send(f[1], b, sizeof b, 0)) > 0)
        full += n;
    printf("full %d %s\n", full > 100000, said(n));
    printf("full %s\n", wait_for(20));
    long got = 0;
    while (got < full) {
        n = recv(f[0], b, sizeof b, 0);
        if (n < 0) {
            CHECK(errno == EAGAIN);
            nap(1);
            continue;
        }
        got += n;
    }
    printf("space %s\n", wait_for(200));
    printf("space %s\n", wait_for(20));
    CHECK(shutdown(f[0], SHUT_WR) == 0);
    printf("fin %s\n", wait_for(200));
    printf("fin %s\n", wait_for(20));
    add(EPOLL_CTL_MOD, f[1], EPOLLIN | EPOLLONESHOT, 3);
    printf("once %s\n", wait_for(200));
    printf("once %s\n", wait_for(20));
    add(EPOLL_CTL_DEL, f[1], 0, 0);
    add(EPOLL_CTL_DEL, f[1], 0, 0);
    close(f[0]), close(f[1]);

    struct sockaddr_in at;
    int l = listener(&at), c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    add(EPOLL_CTL_ADD, l, EPOLLIN, 10);
    printf("connect %s\n", said(connect(c, (struct sockaddr *)&at, sizeof at)));
    add(EPOLL_CTL_ADD, c, EPOLLOUT, 11);
    nap(20);
    struct epoll_event e[8];
    n = epoll_wait(ep, e, 8, 200);
    unsigned seen = 0;
    for (int i = 0; i < n; i++)
        seen |= e[i].data.u64 == 10 ? e[i].events : e[i].events << 16;
    printf("both %ld %s %s\n", n, bits(seen & 0xffff), bits(seen >> 16));
    printf("connect %s\n", said(connect(c, (struct sockaddr *)&at, sizeof at)));
    printf("connect %s\n", said(connect(c, (struct sockaddr *)&at, sizeof at)));
    int s = accept(l, NULL, NULL), p[2];
    CHECK(s >= 0 && pipe(p) == 0);
    struct pollfd fds[3] = {{s, POLLIN | POLLOUT, 0}, {p[0], POLLIN, 0}, {-1, POLLIN, 0}};
    printf("poll %s %s %s\n", said(poll(fds, 3, 50)), bits(fds[0].revents), bits(fds[1].revents));
    fds[0].events = POLLIN;
    printf("poll %s\n", said(poll(fds, 3, 20)));
    CHECK(write(p[1], "x", 1) == 1);
    printf("poll %s %s\n", said(poll(fds, 3, 50)), bits(fds[1].revents));
    CHECK(read(p[0], b, 1) == 1);
    pthread_t t;
    pthread_create(&t, NULL, later, &c);
    printf("poll %s", said(poll(fds, 3, 2000)));
    printf(" %s %s\n", bits(fds[0].revents), bits(fds[1].revents));
    pthread_join(t, NULL);
    fd_set r, w;
    FD_ZERO(&r);
    FD_ZERO(&w);
    FD_SET(s, &r);
    FD_SET(p[0], &r);
    FD_SET(s, &w);
    struct timeval tv = {1, 0};
    printf("select %s", said(select((s > p[0] ? s : p[0]) + 1, &r, &w, NULL, &tv)));
    printf(" %d %d %d\n", FD_ISSET(s, &r), FD_ISSET(p[0], &r), FD_ISSET(s, &w));
    CHECK(recv(s, b, 9, 0) == 4);
    /* A blocked receiver is woken; an epoll set that holds the same socket too. */
    add(EPOLL_CTL_ADD, s, EPOLLIN, 12);
    pthread_create(&t, NULL, later, &c);
    printf("blocked %s\n", said(recv(s, b, 9, 0)));
    pthread_join(t, NULL);
    pthread_create(&t, NULL, later, &c);
    add(EPOLL_CTL_DEL, c, 0, 0);
    printf("epoll %s\n", wait_for(2000));
    pthread_join(t, NULL);
    /* An epoll descriptor is itself pollable. */
    fds[0] = (struct pollfd){ep, POLLIN, 0};
    printf("nested %s %s\n", said(poll(fds, 1, 1000)), bits(fds[0].revents));
    CHECK(recv(s, b, 9, 0) == 4);
    pthread_create(&t, NULL, later, &c);
    printf("nested %s", said(poll(fds, 1, 2000)));
    printf(" %s\n", bits(fds[0].revents));
    pthread_join(t, NULL);
    /* It is never writable: a thread that polls it for that sleeps, though the set has events. */
    pthread_create(&t, NULL, polls_in_vain, &ep);
    printf("in vain %d\n", falls_asleep());
    CHECK(pthread_cancel(t) == 0 && pthread_join(t, NULL) == 0);
    close(c);
    nap(20);
    printf("gone %s\n", wait_for(200));
    close(s);
    printf("closed %s\n", wait_for(20));
    return 0;
}
