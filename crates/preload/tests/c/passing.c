/* Connections that go to other programs with their descriptors, and that several of them use. */
#include "common.h"

static void give(int via, int fd, char what) {
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } u;
    struct iovec v = {&what, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = u.space, .msg_controllen = sizeof u.space};
    u.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&u.head), &fd, sizeof fd);
    CHECK(sendmsg(via, &m, 0) == 1);
}

/* What comes, and the descriptor that comes along. */
static long take(int via, char *to, long n, int *fd) {
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } u;
    struct iovec v = {to, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = u.space, .msg_controllen = sizeof u.space};
    n = recvmsg(via, &m, 0);
    if (m.msg_controllen)
        memcpy(fd, CMSG_DATA(&u.head), sizeof *fd);
    return n;
}

/* Another program: it does as it is told by its standard input, a UNIX socket, and says what came of it. */
static int worker(void) {
    int conn = -1, next = -1, got = -1;
    char what, b[100], text[200];
    while (take(0, &what, 1, &got) == 1) {
        long n = 0;
        strcpy(b, "");
        if (what == 'g')
            conn = got;
        if (what == 'u')
            next = got;
        if (what == 'r' && (n = read(conn, b, 4)) >= 0)
            b[n] = 0;
        if (what == 'w')
            n = send(conn, "worker", 6, 0);
        if (what == 's')
            n = shutdown(conn, SHUT_WR);
        if (what == 'p')
            give(next, conn, 'g');
        if (what == 'c')
            n = close(conn);
        if (what == 'q')
            _exit(0);
        if (what == 'l') {
            /* Later, while its parent waits. */
            CHECK(write(0, "-", 1) == 1);
            nap(100);
            CHECK(send(conn, "worker", 6, 0) == 6);
            _exit(0);
        }
        snprintf(text, sizeof text, "%c %s %s", what, said(n), b);
        CHECK(write(0, text, strlen(text)) > 0);
    }
    _exit(0);
}

static int start(void) {
    int two[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, two) == 0);
    if (fork() == 0) {
        dup2(two[1], 0);
        execl("/proc/self/exe", "worker", "worker", NULL);
        _exit(1);
    }
    close(two[1]);
    return two[0];
}

static void hear(int via) {
    char b[200] = "";
    long n = read(via, b, sizeof b - 1);
    printf("  worker: %s\n", n > 0 ? b : "gone");
}

static void tell(int via, char what) {
    CHECK(write(via, &what, 1) == 1);
    if (what != 'q')
        return hear(via);
    char end;
    CHECK(read(via, &end, 1) == 0);
    CHECK(wait(NULL) > 0);
}

static void receives(int fd, long most) {
    char b[100] = "";
    long n = recv(fd, b, most, 0);
    printf("  %s %s\n", said(n), n > 0 ? b : "");
}

static void put(int fd, const char *text) { CHECK(send(fd, text, strlen(text), 0) == (long)strlen(text)); }

static void *late(void *fd) {
    nap(400);
    put(*(int *)fd, "late");
    return NULL;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "worker"))
        return worker();
    int f[2], w[6];
    for (int i = 0; i < 6; i++)
        w[i] = start();

    puts("given away, and closed later");
    pair(f);
    give(w[0], f[1], 'g'), hear(w[0]);
    put(f[0], "one");
    tell(w[0], 'r');
    close(f[1]);
    put(f[0], "two");
    tell(w[0], 'r'), tell(w[0], 'w');
    receives(f[0], 6);
    tell(w[0], 'c');
    receives(f[0], 6);
    close(f[0]);

    puts("given away, used by both, kept by who gave it");
    pair(f);
    give(w[0], f[1], 'g'), hear(w[0]);
    put(f[0], "0123456789");
    tell(w[0], 'r'), tell(w[0], 'w');
    receives(f[1], 3);
    put(f[1], "parent");
    tell(w[0], 'w');
    put(f[1], "parent");
    char b[25] = "";
    CHECK(recv(f[0], b, 24, MSG_WAITALL) == 24);
    printf("  %s\n", b);
    tell(w[0], 'q');
    receives(f[1], 99);
    put(f[1], "still there");
    receives(f[0], 99);
    int d = dup(f[1]);
    put(f[0], "more");
    struct pollfd p = {f[1], POLLIN, 0};
    printf("  poll %d", poll(&p, 1, 5000));
    printf(" %s\n", bits(p.revents));
    receives(f[1], 99);
    put(f[0], "even more");
    receives(d, 99);
    close(f[1]), close(d);
    receives(f[0], 99);
    close(f[0]);

    puts("three in a row");
    pair(f);
    give(w[1], f[1], 'g'), hear(w[1]);
    put(f[0], "01234567");
    tell(w[1], 'r');
    /* The first one tells the second one. */
    give(w[1], w[2], 'u'), hear(w[1]);
    tell(w[1], 'p');
    hear(w[2]);
    tell(w[1], 'q');
    close(f[1]);
    tell(w[2], 'r'), tell(w[2], 'w');
    receives(f[0], 6);
    put(f[0], "end");
    tell(w[2], 'r');
    tell(w[2], 'c');
    receives(f[0], 6);
    close(f[0]);

    puts("ended by one for all");
    pair(f);
    give(w[2], f[1], 'g'), hear(w[2]);
    tell(w[2], 's');
    receives(f[0], 9);
    put(f[0], "other way");
    tell(w[2], 'r');
    receives(f[1], 9);
    printf("  send %s\n", said(send(f[1], "x", 1, MSG_NOSIGNAL)));
    tell(w[2], 'q');
    close(f[0]);
    receives(f[1], 9);
    close(f[1]);

    puts("waited for by one, written to by the other");
    pair(f);
    give(w[3], f[1], 'g'), hear(w[3]);
    tell(w[3], 'l');
    pthread_t t;
    pthread_create(&t, NULL, late, &f[0]);
    receives(f[1], 9);
    pthread_join(t, NULL);
    receives(f[0], 9);
    close(f[0]), close(f[1]);

    puts("an epoll set sees it again");
    pair(f);
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {EPOLLIN, {.u32 = 7}};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, f[1], &e) == 0);
    give(w[4], f[1], 'g'), hear(w[4]);
    put(f[0], "abcdefgh");
    tell(w[4], 'r'), tell(w[4], 'q');
    printf("  epoll %d", epoll_wait(set, &e, 1, 5000));
    printf(" %s %u\n", bits(e.events), e.data.u32);
    receives(f[1], 9);
    put(f[0], "again");
    printf("  epoll %d", epoll_wait(set, &e, 1, 5000));
    printf(" %s %u\n", bits(e.events), e.data.u32);
    receives(f[1], 9);
    return 0;
}
