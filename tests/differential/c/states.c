/* The states a socket under test can be in, and how it gets there. */
#include "differ.h"

const char *state_name(enum state state) {
    static const char *const names[] = {
#define S(name) #name,
        STATES(S)
#undef S
    };
    return names[state];
}

void nap(int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

void nonblock(int fd, int on) {
    int flags = fcntl(fd, F_GETFL);
    MUST(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
}

void until(int fd, short events) {
    struct pollfd p = {fd, events, 0};
    poll(&p, 1, 1000);
}

int fresh(int family) { return (int)MUST(socket(family, SOCK_STREAM, 0)); }

socklen_t loopback(int family, struct sockaddr_storage *at) {
    memset(at, 0, sizeof *at);
    at->ss_family = (sa_family_t)family;
    if (family == AF_INET) {
        ((struct sockaddr_in *)at)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return sizeof(struct sockaddr_in);
    }
    ((struct sockaddr_in6 *)at)->sin6_addr = in6addr_loopback;
    return sizeof(struct sockaddr_in6);
}

int listener(int family, int backlog, struct sockaddr_storage *at, socklen_t *len) {
    int fd = fresh(family);
    *len = loopback(family, at);
    MUST(bind(fd, (struct sockaddr *)at, *len));
    if (backlog >= 0)
        MUST(listen(fd, backlog));
    MUST(getsockname(fd, (struct sockaddr *)at, len));
    return fd;
}

void join(int family, int fds[2]) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(family, 16, &at, &len);
    fds[0] = fresh(family);
    MUST(connect(fds[0], (struct sockaddr *)&at, len));
    fds[1] = (int)MUST(accept(l, NULL, NULL));
    look(fds[0]), look(fds[1]);
    MUST(close(l));
}

/* A connection from s to p, both without blocking. */
static void meet(struct world *w) {
    w->l = listener(w->family, 16, &w->at, &w->at_len);
    w->s = fresh(w->family);
    MUST(connect(w->s, (struct sockaddr *)&w->at, w->at_len));
    w->p = (int)MUST(accept(w->l, NULL, NULL));
    look(w->s), look(w->p);
    nonblock(w->s, 1), nonblock(w->p, 1);
}

/* From an IPv6 socket to an IPv4 one (`mapped`), or from an IPv4 socket to a listener for both (`dual`). */
static void meet_across(struct world *w, int from, int to) {
    struct sockaddr_storage any = {.ss_family = AF_INET6};
    socklen_t len = sizeof(struct sockaddr_in6);
    w->family = from;
    if (to == AF_INET)
        w->l = listener(AF_INET, 16, &w->at, &w->at_len);
    else {
        w->l = fresh(AF_INET6);
        MUST(setsockopt(w->l, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int)));
        MUST(bind(w->l, (struct sockaddr *)&any, len));
        MUST(listen(w->l, 16));
        MUST(getsockname(w->l, (struct sockaddr *)&any, &len));
        w->at_len = loopback(AF_INET, &w->at);
        ((struct sockaddr_in *)&w->at)->sin_port = ((struct sockaddr_in6 *)&any)->sin6_port;
    }
    if (from == AF_INET6) {
        struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = ((struct sockaddr_in *)&w->at)->sin_port};
        MUST(inet_pton(AF_INET6, "::ffff:127.0.0.1", &six.sin6_addr));
        memcpy(&w->at, &six, w->at_len = sizeof six);
    }
    w->s = fresh(from);
    MUST(connect(w->s, (struct sockaddr *)&w->at, w->at_len));
    w->p = (int)MUST(accept(w->l, NULL, NULL));
    look(w->s), look(w->p);
    nonblock(w->s, 1), nonblock(w->p, 1);
}

static void swap(struct world *w) {
    int s = w->s;
    w->s = w->p, w->p = s;
}

/* The listener's queue is full, so that nobody answers. */
static void begin_connecting(struct world *w) {
    w->l = listener(w->family, 0, &w->at, &w->at_len);
    w->p = fresh(w->family);
    MUST(connect(w->p, (struct sockaddr *)&w->at, w->at_len));
    w->s = fresh(w->family);
    nonblock(w->s, 1);
    if (connect(w->s, (struct sockaddr *)&w->at, w->at_len) == 0 || errno != EINPROGRESS)
        say("connect to a full queue: %s", errno_name(errno));
}

static void be_refused(struct world *w) {
    int bound = listener(w->family, -1, &w->at, &w->at_len);
    w->s = fresh(w->family);
    nonblock(w->s, 1);
    if (connect(w->s, (struct sockaddr *)&w->at, w->at_len) == 0 || errno != EINPROGRESS)
        say("connect to nobody: %s", errno_name(errno));
    until(w->s, POLLIN);
    MUST(close(bound));
}

static void end_hard(struct world *w) {
    struct linger hard = {1, 0};
    MUST(setsockopt(w->p, SOL_SOCKET, SO_LINGER, &hard, sizeof hard));
    MUST(close(w->p));
    w->p = -1;
    until(w->s, POLLIN);
}

static void fill(struct world *w) {
    static char much[1 << 16];
    // Twice: what the first round found full may have moved on to the peer's buffer meanwhile.
    for (int round = 0; round < 2; round++) {
        while (send(w->s, much, sizeof much, 0) > 0)
            ;
        nap(2);
    }
}

/* Connected, and what happened since. */
static void reach_connected(struct world *w) {
    int error;
    socklen_t len = sizeof error;
    meet(w);
    switch (w->state) {
    case STATE_accepted:
    case STATE_accepted6:
        swap(w);
        break;
    case STATE_data:
        MUST(send(w->p, "abcdefghij", 10, 0));
        until(w->s, POLLIN);
        break;
    case STATE_peer_shut:
    case STATE_both_shut:
        MUST(shutdown(w->p, SHUT_WR));
        until(w->s, POLLIN);
        if (w->state == STATE_both_shut)
            MUST(shutdown(w->s, SHUT_WR));
        break;
    case STATE_shut_wr:
        MUST(shutdown(w->s, SHUT_WR));
        break;
    case STATE_shut_rd:
        MUST(shutdown(w->s, SHUT_RD));
        break;
    case STATE_shut_both:
        MUST(shutdown(w->s, SHUT_RDWR));
        break;
    case STATE_last_words:
        MUST(send(w->p, "abcdefghij", 10, 0));
        __attribute__((fallthrough));
    case STATE_peer_closed:
        MUST(close(w->p));
        w->p = -1;
        until(w->s, POLLRDHUP);
        break;
    case STATE_reset:
    case STATE_reset_told:
        end_hard(w);
        if (w->state == STATE_reset_told)
            MUST(getsockopt(w->s, SOL_SOCKET, SO_ERROR, &error, &len));
        break;
    case STATE_full:
        fill(w);
        break;
    default:
        break;
    }
}

void reach(struct world *w, enum state state) {
    const int six = state >= STATE_fresh6 && state <= STATE_accepted6;
    *w = (struct world){.state = state, .family = six ? AF_INET6 : AF_INET, .s = -1, .p = -1, .l = -1};
    switch (state) {
    case STATE_none:
        break;
    case STATE_fresh:
    case STATE_fresh6:
        w->s = fresh(w->family);
        w->at_len = loopback(w->family, &w->at);
        nonblock(w->s, 1);
        break;
    case STATE_bound:
    case STATE_bound6:
        w->s = listener(w->family, -1, &w->at, &w->at_len);
        nonblock(w->s, 1);
        break;
    case STATE_listening:
    case STATE_listening6:
    case STATE_waiting:
        w->s = listener(w->family, 16, &w->at, &w->at_len);
        if (state == STATE_waiting) {
            w->p = fresh(w->family);
            MUST(connect(w->p, (struct sockaddr *)&w->at, w->at_len));
            until(w->s, POLLIN);
        }
        nonblock(w->s, 1);
        break;
    case STATE_connecting:
        begin_connecting(w);
        break;
    case STATE_refused:
        be_refused(w);
        break;
    case STATE_mapped:
        meet_across(w, AF_INET6, AF_INET);
        break;
    case STATE_dual:
        meet_across(w, AF_INET, AF_INET6);
        swap(w);
        w->family = AF_INET6;
        break;
    case STATE_closed:
        meet(w);
        MUST(close(w->s));
        break;
    default:
        reach_connected(w);
    }
}

const char *bits(unsigned e) {
    static const struct {
        unsigned bit;
        const char *name;
    } names[] = {{POLLIN, "IN"},         {POLLPRI, "PRI"},       {POLLOUT, "OUT"},       {POLLERR, "ERR"},   {POLLHUP, "HUP"},
                 {POLLNVAL, "NVAL"},     {POLLRDNORM, "RDNORM"}, {POLLRDBAND, "RDBAND"}, {POLLWRNORM, "WRNORM"},
                 {POLLWRBAND, "WRBAND"}, {POLLMSG, "MSG"},       {POLLRDHUP, "RDHUP"}};
    static char text[8][128];
    static int i;
    char *t = text[i++ & 7];
    int n = snprintf(t, 128, "[");
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        if (e & names[k].bit)
            n += snprintf(t + n, 128 - (size_t)n, "%s%s", n > 1 ? " " : "", names[k].name);
    snprintf(t + n, 128 - (size_t)n, "]");
    return t;
}

const char *polled(int fd) {
    struct pollfd p = {fd, POLLIN | POLLPRI | POLLOUT | POLLRDHUP, 0};
    poll(&p, 1, 0);
    return bits((unsigned)p.revents);
}

void set_int(int fd, int level, int option, int value) { MUST(setsockopt(fd, level, option, &value, sizeof value)); }

void set_port(struct sockaddr_storage *at, in_port_t port) {
    // The same place in both families.
    ((struct sockaddr_in *)at)->sin_port = htons(port);
}

static const char *address_word(int family, const void *at) {
    char text[INET6_ADDRSTRLEN] = "?";
    static char word[64];
    inet_ntop(family, at, text, sizeof text);
    snprintf(word, sizeof word, "%s", text);
    return word;
}

/* Family, address and whether there is a port. */
const char *name_of(const void *at, socklen_t len) {
    static char text[128];
    const struct sockaddr *any = at;
    if (len < sizeof(sa_family_t))
        snprintf(text, sizeof text, "nothing");
    else if (any->sa_family == AF_INET && len >= sizeof(struct sockaddr_in)) {
        const struct sockaddr_in *four = at;
        snprintf(text, sizeof text, "%s:%s", address_word(AF_INET, &four->sin_addr), four->sin_port ? "port" : "0");
    } else if (any->sa_family == AF_INET6 && len >= sizeof(struct sockaddr_in6)) {
        const struct sockaddr_in6 *six = at;
        snprintf(text, sizeof text, "[%s]:%s flow %u scope %u", address_word(AF_INET6, &six->sin6_addr),
                 six->sin6_port ? "port" : "0", six->sin6_flowinfo, six->sin6_scope_id);
    } else
        snprintf(text, sizeof text, "family %d, %u bytes", any->sa_family, len);
    return text;
}
