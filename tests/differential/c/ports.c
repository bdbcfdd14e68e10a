/* Which socket gets the ports of a connection: while it lives, and after one end or both have closed. */
#include "differ.h"

#define AT(at) ((struct sockaddr *)(at))

enum end { LIVES, CONNECTOR_CLOSES, CONNECTOR_FIRST, ACCEPTOR_FIRST, SHUT_FIRST, RESET };

/* A new socket, without SO_REUSEADDR and with it, is bound to the address. After the end of a connection its ports may come free a moment
   later, on a busy machine: `tries` with a pause between them. */
static void bind_again(const char *end, int family, struct sockaddr_storage *at, socklen_t len, int tries) {
    for (int reuse = 0; reuse < 2; reuse++) {
        int s = fresh(family), result;
        set_int(s, SOL_SOCKET, SO_REUSEADDR, reuse);
        while ((result = bind(s, AT(at), len)) != 0 && errno == EADDRINUSE && --tries > 0)
            nap(2);
        say("%s port%s: %s", end, reuse ? ", SO_REUSEADDR" : "", result == 0 ? "bound" : errno_name(errno));
        close(s);
    }
}

static void end_it(enum end end, int c, int a) {
    struct linger hard = {1, 0};
    switch (end) {
    case LIVES:
        return;
    case CONNECTOR_CLOSES:
        close(c);
        until(a, POLLIN);
        return;
    case CONNECTOR_FIRST:
        close(c);
        until(a, POLLIN);
        close(a);
        break;
    case ACCEPTOR_FIRST:
        close(a);
        until(c, POLLIN);
        close(c);
        break;
    case SHUT_FIRST:
        MUST(shutdown(a, SHUT_WR));
        until(c, POLLIN);
        MUST(shutdown(c, SHUT_WR));
        until(a, POLLIN);
        close(c), close(a);
        break;
    case RESET:
        MUST(setsockopt(a, SOL_SOCKET, SO_LINGER, &hard, sizeof hard));
        close(a);
        until(c, POLLIN);
        close(c);
    }
}

static void once(enum end end, int family, int reuse) {
    struct sockaddr_storage at, from;
    socklen_t len = loopback(family, &at);
    int l = fresh(family), c = fresh(family);
    set_int(l, SOL_SOCKET, SO_REUSEADDR, reuse & 1);
    set_int(c, SOL_SOCKET, SO_REUSEADDR, reuse >> 1);
    MUST(bind(l, AT(&at), len));
    MUST(listen(l, 4));
    MUST(getsockname(l, AT(&at), &len));
    MUST(connect(c, AT(&at), len));
    int a = (int)MUST(accept(l, NULL, NULL));
    look(c), look(a);
    MUST(getsockname(c, AT(&from), &len));
    end_it(end, c, a);
    say("IPv%d%s%s", family == AF_INET ? 4 : 6, reuse & 1 ? ", the listener reuses" : "", reuse >> 1 ? ", the connector reuses" : "");
    int lives = end == LIVES || end == CONNECTOR_CLOSES, tries = lives ? 1 : 100;
    bind_again("connector's", family, &from, len, tries);
    close(l);
    bind_again("listener's", family, &at, len, tries);
    if (lives)
        close(a);
    if (end == LIVES)
        close(c);
}

static void each(enum end end) {
    for (int reuse = 0; reuse < 4; reuse++)
        once(end, AF_INET, reuse), once(end, AF_INET6, reuse);
}

CASE(ports, live, NONE) { each(LIVES); }
CASE(ports, fin_wait_2, NONE) { each(CONNECTOR_CLOSES); }
CASE(ports, connector_first, NONE) { each(CONNECTOR_FIRST); }
CASE(ports, acceptor_first, NONE) { each(ACCEPTOR_FIRST); }
CASE(ports, shut_first, NONE) { each(SHUT_FIRST); }
CASE(ports, reset, NONE) { each(RESET); }

/* A connector's port is taken in its own family only. */
CASE(ports, other_family, NONE) {
    struct sockaddr_storage at, from, other;
    socklen_t len, other_len = loopback(AF_INET6, &other);
    int l = listener(AF_INET, 4, &at, &len), c = fresh(AF_INET), s = fresh(AF_INET6);
    MUST(connect(c, AT(&at), len));
    MUST(getsockname(c, AT(&from), &len));
    set_port(&other, ntohs(((struct sockaddr_in *)&from)->sin_port));
    T(bind(s, AT(&other), other_len));
    close(s), close(c), close(l);
}
