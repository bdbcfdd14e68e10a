/* io_uring: what a ring is given to do comes to the same as the calls. Rings that are made and entered through the C library, and those
 * of programs that make the system calls themselves, as liburing does. */
#include "differ.h"
#include <linux/io_uring.h>
#include <sys/syscall.h>

static char b[64];

struct ring {
    int fd, is_own;
    unsigned mask, done_mask, *tail, *array, *done_head, *done_tail;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *done;
};

static long call_itself(long n, long a1, long a2, long a3, long a4) {
#ifdef __x86_64__
    long result;
    register long r10 __asm__("r10") = a4, r8 __asm__("r8") = 0, r9 __asm__("r9") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(n), "D"(a1), "S"(a2), "d"(a3), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    if (result < 0) {
        errno = (int)-result;
        return -1;
    }
    return result;
#else
    return syscall(n, a1, a2, a3, a4, 0, 0);
#endif
}

static long ring_call(int is_own, long n, long a1, long a2, long a3, long a4) {
    return is_own ? call_itself(n, a1, a2, a3, a4) : syscall(n, a1, a2, a3, a4, 0, 0);
}

/* Ends the case where there are no rings, the same on both sides. */
static struct ring ring_of(int is_own) {
    struct io_uring_params p = {0};
    struct ring r = {.is_own = is_own, .fd = (int)ring_call(is_own, SYS_io_uring_setup, 8, (long)&p, 0, 0)};
    if (r.fd < 0) {
        say("there are no rings here");
        exit(0);
    }
    size_t words = p.sq_off.array + p.sq_entries * 4, done = p.cq_off.cqes + p.cq_entries * sizeof *r.done;
    int how = PROT_READ | PROT_WRITE;
    char *s = mmap(NULL, words, how, MAP_SHARED, r.fd, IORING_OFF_SQ_RING);
    char *c = mmap(NULL, done, how, MAP_SHARED, r.fd, IORING_OFF_CQ_RING);
    r.entries = mmap(NULL, p.sq_entries * sizeof *r.entries, how, MAP_SHARED, r.fd, IORING_OFF_SQES);
    MUST(s == MAP_FAILED || c == MAP_FAILED || (void *)r.entries == MAP_FAILED ? -1 : 0);
    r.mask = *(unsigned *)(s + p.sq_off.ring_mask), r.done_mask = *(unsigned *)(c + p.cq_off.ring_mask);
    r.tail = (unsigned *)(s + p.sq_off.tail), r.array = (unsigned *)(s + p.sq_off.array);
    r.done_head = (unsigned *)(c + p.cq_off.head), r.done_tail = (unsigned *)(c + p.cq_off.tail);
    r.done = (struct io_uring_cqe *)(c + p.cq_off.cqes);
    return r;
}

static void give(struct ring *r, struct io_uring_sqe e) {
    unsigned at = *r->tail & r->mask;
    r->entries[at] = e;
    r->array[at] = at;
    __atomic_store_n(r->tail, *r->tail + 1, __ATOMIC_RELEASE);
}

static void enter(struct ring *r, unsigned n, unsigned wanted) {
    MUST(ring_call(r->is_own, SYS_io_uring_enter, r->fd, n, wanted, IORING_ENTER_GETEVENTS));
}

/* The next result, as a call would have it. */
static long result(struct ring *r) {
    if (*r->done_head == __atomic_load_n(r->done_tail, __ATOMIC_ACQUIRE))
        enter(r, 0, 1);
    int res = r->done[*r->done_head & r->done_mask].res;
    __atomic_store_n(r->done_head, *r->done_head + 1, __ATOMIC_RELEASE);
    if (res < 0) {
        errno = -res;
        return -1;
    }
    return res;
}

static long perform(struct ring *r, struct io_uring_sqe e) {
    give(r, e);
    enter(r, 1, 1);
    return result(r);
}

/* Two at once. */
static void say_both(struct ring *r, struct io_uring_sqe one, struct io_uring_sqe other) {
    give(r, one);
    give(r, other);
    enter(r, 2, 2);
    T(result(r));
    T(result(r));
}

static struct io_uring_sqe change(int set, int op, int fd, struct epoll_event *e) {
    return (struct io_uring_sqe){
        .opcode = IORING_OP_EPOLL_CTL, .fd = set, .len = (unsigned)op, .off = (unsigned)fd, .addr = (uintptr_t)e};
}

static struct io_uring_sqe of_bytes(int op, int fd, void *at, unsigned len) {
    return (struct io_uring_sqe){.opcode = (unsigned char)op, .fd = fd, .addr = (uintptr_t)at, .len = len};
}

static void say_found(int set) {
    struct epoll_event e[4];
    int n = (int)MUST(epoll_wait(set, e, 4, 200));
    for (int i = 0; i < n; i++)
        say("%s, %d", bits(e[i].events), (int)e[i].data.u64);
    say("%d events", n);
}

CASE(rings, epoll_ctl, BIT(connected) | BIT(accepted) | BIT(data) | BIT(peer_shut) | BIT(waiting) | BIT(mapped)) {
    int set = (int)MUST(epoll_create1(0)), pair[2];
    struct ring r = ring_of(0);
    struct epoll_event both = {EPOLLIN | EPOLLOUT, {.u64 = 1}}, in = {EPOLLIN, {.u64 = 2}}, of_pipe = {EPOLLIN, {.u64 = 3}};
    MUST(pipe(pair));
    T(perform(&r, change(set, EPOLL_CTL_MOD, w->s, &in)));
    T(perform(&r, change(set, EPOLL_CTL_ADD, w->s, &both)));
    say_found(set);
    T(perform(&r, change(set, EPOLL_CTL_ADD, w->s, &in)));
    T(perform(&r, change(set, EPOLL_CTL_MOD, w->s, &in)));
    say_found(set);
    T(perform(&r, change(set, EPOLL_CTL_ADD, w->s, NULL)));
    T(perform(&r, change(set, EPOLL_CTL_ADD, -1, &in)));
    T(perform(&r, change(w->s, EPOLL_CTL_ADD, w->s, &in)));
    T(perform(&r, change(set, EPOLL_CTL_MOD, w->s, &(struct epoll_event){EPOLLIN | EPOLLEXCLUSIVE, {.u64 = 1}})));
    /* Several at once, with one that fails in the middle, of both kinds. */
    give(&r, change(set, EPOLL_CTL_DEL, w->s, NULL));
    give(&r, change(set, EPOLL_CTL_DEL, w->s, NULL));
    give(&r, change(set, EPOLL_CTL_ADD, pair[0], &of_pipe));
    give(&r, change(set, EPOLL_CTL_ADD, w->s, &both));
    give(&r, change(set, EPOLL_CTL_ADD, w->s, &both));
    enter(&r, 5, 5);
    for (int i = 0; i < 5; i++)
        T(result(&r));
    MUST(write(pair[1], "x", 1));
    T(perform(&r, change(set, EPOLL_CTL_DEL, w->s, NULL)));
    say_found(set);
}

/* A program that changes its sets by a ring has accelerated connections. */
CASE(rings, beside_a_set, NONE) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    int set = (int)MUST(epoll_create1(0));
    struct ring r = ring_of(0);
    struct epoll_event of_listener = {EPOLLIN, {.u64 = 1}}, of_client = {EPOLLOUT | EPOLLET, {.u64 = 2}};
    int l = listener(AF_INET, 4, &at, &len), c = fresh(AF_INET);
    nonblock(c, 1);
    T(perform(&r, change(set, EPOLL_CTL_ADD, l, &of_listener)));
    T(connect(c, (void *)&at, len));
    T(perform(&r, change(set, EPOLL_CTL_ADD, c, &of_client)));
    int s = (int)MUST(accept(l, NULL, NULL));
    look(s);
    say_found(set);
    T(send(s, "hello", 5, 0));
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, c, &(struct epoll_event){EPOLLIN, {.u64 = 3}}));
    say_found(set);
    /* Closed by a ring, it is closed. */
    T(perform(&r, (struct io_uring_sqe){.opcode = IORING_OP_CLOSE, .fd = s}));
    T(fcntl(s, F_GETFD));
    until(c, POLLRDHUP);
    T(recv(c, b, 64, 0));
    T(recv(c, b, 64, 0));
}

/* Before anything waits for the listener it is known what the ring is for. */
CASE(rings, connected_before_the_listener_is_waited_for, NONE) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    int set = (int)MUST(epoll_create1(0)), pair[2];
    struct ring r = ring_of(0);
    MUST(pipe(pair));
    T(perform(&r, change(set, EPOLL_CTL_ADD, pair[0], &(struct epoll_event){EPOLLIN, {.u64 = 1}})));
    int l = listener(AF_INET, 4, &at, &len), c = fresh(AF_INET);
    T(connect(c, (void *)&at, len));
    int s = (int)MUST(accept(l, NULL, NULL));
    look(s);
    T(send(s, "hello", 5, 0));
    T(recv(c, b, 5, MSG_WAITALL));
}

/* A client that is another process, without a ring: begun before there is one, it connects when it hears where. */
struct client {
    pid_t pid;
    int tell;
};

static struct client client_of(void) {
    struct sockaddr_storage at;
    int told_at[2];
    MUST(pipe(told_at));
    struct client me = {(pid_t)MUST(fork()), told_at[1]};
    if (me.pid == 0) {
        if (read(told_at[0], &at, sizeof at) != (ssize_t)sizeof at)
            _exit(1);
        int c = fresh(AF_INET);
        int is_bad = connect(c, (void *)&at, sizeof(struct sockaddr_in)) || send(c, "hello", 5, 0) != 5;
        _exit(is_bad || recv(c, b, 64, 0) != 5 || recv(c, b, 64, 0) != 0);
    }
    return me;
}

static void let_connect(struct client c, const struct sockaddr_storage *at) {
    MUST(write(c.tell, at, sizeof *at));
}

static void say_end(struct client c) {
    int status = -1;
    MUST(waitpid(c.pid, &status, 0));
    say("the client ends with %d", status);
}

/* Who accepts by a ring is served by the kernel, whoever makes the calls. */
static void accept_by(int is_own, int has_set) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    struct client c = client_of();
    if (has_set)
        MUST(epoll_create1(0));
    struct ring r = ring_of(is_own);
    int l = listener(AF_INET, 4, &at, &len);
    give(&r, (struct io_uring_sqe){.opcode = IORING_OP_ACCEPT, .fd = l});
    enter(&r, 1, 0);
    let_connect(c, &at);
    int s = (int)result(&r);
    say("accepted: %s", s >= 0 ? "ok" : errno_name(errno));
    T(perform(&r, of_bytes(IORING_OP_RECV, s, b, 64)));
    T(perform(&r, of_bytes(IORING_OP_SEND, s, b, 5)));
    T(perform(&r, (struct io_uring_sqe){.opcode = IORING_OP_CLOSE, .fd = s}));
    say_end(c);
}

CASE(rings, accept, NONE) { accept_by(0, 0); }
CASE(rings, accept_by_itself, NONE) { accept_by(1, 0); }
CASE(rings, accept_beside_a_set, NONE) { accept_by(0, 1); }
CASE(rings, accept_by_itself_beside_a_set, NONE) { accept_by(1, 1); }

/* Rings that are made when the program listens already, and those of its workers. */
static void accept_after_listen(int is_workers) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    struct client c = client_of();
    int l = listener(AF_INET, 4, &at, &len), ready[2], status;
    MUST(pipe(ready));
    pid_t worker = is_workers ? (pid_t)MUST(fork()) : 0;
    if (worker == 0) {
        struct ring r = ring_of(1);
        give(&r, (struct io_uring_sqe){.opcode = IORING_OP_ACCEPT, .fd = l});
        enter(&r, 1, 0);
        MUST(write(ready[1], "x", 1));
        if (!is_workers)
            let_connect(c, &at);
        int s = (int)result(&r);
        int is_bad = s < 0 || perform(&r, of_bytes(IORING_OP_RECV, s, b, 64)) != 5 || perform(&r, of_bytes(IORING_OP_SEND, s, b, 5)) != 5;
        is_bad |= perform(&r, (struct io_uring_sqe){.opcode = IORING_OP_CLOSE, .fd = s}) != 0;
        if (is_workers)
            _exit(is_bad);
        say("served: %d", is_bad);
    } else {
        MUST(read(ready[0], b, 1));
        let_connect(c, &at);
        MUST(waitpid(worker, &status, 0));
        say("the worker ends with %d", status);
    }
    say_end(c);
}

CASE(rings, accept_after_listen, NONE) { accept_after_listen(0); }
CASE(rings, accept_in_a_worker, NONE) { accept_after_listen(1); }

/* Who accepts by calls and uses what comes by a ring is served by the kernel, too, if the C library has made the ring. */
CASE(rings, on_what_is_accepted, NONE) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    struct client c = client_of();
    MUST(epoll_create1(0));
    struct ring r = ring_of(0);
    int l = listener(AF_INET, 4, &at, &len);
    let_connect(c, &at);
    until(l, POLLIN);
    int s = (int)MUST(accept(l, NULL, NULL));
    T(perform(&r, of_bytes(IORING_OP_RECV, s, b, 64)));
    T(perform(&r, of_bytes(IORING_OP_SEND, s, b, 5)));
    T(close(s));
    say_end(c);
}

/* Connects by a ring beside a set. */
CASE(rings, connect, BIT(listening)) {
    MUST(epoll_create1(0));
    struct ring r = ring_of(0);
    int c = fresh(AF_INET);
    T(perform(&r, (struct io_uring_sqe){
                      .opcode = IORING_OP_CONNECT, .fd = c, .addr = (uintptr_t)&w->at, .off = w->at_len}));
    int s = (int)MUST(accept(w->s, NULL, NULL));
    T(send(s, "hello", 5, 0));
    T(perform(&r, of_bytes(IORING_OP_RECV, c, b, 64)));
    T(recv(c, b, 64, MSG_DONTWAIT));
}

static void *accepts_one(void *about) {
    struct pollfd one = {*(int *)about, POLLIN, 0};
    MUST(poll(&one, 1, 5000));
    return NULL;
}

/* A program that has a ring for something else, and waits for its listener by calls; several threads at once. */
static void serve_beside(int is_own, int is_polled, int threads) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    struct client c = client_of();
    struct ring r = ring_of(is_own);
    int l = listener(AF_INET, 4, &at, &len);
    pthread_t t[4];
    T(perform(&r, (struct io_uring_sqe){.opcode = IORING_OP_NOP}));
    for (int i = 0; i < threads; i++)
        MUST(pthread_create(&t[i], NULL, accepts_one, &l));
    /* A connection that comes before anybody waits is the kernel's. */
    struct pollfd now = {l, POLLIN, 0};
    MUST(is_polled ? poll(&now, 1, 0) : 0);
    nap(50);
    let_connect(c, &at);
    if (is_polled)
        until(l, POLLIN);
    for (int i = 0; i < threads; i++)
        MUST(pthread_join(t[i], NULL));
    int s = (int)MUST(accept(l, NULL, NULL));
    look(s);
    T(recv(s, b, 5, MSG_WAITALL));
    T(send(s, "reply", 5, 0));
    T(close(s));
    say_end(c);
}

CASE(rings, for_files, NONE) { serve_beside(0, 0, 0); }
CASE(rings, for_files_by_itself, NONE) { serve_beside(1, 1, 0); }
CASE(rings, for_files_and_threads, NONE) { serve_beside(1, 1, 4); }

static struct io_uring_sqe of_poll(int fd) {
    return (struct io_uring_sqe){.opcode = IORING_OP_POLL_ADD, .fd = fd, .poll32_events = POLLIN};
}

/* Who tries first, and waits by a ring for what is not there yet. */
static void react(int is_first) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    struct client all[] = {client_of(), client_of()};
    struct ring r;
    if (is_first)
        r = ring_of(1);
    int l = listener(AF_INET, 4, &at, &len);
    if (!is_first)
        r = ring_of(1);
    nonblock(l, 1);
    for (int i = 0; i < 2; i++) {
        T(accept(l, NULL, NULL));
        let_connect(all[i], &at);
        T(perform(&r, of_poll(l)));
        int s = (int)MUST(accept(l, NULL, NULL));
        T(perform(&r, of_poll(s)));
        T(recv(s, b, 64, 0));
        T(send(s, b, 5, 0));
        T(close(s));
        say_end(all[i]);
    }
}

CASE(rings, reactor, NONE) { react(1); }
CASE(rings, reactor_after_listen, NONE) { react(0); }

/* A ring of a child that is used on its parent's listener, which was accelerated. */
CASE(rings, in_a_child, NONE) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    struct client c = client_of();
    int set = (int)MUST(epoll_create1(0)), status;
    struct epoll_event in = {EPOLLIN, {.u64 = 1}};
    int l = listener(AF_INET, 4, &at, &len);
    T(epoll_ctl(set, EPOLL_CTL_ADD, l, &in));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        struct ring r = ring_of(0);
        give(&r, (struct io_uring_sqe){.opcode = IORING_OP_ACCEPT, .fd = l});
        enter(&r, 1, 0);
        let_connect(c, &at);
        int s = (int)result(&r);
        _exit(s < 0 || recv(s, b, 64, 0) != 5 || send(s, b, 5, 0) != 5);
    }
    MUST(waitpid(child, &status, 0));
    say("the child ends with %d", status);
    say_end(c);
}

/* What comes of a chain, the set hears of all the same. */
CASE(rings, chain, BIT(connected)) {
    int set = (int)MUST(epoll_create1(0)), pair[2];
    struct ring r = ring_of(0);
    struct epoll_event in = {EPOLLIN, {.u64 = 1}}, of_pipe = {EPOLLIN, {.u64 = 2}};
    struct io_uring_sqe nothing = {.opcode = IORING_OP_NOP, .flags = IOSQE_IO_LINK};
    struct io_uring_sqe bad = of_bytes(IORING_OP_READ, -1, b, 1), closes = {.opcode = IORING_OP_CLOSE, .fd = w->s};
    MUST(pipe(pair));
    T(perform(&r, change(set, EPOLL_CTL_ADD, w->s, &in)));
    say_both(&r, nothing, change(set, EPOLL_CTL_ADD, pair[0], &of_pipe));
    MUST(write(pair[1], "x", 1));
    say_found(set);
    bad.flags = IOSQE_IO_LINK;
    say_both(&r, bad, closes);
    T(send(w->s, "x", 1, 0));
}

/* Numbers of a ring that other calls close, or that stand for it, too. */
CASE(rings, descriptors, BIT(data)) {
    int set = (int)MUST(epoll_create1(0)), other;
    struct ring r = ring_of(0);
    struct epoll_event in = {EPOLLIN, {.u64 = 1}};
    T(perform(&r, change(set, EPOLL_CTL_ADD, w->s, &in)));
    pid_t child = vfork();
    if (child == 0) {
        close(r.fd);
        close_range(3, ~0u, 0);
        _exit(0);
    }
    MUST(waitpid(child, NULL, 0));
    T(close_range(0x80000000u, ~0u, 0));
    T(perform(&r, change(set, EPOLL_CTL_DEL, w->s, NULL)));
    other = (int)MUST(dup(r.fd));
    MUST(close(r.fd));
    r.fd = other;
    T(perform(&r, change(set, EPOLL_CTL_ADD, w->s, &in)));
    say_found(set);
    /* What a chain does depends on its links. */
    struct io_uring_sqe first = change(set, EPOLL_CTL_DEL, -1, NULL), then = change(set, EPOLL_CTL_DEL, w->s, NULL);
    first.flags = IOSQE_IO_LINK;
    say_both(&r, first, then);
    say_found(set);
}

/* What was accelerated before. */
CASE(rings, recv, BIT(data)) {
    MUST(epoll_create1(0));
    struct ring r = ring_of(0);
    T(perform(&r, of_bytes(IORING_OP_RECV, w->s, b, 64)));
}
