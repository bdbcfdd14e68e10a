// echo_load HOST PORT CONNECTIONS MESSAGES SIZE [SECONDS [HOLD]]: opens all connections, then sends MESSAGES messages of SIZE
// bytes on each (or as many as fit into SECONDS), one at a time, and checks every byte that comes back. Each message
// carries its connection's number and its own, so that a mix-up cannot pass. HOLD keeps the connections idle, in seconds.
#include "common.h"
#include <fcntl.h>
#include <sys/epoll.h>

enum { IN_FLIGHT = 256, SIZE_MAX_BYTES = 65536, BUCKETS = 64 * 16 };

struct connection {
    int fd;
    uint32_t sequence, sent, received;
    int64_t began;
    int open;
};

static struct connection *connections;
static uint32_t count, messages, size, opened, finished;
static int64_t deadline;
static uint64_t completed, histogram[BUCKETS];
static int epoll_fd;

// Sixteen buckets per power of two: 4 to 6 % wide.
static uint32_t bucket(uint64_t ns) {
    if (ns < 16) return (uint32_t)ns;
    uint32_t power = 63 - (uint32_t)__builtin_clzll(ns);
    return power * 16 + (uint32_t)((ns >> (power - 4)) & 15);
}

static double percentile_us(double fraction) {
    uint64_t seen = 0, wanted = (uint64_t)(fraction * (double)completed);
    for (uint32_t i = 0; i < BUCKETS; i++) {
        seen += histogram[i];
        if (seen > wanted) return i < 16 ? i / 1e3 : (double)((16ull + i % 16) << (i / 16 - 4)) / 1e3;
    }
    return 0;
}

static void compose(const struct connection *c, unsigned char *out) {
    uint32_t number = (uint32_t)(c - connections);
    for (uint32_t i = 0; i < size; i++) out[i] = (unsigned char)(number * 31 + c->sequence * 7 + i);
    memcpy(out, &number, size < 4 ? size : 4);
    if (size >= 8) memcpy(out + 4, &c->sequence, 4);
}

static void fail(const struct connection *c, const char *what) {
    fprintf(stderr, "connection %u, message %u: %s: %s\n", (uint32_t)(c - connections), c->sequence, what, strerror(errno));
    exit(1);
}

static void watch(struct connection *c, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    CHECK(epoll_ctl(epoll_fd, operation, c->fd, &event) == 0);
}

static void send_message(struct connection *c) {
    unsigned char out[SIZE_MAX_BYTES];
    compose(c, out);
    if (c->sent == 0) c->began = now_ns();
    while (c->sent < size) {
        ssize_t n = send(c->fd, out + c->sent, size - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) { watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT); return; }
        if (n <= 0) fail(c, "send");
        c->sent += (uint32_t)n;
    }
}

// True when the whole message is back.
static int receive_message(struct connection *c) {
    unsigned char in[SIZE_MAX_BYTES], expected[SIZE_MAX_BYTES];
    compose(c, expected);
    while (c->received < size) {
        ssize_t n = recv(c->fd, in, size - c->received, 0);
        if (n < 0 && errno == EAGAIN) return 0;
        if (n == 0) { errno = 0; fail(c, "end of stream"); }
        if (n < 0) fail(c, "recv");
        if (memcmp(in, expected + c->received, (size_t)n) != 0) { errno = 0; fail(c, "wrong bytes"); }
        c->received += (uint32_t)n;
    }
    return 1;
}

static void echo(struct connection *c, uint32_t events) {
    if ((events & EPOLLOUT) && c->sent < size) {
        send_message(c);
        if (c->sent == size) watch(c, EPOLL_CTL_MOD, EPOLLIN);
    }
    while (receive_message(c)) {
        int64_t now = now_ns();
        histogram[bucket((uint64_t)(now - c->began))]++;
        completed++;
        c->sequence++;
        c->sent = c->received = 0;
        if (deadline ? now >= deadline : c->sequence == messages) { finished++; return; }
        send_message(c);
    }
}

static void open_one(struct connection *c, const struct sockaddr_storage *address, socklen_t length) {
    int on = 1;
    c->fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) fail(c, "socket");
    CHECK(setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    if (connect(c->fd, (const struct sockaddr *)address, length) < 0 && errno != EINPROGRESS) fail(c, "connect");
    watch(c, EPOLL_CTL_ADD, EPOLLOUT);
}

static void check_open(struct connection *c) {
    int error = 0;
    socklen_t length = sizeof error;
    CHECK(getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
    if (error != 0) { errno = error; fail(c, "connect"); }
    c->open = 1;
    opened++;
    watch(c, EPOLL_CTL_MOD, EPOLLIN);
}

int main(int argc, char **argv) {
    CHECK(argc >= 6);
    count = (uint32_t)atoi(argv[3]);
    messages = (uint32_t)atoi(argv[4]);
    size = (uint32_t)atoi(argv[5]);
    double seconds = argc > 6 ? atof(argv[6]) : 0, hold = argc > 7 ? atof(argv[7]) : 0;
    CHECK(count > 0 && size > 0 && size <= SIZE_MAX_BYTES);
    raise_descriptor_limit();
    struct sockaddr_storage address;
    socklen_t length = parse_address(argv[1], argv[2], &address);
    connections = calloc(count, sizeof *connections);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    CHECK(connections != NULL && epoll_fd >= 0);

    struct epoll_event events[256];
    uint32_t started = 0;
    while (opened < count) {
        while (started < count && started - opened < IN_FLIGHT) open_one(&connections[started++], &address, length);
        int n = epoll_wait(epoll_fd, events, 256, 10000);
        if (n == 0) { fprintf(stderr, "connect: only %u of %u within 10 s\n", opened, count); return 1; }
        CHECK(n > 0 || errno == EINTR);
        for (int i = 0; i < n; i++) check_open(events[i].data.ptr);
    }
    fprintf(stderr, "open\n");
    if (seconds > 0) deadline = now_ns() + (int64_t)(seconds * 1e9);
    for (uint32_t i = 0; i < count; i++) send_message(&connections[i]);
    while (finished < count) {
        int n = epoll_wait(epoll_fd, events, 256, 10000);
        if (n == 0) { fprintf(stderr, "echo: nothing for 10 s, %u of %u finished\n", finished, count); return 1; }
        CHECK(n > 0 || errno == EINTR);
        for (int i = 0; i < n; i++) echo(events[i].data.ptr, events[i].events);
    }
    printf("connections %u messages %lu p50_us %.1f p99_us %.1f\n", count, (unsigned long)completed, percentile_us(0.5), percentile_us(0.99));
    fflush(stdout);
    if (hold > 0) usleep((useconds_t)(hold * 1e6));
    return 0;
}
