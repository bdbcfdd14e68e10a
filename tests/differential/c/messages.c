/* send and recv with every flag, names, control messages, many messages at once. */
#include "differ.h"

static char b[64];

static const struct {
    int bit;
    const char *name;
} FLAGS[] = {{MSG_OOB, "MSG_OOB"},
             {MSG_PEEK, "MSG_PEEK"},
             {MSG_DONTROUTE, "MSG_DONTROUTE"},
             {MSG_CTRUNC, "MSG_CTRUNC"},
             {0x10, "MSG_PROXY"},
             {MSG_TRUNC, "MSG_TRUNC"},
             {MSG_DONTWAIT, "MSG_DONTWAIT"},
             {MSG_EOR, "MSG_EOR"},
             {MSG_WAITALL, "MSG_WAITALL"},
             {MSG_FIN, "MSG_FIN"},
             {MSG_SYN, "MSG_SYN"},
             {MSG_CONFIRM, "MSG_CONFIRM"},
             {MSG_RST, "MSG_RST"},
             {MSG_ERRQUEUE, "MSG_ERRQUEUE"},
             {MSG_NOSIGNAL, "MSG_NOSIGNAL"},
             {MSG_MORE, "MSG_MORE"},
             {MSG_WAITFORONE, "MSG_WAITFORONE"},
             {MSG_BATCH, "MSG_BATCH"},
             {MSG_CMSG_CLOEXEC, "MSG_CMSG_CLOEXEC"},
             {1 << 22, "bit 22"},
             {1 << 23, "bit 23"},
             {1 << 24, "bit 24"}};
enum { FLAG_COUNT = sizeof FLAGS / sizeof *FLAGS };

CASE(recv, each, EVERY) {
    T(recv(w->s, b, 0, 0));
    T(recv(w->s, b, 4, 0));
    T(recv(w->s, b, 64, MSG_DONTWAIT));
    T(recv(w->s, b, 64, 0));
}

/* A case for every flag: `recv.flag` in a table by name. */
#define RECEIVE(flag)                                                                                                  \
    CASE(recv, flag, EVERY) {                                                                                          \
        T(recv(w->s, b, 0, flag));                                                                                     \
        T(recv(w->s, b, 4, flag));                                                                                     \
        say("%.4s", b);                                                                                                \
        T(recv(w->s, b, 64, flag));                                                                                    \
        say("%.10s", b);                                                                                               \
        T(recv(w->s, b, 64, 0));                                                                                       \
    }
RECEIVE(MSG_PEEK)
RECEIVE(MSG_TRUNC)
RECEIVE(MSG_WAITALL)
RECEIVE(MSG_DONTWAIT)
RECEIVE(MSG_OOB)
RECEIVE(MSG_ERRQUEUE)
RECEIVE(MSG_CMSG_CLOEXEC)
RECEIVE(MSG_NOSIGNAL)

CASE(recv, other_flags, BIT(fresh) | BIT(listening) | BIT(connected) | BIT(data) | BIT(peer_shut) | BIT(closed)) {
    for (int i = 0; i < FLAG_COUNT; i++) {
        errno = 0;
        long n = recv(w->s, b, 1, FLAGS[i].bit);
        say("recv %s = %s", FLAGS[i].name, said(n));
    }
    T(recv(w->s, b, 1, -1));
}

CASE(recv, flags_together, BIT(data) | BIT(last_words)) {
    T(recv(w->s, b, 4, MSG_PEEK | MSG_TRUNC));
    T(recv(w->s, b, 4, MSG_PEEK | MSG_WAITALL));
    T(recv(w->s, b, 64, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT));
    T(recv(w->s, NULL, 3, MSG_TRUNC | MSG_WAITALL));
    T(recv(w->s, b, 4, MSG_WAITALL | MSG_DONTWAIT));
    say("%.4s", b);
    T(recv(w->s, b, 64, MSG_TRUNC | MSG_DONTWAIT));
    T(recv(w->s, b, 64, MSG_TRUNC | MSG_DONTWAIT));
}

CASE(recv, waits_for_all, BIT(data) | BIT(last_words) | BIT(connected)) {
    nonblock(w->s, 0);
    B(recv(w->s, b, 64, MSG_WAITALL));
    B(recv(w->s, b, 64, MSG_PEEK | MSG_WAITALL));
    B(recv(w->s, b, 64, MSG_WAITALL | MSG_DONTWAIT));
}

CASE(send, each, EVERY) {
    T(send(w->s, b, 0, 0));
    T(send(w->s, b, 4, 0));
    T(send(w->s, b, 4, MSG_NOSIGNAL));
    T(send(w->s, b, 4, MSG_DONTWAIT));
}

#define SEND(flag)                                                                                                     \
    CASE(send, flag, EVERY) {                                                                                          \
        T(send(w->s, b, 0, flag));                                                                                     \
        T(send(w->s, b, 4, flag));                                                                                     \
        T(send(w->s, b, 4, flag));                                                                                     \
    }
SEND(MSG_OOB)
SEND(MSG_MORE)
SEND(MSG_EOR)
SEND(MSG_NOSIGNAL)
SEND(MSG_DONTROUTE)
SEND(MSG_CONFIRM)
SEND(MSG_FASTOPEN)
SEND(MSG_ZEROCOPY)

CASE(send, other_flags, BIT(fresh) | BIT(listening) | BIT(connected) | BIT(shut_wr) | BIT(closed)) {
    for (int i = 0; i < FLAG_COUNT; i++) {
        errno = 0;
        long n = send(w->s, b, 1, FLAGS[i].bit);
        say("send %s = %s", FLAGS[i].name, said(n));
    }
    if (w->p >= 0) {
        nap(2);
        T(recv(w->p, b, 64, MSG_DONTWAIT));
    }
}

CASE(send, urgent, BIT(connected)) {
    // A byte of urgent data: its mark, its place, in line or beside.
    int mark = -1;
    MUST(send(w->s, "abc", 3, 0));
    T(send(w->s, "def", 3, MSG_OOB));
    MUST(send(w->s, "ghi", 3, 0));
    nap(2);
    say("poll %s", polled(w->p));
    T(ioctl(w->p, SIOCATMARK, &mark));
    say("at mark %d", mark);
    T(recv(w->p, b, 64, MSG_OOB | MSG_PEEK));
    T(recv(w->p, b, 64, MSG_OOB));
    T(recv(w->p, b, 64, MSG_OOB));
    T(recv(w->p, b, 64, 0));
    say("%.5s", b);
    T(ioctl(w->p, SIOCATMARK, &mark));
    say("at mark %d", mark);
    T(recv(w->p, b, 64, 0));
    say("%.3s", b);
}

CASE(send, urgent_in_line, BIT(connected)) {
    int mark = -1;
    MUST(setsockopt(w->p, SOL_SOCKET, SO_OOBINLINE, &(int){1}, sizeof(int)));
    T(send(w->s, "abc", 3, MSG_OOB));
    nap(2);
    say("poll %s", polled(w->p));
    T(recv(w->p, b, 64, MSG_OOB));
    T(recv(w->p, b, 64, 0));
    T(ioctl(w->p, SIOCATMARK, &mark));
    say("at mark %d", mark);
    T(recv(w->p, b, 64, 0));
}

CASE(recvfrom, each, EVERY) {
    struct sockaddr_storage from = {0};
    socklen_t len = sizeof from, negative = (socklen_t)-1;
    T(recvfrom(w->s, b, 4, MSG_DONTWAIT, (void *)&from, &len));
    say("length %u, family %d", len, from.ss_family);
    T(recvfrom(w->s, b, 1, MSG_DONTWAIT, (void *)&from, &negative));
    say("length %u", negative);
    T(recvfrom(w->s, b, 1, MSG_DONTWAIT, (void *)&from, NULL));
    T(recvfrom(w->s, b, 1, MSG_DONTWAIT, NULL, NULL));
    len = 5;
    T(recvfrom(w->s, b, 1, MSG_DONTWAIT, NULL, &len));
    say("length %u", len);
}

CASE(sendto, each, EVERY) {
    struct sockaddr_storage to;
    socklen_t len = loopback(w->family, &to);
    set_port(&to, 9);
    T(sendto(w->s, b, 4, MSG_DONTWAIT, NULL, 0));
    T(sendto(w->s, b, 4, MSG_DONTWAIT, NULL, 16));
    T(sendto(w->s, b, 4, MSG_DONTWAIT, (void *)&to, len));
    T(sendto(w->s, b, 4, MSG_DONTWAIT, (void *)&to, 0));
    T(sendto(w->s, b, 4, MSG_DONTWAIT, (void *)&to, 1));
    T(sendto(w->s, b, 4, MSG_DONTWAIT, (void *)&to, 200));
    T(sendto(w->s, b, 4, MSG_DONTWAIT, (void *)&to, (socklen_t)-1));
}

CASE(sendto, bad_pointer, BIT(connected) | BIT(fresh)) { T(sendto(w->s, b, 4, MSG_DONTWAIT, nowhere, 16)); }

CASE(recvmsg, each, EVERY) {
    struct sockaddr_storage from;
    char control[64];
    struct iovec v[2] = {{b, 3}, {b + 3, 3}};
    struct msghdr m = {&from, sizeof from, v, 2, control, sizeof control, -1};
    T(recvmsg(w->s, &m, MSG_DONTWAIT));
    say("name %u, control %zu, flags %#x", m.msg_namelen, m.msg_controllen, (unsigned)m.msg_flags);
    m = (struct msghdr){NULL, 0, v, 2, NULL, 0, 0};
    T(recvmsg(w->s, &m, MSG_DONTWAIT | MSG_PEEK));
    T(recvmsg(w->s, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC));
    say("flags %#x", (unsigned)m.msg_flags);
    T(recvmsg(w->s, &m, MSG_ERRQUEUE));
    say("flags %#x", (unsigned)m.msg_flags);
}

CASE(recvmsg, errors, EVERY) {
    struct iovec v[1025];
    for (int i = 0; i < 1025; i++)
        v[i] = (struct iovec){b, 0};
    struct msghdr m = {NULL, 0, v, 1025, NULL, 0, 0};
    T(recvmsg(w->s, NULL, MSG_DONTWAIT));
    T(recvmsg(w->s, &m, MSG_DONTWAIT));
    m.msg_iovlen = SIZE_MAX;
    T(recvmsg(w->s, &m, MSG_DONTWAIT));
    m.msg_iovlen = 1, m.msg_namelen = (socklen_t)-1;
    T(recvmsg(w->s, &m, MSG_DONTWAIT));
    m.msg_name = b;
    T(recvmsg(w->s, &m, MSG_DONTWAIT));
    T(recvmsg(w->s, &m, -1));
    m.msg_name = NULL, m.msg_namelen = 0, m.msg_iov = NULL;
    T(recvmsg(w->s, &m, MSG_DONTWAIT));
    m.msg_iovlen = 0;
    T(recvmsg(w->s, &m, MSG_DONTWAIT));
    m.msg_iov = v, m.msg_iovlen = 1, v[0].iov_len = SIZE_MAX;
    T(recvmsg(w->s, &m, MSG_DONTWAIT));
}

CASE(sendmsg, bad_control, BIT(connected) | BIT(shut_wr) | BIT(peer_closed) | BIT(fresh)) {
    struct iovec v = {b, 4};
    void *const places[] = {nowhere, (void *)-1L, (void *)(1L << 46)};
    for (int i = 0; i < 3; i++) {
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = places[i], .msg_controllen = 32};
        T(sendmsg(w->s, &m, MSG_DONTWAIT));
    }
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = places[1], .msg_controllen = 32};
    T(sendmsg(pair[0], &m, MSG_DONTWAIT));
}

CASE(sendmsg, errors, EVERY) {
    struct iovec v[1025];
    for (int i = 0; i < 1025; i++)
        v[i] = (struct iovec){b, 0};
    struct msghdr m = {NULL, 0, v, 1025, NULL, 0, 0};
    T(sendmsg(w->s, NULL, MSG_DONTWAIT));
    T(sendmsg(w->s, &m, MSG_DONTWAIT));
    m.msg_iovlen = SIZE_MAX;
    T(sendmsg(w->s, &m, MSG_DONTWAIT));
    m.msg_iovlen = 1, m.msg_namelen = (socklen_t)-1;
    T(sendmsg(w->s, &m, MSG_DONTWAIT));
    m.msg_name = b;
    T(sendmsg(w->s, &m, MSG_DONTWAIT));
    m.msg_name = NULL, m.msg_namelen = 0, m.msg_iov = NULL;
    T(sendmsg(w->s, &m, MSG_DONTWAIT));
    m.msg_iovlen = 0;
    T(sendmsg(w->s, &m, MSG_DONTWAIT));
    m.msg_iov = v, m.msg_iovlen = 1, v[0].iov_len = SIZE_MAX;
    T(sendmsg(w->s, &m, MSG_DONTWAIT));
}

/* A control message of that kind, with a number in it. */
static void send_control(struct world *w, const char *name, int level, int type, size_t len) {
    union {
        char bytes[64];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec v = {b, 4};
    struct msghdr m = {NULL, 0, &v, 1, &control, CMSG_SPACE(sizeof(int)), 0};
    *CMSG_FIRSTHDR(&m) = (struct cmsghdr){.cmsg_len = len, .cmsg_level = level, .cmsg_type = type};
    errno = 0;
    long n = sendmsg(w->s, &m, MSG_DONTWAIT);
    say("sendmsg %s = %s", name, said(n));
}

CASE(sendmsg, control, EVERY) {
    send_control(w, "SCM_RIGHTS", SOL_SOCKET, SCM_RIGHTS, CMSG_LEN(sizeof(int)));
    send_control(w, "SO_MARK", SOL_SOCKET, SO_MARK, CMSG_LEN(sizeof(int)));
    send_control(w, "SO_TIMESTAMPING", SOL_SOCKET, SO_TIMESTAMPING, CMSG_LEN(sizeof(int)));
    send_control(w, "socket 999", SOL_SOCKET, 999, CMSG_LEN(sizeof(int)));
    send_control(w, "IP_TTL", IPPROTO_IP, IP_TTL, CMSG_LEN(sizeof(int)));
    send_control(w, "level 99", 99, 1, CMSG_LEN(sizeof(int)));
    send_control(w, "too short", SOL_SOCKET, SO_MARK, 4);
    send_control(w, "too long", SOL_SOCKET, SO_MARK, 400);
    send_control(w, "empty", SOL_SOCKET, SO_MARK, CMSG_LEN(0));
}

CASE(recvmmsg, each, EVERY) {
    struct iovec v[3] = {{b, 4}, {b, 4}, {b, 4}};
    struct mmsghdr m[3] = {{{.msg_iov = &v[0], .msg_iovlen = 1}, 0},
                           {{.msg_iov = &v[1], .msg_iovlen = 1}, 0},
                           {{.msg_iov = &v[2], .msg_iovlen = 1}, 0}};
    struct timespec wrong = {-1, 0}, zero = {0, 0};
    T(recvmmsg(w->s, m, 0, 0, NULL));
    T(recvmmsg(w->s, m, 1, 0, &wrong));
    T(recvmmsg(w->s, NULL, 1, MSG_DONTWAIT, NULL));
    T(recvmmsg(w->s, m, 3, MSG_WAITFORONE, NULL));
    say("%u %u %u", m[0].msg_len, m[1].msg_len, m[2].msg_len);
    T(recvmmsg(w->s, m, 3, MSG_DONTWAIT, &zero));
    T(recvmmsg(w->s, m, 3, MSG_DONTWAIT, NULL));
}

CASE(sendmmsg, each, EVERY) {
    struct iovec v[3] = {{b, 1}, {b, 2}, {b, 3}};
    struct mmsghdr m[3] = {{{.msg_iov = &v[0], .msg_iovlen = 1}, 0},
                           {{.msg_iov = &v[1], .msg_iovlen = 1}, 0},
                           {{.msg_iov = &v[2], .msg_iovlen = 1}, 0}};
    T(sendmmsg(w->s, m, 0, 0));
    T(sendmmsg(w->s, NULL, 1, MSG_DONTWAIT));
    T(sendmmsg(w->s, m, 3, MSG_DONTWAIT));
    say("%u %u %u", m[0].msg_len, m[1].msg_len, m[2].msg_len);
    m[1].msg_hdr.msg_iovlen = 2000;
    T(sendmmsg(w->s, m, 3, MSG_DONTWAIT));
    v[1].iov_base = NULL, m[1].msg_hdr.msg_iovlen = 1;
    T(sendmmsg(w->s, m, 3, MSG_DONTWAIT));
}

CASE(recvmmsg, after_the_end, BIT(last_words)) {
    struct iovec v[3] = {{b, 4}, {b, 64}, {b, 4}};
    struct mmsghdr m[3] = {{{.msg_iov = &v[0], .msg_iovlen = 1}, 0},
                           {{.msg_iov = &v[1], .msg_iovlen = 1}, 0},
                           {{.msg_iov = &v[2], .msg_iovlen = 1}, 0}};
    T(recvmmsg(w->s, m, 3, 0, NULL));
    say("%u %u %u", m[0].msg_len, m[1].msg_len, m[2].msg_len);
}

CASE(recvmsg, inq, BIT(data) | BIT(connected) | BIT(last_words)) {
    union {
        char bytes[64];
        struct cmsghdr align;
    } control;
    MUST(setsockopt(w->s, IPPROTO_TCP, TCP_INQ, &(int){1}, sizeof(int)));
    for (int i = 0; i < 4; i++) {
        struct iovec v = {b, 4};
        struct msghdr m = {NULL, 0, &v, 1, &control, sizeof control, 0};
        errno = 0;
        long n = recvmsg(w->s, &m, MSG_DONTWAIT);
        struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&m) : NULL;
        say("%s: control %zu, type %d, left %d", said(n), m.msg_controllen, c ? c->cmsg_type : -1,
            c ? *(int *)CMSG_DATA(c) : -1);
    }
}

CASE(sendmmsg, many, BIT(connected) | BIT(accepted)) {
    static struct mmsghdr m[1100];
    struct iovec v = {b, 1};
    for (int i = 0; i < 1100; i++)
        m[i].msg_hdr.msg_iov = &v, m[i].msg_hdr.msg_iovlen = 1;
    T(sendmmsg(w->s, m, 1024, 0));
    T(sendmmsg(w->s, m, 1025, MSG_DONTWAIT));
    T(sendmmsg(w->s, m, 1100, 0));
}

union control {
    char bytes[128];
    struct cmsghdr align;
};

static const struct {
    const char *word;
    int name;
} STAMPS[] = {{"SO_TIMESTAMP", SO_TIMESTAMP},
              {"SO_TIMESTAMPNS", SO_TIMESTAMPNS},
              {"SO_TIMESTAMP_NEW", SO_TIMESTAMP_NEW},
              {"SO_TIMESTAMPNS_NEW", SO_TIMESTAMPNS_NEW}};

/* What comes beside the bytes, with times as far as they are of these days. */
static void say_beside(struct world *w, size_t room, int flags) {
    union control control;
    struct iovec v = {b, 2};
    struct msghdr m = {NULL, 0, &v, 1, room ? &control : NULL, room, 0};
    memset(&control, 0, sizeof control);
    errno = 0;
    long n = recvmsg(w->s, &m, flags);
    say("into %zu: %s, control %zu%s", room, said(n), m.msg_controllen, m.msg_flags & MSG_CTRUNC ? ", cut" : "");
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        time_t at = *(time_t *)CMSG_DATA(c);
        int is_time = c->cmsg_level == SOL_SOCKET && c->cmsg_len == CMSG_LEN(16);
        say("level %d, type %d, %zu bytes, %s", c->cmsg_level, c->cmsg_type, c->cmsg_len,
            !is_time ? "no time" : labs(at - time(NULL)) < 10 ? "now" : "not now");
    }
}

/* The kernel needs a moment to begin with it. */
static void stamp(struct world *w, int name, int on) {
    T(setsockopt(w->s, SOL_SOCKET, name, &on, sizeof on));
    nap(20);
    MUST(send(w->p, "some more bytes", 15, 0));
    nap(2);
}

CASE(recvmsg, stamps, BIT(connected) | BIT(accepted) | BIT(connected6)) {
    for (int i = 0; i < 4; i++) {
        say("%s", STAMPS[i].word);
        stamp(w, STAMPS[i].name, 1);
        say_beside(w, 128, 0);
        say_beside(w, 128, MSG_PEEK);
        say_beside(w, 128, MSG_TRUNC);
    }
    stamp(w, SO_TIMESTAMP, 0);
    say_beside(w, 128, 0);
}

CASE(recvmsg, stamps_and_inq, BIT(connected)) {
    static const size_t rooms[] = {128, 56, 55, 54, 53, 52, 51, 48, 47, 36, 32, 31, 20, 16, 15, 1, 0};
    stamp(w, SO_TIMESTAMPNS, 1);
    MUST(setsockopt(w->s, IPPROTO_TCP, TCP_INQ, &(int){1}, sizeof(int)));
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++)
        say_beside(w, rooms[i], MSG_PEEK);
    while (recv(w->s, b, 64, MSG_DONTWAIT) > 0)
        ;
    say_beside(w, 128, MSG_DONTWAIT);
    MUST(shutdown(w->p, SHUT_WR));
    until(w->s, POLLIN);
    say_beside(w, 128, 0);
}

CASE(recvmsg, stamps_of_accepted, BIT(listening)) {
    MUST(setsockopt(w->s, SOL_SOCKET, SO_TIMESTAMPNS, &(int){1}, sizeof(int)));
    int c = fresh(AF_INET);
    MUST(connect(c, (void *)&w->at, w->at_len));
    nap(20);
    w->p = c, w->s = (int)MUST(accept(w->s, NULL, NULL));
    MUST(send(c, "bytes", 5, 0));
    until(w->s, POLLIN);
    say_beside(w, 128, 0);
}
