/* A server that accepts and resets at once: what connect, the next call, poll, epoll and TCP_INFO say. */
#include "common.h"

#define ROUNDS 400
#define WAITING 3
#define ALL (POLLIN | POLLOUT | POLLRDHUP | POLLERR | POLLHUP)

/* Accepts and resets for ever. */
static void serve(int l) {
    struct linger hard = {.l_onoff = 1};
    for (;;) {
        int s = accept(l, NULL, NULL);
        CHECK(s >= 0);
        CHECK(setsockopt(s, SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0);
        close(s);
    }
}

static struct tcp_info info(int fd) {
    struct tcp_info info;
    socklen_t len = sizeof info;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
    return info;
}

static int error_of(int fd) {
    int error = -1;
    socklen_t len = sizeof error;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0);
    return error;
}

static void blocking(const struct sockaddr_in *at) {
    int connects = 0, resets = 0;
    char b[4];
    for (int i = 0; i < ROUNDS; i++) {
        int c = socket(AF_INET, SOCK_STREAM, 0);
        connects += connect(c, (const struct sockaddr *)at, sizeof *at) == 0;
        resets += recv(c, b, sizeof b, 0) < 0 && errno == ECONNRESET;
        CHECK(info(c).tcpi_state == TCP_CLOSE);
        close(c);
    }
    // A busy kernel says now and then that a connection was refused or reset while it was made.
    printf("blocking: connected %s, reset afterwards %s\n", connects >= 380 ? "nearly all" : "too few", resets >= 380 ? "nearly all" : "too few");
}

/* `in_a_set`: epoll tells, else poll. */
static void not_blocking(const struct sockaddr_in *at, int in_a_set) {
    int bad = 0;
    for (int i = 0; i < ROUNDS; i++) {
        int c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), set = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP};
        struct pollfd one = {.fd = c, .events = POLLIN | POLLOUT | POLLRDHUP};
        unsigned seen = 0;
        CHECK(connect(c, (const struct sockaddr *)at, sizeof *at) < 0 && errno == EINPROGRESS);
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, c, &event) == 0);
        /* The kernel tells a reset that is just coming bit by bit. */
        for (int tries = 0; seen != ALL && tries < 100000; tries++) {
            CHECK((in_a_set ? epoll_wait(set, &event, 1, 10000) : poll(&one, 1, 10000)) == 1);
            seen = in_a_set ? event.events : (unsigned)one.revents;
        }
        bad += seen != ALL;
        bad += error_of(c) != ECONNRESET || error_of(c) != 0;
        bad += recv(c, &seen, 1, 0) != 0;
        close(set);
        close(c);
    }
    printf("%s: %d differ\n", in_a_set ? "epoll" : "poll", bad);
}

static void say(const char *when, int fd) {
    struct tcp_info i = info(fd);
    printf("%s: state %d, %d wait of %d\n", when, i.tcpi_state, i.tcpi_unacked, i.tcpi_sacked);
}

static void informed(void) {
    struct sockaddr_in at;
    int fresh = socket(AF_INET, SOCK_STREAM, 0), l = listener(&at), clients[WAITING];
    say("fresh", fresh);
    say("listening", l);
    for (int i = 0; i < WAITING; i++)
        clients[i] = connected(&at);
    say("not yet accepted", l);
    int s = accept(l, NULL, NULL);
    say("one accepted", l);
    close(s);
    for (int i = 0; i < WAITING; i++)
        close(clients[i]);
    CHECK(shutdown(l, SHUT_RDWR) == 0);
    printf("shut: state %d\n", info(l).tcpi_state);
}

int main(void) {
    struct sockaddr_in at;
    int l = listener(&at);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        serve(l);
    blocking(&at);
    not_blocking(&at, 0);
    not_blocking(&at, 1);
    kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child);
    informed();
}
