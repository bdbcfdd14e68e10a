/* connect. */
#include "differ.h"

#define AT(w) ((struct sockaddr *)&(w)->at)

CASE(connect, errors, LIVE | BIT(closed)) {
    struct sockaddr_storage at;
    loopback(AF_INET, &at);
    set_port(&at, 9);
    T(connect(w->s, NULL, 16));
    T(connect(w->s, (void *)&at, 0));
    T(connect(w->s, (void *)&at, 1));
    T(connect(w->s, (void *)&at, 15));
    T(connect(w->s, (void *)&at, 129));
    T(connect(w->s, (void *)&at, (socklen_t)-1));
    at.ss_family = AF_UNIX;
    T(connect(w->s, (void *)&at, 16));
    at.ss_family = AF_INET6;
    T(connect(w->s, (void *)&at, 28));
    T(connect(w->s, nowhere, 16));
}

CASE(connect, again, EVERY) {
    if (w->state == STATE_connecting || w->state == STATE_refused || w->state > STATE_connecting) {
        T(connect(w->s, AT(w), w->at_len));
        if (w->state != STATE_refused)
            T(connect(w->s, AT(w), w->at_len));
    } else if (w->state == STATE_listening || w->state == STATE_waiting || w->state == STATE_listening6)
        T(connect(w->s, AT(w), w->at_len));
}

CASE(connect, refused, BIT(fresh) | BIT(fresh6) | BIT(bound) | BIT(bound6)) {
    struct sockaddr_storage at;
    socklen_t len;
    int error = -1;
    socklen_t n = sizeof error;
    listener(w->family, -1, &at, &len);
    T(connect(w->s, (void *)&at, len));
    T(getsockopt(w->s, SOL_SOCKET, SO_ERROR, &error, &n));
    say("%s", errno_name(error));
    T(connect(w->s, (void *)&at, len));
    nonblock(w->s, 0);
    T(connect(w->s, (void *)&at, len));
    T(connect(w->s, (void *)&at, len));
}

CASE(connect, bound_without_a_port, NONE) {
    // The address it was bound to stays its own, also where the port is chosen by connect.
    struct sockaddr_storage at, me, peer;
    socklen_t len, n = sizeof me, m = sizeof peer;
    int l = listener(AF_INET, 4, &at, &len), c = fresh(AF_INET), on = 1;
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1)};
    MUST(setsockopt(c, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on));
    T(bind(c, (void *)&from, sizeof from));
    T(connect(c, (void *)&at, len));
    MUST(getsockname(c, (void *)&me, &n));
    look(c);
    socklen_t size = sizeof on;
    T(getsockopt(c, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, &size));
    say("still %d", on);
    say("accept: %s", accept(l, (void *)&peer, &m) >= 0 ? "ok" : errno_name(errno));
    say("bound to %#x, the peer sees %#x", ntohl(((struct sockaddr_in *)&me)->sin_addr.s_addr),
        ntohl(((struct sockaddr_in *)&peer)->sin_addr.s_addr));
}

CASE(connect, nonblocking, BIT(fresh) | BIT(bound) | BIT(fresh6) | BIT(bound6)) {
    struct sockaddr_storage at, me;
    socklen_t len, n = sizeof me;
    int error = -1;
    socklen_t e = sizeof error;
    listener(w->family, 4, &at, &len);
    T(connect(w->s, (void *)&at, len));
    until(w->s, POLLOUT);
    look(w->s);
    T(getsockopt(w->s, SOL_SOCKET, SO_ERROR, &error, &e));
    say("%s", errno_name(error));
    T(connect(w->s, (void *)&at, len));
    T(connect(w->s, (void *)&at, len));
    T(getsockname(w->s, (void *)&me, &n));
    say("%s", name_of(&me, n));
}

CASE(connect, retry_after_refusal, BIT(fresh) | BIT(fresh6)) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(w->family, -1, &at, &len);
    nonblock(w->s, 0);
    T(connect(w->s, (void *)&at, len));
    MUST(listen(l, 4));
    T(connect(w->s, (void *)&at, len));
    look(w->s);
    T(send(w->s, "x", 1, 0));
}

CASE(connect, anywhere, BIT(fresh) | BIT(fresh6)) {
    // To the unspecified address is to this host.
    struct sockaddr_storage at, to = {.ss_family = (sa_family_t)w->family}, me;
    socklen_t len, n = sizeof me;
    listener(w->family, 4, &at, &len);
    set_port(&to, ntohs(((struct sockaddr_in *)&at)->sin_port));
    nonblock(w->s, 0);
    T(connect(w->s, (void *)&to, len));
    look(w->s);
    T(getpeername(w->s, (void *)&me, &n));
    say("%s", name_of(&me, n));
    T(getsockname(w->s, (void *)&me, &n));
    say("%s", name_of(&me, n));
}

CASE(connect, other_loopback, BIT(fresh)) {
    struct sockaddr_in at = {.sin_family = AF_INET}, to, me;
    socklen_t n = sizeof to;
    int l = fresh(AF_INET);
    MUST(bind(l, (void *)&at, sizeof at));
    MUST(listen(l, 4));
    MUST(getsockname(l, (void *)&to, &n));
    MUST(inet_pton(AF_INET, "127.1.2.3", &to.sin_addr));
    nonblock(w->s, 0);
    T(connect(w->s, (void *)&to, n));
    look(w->s);
    T(getpeername(w->s, (void *)&me, &n));
    say("%s", name_of(&me, n));
    T(getsockname(w->s, (void *)&me, &n));
    say("%s", name_of(&me, n));
    int s = (int)MUST(accept(l, NULL, NULL));
    T(getsockname(s, (void *)&me, &n));
    say("%s", name_of(&me, n));
}

CASE(connect, port_0, BIT(fresh) | BIT(fresh6)) {
    struct sockaddr_storage to;
    loopback(w->family, &to);
    nonblock(w->s, 0);
    T(connect(w->s, (void *)&to, w->at_len));
}

CASE(connect, unreachable, BIT(fresh)) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
    nonblock(w->s, 0);
    to.sin_addr.s_addr = htonl(0xffffffff);
    T(connect(w->s, (void *)&to, sizeof to));
    to.sin_addr.s_addr = htonl(0xe0000001);
    T(connect(w->s, (void *)&to, sizeof to));
    to.sin_addr.s_addr = htonl(0xf0000001);
    T(connect(w->s, (void *)&to, sizeof to));
}

CASE(connect, to_itself, BIT(bound) | BIT(bound6)) {
    // Simultaneous open with oneself.
    char b[8];
    struct sockaddr_storage me;
    socklen_t n = sizeof me;
    nonblock(w->s, 0);
    B(connect(w->s, AT(w), w->at_len));
    T(getpeername(w->s, (void *)&me, &n));
    T(send(w->s, "self", 4, MSG_NOSIGNAL));
    T(recv(w->s, b, 8, MSG_DONTWAIT));
}

CASE(connect, waits, NONE) {
    struct world c;
    reach(&c, STATE_connecting);
    nonblock(c.s, 0);
    B(connect(c.s, AT(&c), c.at_len));
    int other = fresh(AF_INET);
    struct timeval t = {0, 20000};
    MUST(setsockopt(other, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    T(connect(other, AT(&c), c.at_len));
    T(connect(other, AT(&c), c.at_len));
}

CASE(connect, shut_while_connecting, NONE) {
    struct world c;
    for (int how = SHUT_RD; how <= SHUT_RDWR; how++) {
        reach(&c, STATE_connecting);
        T(shutdown(c.s, how));
        say("poll %s", polled(c.s));
        T(connect(c.s, AT(&c), c.at_len));
        char b;
        T(recv(c.s, &b, 1, 0));
        T(send(c.s, &b, 1, 0));
    }
}

CASE(connect, unspecified, EVERY) {
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    struct sockaddr_storage me;
    socklen_t n = sizeof me;
    char b;
    T(connect(w->s, &none, 2));
    T(connect(w->s, &none, sizeof none));
    T(getpeername(w->s, (void *)&me, &n));
    if (getsockname(w->s, (void *)&me, &n) == 0)
        say("%s", name_of(&me, n));
    T(recv(w->s, &b, 1, MSG_DONTWAIT));
    T(send(w->s, &b, 1, MSG_DONTWAIT));
    if (w->p >= 0 && w->state != STATE_waiting) {
        until(w->p, POLLIN);
        T(recv(w->p, &b, 1, MSG_DONTWAIT));
    }
}

CASE(connect, again_after_unspecified, BIT(connected) | BIT(connected6)) {
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    char b[4];
    T(connect(w->s, &none, sizeof none));
    T(connect(w->s, AT(w), w->at_len));
    until(w->s, POLLOUT);
    look(w->s);
    int s = accept(w->l, NULL, NULL);
    T(send(w->s, "anew", 4, 0));
    until(s, POLLIN);
    T(recv(s, b, 4, 0));
}

