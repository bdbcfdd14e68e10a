/* Random sequences of calls from a seed: what they return must be the same on the kernel and on Towpath.
 *
 * usage: stress compare SEED STEPS     a transcript
 *        stress chaos SEED MS          see chaos.c
 *
 * Each of several processes makes its own sequence on its own sockets; what a call returns follows from the sequence alone, because
 * nothing is held back and nobody else has its sockets. Every byte tells its place, so that a lost, repeated or exchanged one is
 * seen. */
#include "stress.h"

enum { WORKERS = 4, SLOTS = 12, CHUNK_MAX = 40000, OUTSTANDING_MAX = 8000 };

static uint64_t state;

static uint32_t any(uint32_t below) {
    // xorshift64*
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return (uint32_t)((state * 0x2545f4914f6cdd1dull >> 32) % below);
}

static const char *word(long r) {
    static char text[4][48];
    static int i;
    char *t = text[i++ & 3];
    if (r >= 0)
        snprintf(t, 48, "%ld", r);
    else
        snprintf(t, 48, "%s", strerrorname_np(errno));
    return t;
}

/* One end of a connection: how much it has sent and received, which tells each byte. */
struct end {
    int fd, open;
    uint64_t sent, got;
    uint32_t salt;
};

static struct end ends[SLOTS][2];
static unsigned char buffer[CHUNK_MAX];

static void open_pair(int slot) {
    struct sockaddr_in at;
    int l = listen_here(&at), c = socket(AF_INET, SOCK_STREAM, 0);
    need(connect(c, (void *)&at, sizeof at) == 0, "connect");
    int s = accept4(l, NULL, NULL, SOCK_NONBLOCK);
    need(s >= 0, "accept");
    fcntl(c, F_SETFL, O_NONBLOCK);
    // Nothing is held back: what was sent is there.
    setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    close(l);
    uint32_t salt = any(256);
    ends[slot][0] = (struct end){c, 1, 0, 0, salt};
    ends[slot][1] = (struct end){s, 1, 0, 0, salt + 128};
}


static void await(int fd, short events) {
    struct pollfd p = {fd, events, 0};
    poll(&p, 1, 2000);
}

/* Waits until everything that the other end has sent can be read. */
static void settle(const struct end *e, const struct end *other) {
    for (int round = 0; e->open && round < 2000; round++) {
        int n = 0;
        if (ioctl(e->fd, FIONREAD, &n) != 0 || (uint64_t)n >= other->sent - e->got)
            return;
        usleep(1000);
    }
}

static long send_some(struct end *e, const struct end *to) {
    uint64_t room = OUTSTANDING_MAX - (e->sent - to->got);
    size_t n = any(4) == 0 ? any(6000) : any(100);
    if (n > room)
        n = room;
    for (size_t i = 0; i < n; i++)
        buffer[i] = byte_at(e->salt, e->sent + i);
    struct iovec v[3] = {{buffer, n / 3}, {buffer + n / 3, 0}, {buffer + n / 3, n - n / 3}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
    int way = (int)any(4);
    long r = way == 0   ? write(e->fd, buffer, n)
             : way == 1 ? send(e->fd, buffer, n, 0)
             : way == 2 ? writev(e->fd, v, 3)
                        : sendmsg(e->fd, &m, MSG_NOSIGNAL);
    if (r > 0)
        e->sent += (uint64_t)r;
    if (r > 0 && !to->open) {
        // It comes back as a reset.
        int error = errno;
        await(e->fd, 0);
        errno = error;
    }
    return r;
}

static long receive_some(struct end *e, const struct end *from) {
    size_t n = any(3) == 0 ? CHUNK_MAX : 1 + any(300);
    struct iovec v[2] = {{buffer, n / 2}, {buffer + n / 2, n - n / 2}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    int way = (int)any(4), peek = any(5) == 0 ? MSG_PEEK : 0;
    settle(e, from);
    long r = way == 0   ? read(e->fd, buffer, n)
             : way == 1 ? recv(e->fd, buffer, n, peek)
             : way == 2 ? readv(e->fd, v, 2)
                        : recvmsg(e->fd, &m, peek);
    int error = errno;
    for (long i = 0; i < r; i++)
        need(buffer[i] == byte_at(from->salt, e->got + (uint64_t)i), "a byte out of its place");
    if (r > 0 && !(peek && (way == 1 || way == 3)))
        e->got += (uint64_t)r;
    errno = error;
    return r;
}

static long close_end(struct end *e, const struct end *other) {
    settle(e, other);
    long r = close(e->fd);
    e->open = 0;
    if (other->open)
        await(other->fd, POLLRDHUP);
    return r;
}

static long send_from_a_child(struct end *e, struct end *to) {
    int status = 0;
    uint64_t before = e->sent;
    size_t n = 1 + any(500);
    if (e->sent - to->got + n > OUTSTANDING_MAX)
        return 0;
    pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < n; i++)
            buffer[i] = byte_at(e->salt, before + i);
        _exit(send(e->fd, buffer, n, MSG_NOSIGNAL) == (ssize_t)n ? 0 : 1);
    }
    need(child > 0 && waitpid(child, &status, 0) == child, "fork");
    int sent = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    e->sent += sent ? n : 0;
    if (sent && !to->open)
        await(e->fd, 0);
    return sent;
}

static long replace_descriptor(struct end *e) {
    int other = any(2) ? dup(e->fd) : fcntl(e->fd, F_DUPFD, 100 + (int)any(50));
    if (other < 0)
        return -1;
    close(e->fd);
    e->fd = other;
    return 1;
}

/* Calls that fail, each for its reason. */
static long nonsense(const struct end *e) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    struct iovec v[1025] = {{buffer, 1}};
    struct rlimit old, few;
    long r;
    switch (any(12)) {
    case 0:
        return recv(-1, buffer, 1, 0);
    case 1:
        return listen(e->fd, 4);
    case 2:
        return accept(e->fd, NULL, NULL);
    case 3:
        return readv(e->fd, v, 1025);
    case 4:
        return writev(e->fd, v, -1);
    case 5:
        return setsockopt(e->fd, SOL_SOCKET, SO_KEEPALIVE, buffer, 1);
    case 6:
        return getsockopt(e->fd, IPPROTO_TCP, 999, buffer, &(socklen_t){4});
    case 7:
        return lseek(e->fd, 0, SEEK_SET);
    case 8:
        return shutdown(e->fd, 7);
    case 9:
        return connect(e->fd, (void *)&at, 3);
    case 10:
        return send(9999, buffer, huge, 0);
    default:
        getrlimit(RLIMIT_NOFILE, &old);
        few = (struct rlimit){3, old.rlim_max};
        setrlimit(RLIMIT_NOFILE, &few);
        r = any(2) ? socket(AF_INET, SOCK_STREAM, 0) : dup(e->fd);
        int error = errno;
        setrlimit(RLIMIT_NOFILE, &old);
        errno = error;
        return r;
    }
}

static long look_at_both(struct end *pair) {
    struct pollfd p[2] = {{pair[0].open ? pair[0].fd : -1, POLLIN | POLLOUT | POLLRDHUP, 0},
                          {pair[1].open ? pair[1].fd : -1, POLLIN | POLLOUT | POLLRDHUP, 0}};
    settle(&pair[0], &pair[1]), settle(&pair[1], &pair[0]);
    if (any(2)) {
        poll(p, 2, 0);
        return p[0].revents << 16 | p[1].revents;
    }
    int set = epoll_create1(EPOLL_CLOEXEC);
    long all = 0;
    for (int i = 0; i < 2; i++) {
        struct epoll_event e = {EPOLLIN | EPOLLOUT | EPOLLRDHUP, {.u32 = (unsigned)i}};
        if (p[i].fd >= 0)
            need(epoll_ctl(set, EPOLL_CTL_ADD, p[i].fd, &e) == 0, "epoll_ctl");
    }
    struct epoll_event found[4];
    int n = epoll_wait(set, found, 4, 0);
    for (int i = 0; i < n; i++)
        all |= (long)found[i].events << (found[i].data.u32 ? 0 : 16);
    close(set);
    return all;
}

static void step(FILE *out, int number) {
    static const char *const names[] = {"send", "receive", "look", "nonsense", "replace", "child", "shut", "close", "name"};
    int slot = (int)any(SLOTS), side = (int)any(2), odds = (int)any(100);
    struct end *e = &ends[slot][side], *other = &ends[slot][!side];
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    if (!e->open && !other->open) {
        open_pair(slot);
        fprintf(out, "%d: open %d\n", number, slot);
        return;
    }
    if (!e->open) {
        struct end *swap = e;
        e = other, other = swap;
    }
    int what = odds < 30 ? 0 : odds < 62 ? 1 : odds < 72 ? 2 : odds < 82 ? 3 : odds < 87 ? 4 : odds < 89 ? 5 : odds < 92 ? 6 : odds < 97 ? 7 : 8;
    errno = 0;
    long r = what == 0   ? send_some(e, other)
             : what == 1 ? receive_some(e, other)
             : what == 2 ? look_at_both(ends[slot])
             : what == 3 ? nonsense(e)
             : what == 4 ? replace_descriptor(e)
             : what == 5 ? send_from_a_child(e, other)
             : what == 6 ? shutdown(e->fd, SHUT_WR)
             : what == 7 ? close_end(e, other)
                         : getpeername(e->fd, (void *)&at, &len);
    fprintf(out, "%d: %s %d.%d = %s%s\n", number, names[what], slot, side, what == 4 && r > 0 ? "ok" : word(r),
            pipes ? " SIGPIPE" : "");
    pipes = 0;
    if (what == 6 && other->open)
        await(other->fd, POLLRDHUP);
}

static void on_pipe(int s) { (void)s, pipes++; }
volatile int pipes, alarms;
void *volatile nowhere = (void *)8;
volatile size_t huge = SIZE_MAX;

/* Each worker's transcript in a file of its own, shown in order: a worker that dies is missed in it. */
static int compare(uint64_t seed, int steps) {
    FILE *out[WORKERS];
    pid_t child[WORKERS];
    int failed = 0;
    for (int w = 0; w < WORKERS; w++) {
        out[w] = tmpfile();
        // A worker that hangs is killed: the transcript must end with the call before.
        setvbuf(out[w], NULL, _IOLBF, 0);
        fflush(stdout);
        if ((child[w] = fork()) == 0) {
            state = seed * 1000003 + (uint64_t)w * 7919 + 1;
            signal(SIGPIPE, on_pipe);
            alarm(60);
            for (int i = 0; i < steps; i++)
                step(out[w], i);
            fflush(out[w]);
            _exit(0);
        }
    }
    for (int w = 0; w < WORKERS; w++) {
        int status;
        char line[256];
        waitpid(child[w], &status, 0);
        failed |= status != 0;
        rewind(out[w]);
        while (fgets(line, sizeof line, out[w]))
            printf("%d.%s", w, line);
        printf("%d ends with %#x\n", w, (unsigned)status);
    }
    return failed;
}

int main(int argc, char **argv) {
    need(argc == 4, "usage: stress compare|chaos SEED STEPS|MS");
    uint64_t seed = strtoull(argv[2], NULL, 10);
    return strcmp(argv[1], "chaos") == 0 ? chaos(seed, atoi(argv[3])) : compare(seed, atoi(argv[3]));
}
