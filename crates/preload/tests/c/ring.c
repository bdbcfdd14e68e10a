/* A program whose first act is a non-blocking connect beside an epoll set and an io_uring made by `syscall`, as one of libuv: its ring changes
   the set afterwards, or is used on the socket itself. */
#include "common.h"
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static struct io_uring_params params;
static struct io_uring_sqe *entries;
static struct io_uring_cqe *results;
static unsigned *head, *tail, *done_head, *done_tail;
static int ring, set;

static int make(void) {
    memset(&params, 0, sizeof params);
    ring = syscall(SYS_io_uring_setup, 8, &params);
    if (ring < 0)
        return 0;
    size_t len = params.sq_off.array + params.sq_entries * 4;
    size_t most = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    char *at = mmap(NULL, len > most ? len : most, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    entries = mmap(NULL, params.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    CHECK(at != MAP_FAILED && entries != MAP_FAILED && params.features & IORING_FEAT_SINGLE_MMAP);
    head = (unsigned *)(at + params.sq_off.head), tail = (unsigned *)(at + params.sq_off.tail);
    done_head = (unsigned *)(at + params.cq_off.head), done_tail = (unsigned *)(at + params.cq_off.tail);
    results = (struct io_uring_cqe *)(at + params.cq_off.cqes);
    for (unsigned i = 0; i < params.sq_entries; i++)
        ((unsigned *)(at + params.sq_off.array))[i] = i;
    return 1;
}

/* Hands one entry to the kernel and waits for what comes of it. */
static int enter(struct io_uring_sqe entry) {
    entries[*tail & (params.sq_entries - 1)] = entry;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
    CHECK(__atomic_load_n(done_tail, __ATOMIC_ACQUIRE) != *done_head);
    int result = results[*done_head & (params.cq_entries - 1)].res;
    __atomic_store_n(done_head, *done_head + 1, __ATOMIC_RELEASE);
    return result;
}

static int add(int fd) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.fd = fd};
    return enter((struct io_uring_sqe){.opcode = IORING_OP_EPOLL_CTL, .fd = set, .addr = (unsigned long)&event,
                                       .len = EPOLL_CTL_ADD, .off = fd});
}

static int connects(const struct sockaddr_in *at) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(fd >= 0);
    int result = connect(fd, (const struct sockaddr *)at, sizeof *at);
    CHECK(result == -1 && (errno == EINPROGRESS || errno == ECONNREFUSED));
    return fd;
}

static const char *error_of(int fd) {
    int error = -1;
    socklen_t len = sizeof error;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0);
    return error ? strerrorname_np(error) : "none";
}

/* Says on standard error whether the kernel has that connection: its list has hexadecimal ports. */
static void whose(const char *name, int fd, const struct sockaddr_in *at) {
    struct sockaddr_in own;
    socklen_t len = sizeof own;
    char line[256], here[16], there[16];
    int n = 0;
    FILE *all = fopen("/proc/self/net/tcp", "r");
    CHECK(all && getsockname(fd, (struct sockaddr *)&own, &len) == 0);
    snprintf(here, sizeof here, ":%04X ", ntohs(own.sin_port));
    snprintf(there, sizeof there, ":%04X ", ntohs(at->sin_port));
    while (fgets(line, sizeof line, all))
        n += strstr(line, here) != NULL && strstr(line, there) != NULL;
    fclose(all);
    fprintf(stderr, "%s: %s\n", name, n ? "the kernel's" : "ours");
}

/* In a process of its own: what the ring is for is known afterwards. */
static void apart(void (*act)(const struct sockaddr_in *), const struct sockaddr_in *at) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        set = epoll_create1(0);
        if (!make())
            exit(printf("there is no io_uring here\n") == 0);
        act(at);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Answers one message of each connection. */
static void serve(int told) {
    struct sockaddr_in at;
    int l = listener(&at);
    char b[9];
    CHECK(write(told, &at, sizeof at) == sizeof at);
    for (;;) {
        int fd = accept(l, NULL, NULL);
        CHECK(fd >= 0 && recv(fd, b, 9, 0) == 4 && send(fd, "pong", 4, 0) == 4);
        close(fd);
    }
}

static void by_the_set(const struct sockaddr_in *at) {
    struct epoll_event event;
    char b[9];
    int fd = connects(at);
    CHECK(add(fd) == 0);
    do
        CHECK(epoll_wait(set, &event, 1, 10000) == 1);
    while (!(event.events & EPOLLOUT));
    printf("by the set: error %s, sent %s\n", error_of(fd), said(send(fd, "ping", 4, 0)));
    struct pollfd p = {fd, POLLIN, 0};
    CHECK(poll(&p, 1, 10000) == 1);
    printf("received %s\n", said(recv(fd, b, 9, 0)));
    whose("by the set", fd, at);
}

static void by_the_ring(const struct sockaddr_in *at) {
    char b[9];
    int fd = connects(at), ready;
    ready = enter((struct io_uring_sqe){.opcode = IORING_OP_POLL_ADD, .fd = fd, .poll32_events = POLLOUT});
    printf("by the ring: ready %d, error %s\n", ready, error_of(fd));
    printf("sent %d,", enter((struct io_uring_sqe){.opcode = IORING_OP_SEND, .fd = fd, .addr = (unsigned long)"ping", .len = 4}));
    printf(" received %d\n", enter((struct io_uring_sqe){.opcode = IORING_OP_RECV, .fd = fd, .addr = (unsigned long)b, .len = 9}));
    whose("by the ring", fd, at);
}

/* Nothing of the kind: the program sends when it thinks that it may, and has a descriptor more. */
static void by_calls(const struct sockaddr_in *at) {
    char b[9];
    int fd = dup(connects(at));
    struct pollfd p = {fd, POLLOUT, 0};
    CHECK(poll(&p, 1, 10000) == 1);
    printf("by calls: sent %s,", said(send(fd, "ping", 4, 0)));
    p.events = POLLIN;
    CHECK(poll(&p, 1, 10000) == 1);
    printf(" received %s\n", said(recv(fd, b, 9, 0)));
}

static void refused(const struct sockaddr_in *at) {
    struct epoll_event event;
    struct sockaddr_in none = *at;
    int l = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t len = sizeof none;
    none.sin_port = 0;
    CHECK(bind(l, (struct sockaddr *)&none, sizeof none) == 0 && getsockname(l, (struct sockaddr *)&none, &len) == 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), result = connect(fd, (struct sockaddr *)&none, sizeof none);
    int at_once = result == -1 && errno == ECONNREFUSED;
    if (!at_once) {
        CHECK(errno == EINPROGRESS && add(fd) == 0 && epoll_wait(set, &event, 1, 10000) == 1);
        at_once = strcmp(error_of(fd), "ECONNREFUSED") == 0;
    }
    printf("refused: %d\n", at_once);
    close(fd);
    by_calls(at);
}

int main(void) {
    struct sockaddr_in at;
    int told[2];
    CHECK(pipe(told) == 0);
    pid_t server = fork();
    if (server == 0)
        serve(told[1]);
    CHECK(read(told[0], &at, sizeof at) == sizeof at);
    apart(by_the_set, &at);
    apart(by_the_ring, &at);
    apart(by_calls, &at);
    apart(refused, &at);
    kill(server, SIGKILL);
    return 0;
}
