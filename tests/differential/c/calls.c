/* socket, bind, listen, accept. */
#include "differ.h"

static struct sockaddr_storage local(int family) {
    struct sockaddr_storage at;
    loopback(family, &at);
    return at;
}

CASE(socket, kinds, NONE) {
    static const struct {
        const char *name;
        int domain, type, protocol;
    } kinds[] = {
        {"inet stream", AF_INET, SOCK_STREAM, 0},
        {"inet stream tcp", AF_INET, SOCK_STREAM, IPPROTO_TCP},
        {"inet stream udp", AF_INET, SOCK_STREAM, IPPROTO_UDP},
        {"inet stream 255", AF_INET, SOCK_STREAM, 255},
        {"inet stream -1", AF_INET, SOCK_STREAM, -1},
        {"inet stream nonblock cloexec", AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0},
        {"inet stream unknown flag", AF_INET, SOCK_STREAM | 1 << 20, 0},
        {"inet type 0", AF_INET, 0, 0},
        {"inet type 15", AF_INET, 15, 0},
        {"inet seqpacket", AF_INET, SOCK_SEQPACKET, 0},
        {"inet dgram", AF_INET, SOCK_DGRAM, 0},
        {"inet6 stream", AF_INET6, SOCK_STREAM, 0},
        {"inet6 stream tcp", AF_INET6, SOCK_STREAM, IPPROTO_TCP},
        {"unix stream", AF_UNIX, SOCK_STREAM, 0},
        {"family 0", 0, SOCK_STREAM, 0},
        {"family 99", 99, SOCK_STREAM, 0},
        {"family -1", -1, SOCK_STREAM, 0},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int fd = socket(kinds[i].domain, kinds[i].type, kinds[i].protocol);
        say("socket(%s): %s", kinds[i].name, fd < 0 ? errno_name(errno) : "ok");
        if (fd >= 0)
            say("flags %#x %d", fcntl(fd, F_GETFL), fcntl(fd, F_GETFD)), close(fd);
    }
}

CASE(socket, limit, NONE) {
    struct rlimit few = {16, 16};
    int last = -1, n = 0;
    MUST(setrlimit(RLIMIT_NOFILE, &few));
    for (int fd; (fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0; n++)
        last = fd;
    say("%d sockets, then %s", n, errno_name(errno));
    T(dup(last));
    T(fcntl(last, F_DUPFD, 16));
    T(fcntl(last, F_DUPFD, 0));
    T(epoll_create1(0));
    T(dup2(last, 16));
    T(close(last));
    int again = socket(AF_INET, SOCK_STREAM, 0);
    say("the lowest number: %d", again == last);
}

CASE(accept, limit, BIT(waiting)) {
    struct rlimit few = {16, 16};
    MUST(setrlimit(RLIMIT_NOFILE, &few));
    int fd, last = -1;
    while ((fd = dup(w->s)) >= 0)
        last = fd;
    T(accept(w->s, NULL, NULL));
    T(close(last));
    say("accepted: the lowest number: %d", accept(w->s, NULL, NULL) == last);
    T(accept(w->s, NULL, NULL));
}

CASE(bind, errors, LIVE | BIT(closed)) {
    struct sockaddr_storage at = local(AF_INET);
    T(bind(w->s, NULL, 16));
    T(bind(w->s, (void *)&at, 0));
    T(bind(w->s, (void *)&at, 15));
    T(bind(w->s, (void *)&at, 129));
    T(bind(w->s, (void *)&at, (socklen_t)-1));
    at.ss_family = AF_UNIX;
    T(bind(w->s, (void *)&at, 16));
    at.ss_family = AF_INET6;
    T(bind(w->s, (void *)&at, 28));
    at = local(AF_INET);
    ((struct sockaddr_in *)&at)->sin_addr.s_addr = htonl(0xc0000201);
    T(bind(w->s, (void *)&at, 16));
    ((struct sockaddr_in *)&at)->sin_addr.s_addr = htonl(0xe0000001);
    T(bind(w->s, (void *)&at, 16));
    ((struct sockaddr_in *)&at)->sin_addr.s_addr = htonl(0xffffffff);
    T(bind(w->s, (void *)&at, 16));
}

CASE(bind, bad_pointer, BIT(fresh) | BIT(connected) | BIT(closed)) { T(bind(w->s, nowhere, 16)); }

CASE(bind, loopback, EVERY) {
    struct sockaddr_storage at = local(w->family), me;
    socklen_t len = sizeof me;
    T(bind(w->s, (void *)&at, w->family == AF_INET ? 16 : 28));
    T(getsockname(w->s, (void *)&me, &len));
    if (w->state != STATE_closed)
        say("%s", name_of(&me, len));
    T(bind(w->s, (void *)&at, w->family == AF_INET ? 16 : 28));
}

CASE(bind, unspecified, BIT(fresh) | BIT(fresh6)) {
    struct sockaddr_storage at = {.ss_family = AF_UNSPEC}, me;
    socklen_t len = sizeof me;
    T(bind(w->s, (void *)&at, w->family == AF_INET ? 16 : 28));
    T(getsockname(w->s, (void *)&me, &len));
    say("%s", name_of(&me, len));
}

CASE(bind, in_use, BIT(fresh) | BIT(fresh6) | BIT(connected)) {
    struct sockaddr_storage at;
    socklen_t len;
    int other = listener(w->family, 4, &at, &len);
    T(bind(w->s, (void *)&at, len));
    T(setsockopt(w->s, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)));
    T(bind(w->s, (void *)&at, len));
    T(setsockopt(other, SOL_SOCKET, SO_REUSEPORT, &(int){1}, sizeof(int)));
    T(setsockopt(w->s, SOL_SOCKET, SO_REUSEPORT, &(int){1}, sizeof(int)));
    T(bind(w->s, (void *)&at, len));
    T(listen(w->s, 4));
}

CASE(bind, after_connections, NONE) {
    // A server that restarts: with a connection of its past still there the port is in use, but with SO_REUSEADDR.
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 4, &at, &len), c = fresh(AF_INET);
    MUST(setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)));
    MUST(connect(c, (void *)&at, len));
    int s = (int)MUST(accept(l, NULL, NULL));
    look(c);
    MUST(close(l));
    int again = fresh(AF_INET);
    T(bind(again, (void *)&at, len));
    T(setsockopt(again, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)));
    T(bind(again, (void *)&at, len));
    T(listen(again, 4));
    char b[4];
    T(send(c, "past", 4, 0));
    T(recv(s, b, 4, 0));
}

CASE(bind, over_and_over, NONE) {
    // Each listener is closed, and the next one takes its port.
    struct sockaddr_storage at;
    socklen_t len;
    MUST(close(listener(AF_INET, 4, &at, &len)));
    int failed = 0;
    for (int i = 0; i < 1000; i++) {
        int l = fresh(AF_INET);
        MUST(setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)));
        failed += bind(l, (void *)&at, len) != 0 || listen(l, 4) != 0;
        MUST(close(l));
    }
    say("%d failed", failed);
}

CASE(listen, each, EVERY) {
    T(listen(w->s, 4));
    T(listen(w->s, 0));
    T(listen(w->s, -1));
    T(listen(w->s, INT_MAX));
    int on = -1;
    socklen_t len = sizeof on;
    T(getsockopt(w->s, SOL_SOCKET, SO_ACCEPTCONN, &on, &len));
    say("accepts %d", on);
}

CASE(listen, then_used, BIT(fresh) | BIT(bound) | BIT(fresh6)) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    char b[4];
    T(listen(w->s, 4));
    T(getsockname(w->s, (void *)&at, &len));
    say("%s", name_of(&at, len));
    struct sockaddr_storage to = local(w->family);
    set_port(&to, ntohs(((struct sockaddr_in *)&at)->sin_port));
    int c = fresh(w->family);
    T(connect(c, (void *)&to, len));
    until(w->s, POLLIN);
    int s = accept(w->s, NULL, NULL);
    look(c);
    T(send(c, "word", 4, 0));
    until(s, POLLIN);
    T(recv(s, b, 4, 0));
}

CASE(listen, two_on_one_port, NONE) {
    struct sockaddr_storage at;
    socklen_t len;
    int a = listener(AF_INET, -1, &at, &len), b = fresh(AF_INET);
    T(bind(b, (void *)&at, len));
    MUST(setsockopt(b, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)));
    MUST(setsockopt(a, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)));
    T(bind(b, (void *)&at, len));
    T(listen(a, 4));
    T(listen(b, 4));
}

CASE(accept, errors, EVERY) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    T(accept4(w->s, NULL, NULL, 1));
    T(accept4(w->s, NULL, NULL, ~0));
    if (w->state != STATE_waiting) {
        T(accept(w->s, NULL, NULL));
        T(accept(w->s, (void *)&at, &len));
        T(accept4(w->s, (void *)&at, &len, SOCK_NONBLOCK));
        say("length %u", len);
    }
}

CASE(accept, no_length, BIT(waiting)) {
    struct sockaddr_storage at;
    T(accept(w->s, (void *)&at, NULL));
    T(accept(w->s, NULL, NULL));
}

CASE(accept, negative_length, BIT(waiting)) {
    struct sockaddr_storage at;
    socklen_t len = (socklen_t)-1;
    T(accept(w->s, (void *)&at, &len));
    T(accept(w->s, NULL, NULL));
}

CASE(accept, short_length, BIT(waiting)) {
    struct sockaddr_storage at = {0};
    socklen_t len = 6;
    say("%s", accept(w->s, (void *)&at, &len) >= 0 ? "ok" : errno_name(errno));
    say("length %u, family %d, address %u", len, at.ss_family, ((struct sockaddr_in *)&at)->sin_addr.s_addr);
}

CASE(accept, length_without_name, BIT(waiting)) {
    socklen_t len = 7;
    say("%s", accept(w->s, NULL, &len) >= 0 ? "ok" : errno_name(errno));
    say("length %u", len);
}

CASE(accept, bad_pointer, BIT(waiting)) {
    socklen_t len = 16;
    T(accept(w->s, nowhere, &len));
    T(accept(w->s, NULL, NULL));
}

CASE(accept, flags, BIT(waiting)) {
    struct sockaddr_storage at, me;
    socklen_t len = sizeof at, mine = sizeof me;
    int fd = accept4(w->s, (void *)&at, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    MUST(getsockname(w->p, (void *)&me, &mine));
    say("flags %#x %d, peer %s %u, as it says %d", fcntl(fd, F_GETFL), fcntl(fd, F_GETFD), name_of(&at, len), len,
        memcmp(&at, &me, len) == 0);
    T(accept(w->s, NULL, NULL));
}

CASE(accept, plain, BIT(waiting)) {
    // Nothing is inherited but options: neither O_NONBLOCK nor FD_CLOEXEC.
    MUST(fcntl(w->s, F_SETFD, FD_CLOEXEC));
    int fd = accept(w->s, NULL, NULL);
    say("flags %#x %d", fcntl(fd, F_GETFL), fcntl(fd, F_GETFD));
}

CASE(accept, waits, BIT(listening)) {
    nonblock(w->s, 0);
    B(accept(w->s, NULL, NULL));
    struct timeval t = {0, 20000};
    MUST(setsockopt(w->s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    T(accept(w->s, NULL, NULL));
}

CASE(accept, after_the_peer_left, NONE) {
    // The connection was there: it is accepted, with what came before the end.
    struct sockaddr_storage at;
    socklen_t len;
    char b[8];
    int l = listener(AF_INET, 4, &at, &len);
    for (int hard = 0; hard < 2; hard++) {
        int c = fresh(AF_INET);
        struct linger now = {hard, 0};
        MUST(connect(c, (void *)&at, len));
        look(c);
        MUST(setsockopt(c, SOL_SOCKET, SO_LINGER, &now, sizeof now));
        MUST(send(c, "last", 4, 0));
        MUST(close(c));
        nap(5);
        int s = accept(l, NULL, NULL);
        say("hard %d: %s", hard, s >= 0 ? "accepted" : errno_name(errno));
        T(getpeername(s, (void *)&at, &len));
        MUST(getsockname(l, (void *)&at, &len));
        T(recv(s, b, 8, 0));
        T(recv(s, b, 8, 0));
    }
}

CASE(accept, in_order, NONE) {
    struct sockaddr_storage at, names[8], peer;
    socklen_t len, n = sizeof peer;
    int l = listener(AF_INET, 16, &at, &len);
    for (int i = 0; i < 8; i++) {
        int c = fresh(AF_INET);
        MUST(connect(c, (void *)&at, len));
        look(c);
        n = sizeof peer;
        MUST(getsockname(c, (void *)&names[i], &n));
    }
    for (int i = 0; i < 8; i++) {
        n = sizeof peer;
        MUST(accept(l, (void *)&peer, &n));
        say("%d in order: %d", i, memcmp(&peer, &names[i], n) == 0);
    }
}

