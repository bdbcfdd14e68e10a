// echo_server HOST PORT level|edge: one thread, one epoll set, sends back whatever comes.
#include "common.h"
#include <signal.h>
#include <sys/epoll.h>

enum { BUFFER = 16384 };

// Bytes read and not yet written are in [start, end).
struct connection {
    int fd;
    uint32_t start, end;
    char buffer[BUFFER];
};

static int epoll_fd;
static int edge;

static void drop(struct connection *c) {
    close(c->fd);
    free(c);
}

static void watch(struct connection *c, int operation, uint32_t events) {
    struct epoll_event event = {.events = events | (edge ? EPOLLET : 0), .data.ptr = c};
    CHECK(epoll_ctl(epoll_fd, operation, c->fd, &event) == 0);
}

static void accept_all(int listener) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), on = 1;
        if (fd < 0) {
            CHECK(errno == EAGAIN || errno == ECONNABORTED || errno == EINTR);
            if (errno == EAGAIN) return;
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct connection *c = malloc(sizeof *c);
        CHECK(c != NULL);
        c->fd = fd;
        c->start = c->end = 0;
        watch(c, EPOLL_CTL_ADD, edge ? EPOLLIN | EPOLLOUT : EPOLLIN);
    }
}

// Writes what is there. False: no room now, or the connection is gone (then *gone is set).
static int flush(struct connection *c, int *gone) {
    while (c->start < c->end) {
        ssize_t n = send(c->fd, c->buffer + c->start, c->end - c->start, MSG_NOSIGNAL);
        if (n < 0) {
            *gone = errno != EAGAIN && errno != EINTR;
            return 0;
        }
        c->start += (uint32_t)n;
    }
    c->start = c->end = 0;
    return 1;
}

static void serve(struct connection *c) {
    int gone = 0, was_blocked = c->start < c->end;
    for (;;) {
        if (!flush(c, &gone)) {
            if (gone) { drop(c); return; }
            if (!edge && !was_blocked) watch(c, EPOLL_CTL_MOD, EPOLLOUT);
            return;
        }
        if (!edge && was_blocked) { watch(c, EPOLL_CTL_MOD, EPOLLIN); was_blocked = 0; }
        ssize_t n = recv(c->fd, c->buffer, BUFFER, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) { drop(c); return; }
        if (n < 0) return;
        c->end = (uint32_t)n;
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    edge = strcmp(argv[3], "edge") == 0;
    signal(SIGPIPE, SIG_IGN);
    raise_descriptor_limit();
    int listener = listen_at(argv[1], argv[2], SOCK_NONBLOCK);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    CHECK(epoll_fd >= 0);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[256];
    CHECK(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event) == 0);
    for (;;) {
        int n = epoll_wait(epoll_fd, events, 256, -1);
        CHECK(n >= 0 || errno == EINTR);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == NULL) accept_all(listener);
            else serve(events[i].data.ptr);
        }
    }
}
