/* 1,024 connections in one epoll set echo 100 messages each; none is lost or mixed up. */
#include "common.h"
#define CROWD 1024
#define ROUNDS 100

static struct sockaddr_in at;
static int l;

static void *serve(void *p) {
    (void)p;
    int ep = epoll_create1(0), open = 0, all = 0;
    struct epoll_event e = {.events = EPOLLIN, .data.fd = l}, got[128];
    nonblock(l);
    CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, l, &e) == 0);
    while (all < CROWD || open > 0) {
        int n = epoll_wait(ep, got, 128, 10000);
        CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            int fd = got[i].data.fd;
            if (fd == l) {
                int s;
                while ((s = accept4(l, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    e = (struct epoll_event){.events = EPOLLIN | EPOLLET | EPOLLRDHUP, .data.fd = s};
                    CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, s, &e) == 0);
                    open++, all++;
                }
                CHECK(errno == EAGAIN);
                continue;
            }
            char b[256];
            long r;
            while ((r = read(fd, b, sizeof b)) > 0)
                CHECK(write(fd, b, r) == r);
            if (r == 0)
                close(fd), open--;
            else
                CHECK(errno == EAGAIN);
        }
    }
    close(ep);
    return NULL;
}

int main(void) {
    struct rlimit most;
    getrlimit(RLIMIT_NOFILE, &most);
    most.rlim_cur = most.rlim_max < 8192 ? most.rlim_max : 8192;
    setrlimit(RLIMIT_NOFILE, &most);
    l = listener(&at);
    pthread_t t;
    pthread_create(&t, NULL, serve, NULL);
    static int fds[CROWD], round[CROWD];
    int ep = epoll_create1(0), left = CROWD;
    struct epoll_event e, got[64];
    char b[64], want[64];
    for (int i = 0; i < CROWD; i++) {
        fds[i] = connected(&at);
        nonblock(fds[i]);
        e = (struct epoll_event){.events = EPOLLIN, .data.u32 = i};
        CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &e) == 0);
        int n = sprintf(b, "%d/%d;", i, 0);
        CHECK(send(fds[i], b, n, 0) == n);
    }
    while (left > 0) {
        int n = epoll_wait(ep, got, 64, 10000);
        CHECK(n > 0);
        for (int k = 0; k < n; k++) {
            int i = got[k].data.u32;
            int len = sprintf(want, "%d/%d;", i, round[i]);
            CHECK(recv(fds[i], b, sizeof b, 0) == len && !memcmp(b, want, len));
            if (++round[i] == ROUNDS) {
                close(fds[i]), left--;
                continue;
            }
            len = sprintf(b, "%d/%d;", i, round[i]);
            CHECK(send(fds[i], b, len, 0) == len);
        }
    }
    pthread_join(t, NULL);
    printf("%d connections, %d messages each\n", CROWD, ROUNDS);
    return 0;
}
