/* What the test programs share. Each prints what it saw, and must print the same on the kernel and on Towpath. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("FAILED %s:%d: %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno));                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* What a call returned, in words. */
static inline const char *said(long r) {
    static char text[8][64];
    static int i;
    char *t = text[i++ & 7];
    if (r < 0)
        snprintf(t, 64, "%s", strerrorname_np(errno));
    else
        snprintf(t, 64, "%ld", r);
    return t;
}

/* Lines at once, so that a program that hangs shows where; and no child prints its parent's again. */
__attribute__((constructor)) static void by_lines(void) { setvbuf(stdout, NULL, _IOLBF, 4096); }

/* A listener on a free port of the loopback address. */
static inline int listener(struct sockaddr_in *at) {
    socklen_t len = sizeof *at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(bind(fd, (struct sockaddr *)at, sizeof *at) == 0);
    CHECK(listen(fd, 1024) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)at, &len) == 0);
    return fd;
}

static inline int connected(const struct sockaddr_in *at) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    CHECK(connect(fd, (const struct sockaddr *)at, sizeof *at) == 0);
    return fd;
}

/* A connection: both ends. */
static inline void pair(int fds[2]) {
    struct sockaddr_in at;
    int l = listener(&at);
    fds[0] = connected(&at);
    fds[1] = accept(l, NULL, NULL);
    CHECK(fds[1] >= 0);
    close(l);
}

static inline void nonblock(int fd) { CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0); }

static inline void nap(int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* The thread that waits; 0 while it has not begun. */
static pid_t waiting;

static inline void begins_to_wait(void) { __atomic_store_n(&waiting, gettid(), __ATOMIC_SEQ_CST); }

/* True once that thread sleeps. One that goes round and round never does. */
static inline int falls_asleep(void) {
    char path[64], text[512];
    for (int i = 0; i < 20000; i++, usleep(1000)) {
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", __atomic_load_n(&waiting, __ATOMIC_SEQ_CST));
        FILE *f = fopen(path, "r");
        size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
        if (f)
            fclose(f);
        text[n] = 0;
        if (strstr(text, ") S "))
            break;
    }
    __atomic_store_n(&waiting, 0, __ATOMIC_SEQ_CST);
    return strstr(text, ") S ") != NULL;
}

static inline const char *bits(unsigned e) {
    static char text[8][64];
    static int i;
    char *t = text[i++ & 7];
    snprintf(t, 64, "%s%s%s%s%s", e & EPOLLIN ? "I" : "", e & EPOLLOUT ? "O" : "", e & EPOLLRDHUP ? "R" : "",
             e & EPOLLHUP ? "H" : "", e & EPOLLERR ? "E" : "");
    return t;
}
