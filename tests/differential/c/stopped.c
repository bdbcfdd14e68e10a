/* A listener that stops, by shutdown or by connect to AF_UNSPEC: what becomes of its port, of connections that wait, of its watchers. */
#include "differ.h"

#define AT(at) ((struct sockaddr *)(at))

enum way { READ, BOTH, UNSPECIFIED, WAYS };
static const char *const way_names[] = {"SHUT_RD", "SHUT_RDWR", "connect to AF_UNSPEC"};

/* Where a listener listens, and from where the program connects to it. */
enum place { FOUR, SIX_ONLY, DUAL, PLACES };
static const char *const place_names[] = {"IPv4", "IPv6", "IPv6 from IPv4"};

/* What becomes of the one connection that was accepted, before the listener stops. */
enum fate { ABSENT, LIVES, RESTS, GONE };

struct listening {
    enum place place;
    int l, is_reusing;
    struct sockaddr_storage at;
    socklen_t len;
};

static long stop(int l, enum way way) {
    struct sockaddr_storage nothing = {.ss_family = AF_UNSPEC};
    switch (way) {
    case READ:
        return shutdown(l, SHUT_RD);
    case BOTH:
        return shutdown(l, SHUT_RDWR);
    default:
        return connect(l, AT(&nothing), sizeof nothing);
    }
}

static int fresh_there(enum place place) {
    int s = fresh(place == FOUR ? AF_INET : AF_INET6);
    if (place != FOUR)
        set_int(s, IPPROTO_IPV6, IPV6_V6ONLY, place == SIX_ONLY);
    return s;
}

static in_port_t port_of(const struct sockaddr_storage *at) {
    return ntohs(at->ss_family == AF_INET ? ((struct sockaddr_in *)at)->sin_port : ((struct sockaddr_in6 *)at)->sin6_port);
}

static void find(struct listening *on) {
    on->len = sizeof on->at;
    MUST(getsockname(on->l, AT(&on->at), &on->len));
}

/* `is_given`: the program names the port, the kernel does not choose it. */
static void begin(struct listening *on, enum place place, int is_given, int is_reusing) {
    on->place = place, on->is_reusing = is_reusing;
    on->len = loopback(place == FOUR ? AF_INET : AF_INET6, &on->at);
    if (place == DUAL)
        ((struct sockaddr_in6 *)&on->at)->sin6_addr = in6addr_any;
    if (is_given) {
        on->l = fresh_there(place);
        MUST(bind(on->l, AT(&on->at), on->len));
        find(on);
        close(on->l);
    }
    on->l = fresh_there(place);
    set_int(on->l, SOL_SOCKET, SO_REUSEADDR, is_reusing);
    MUST(bind(on->l, AT(&on->at), on->len));
    find(on);
    MUST(listen(on->l, 4));
}

/* A socket that connects to where the listener has listened; -1: it was refused, and errno says why. */
static int reach_it(const struct listening *on) {
    struct sockaddr_storage to = on->at;
    socklen_t len = on->len;
    if (on->place == DUAL) {
        len = loopback(AF_INET, &to);
        set_port(&to, port_of(&on->at));
    }
    int c = fresh(on->place == SIX_ONLY ? AF_INET6 : AF_INET), error;
    if (connect(c, AT(&to), len) == 0)
        return c;
    error = errno;
    close(c);
    errno = error;
    return -1;
}

/* New sockets, without SO_REUSEADDR and with it, are bound to the port. */
static void bind_others(const struct listening *on) {
    for (int reuse = 0; reuse < 2; reuse++) {
        int s = fresh_there(on->place);
        set_int(s, SOL_SOCKET, SO_REUSEADDR, reuse);
        long result = bind(s, AT(&on->at), on->len);
        say("another's bind%s: %s", reuse ? ", SO_REUSEADDR" : "", result == 0 ? "bound" : errno_name(errno));
        close(s);
    }
}

static void say_port(const struct listening *on) {
    struct listening now = *on;
    find(&now);
    say("the port is the same: %d", port_of(&now.at) == port_of(&on->at));
}

static void say_whether_it_is_reached(const struct listening *on) {
    int c = reach_it(on);
    say("connect: %s", c >= 0 ? "connected" : errno_name(errno));
    close(c);
}

/* The accepted connection, and how far it has come. */
static void connect_one(const struct listening *on, enum fate fate, int ends[2]) {
    ends[0] = (int)MUST(reach_it(on));
    ends[1] = (int)MUST(accept(on->l, NULL, NULL));
    look(ends[0]), look(ends[1]);
    int first = fate == RESTS;
    if (fate == RESTS || fate == GONE) {
        close(ends[first]);
        until(ends[!first], POLLIN);
        close(ends[!first]);
        nap(2);
        ends[0] = ends[1] = -1;
    }
}

static void whose_port(enum way way, enum place place, int is_given, int is_reusing, enum fate fate) {
    struct listening on;
    int ends[2] = {-1, -1};
    say("%s, %s, the port is %s%s", way_names[way], place_names[place], is_given ? "given" : "chosen", is_reusing ? ", SO_REUSEADDR" : "");
    begin(&on, place, is_given, is_reusing);
    if (fate != ABSENT)
        connect_one(&on, fate, ends);
    T(stop(on.l, way));
    T(accept(on.l, NULL, NULL));
    say_port(&on);
    bind_others(&on);
    say_whether_it_is_reached(&on);
    T(listen(on.l, 4));
    say_port(&on);
    say_whether_it_is_reached(&on);
    T(stop(on.l, way));
    close(on.l);
    bind_others(&on);
    close(ends[0]), close(ends[1]);
}

static void whose_ports(enum way way, enum fate fate) {
    for (int place = 0; place < PLACES; place++)
        for (int i = 0; i < 4; i++)
            whose_port(way, place, i & 1, i >> 1, fate);
}

CASE(stopped, port_without_connections, NONE) {
    for (int way = 0; way < WAYS; way++)
        whose_ports(way, ABSENT);
}

CASE(stopped, port_with_a_connection, NONE) { whose_ports(READ, LIVES); }
CASE(stopped, port_with_a_connection_both, NONE) { whose_ports(BOTH, LIVES); }
CASE(stopped, port_with_a_connection_unspecified, NONE) { whose_ports(UNSPECIFIED, LIVES); }
CASE(stopped, port_in_time_wait, NONE) { whose_ports(READ, RESTS); }
CASE(stopped, port_after_passive_close, NONE) { whose_ports(READ, GONE); }

/* The connection of a stopped listener ends: the port is free from then on. */
CASE(stopped, port_after_its_connection, NONE) {
    for (int i = 0; i < 8; i++) {
        struct listening on;
        int ends[2];
        begin(&on, FOUR, i & 1, i >> 1 & 1);
        connect_one(&on, LIVES, ends);
        MUST(stop(on.l, READ));
        if (i & 4)
            close(on.l);
        bind_others(&on);
        close(ends[0]);
        until(ends[1], POLLIN);
        close(ends[1]);
        nap(2);
        bind_others(&on);
        if (!(i & 4)) {
            T(listen(on.l, 4));
            say_port(&on);
            close(on.l);
        }
        bind_others(&on);
    }
}

/* SO_REUSEADDR is set, or no longer, between the listener's calls. */
CASE(stopped, option_changes, NONE) {
    for (int i = 0; i < 4; i++) {
        struct listening on;
        int ends[2];
        begin(&on, FOUR, i & 1, i >> 1);
        connect_one(&on, LIVES, ends);
        set_int(on.l, SOL_SOCKET, SO_REUSEADDR, !(i >> 1));
        T(stop(on.l, READ));
        bind_others(&on);
        T(listen(on.l, 4));
        close(on.l);
        bind_others(&on);
        close(ends[0]), close(ends[1]);
    }
}

/* Two connections wait, one of them with bytes. */
CASE(stopped, waiting_connections, NONE) {
    for (int way = -1; way < WAYS; way++)
        for (int place = 0; place < PLACES; place++) {
            struct listening on;
            char b[8];
            begin(&on, place, 0, 0);
            int c[] = {(int)MUST(reach_it(&on)), (int)MUST(reach_it(&on))};
            MUST(send(c[1], "abc", 3, 0));
            until(on.l, POLLIN);
            say("%s, %s", way < 0 ? "SHUT_WR" : way_names[way], place_names[place]);
            told("stop", way < 0 ? shutdown(on.l, SHUT_WR) : stop(on.l, way));
            for (int i = 0; i < 2; i++) {
                if (way >= 0)
                    until(c[i], POLLIN);
                say("%s", polled(c[i]));
                T(recv(c[i], b, sizeof b, MSG_DONTWAIT));
                T(send(c[i], "d", 1, MSG_DONTWAIT));
            }
            int s = accept(on.l, NULL, NULL);
            say("accept: %s", s >= 0 ? "accepted" : errno_name(errno));
            say_whether_it_is_reached(&on);
            close(s), close(c[0]), close(c[1]), close(on.l);
        }
}

/* The events of the set in the order of their numbers, which are 1 and 2. */
static void say_events(int set) {
    struct epoll_event events[4];
    int n = epoll_wait(set, events, 4, 0);
    for (unsigned number = 1; number <= 2; number++)
        for (int i = 0; i < n; i++)
            if (events[i].data.u32 == number)
                say("%u: %s", number, bits(events[i].events));
    say("%d events", n);
}

static void say_state(int l) {
    int listens = -1, error = -1;
    socklen_t len = sizeof listens;
    T(getsockopt(l, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len));
    T(getsockopt(l, SOL_SOCKET, SO_ERROR, &error, &len));
    struct tcp_info info = {0};
    len = sizeof info;
    T(getsockopt(l, IPPROTO_TCP, TCP_INFO, &info, &len));
    say("listens %d, error %s, state %d, %s", listens, errno_name(error), info.tcpi_state, polled(l));
}

/* What poll and epoll say before, while and after it is stopped. */
CASE(stopped, watched, NONE) {
    for (int way = -1; way < WAYS; way++) {
        struct listening on;
        begin(&on, FOUR, 1, 0);
        say("%s", way < 0 ? "SHUT_WR" : way_names[way]);
        int sets[] = {(int)MUST(epoll_create1(0)), (int)MUST(epoll_create1(0))};
        for (int i = 0; i < 2; i++) {
            unsigned edge = i ? (unsigned)EPOLLET : 0;
            struct epoll_event in = {EPOLLIN | edge, {.u32 = 1}}, rdhup = {EPOLLRDHUP | edge, {.u32 = 2}};
            MUST(epoll_ctl(sets[i], EPOLL_CTL_ADD, on.l, &in));
            int twin = (int)MUST(dup(on.l));
            MUST(epoll_ctl(sets[i], EPOLL_CTL_ADD, twin, &rdhup));
        }
        say_state(on.l);
        for (int round = 0; round < 2; round++) {
            told("stop", way < 0 ? shutdown(on.l, SHUT_WR) : stop(on.l, way));
            say_state(on.l);
            for (int i = 0; i < 2; i++)
                say_events(sets[i]), say_events(sets[i]);
            T(listen(on.l, 4));
            say_state(on.l);
            for (int i = 0; i < 2; i++)
                say_events(sets[i]);
            int c = reach_it(&on);
            say("connect: %s", c >= 0 ? "connected" : errno_name(errno));
            until(on.l, POLLIN);
            for (int i = 0; i < 2; i++)
                say_events(sets[i]), say_events(sets[i]);
            int s = accept(on.l, NULL, NULL);
            say("accept: %s", s >= 0 ? "accepted" : errno_name(errno));
            close(s), close(c);
        }
        close(on.l), close(sets[0]), close(sets[1]);
    }
}

/* Each call that has nothing to stop any more. */
CASE(stopped, twice, NONE) {
    for (int way = 0; way < WAYS; way++)
        for (int again = 0; again < WAYS; again++) {
            struct listening on;
            begin(&on, FOUR, 1, 0);
            say("%s, %s", way_names[way], way_names[again]);
            T(stop(on.l, way));
            T(stop(on.l, again));
            T(shutdown(on.l, SHUT_WR));
            T(accept(on.l, NULL, NULL));
            say("%s", polled(on.l));
            T(listen(on.l, 4));
            say("%s", polled(on.l));
            say_whether_it_is_reached(&on);
            close(on.l);
        }
}

/* It is used as a client. */
CASE(stopped, used_otherwise, NONE) {
    for (int way = 0; way < WAYS; way++)
        for (int is_given = 0; is_given < 2; is_given++) {
            struct listening on, other;
            char b[4];
            begin(&on, FOUR, is_given, 0), begin(&other, FOUR, 0, 0);
            say("%s, the port is %s", way_names[way], is_given ? "given" : "chosen");
            T(stop(on.l, way));
            T(recv(on.l, b, 4, MSG_DONTWAIT));
            T(send(on.l, b, 4, MSG_DONTWAIT | MSG_NOSIGNAL));
            T(connect(on.l, AT(&other.at), other.len));
            int s = (int)MUST(accept(other.l, NULL, NULL));
            say_port(&on);
            T(send(on.l, "abc", 3, MSG_NOSIGNAL));
            T(recv(s, b, 4, 0));
            T(send(s, "abc", 3, MSG_NOSIGNAL));
            T(recv(on.l, b, 4, MSG_DONTWAIT));
            T(bind(on.l, AT(&on.at), on.len));
            close(s), close(on.l), close(other.l);
        }
}

/* A stopped listener is bound anew: where it was, and elsewhere. */
CASE(stopped, bound_anew, NONE) {
    for (int is_given = 0; is_given < 2; is_given++) {
        struct listening on;
        struct sockaddr_storage elsewhere;
        socklen_t len = loopback(AF_INET, &elsewhere);
        begin(&on, FOUR, is_given, 0);
        MUST(stop(on.l, READ));
        T(bind(on.l, AT(&elsewhere), len));
        T(bind(on.l, AT(&on.at), on.len));
        T(listen(on.l, 4));
        close(on.l);
    }
}
