/* Threads and processes that share descriptors, close and replace each other's under way: what must hold then is that there is no
 * crash, no hang, no byte out of its place and no errno that Linux does not have for the call.
 *
 * A stream's two ends have a thread each; others meddle with the same descriptors. Nobody closes a number that is a stream's:
 * it would become somebody else's, on the kernel, too. What replaces it is /dev/null. */
#include "stress.h"

enum { STREAMS = 4, MEDDLERS = 2 };

struct stream {
    int fd[2];
    uint32_t salt;
};

static struct stream streams[STREAMS];
static volatile int is_over;

static uint32_t next(uint64_t *seed, uint32_t below) {
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*seed >> 33) % below;
}

/* What Linux says when a connection ends, or a descriptor is another meanwhile. */
static int is_lawful(int error) {
    return error == EAGAIN || error == EPIPE || error == ECONNRESET || error == ENOTCONN || error == EINTR || error == ENOTSOCK ||
           error == EBADF;
}

static void *feed(void *at) {
    struct stream *s = at;
    uint64_t sent = 0, seed = s->salt;
    unsigned char piece[5000];
    while (!is_over) {
        size_t n = 1 + next(&seed, sizeof piece);
        for (size_t i = 0; i < n; i++)
            piece[i] = byte_at(s->salt, sent + i);
        ssize_t r = send(s->fd[0], piece, n, MSG_NOSIGNAL);
        if (r < 0) {
            need(is_lawful(errno), "an errno that send has not");
            if (errno != EAGAIN && errno != EINTR)
                break;
        }
        sent += r > 0 ? (uint64_t)r : 0;
    }
    shutdown(s->fd[0], SHUT_WR);
    return NULL;
}

static void *drink(void *at) {
    struct stream *s = at;
    uint64_t got = 0, seed = s->salt + 1;
    unsigned char piece[7000];
    for (;;) {
        ssize_t r = recv(s->fd[1], piece, 1 + next(&seed, sizeof piece), 0);
        if (r < 0)
            need(is_lawful(errno), "an errno that recv has not");
        if (r == 0 || (r < 0 && errno != EAGAIN && errno != EINTR))
            break;
        for (ssize_t i = 0; i < r; i++)
            need(piece[i] == byte_at(s->salt, got + (uint64_t)i), "a byte out of its place");
        got += r > 0 ? (uint64_t)r : 0;
    }
    return NULL;
}

/* Opens and closes connections of its own, as fast as it can. */
static void churn(uint64_t *seed) {
    struct sockaddr_in at;
    char word[8];
    int l = listen_here(&at), c = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c, (void *)&at, sizeof at) == 0 && next(seed, 4)) {
        int s = accept(l, NULL, NULL);
        need(s >= 0, "accept");
        need(send(c, "chaos", 5, 0) == 5, "send");
        if (next(seed, 2))
            need(recv(s, word, 5, MSG_WAITALL) == 5 && memcmp(word, "chaos", 5) == 0, "a word gone wrong");
        close(s);
    }
    if (next(seed, 2))
        shutdown(l, SHUT_RDWR);
    close(c), close(l);
}

static void *meddle(void *at) {
    uint64_t seed = *(uint64_t *)at;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (!is_over) {
        int fd = streams[next(&seed, STREAMS)].fd[next(&seed, 2)], n, status;
        socklen_t len = sizeof n;
        struct pollfd p = {fd, POLLIN | POLLOUT, 0};
        switch (next(&seed, 40)) {
        case 0:
            dup2(null, fd);
            break;
        case 1:
            shutdown(fd, (int)next(&seed, 3));
            break;
        case 2 ... 5: {
            pid_t child = fork();
            if (child == 0) {
                struct sockaddr_in here;
                close(listen_here(&here));
                _exit(0);
            }
            need(child > 0 && waitpid(child, &status, 0) == child && status == 0, "a child");
            break;
        }
        case 6 ... 15: {
            int other = dup(fd);
            ioctl(other, FIONREAD, &n);
            close(other);
            break;
        }
        case 16 ... 20:
            getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &n, &len);
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof n);
            break;
        case 21 ... 30:
            poll(&p, 1, (int)next(&seed, 3));
            break;
        case 31 ... 33: {
            int set = epoll_create1(0);
            struct epoll_event e = {EPOLLIN | EPOLLET, {.u32 = 0}};
            epoll_ctl(set, EPOLL_CTL_ADD, fd, &e);
            epoll_wait(set, &e, 1, (int)next(&seed, 3));
            close(set);
            break;
        }
        default:
            churn(&seed);
        }
    }
    return NULL;
}

static void too_late(int s) {
    (void)s;
    static const char word[] = "stress: no end\n";
    (void)!write(1, word, sizeof word - 1);
    _exit(1);
}

/* One process: its streams, their threads, and the meddlers. */
static int chaos_here(uint64_t seed, int ms) {
    pthread_t thread[2 * STREAMS + MEDDLERS];
    uint64_t seeds[MEDDLERS];
    int n = 0;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGALRM, too_late);
    alarm((unsigned)ms / 1000 + 15);
    for (int i = 0; i < STREAMS; i++) {
        struct sockaddr_in at;
        int l = listen_here(&at), c = socket(AF_INET, SOCK_STREAM, 0);
        need(connect(c, (void *)&at, sizeof at) == 0, "connect");
        streams[i] = (struct stream){{c, accept(l, NULL, NULL)}, (uint32_t)seed * 31 + (uint32_t)i};
        need(streams[i].fd[1] >= 0, "accept");
        close(l);
        need(pthread_create(&thread[n++], NULL, feed, &streams[i]) == 0, "thread");
        need(pthread_create(&thread[n++], NULL, drink, &streams[i]) == 0, "thread");
    }
    for (int i = 0; i < MEDDLERS; i++) {
        seeds[i] = seed * 77 + (uint64_t)i;
        need(pthread_create(&thread[n++], NULL, meddle, &seeds[i]) == 0, "thread");
    }
    usleep((unsigned)ms * 1000);
    is_over = 1;
    for (int i = 0; i < STREAMS; i++)
        shutdown(streams[i].fd[0], SHUT_RDWR), shutdown(streams[i].fd[1], SHUT_RDWR);
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    return 0;
}

int chaos(uint64_t seed, int ms) {
    pid_t child[2];
    int failed = 0;
    for (int i = 0; i < 2; i++)
        if ((child[i] = fork()) == 0)
            _exit(chaos_here(seed + (uint64_t)i * 1000, ms));
    for (int i = 0; i < 2; i++) {
        int status;
        waitpid(child[i], &status, 0);
        if (status != 0)
            printf("stress: process %d ends with %#x\n", i, (unsigned)status);
        failed |= status != 0;
    }
    return failed;
}
