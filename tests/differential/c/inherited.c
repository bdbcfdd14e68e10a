/* Options set before a connection is made: both ends have them, or the socket is the kernel's from then on. */
#include "differ.h"

/* Sets an option on a socket before it connects, and on a listener before it listens; then looks at both ends. */
static void set_before(int family, int level, int name, const void *value, socklen_t len) {
    struct sockaddr_storage at;
    socklen_t at_len;
    unsigned char got[64] = {0};
    int l = listener(family, -1, &at, &at_len), c = fresh(family);
    T(setsockopt(l, level, name, value, len));
    T(setsockopt(c, level, name, value, len));
    MUST(listen(l, 4));
    T(connect(c, (void *)&at, at_len));
    int s = accept(l, NULL, NULL);
    look(c);
    if (s >= 0)
        look(s);
    const int each[] = {c, s, l};
    static const char *const who[] = {"connected", "accepted", "listener"};
    for (int i = 0; i < 3; i++) {
        socklen_t room = sizeof got;
        errno = 0;
        long r = getsockopt(each[i], level, name, got, &room);
        char text[128];
        int n = snprintf(text, sizeof text, "%s %s:", who[i], said(r));
        for (socklen_t k = 0; r == 0 && k < room && k < 16; k++)
            n += snprintf(text + n, sizeof text - (size_t)n, " %02x", got[k]);
        say("%s", text);
    }
    T(send(c, "abc", 3, 0));
    until(s, POLLIN);
    T(recv(s, got, 3, MSG_DONTWAIT));
    T(send(s, "abc", 3, 0));
    until(c, POLLIN);
    T(recv(c, got, 3, MSG_DONTWAIT));
}

static const struct option {
    const char *word;
    int level, name, value;
} OPTIONS[] = {
#define O(level, name, value) {#name, level, name, value}
    O(SOL_SOCKET, SO_REUSEADDR, 1),
    O(SOL_SOCKET, SO_REUSEPORT, 1),
    O(SOL_SOCKET, SO_DONTROUTE, 1),
    O(SOL_SOCKET, SO_BROADCAST, 1),
    O(SOL_SOCKET, SO_KEEPALIVE, 1),
    O(SOL_SOCKET, SO_OOBINLINE, 1),
    O(SOL_SOCKET, SO_PRIORITY, 3),
    O(SOL_SOCKET, SO_SNDBUF, 20000),
    O(SOL_SOCKET, SO_RCVBUF, 20000),
    O(SOL_SOCKET, SO_RCVLOWAT, 3),
    O(SOL_SOCKET, SO_TIMESTAMP, 1),
    O(SOL_SOCKET, SO_TIMESTAMPNS, 1),
    O(SOL_SOCKET, SO_TIMESTAMPING, 0x10),
    O(SOL_SOCKET, SO_MARK, 7),
    O(SOL_SOCKET, SO_PEEK_OFF, 2),
    O(SOL_SOCKET, SO_BUSY_POLL, 50),
    O(SOL_SOCKET, SO_MAX_PACING_RATE, 1000000),
    O(SOL_SOCKET, SO_ZEROCOPY, 1),
    O(SOL_SOCKET, SO_PREFER_BUSY_POLL, 1),
    O(SOL_SOCKET, SO_RXQ_OVFL, 1),
    O(IPPROTO_TCP, TCP_NODELAY, 1),
    O(IPPROTO_TCP, TCP_CORK, 1),
    O(IPPROTO_TCP, TCP_MAXSEG, 1000),
    O(IPPROTO_TCP, TCP_KEEPIDLE, 77),
    O(IPPROTO_TCP, TCP_KEEPINTVL, 7),
    O(IPPROTO_TCP, TCP_KEEPCNT, 4),
    O(IPPROTO_TCP, TCP_SYNCNT, 3),
    O(IPPROTO_TCP, TCP_LINGER2, 9),
    O(IPPROTO_TCP, TCP_DEFER_ACCEPT, 1),
    O(IPPROTO_TCP, TCP_WINDOW_CLAMP, 30000),
    O(IPPROTO_TCP, TCP_QUICKACK, 0),
    O(IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1),
    O(IPPROTO_TCP, TCP_USER_TIMEOUT, 9000),
    O(IPPROTO_TCP, TCP_FASTOPEN, 5),
    O(IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1),
    O(IPPROTO_TCP, TCP_NOTSENT_LOWAT, 9000),
    O(IPPROTO_TCP, TCP_SAVE_SYN, 1),
    O(IPPROTO_TCP, TCP_INQ, 1),
    O(IPPROTO_TCP, TCP_TX_DELAY, 0),
    O(IPPROTO_IP, IP_TOS, 0x10),
    O(IPPROTO_IP, IP_TTL, 33),
    O(IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT),
    O(IPPROTO_IP, IP_RECVERR, 1),
    O(IPPROTO_IP, IP_RECVTOS, 1),
    O(IPPROTO_IP, IP_PKTINFO, 1),
    O(IPPROTO_IP, IP_FREEBIND, 1),
    O(IPPROTO_IP, IP_TRANSPARENT, 1),
    O(IPPROTO_IP, IP_MINTTL, 20),
    O(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1),
    O(IPPROTO_IPV6, IPV6_V6ONLY, 1),
    O(IPPROTO_IPV6, IPV6_UNICAST_HOPS, 33),
    O(IPPROTO_IPV6, IPV6_TCLASS, 0x10),
    O(IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DONT),
    O(IPPROTO_IPV6, IPV6_RECVPKTINFO, 1),
    O(IPPROTO_IPV6, IPV6_RECVERR, 1),
    O(IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 1),
#undef O
};

static void try_each(struct world *w) {
    const struct option *o = w->about;
    set_before(o->level == IPPROTO_IPV6 ? AF_INET6 : AF_INET, o->level, o->name, &o->value, sizeof o->value);
}

__attribute__((constructor)) static void enlist_options(void) {
    for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++)
        enlist((struct one){"before", OPTIONS[i].word, NONE, try_each, &OPTIONS[i]});
}

CASE(before, SO_LINGER, NONE) { set_before(AF_INET, SOL_SOCKET, SO_LINGER, &(struct linger){1, 3}, sizeof(struct linger)); }
CASE(before, SO_RCVTIMEO, NONE) {
    set_before(AF_INET, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 500000}, sizeof(struct timeval));
}
CASE(before, SO_SNDTIMEO, NONE) {
    set_before(AF_INET, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){0, 500000}, sizeof(struct timeval));
}
CASE(before, SO_BINDTODEVICE, NONE) { set_before(AF_INET, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3); }
CASE(before, TCP_CONGESTION_reno, NONE) { set_before(AF_INET, IPPROTO_TCP, TCP_CONGESTION, "reno", 4); }
CASE(before, TCP_CONGESTION_cubic, NONE) { set_before(AF_INET, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5); }

CASE(before, MSG_FASTOPEN, NONE) {
    struct sockaddr_storage at;
    socklen_t len;
    char b[8];
    int l = listener(AF_INET, 4, &at, &len), c = fresh(AF_INET);
    T(sendto(c, "fast", 4, MSG_FASTOPEN, (void *)&at, len));
    int s = (int)MUST(accept(l, NULL, NULL));
    look(s);
    until(s, POLLIN);
    T(recv(s, b, 8, MSG_DONTWAIT));
    T(send(c, "er", 2, 0));
    until(s, POLLIN);
    T(recv(s, b, 8, MSG_DONTWAIT));
}

CASE(before, low_water, NONE) {
    // SO_RCVLOWAT holds the reader and poll back until so much is there.
    int f[2];
    char b[16];
    join(AF_INET, f);
    T(setsockopt(f[0], SOL_SOCKET, SO_RCVLOWAT, &(int){4}, sizeof(int)));
    MUST(send(f[1], "abc", 3, 0));
    nap(5);
    say("poll %s", polled(f[0]));
    T(recv(f[0], b, 16, MSG_DONTWAIT | MSG_PEEK));
    B(recv(f[0], b, 16, MSG_PEEK));
    MUST(send(f[1], "d", 1, 0));
    nap(5);
    say("poll %s", polled(f[0]));
    T(recv(f[0], b, 16, 0));
}

static void *send_pieces(void *at) {
    static const char bytes[16];
    nap(20);
    MUST(send(*(int *)at, bytes, 3, 0));
    nap(20);
    MUST(send(*(int *)at, bytes, 10, 0));
    return NULL;
}

CASE(before, low_water_waits, NONE) {
    // A receive that waits goes on until the mark is reached, or there is no room for so much, or the end.
    int f[2];
    char b[64];
    pthread_t sender;
    join(AF_INET, f);
    MUST(setsockopt(f[0], SOL_SOCKET, SO_RCVLOWAT, &(int){8}, sizeof(int)));
    pthread_create(&sender, NULL, send_pieces, &f[1]);
    T(recv(f[0], b, 64, 0));
    pthread_join(sender, NULL);
    MUST(send(f[1], b, 6, 0));
    nap(5);
    T(recv(f[0], b, 4, 0));
    B(recv(f[0], b, 64, 0));
    MUST(send(f[1], b, 5, 0));
    MUST(shutdown(f[1], SHUT_WR));
    nap(5);
    say("poll %s", polled(f[0]));
    T(recv(f[0], b, 64, MSG_PEEK));
    T(recv(f[0], b, 64, 0));
    T(recv(f[0], b, 64, 0));
}

CASE(before, low_water_edge, NONE) {
    // Bytes below the mark are no news, at it and beyond each arrival is.
    int f[2], set = (int)MUST(epoll_create1(0));
    char b[16] = "";
    static const int sent[] = {0, 3, 3, 1, -4, 1, 1, 0};
    struct epoll_event e = {EPOLLIN | EPOLLOUT | EPOLLET, {.u32 = 0}};
    join(AF_INET, f);
    MUST(setsockopt(f[0], SOL_SOCKET, SO_RCVLOWAT, &(int){5}, sizeof(int)));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, f[0], &e));
    for (size_t i = 0; i < sizeof sent / sizeof *sent; i++) {
        if (sent[i] > 0)
            MUST(send(f[1], b, (size_t)sent[i], 0));
        else if (sent[i] < 0)
            MUST(recv(f[0], b, (size_t)-sent[i], 0));
        else if (i > 0)
            MUST(shutdown(f[1], SHUT_WR));
        nap(5);
        e.events = 0;
        int n = epoll_wait(set, &e, 1, 0);
        say("after %d: %d %s", sent[i], n, bits(n > 0 ? e.events : 0));
    }
}

CASE(before, peek_offset, NONE) {
    int f[2];
    char b[16] = "";
    join(AF_INET, f);
    MUST(send(f[1], "abcdefgh", 8, 0));
    nap(5);
    T(setsockopt(f[0], SOL_SOCKET, SO_PEEK_OFF, &(int){2}, sizeof(int)));
    T(recv(f[0], b, 3, MSG_PEEK));
    say("%.3s", b);
    T(recv(f[0], b, 3, MSG_PEEK));
    say("%.3s", b);
    T(recv(f[0], b, 2, 0));
    T(recv(f[0], b, 2, MSG_PEEK | MSG_DONTWAIT));
    say("%.2s", b);
}
