/* poll, select and epoll: what a socket is ready for in every state, and the errors of the calls. */
#include "differ.h"

static char b[1 << 16];

CASE(poll, each, EVERY) {
    static const short asked[] = {0,       POLLIN,     POLLOUT,    POLLIN | POLLOUT, POLLPRI,
                                  POLLERR, POLLRDHUP,  POLLRDNORM, POLLWRNORM,       POLLRDBAND,
                                  POLLWRBAND, POLLHUP, POLLNVAL,   -1};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        struct pollfd p = {w->s, asked[i], -1};
        errno = 0;
        long n = poll(&p, 1, 0);
        say("poll %s = %s %s", bits((unsigned short)asked[i]), said(n), bits((unsigned short)p.revents));
    }
}

CASE(poll, waits, EVERY) {
    struct pollfd p = {w->s, POLLIN | POLLRDHUP, 0};
    B(poll(&p, 1, 1000));
    say("%s", bits((unsigned)p.revents));
    T(poll(&p, 1, 10));
    say("%s", bits((unsigned)p.revents));
}

CASE(poll, mixed, LIVE) {
    int ends[2];
    MUST(pipe(ends));
    MUST(write(ends[1], "x", 1));
    struct pollfd p[5] = {{w->s, POLLIN | POLLOUT, -1},
                          {ends[0], POLLIN, -1},
                          {ends[1], POLLOUT, -1},
                          {-5, POLLIN, -1},
                          {w->s, POLLOUT, -1}};
    T(poll(p, 5, 0));
    for (int i = 0; i < 5; i++)
        say("%s", bits((unsigned short)p[i].revents));
    p[1].fd = 9999;
    T(poll(p, 5, -1));
    for (int i = 0; i < 5; i++)
        say("%s", bits((unsigned short)p[i].revents));
}

CASE(poll, errors, BIT(connected) | BIT(fresh)) {
    struct pollfd p = {w->s, POLLPRI, 0};
    struct timespec negative = {-1, 0}, large = {0, 1000000000}, zero = {0, 0};
    sigset_t none;
    sigemptyset(&none);
    T(poll(NULL, 1, 0));
    T(poll(NULL, 0, 0));
    T(poll(nowhere, 1, 0));
    T(poll(&p, ULONG_MAX, 0));
    T(poll(&p, 1 << 24, 0));
    T(ppoll(&p, 1, &negative, NULL));
    T(ppoll(&p, 1, &large, NULL));
    T(ppoll(&p, 1, &zero, &none));
    if (w->state == STATE_connected) {
        // Longer than there will be time.
        struct timespec ages = {LONG_MAX, 999999999};
        p.events = POLLOUT;
        T(ppoll(&p, 1, &ages, NULL));
        p.events = POLLPRI;
    }
    T(ppoll(&p, 1, &zero, nowhere));
}

static fd_set only(int fd) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    return set;
}

static void say_sets(const char *what, long n, int fd, fd_set *r, fd_set *w, fd_set *e) {
    say("%s = %s%s%s%s", what, said(n), FD_ISSET(fd, r) ? " read" : "", FD_ISSET(fd, w) ? " write" : "",
        FD_ISSET(fd, e) ? " except" : "");
}

CASE(select, each, EVERY) {
    fd_set r, wr, e;
    struct timeval now = {0, 0};
    struct timespec at_once = {0, 0};
    for (int round = 0; round < 2; round++) {
        r = wr = e = only(w->s);
        errno = 0;
        long n = round ? pselect(w->s + 1, &r, &wr, &e, &at_once, NULL) : select(w->s + 1, &r, &wr, &e, &now);
        say_sets(round ? "pselect" : "select", n, w->s, &r, &wr, &e);
    }
    e = only(w->s);
    FD_ZERO(&r);
    FD_ZERO(&wr);
    errno = 0;
    long n = select(w->s + 1, NULL, NULL, &e, &now);
    say_sets("except", n, w->s, &r, &wr, &e);
}

CASE(select, waits, EVERY) {
    fd_set r = only(w->s);
    struct timeval t = {1, 0};
    B(select(w->s + 1, &r, NULL, NULL, &t));
    t = (struct timeval){0, 10000};
    r = only(w->s);
    T(select(w->s + 1, &r, NULL, NULL, &t));
    say("time left: %s, set %d", t.tv_sec || t.tv_usec ? "some" : "none", FD_ISSET(w->s, &r));
}

CASE(select, errors, BIT(connected) | BIT(fresh)) {
    fd_set r = only(w->s);
    struct timeval t = {0, 0}, negative = {-1, 0}, over = {0, 5000000};
    struct timespec wrong = {0, 1000000000};
    T(select(-1, &r, NULL, NULL, &t));
    T(select(w->s + 1, &r, NULL, NULL, &negative));
    T(select(0, NULL, NULL, NULL, &t));
    T(pselect(w->s + 1, &r, NULL, NULL, &wrong, NULL));
    if (w->p >= 0)
        MUST(send(w->p, "x", 1, 0));
    r = only(w->s);
    T(select(w->s + 1, &r, NULL, NULL, &over));
    FD_SET(800, &r);
    T(select(801, &r, NULL, NULL, &t));
    T(select(w->s + 1, (fd_set *)8, NULL, NULL, &t));
}

static int set_with(int fd, unsigned events) {
    int set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event e = {events, {.u64 = 77}};
    errno = 0;
    long r = epoll_ctl(set, EPOLL_CTL_ADD, fd, &e);
    say("add: %s", said(r));
    return set;
}

static void say_events(int set, int timeout) {
    struct epoll_event e[4];
    errno = 0;
    long n = epoll_wait(set, e, 4, timeout);
    if (n == 1)
        say("epoll: %s%s", bits(e[0].events), e[0].data.u64 == 77 ? "" : " of somebody else");
    else
        say("epoll: %s", said(n));
}

CASE(epoll, level, EVERY) {
    int set = set_with(w->s, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI);
    say_events(set, 0);
    say_events(set, 0);
    T(recv(w->s, b, 4, 0));
    say_events(set, 0);
    T(recv(w->s, b, 64, 0));
    say_events(set, 0);
}

CASE(epoll, edge, EVERY) {
    int set = set_with(w->s, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    say_events(set, 0);
    say_events(set, 0);
    T(recv(w->s, b, 4, 0));
    say_events(set, 0);
    struct epoll_event e = {EPOLLIN | EPOLLOUT | EPOLLET, {.u64 = 77}};
    T(epoll_ctl(set, EPOLL_CTL_MOD, w->s, &e));
    say_events(set, 0);
    say_events(set, 0);
}

CASE(epoll, oneshot, EVERY) {
    int set = set_with(w->s, EPOLLIN | EPOLLOUT | EPOLLONESHOT);
    say_events(set, 0);
    say_events(set, 0);
    struct epoll_event e = {EPOLLIN | EPOLLONESHOT, {.u64 = 77}};
    T(epoll_ctl(set, EPOLL_CTL_MOD, w->s, &e));
    say_events(set, 0);
    say_events(set, 0);
}

CASE(epoll, exclusive, EVERY) {
    int set = set_with(w->s, EPOLLIN | EPOLLOUT | EPOLLEXCLUSIVE);
    say_events(set, 0);
    struct epoll_event e = {EPOLLIN, {.u64 = 77}};
    T(epoll_ctl(set, EPOLL_CTL_MOD, w->s, &e));
    T(epoll_ctl(set, EPOLL_CTL_DEL, w->s, &e));
    e.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP;
    T(epoll_ctl(set, EPOLL_CTL_ADD, w->s, &e));
    e.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT;
    T(epoll_ctl(set, EPOLL_CTL_ADD, w->s, &e));
    e.events = EPOLLIN;
    T(epoll_ctl(set, EPOLL_CTL_ADD, w->s, &e));
    e.events = EPOLLIN | EPOLLEXCLUSIVE;
    T(epoll_ctl(set, EPOLL_CTL_MOD, w->s, &e));
}

CASE(epoll, none_asked, EVERY) {
    int set = set_with(w->s, 0);
    say_events(set, 0);
    say("poll of the set %s", polled(set));
}

CASE(epoll, control_errors, EVERY) {
    int set = (int)MUST(epoll_create1(0)), other = (int)MUST(epoll_create1(0)), file = open("/proc/self/exe", O_RDONLY);
    struct epoll_event e = {EPOLLIN, {.u64 = 77}};
    T(epoll_ctl(set, EPOLL_CTL_MOD, w->s, &e));
    T(epoll_ctl(set, EPOLL_CTL_DEL, w->s, &e));
    T(epoll_ctl(set, EPOLL_CTL_ADD, w->s, NULL));
    T(epoll_ctl(set, EPOLL_CTL_ADD, w->s, nowhere));
    T(epoll_ctl(set, 99, w->s, &e));
    T(epoll_ctl(set, EPOLL_CTL_ADD, w->s, &e));
    T(epoll_ctl(set, EPOLL_CTL_ADD, w->s, &e));
    T(epoll_ctl(set, EPOLL_CTL_ADD, w->s, NULL));
    T(epoll_ctl(set, EPOLL_CTL_DEL, w->s, NULL));
    T(epoll_ctl(set, EPOLL_CTL_DEL, w->s, NULL));
    T(epoll_ctl(-1, EPOLL_CTL_ADD, w->s, &e));
    T(epoll_ctl(w->s, EPOLL_CTL_ADD, other, &e));
    T(epoll_ctl(w->s, EPOLL_CTL_ADD, w->s, &e));
    T(epoll_ctl(set, EPOLL_CTL_ADD, set, &e));
    T(epoll_ctl(set, EPOLL_CTL_ADD, -1, &e));
    T(epoll_ctl(set, EPOLL_CTL_ADD, file, &e));
    T(epoll_ctl(set, EPOLL_CTL_ADD, other, &e));
    T(epoll_ctl(other, EPOLL_CTL_ADD, set, &e));
}

CASE(epoll, wait_errors, BIT(connected) | BIT(data) | BIT(fresh)) {
    int set = set_with(w->s, EPOLLIN);
    struct epoll_event e[2];
    struct timespec wrong = {0, 1000000000}, zero = {0, 0};
    T(epoll_wait(set, e, 0, 0));
    T(epoll_wait(set, e, -1, 0));
    T(epoll_wait(set, e, INT_MAX, 0));
    T(epoll_wait(set, NULL, 1, 0));
    T(epoll_wait(set, nowhere, 1, 0));
    T(epoll_wait(-1, e, 1, 0));
    T(epoll_wait(w->s, e, 1, 0));
    T(epoll_pwait2(set, e, 1, &wrong, NULL));
    T(epoll_pwait2(set, e, 1, &zero, NULL));
    T(epoll_pwait(set, e, 1, 0, NULL));
}

CASE(epoll, waits, EVERY) {
    int set = set_with(w->s, EPOLLIN | EPOLLRDHUP);
    struct epoll_event e;
    B(epoll_wait(set, &e, 1, 1000));
    say_events(set, 10);
}

CASE(epoll, close_removes, LIVE) {
    int set = set_with(w->s, EPOLLIN | EPOLLOUT), d = dup(w->s);
    T(close(w->s));
    say_events(set, 0);
    T(epoll_ctl(set, EPOLL_CTL_DEL, w->s, NULL));
    T(close(d));
    say_events(set, 0);
}

CASE(epoll, of_duplicates, BIT(connected) | BIT(data) | BIT(listening)) {
    int set = set_with(w->s, EPOLLIN | EPOLLOUT), d = dup(w->s);
    struct epoll_event e[4] = {{EPOLLOUT | EPOLLIN, {.u64 = 88}}};
    T(epoll_ctl(set, EPOLL_CTL_ADD, d, e));
    T(epoll_wait(set, e, 4, 0));
    T(epoll_ctl(set, EPOLL_CTL_DEL, w->s, NULL));
    T(epoll_wait(set, e, 4, 0));
    T(epoll_wait(set, e, 1, 0));
}

CASE(epoll, nested, LIVE) {
    int inner = set_with(w->s, EPOLLIN | EPOLLOUT), outer = (int)MUST(epoll_create1(0));
    struct epoll_event e[4] = {{EPOLLIN, {.u64 = 77}}};
    T(epoll_ctl(outer, EPOLL_CTL_ADD, inner, e));
    say_events(outer, 0);
    say("poll of the inner %s, of the outer %s", polled(inner), polled(outer));
    T(epoll_wait(inner, e, 4, 0));
    say_events(outer, 0);
    T(epoll_ctl(inner, EPOLL_CTL_DEL, w->s, NULL));
    say_events(outer, 0);
}

CASE(epoll, nested_deep, LIVE) {
    int one = set_with(w->s, EPOLLIN | EPOLLRDHUP), two = set_with(one, EPOLLIN), three = set_with(two, EPOLLIN);
    say_events(three, 0);
    say("poll of the inmost %s, of the outmost %s", polled(one), polled(three));
    T(recv(w->s, b, 64, MSG_DONTWAIT));
    say_events(three, 0);
    say_events(two, 0);
    struct epoll_event e = {EPOLLOUT, {.u64 = 77}};
    T(epoll_ctl(one, EPOLL_CTL_MOD, w->s, &e));
    say_events(three, 0);
    T(close(one));
    say_events(three, 0);
}

/* A set that waits before there is anything in the one it holds. */
CASE(epoll, nested_first, LIVE) {
    int inner = (int)MUST(epoll_create1(0)), outer = set_with(inner, EPOLLIN);
    struct epoll_event e = {EPOLLIN | EPOLLOUT, {.u64 = 77}};
    say_events(outer, 0);
    T(epoll_ctl(inner, EPOLL_CTL_ADD, w->s, &e));
    say_events(outer, 0);
    say("poll of the inner %s, of the outer %s", polled(inner), polled(outer));
}

CASE(epoll, nested_edge, BIT(connected) | BIT(accepted) | BIT(data)) {
    int inner = set_with(w->s, EPOLLIN), outer = set_with(inner, EPOLLIN | EPOLLET);
    say_events(outer, 0), say_events(outer, 0);
    for (int round = 0; round < 2; round++) {
        MUST(send(w->p, b, 10, 0));
        say_events(outer, 100), say_events(outer, 0);
    }
    say_events(inner, 0);
    T(recv(w->s, b, 64, 0));
    say_events(inner, 0), say_events(outer, 0);
}

CASE(epoll, nested_oneshot, BIT(connected) | BIT(accepted) | BIT(data)) {
    int inner = set_with(w->s, EPOLLIN), outer = set_with(inner, EPOLLIN | EPOLLONESHOT);
    struct epoll_event e = {EPOLLIN | EPOLLONESHOT, {.u64 = 77}};
    MUST(send(w->p, b, 10, 0));
    say_events(outer, 100), say_events(outer, 0);
    MUST(send(w->p, b, 10, 0));
    say_events(outer, 10);
    say("poll of the outer %s", polled(outer));
    T(epoll_ctl(outer, EPOLL_CTL_MOD, inner, &e));
    say_events(outer, 100), say_events(outer, 0);
    T(epoll_ctl(outer, EPOLL_CTL_DEL, inner, NULL));
    T(epoll_ctl(outer, EPOLL_CTL_MOD, inner, &e));
}

/* In the inner set a pipe, too. */
CASE(epoll, nested_mixed, BIT(connected) | BIT(data) | BIT(fresh) | BIT(listening)) {
    int ends[2], inner = set_with(w->s, EPOLLIN), outer = set_with(inner, EPOLLIN);
    struct epoll_event e = {EPOLLIN, {.u64 = 78}};
    MUST(pipe(ends));
    T(epoll_ctl(inner, EPOLL_CTL_ADD, ends[0], &e));
    say_events(outer, 0);
    MUST(write(ends[1], "x", 1));
    say_events(outer, 0);
    say("poll of the inner %s, of the outer %s", polled(inner), polled(outer));
    T(read(ends[0], b, 1));
    say_events(outer, 0);
    say("poll of the inner %s, of the outer %s", polled(inner), polled(outer));
}

static void *later(void *fd) {
    nap(20);
    MUST(send(*(int *)fd, b, 10, 0));
    return NULL;
}

CASE(epoll, nested_waits, BIT(connected) | BIT(accepted)) {
    int inner = set_with(w->s, EPOLLIN), outer = set_with(inner, EPOLLIN);
    pthread_t t;
    B(epoll_wait(outer, (struct epoll_event[4]){0}, 4, 1000));
    say_events(outer, 10);
    for (int round = 0; round < 3; round++) {
        struct pollfd p = {round == 1 ? inner : outer, POLLIN, 0};
        MUST(pthread_create(&t, NULL, later, &w->p));
        if (round == 2)
            say_events(outer, 2000);
        else
            T(poll(&p, 1, 2000));
        say("poll of the inner %s, of the outer %s", polled(inner), polled(outer));
        MUST(pthread_join(t, NULL));
        T(recv(w->s, b, 64, 0));
        say("poll of the inner %s, of the outer %s", polled(inner), polled(outer));
    }
}

/* What is added while somebody sleeps. */
static void *adds_for(unsigned events, int *at) {
    struct epoll_event e = {events, {.u64 = 77}};
    nap(20);
    MUST(epoll_ctl(at[0], EPOLL_CTL_ADD, at[1], &e));
    return NULL;
}

static void *adds(void *about) { return adds_for(EPOLLOUT, about); }

CASE(epoll, nested_added, BIT(connected) | BIT(accepted)) {
    int inner = (int)MUST(epoll_create1(0)), outer = set_with(inner, EPOLLIN), about[2] = {inner, w->s};
    pthread_t t;
    MUST(pthread_create(&t, NULL, adds, about));
    say_events(outer, 2000);
    MUST(pthread_join(t, NULL));
    say_events(outer, 0);
}

/* What is added while somebody sleeps has news later: it is the only one of its region, each time anew. */
static void *adds_and_sends(void *about) {
    int *at = about;
    adds_for(EPOLLIN, at);
    nap(20);
    MUST(send(at[2], b, 10, 0));
    return NULL;
}

CASE(epoll, added_and_sent_to, BIT(connected) | BIT(accepted)) {
    int about[3] = {(int)MUST(epoll_create1(0)), w->s, w->p}, outer = set_with(about[0], EPOLLIN);
    struct epoll_event e = {0};
    for (int round = 0; round < 6; round++) {
        pthread_t t;
        MUST(pthread_create(&t, NULL, adds_and_sends, about));
        say_events(round % 2 ? outer : about[0], 2000);
        MUST(pthread_join(t, NULL));
        T(recv(w->s, b, 64, 0));
        T(epoll_ctl(about[0], EPOLL_CTL_DEL, w->s, &e));
    }
}

struct caller {
    struct sockaddr_storage at;
    socklen_t len;
    int caller, older;
};

static void *calls_and_says_so(void *about) {
    struct caller *me = about;
    MUST(connect(me->caller, (void *)&me->at, me->len));
    MUST(send(me->older, "x", 1, 0));
    return NULL;
}

/* Whoever has connected says so on an older connection: nobody hears that first. */
CASE(epoll, listener_before_what_follows, BIT(connected)) {
    int late = 0;
    for (int round = 0; round < 200; round++) {
        struct caller me = {.older = w->p};
        struct epoll_event e[4] = {{EPOLLIN, {.u64 = 1}}, {EPOLLIN, {.u64 = 2}}};
        pthread_t t;
        int l = listener(AF_INET, 4, &me.at, &me.len), set = (int)MUST(epoll_create1(0));
        me.caller = fresh(AF_INET);
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, w->s, &e[0]));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, l, &e[1]));
        MUST(pthread_create(&t, NULL, calls_and_says_so, &me));
        for (int called = 0, said_so = 0; !said_so;) {
            int n = (int)MUST(epoll_wait(set, e, 4, 2000));
            for (int i = 0; i < n && !said_so; i++)
                called |= e[i].data.u64 == 2, said_so = e[i].data.u64 == 1;
            late += !called && (said_so || n == 0);
            said_so |= n == 0;
        }
        MUST(pthread_join(t, NULL));
        MUST(recv(w->s, b, 1, 0));
        MUST(close(me.caller) + close(l) + close(set));
    }
    say("heard of late %d times", late);
}

CASE(epoll, nested_refused, BIT(connected) | BIT(fresh)) {
    int sets[7];
    struct epoll_event e = {EPOLLIN, {.u64 = 77}};
    sets[0] = set_with(w->s, EPOLLOUT);
    for (int i = 1; i < 7; i++)
        sets[i] = set_with(sets[i - 1], EPOLLIN);
    say_events(sets[3], 0), say_events(sets[4], 0), say_events(sets[6], 0);
    T(epoll_ctl(sets[0], EPOLL_CTL_ADD, sets[0], &e));
    T(epoll_ctl(sets[0], EPOLL_CTL_ADD, sets[1], &e));
    T(epoll_ctl(sets[0], EPOLL_CTL_ADD, sets[2], &e));
    T(epoll_ctl(sets[1], EPOLL_CTL_ADD, sets[0], &e));
    T(epoll_ctl(sets[2], EPOLL_CTL_MOD, sets[0], &e));
    T(epoll_ctl(sets[2], EPOLL_CTL_DEL, sets[0], &e));
    e.events = EPOLLIN | EPOLLEXCLUSIVE;
    T(epoll_ctl(sets[2], EPOLL_CTL_ADD, sets[0], &e));
    T(epoll_ctl(sets[1], EPOLL_CTL_DEL, sets[0], NULL));
    say_events(sets[1], 0);
}

CASE(epoll, several_sets, BIT(connected)) {
    int one = set_with(w->s, EPOLLIN), two = set_with(w->s, EPOLLIN | EPOLLET), three = set_with(w->s, EPOLLOUT);
    say_events(one, 0), say_events(two, 0), say_events(three, 0);
    MUST(send(w->p, b, 10, 0));
    say_events(one, 100), say_events(two, 100), say_events(three, 0);
    say_events(one, 0), say_events(two, 0);
    T(recv(w->s, b, 64, 0));
    say_events(one, 0), say_events(two, 0);
}

/* Bytes come while two sets have the socket, then the first lets it go: by itself, or as it is closed. */
CASE(epoll, other_set_lets_go, BIT(connected)) {
    struct epoll_event e = {0};
    int one = set_with(w->s, EPOLLIN), two = set_with(w->s, EPOLLIN), three = set_with(w->s, EPOLLIN);
    say_events(one, 0), say_events(two, 0), say_events(three, 0);
    MUST(send(w->p, b, 10, 0));
    T(epoll_ctl(one, EPOLL_CTL_DEL, w->s, &e));
    say_events(two, 300);
    T(recv(w->s, b, 64, 0));
    say_events(two, 0), say_events(three, 0);
    MUST(send(w->p, b, 10, 0));
    T(close(two));
    say_events(three, 300);
}

/* More are ready than one call takes: everyone has its turn, and those that were told of go behind the others. */
CASE(epoll, takes_turns, NONE) {
    enum { N = 8, AT_ONCE = 3, CALLS = 8 };
    int ends[N][2], told[N] = {0}, set = (int)MUST(epoll_create1(0)), least = CALLS, most = 0, again = 0;
    for (int i = 0; i < N; i++) {
        join(AF_INET, ends[i]);
        struct epoll_event e = {EPOLLIN, {.u32 = (unsigned)i}};
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, ends[i][1], &e));
    }
    for (int i = 0; i < N; i++)
        MUST(send(ends[i][0], "x", 1, 0));
    for (int i = 0; i < N; i++)
        until(ends[i][1], POLLIN);
    for (int call = 0; call < CALLS; call++) {
        struct epoll_event e[AT_ONCE];
        int n = (int)MUST(epoll_wait(set, e, AT_ONCE, 0));
        again += n == AT_ONCE;
        for (int i = 0; i < n; i++)
            told[e[i].data.u32]++;
    }
    for (int i = 0; i < N; i++)
        least = told[i] < least ? told[i] : least, most = told[i] > most ? told[i] : most;
    say("%d calls full; each told of %d to %d times", again, least, most);
}

static void meet(int l, const struct sockaddr_storage *at, socklen_t len) {
    int s = fresh(AF_INET);
    MUST(connect(s, (const struct sockaddr *)at, len));
    look(s);
    until(l, POLLIN);
}

/* Bytes come to one after the other while nobody waits: to either end, which may be in different regions, and to a listener. */
CASE(epoll, in_order_of_arrival, NONE) {
    enum { N = 8 };
    static const int order[N] = {5, 2, 7, 0, 3, 6, 1, 4};
    int ends[N][2], set = (int)MUST(epoll_create1(0));
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 8, &at, &len);
    struct epoll_event e[N + 1] = {{EPOLLIN, {.u32 = N}}};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, l, e));
    for (int i = 0; i < N; i++) {
        join(AF_INET, ends[i]);
        e->data.u32 = (unsigned)i;
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, ends[i][i % 3 == 0], e));
    }
    // The first comes by way of the service, which would go in front of all others.
    meet(l, &at, len);
    MUST(close((int)MUST(accept(l, NULL, NULL))));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            int to = order[(i + round) % N];
            MUST(send(ends[to][to % 3 != 0], "x", 1, 0));
            if (i == 3)
                meet(l, &at, len);
        }
        for (int i = 0; i < N; i++)
            until(ends[i][i % 3 == 0], POLLIN);
        int n = (int)MUST(epoll_wait(set, e, N + 1, 0));
        for (int i = 0; i < n; i++) {
            say("%u", e[i].data.u32);
            if (e[i].data.u32 < N)
                MUST(recv(ends[e[i].data.u32][e[i].data.u32 % 3 == 0], b, 64, 0));
            else
                MUST(close((int)MUST(accept(l, NULL, NULL))));
        }
        T(epoll_wait(set, e, N + 1, 0));
    }
}
