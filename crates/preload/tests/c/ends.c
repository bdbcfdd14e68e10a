/* Ends of connections: half close, reset, lingering, errors, SIGPIPE. */
#include "common.h"

static volatile int pipes;
static void on_pipe(int s) { (void)s, pipes++; }

static short polled(int fd) {
    struct pollfd p = {fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    poll(&p, 1, 100);
    return p.revents;
}

int main(void) {
    int f[2], error;
    socklen_t len = sizeof error;
    char b[100];
    signal(SIGPIPE, on_pipe);

    pair(f);
    CHECK(send(f[0], "hello", 5, 0) == 5);
    CHECK(shutdown(f[0], SHUT_WR) == 0);
    printf("half: %s\n", said(recv(f[1], b, 3, 0)));
    printf("half: %s\n", said(recv(f[1], b, 9, 0)));
    printf("half: %s\n", said(recv(f[1], b, 9, 0)));
    printf("half: poll %s\n", bits(polled(f[1])));
    CHECK(send(f[1], "back", 4, 0) == 4);
    printf("half: %s\n", said(recv(f[0], b, 9, 0)));
    printf("half: send %s pipes %d\n", said(send(f[0], "x", 1, 0)), pipes);
    printf("half: send %s pipes %d\n", said(send(f[0], "x", 1, MSG_NOSIGNAL)), pipes);
    close(f[1]);
    nap(20);
    printf("half: %s poll %s\n", said(recv(f[0], b, 9, 0)), bits(polled(f[0])));
    close(f[0]);

    pair(f);
    CHECK(send(f[0], "unread", 6, 0) == 6);
    nap(20);
    close(f[1]);
    nap(20);
    printf("reset: poll %s\n", bits(polled(f[0])));
    CHECK(getsockopt(f[0], SOL_SOCKET, SO_ERROR, &error, &len) == 0);
    printf("reset: SO_ERROR %s\n", error ? strerrorname_np(error) : "0");
    printf("reset: recv %s\n", said(recv(f[0], b, 9, 0)));
    printf("reset: send %s pipes %d\n", said(send(f[0], "x", 1, 0)), pipes);
    close(f[0]);

    pair(f);
    struct linger hard = {1, 0};
    CHECK(setsockopt(f[1], SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0);
    CHECK(send(f[1], "data", 4, 0) == 4);
    nap(20);
    close(f[1]);
    nap(20);
    printf("hard: recv %s\n", said(recv(f[0], b, 9, 0)));
    printf("hard: recv %s\n", said(recv(f[0], b, 9, 0)));
    printf("hard: recv %s\n", said(recv(f[0], b, 9, 0)));
    printf("hard: send %s\n", said(send(f[0], "x", 1, MSG_NOSIGNAL)));
    close(f[0]);

    pair(f);
    close(f[1]);
    nap(20);
    printf("closed: send %s\n", said(send(f[0], "x", 1, 0)));
    nap(20);
    printf("closed: send %s pipes %d\n", said(send(f[0], "x", 1, 0)), pipes);
    printf("closed: recv %s\n", said(recv(f[0], b, 9, 0)));
    close(f[0]);

    pair(f);
    CHECK(send(f[0], "peekaboo", 8, 0) == 8);
    nap(20);
    int n = 0;
    printf("peek: %s", said(recv(f[1], b, 4, MSG_PEEK)));
    printf(" %.4s", b);
    CHECK(ioctl(f[1], FIONREAD, &n) == 0);
    printf(" %d\n", n);
    printf("trunc: %s\n", said(recv(f[1], b, 4, MSG_TRUNC)));
    printf("dontwait: %s\n", said(recv(f[1], b, 9, MSG_DONTWAIT)));
    printf("dontwait: %.4s %s\n", b, said(recv(f[1], b, 9, MSG_DONTWAIT)));
    struct timeval t = {0, 50000};
    CHECK(setsockopt(f[1], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) == 0);
    printf("timeout: %s\n", said(recv(f[1], b, 9, 0)));
    printf("shut rd: %s", said(shutdown(f[1], SHUT_RD)));
    printf(" %s\n", said(recv(f[1], b, 9, 0)));
    printf("shut both: %s", said(shutdown(f[0], SHUT_RDWR)));
    nap(20);
    printf(" poll %s %s\n", bits(polled(f[0])), bits(polled(f[1])));
    close(f[0]), close(f[1]);

    struct sockaddr_in at, me;
    len = sizeof me;
    int l = listener(&at);
    int c = connected(&at);
    int s = accept4(l, (struct sockaddr *)&me, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct sockaddr_in local, far;
    socklen_t ll = sizeof local, fl = sizeof far;
    CHECK(getsockname(c, (struct sockaddr *)&local, &ll) == 0 && getpeername(s, (struct sockaddr *)&far, &fl) == 0);
    printf("names: %d %d %d\n", local.sin_port == far.sin_port, me.sin_port == local.sin_port,
           local.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    printf("accept4: %d %d\n", !!(fcntl(s, F_GETFL) & O_NONBLOCK), fcntl(s, F_GETFD));
    printf("again: %s\n", said(recv(s, b, 1, 0)));
    printf("connect again: %s\n", said(connect(c, (struct sockaddr *)&at, sizeof at)));
    printf("listener flags: %d\n", !!(fcntl(l, F_GETFL) & O_NONBLOCK));
    nonblock(l);
    printf("accept: %s\n", said(accept(l, NULL, NULL)));
    printf("listener: recv %s connect %s\n", said(recv(l, b, 1, 0)), said(connect(l, (struct sockaddr *)&at, sizeof at)));
    close(c), close(s), close(l);
    c = socket(AF_INET, SOCK_STREAM, 0);
    printf("refused: %s\n", said(connect(c, (struct sockaddr *)&at, sizeof at)));
    printf("unconnected: %s %s\n", said(recv(c, b, 1, 0)), said(getpeername(c, (struct sockaddr *)&far, &fl)));
    close(c);
    printf("closed: %s %s\n", said(send(c, b, 1, 0)), said(close(c)));
    /* Buffers take a megabyte before anybody reads, message by message or at once, after a short beginning. */
    static char out[1 << 20], in[1 << 20];
    for (unsigned i = 0; i < sizeof out; i++) out[i] = i * 7 + i / 251;
    pair(f);
    CHECK(send(f[0], "hello", 5, 0) == 5 && recv(f[1], b, 5, 0) == 5);
    for (int i = 0; i < 32; i++) CHECK(send(f[0], out + i * 32768, 32768, 0) == 32768);
    CHECK(send(f[1], out, sizeof out, 0) == sizeof out);
    for (int i = 0; i < 2; i++) {
        CHECK(recv(f[i], in, sizeof in, MSG_WAITALL) == sizeof in && memcmp(in, out, sizeof in) == 0);
        memset(in, 0, sizeof in);
    }
    printf("both have sent %zu before they read\n", sizeof out);
    close(f[0]), close(f[1]);
    return 0;
}
