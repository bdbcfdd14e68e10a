/* A thread waits in a call; another closes its descriptor, gives the number to something else, or ends the connection. The call keeps
 * what it began with. */
#include "waiters.h"

enum change { CLOSE, REPLACE, REUSE };

/* What becomes of the number under the call. */
static void change(int fd, enum change how) {
    int null, ends[2];
    switch (how) {
    case CLOSE:
        T(close(fd));
        break;
    case REPLACE:
        null = open("/dev/null", O_RDWR);
        T(dup2(null, fd) == fd);
        break;
    case REUSE:
        T(close(fd));
        MUST(pipe(ends));
        MUST(write(ends[1], "pipe", 4));
        say("the number again: %d", ends[0] == fd);
        break;
    }
}

static void change_under(struct world *w, enum change how, long (*call)(struct world *)) {
    struct waiter waiter = {.w = w, .call = call};
    block(w);
    begin(&waiter);
    change(w->s, how);
    nap(ASLEEP_MS);
    say("waits %d", !waiter.returned);
    release(w);
    ended_by_cancel(&waiter);
    int is_some = w->state == STATE_full && waiter.result > 0;
    waiter.result = is_some ? 1 : waiter.result;
    say_result("the call", &waiter);
    if (how == REUSE)
        T(read(w->s, bytes, 8));
}

/* The call was the last that used the connection. */
static void say_end(struct world *w) {
    while (recv(w->p, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
    until(w->p, POLLRDHUP);
    say("peer: poll %s", polled(w->p));
    T(recv(w->p, bytes, 8, MSG_DONTWAIT));
}

static long send_little(struct world *w) { return send(w->s, bytes, 64, 0); }

#define UNDER(name, how)                                                                                               \
    CASE(race, name##_under_recv, BIT(connected) | BIT(accepted) | BIT(connected6)) {                                  \
        change_under(w, how, call_recv);                                                                               \
        say_end(w);                                                                                                    \
    }                                                                                                                  \
    CASE(race, name##_under_send, BIT(full)) {                                                                         \
        change_under(w, how, send_little);                                                                             \
        say_end(w);                                                                                                    \
    }                                                                                                                  \
    CASE(race, name##_under_poll, BIT(connected)) { change_under(w, how, call_poll); }                                 \
    CASE(race, name##_under_select, BIT(connected)) { change_under(w, how, call_select); }
UNDER(close, CLOSE)
UNDER(dup2, REPLACE)
UNDER(reuse, REUSE)

CASE(race, close_under_accept, BIT(listening)) {
    struct waiter waiter = {.w = w, .call = call_accept};
    block(w);
    begin(&waiter);
    T(close(w->s));
    nap(ASLEEP_MS);
    say("waits %d", !waiter.returned);
    T(connect(fresh(AF_INET), (void *)&w->at, w->at_len));
    nap(ASLEEP_MS);
    say("waits %d, accepted %d", !waiter.returned, waiter.returned && waiter.result >= 0);
}

static int set;
static long wait_for_set(struct world *w) {
    (void)w;
    return epoll_wait(set, &event, 1, 150);
}

CASE(race, close_under_epoll_wait, BIT(connected)) {
    struct waiter waiter = {.w = w, .call = wait_for_set};
    set = set_of(w->s);
    begin(&waiter);
    T(close(w->s));
    T(send(w->p, "x", 1, 0));
    ended_by_cancel(&waiter);
    say_result("epoll_wait", &waiter);
}

CASE(race, add_under_epoll_wait, BIT(connected) | BIT(data)) {
    struct waiter waiter = {.w = w, .call = wait_for_set};
    struct epoll_event wanted = {EPOLLIN, {.fd = w->s}};
    set = (int)MUST(epoll_create1(0));
    begin(&waiter);
    T(epoll_ctl(set, EPOLL_CTL_ADD, w->s, &wanted));
    if (w->state == STATE_connected)
        MUST(send(w->p, "x", 1, 0));
    ended_by_cancel(&waiter);
    say_result("epoll_wait", &waiter);
}

CASE(race, change_under_epoll_wait, BIT(connected)) {
    struct waiter waiter = {.w = w, .call = wait_for_set};
    struct epoll_event wanted = {EPOLLIN | EPOLLOUT, {.fd = w->s}};
    set = set_of(w->s);
    begin(&waiter);
    T(epoll_ctl(set, EPOLL_CTL_MOD, w->s, &wanted));
    ended_by_cancel(&waiter);
    say_result("epoll_wait", &waiter);
    say("%s", bits(event.events));
}

static void end_under(struct world *w, const char *what, int how, long (*call)(struct world *)) {
    struct waiter waiter = {.w = w, .call = call};
    block(w);
    begin(&waiter);
    T(shutdown(w->s, how));
    ended_by_cancel(&waiter);
    say_result(what, &waiter);
}

CASE(race, shutdown_under_recv, TO_READ) { end_under(w, "recv", SHUT_RD, call_recv); }
CASE(race, shutdown_of_both_under_recv, TO_READ) { end_under(w, "recv", SHUT_RDWR, call_recv); }
CASE(race, shutdown_under_send, BIT(full)) { end_under(w, "send", SHUT_WR, send_little); }
CASE(race, shutdown_under_poll, TO_READ | BIT(listening)) { end_under(w, "poll", SHUT_RDWR, call_poll); }
CASE(race, shutdown_under_epoll_wait, TO_READ | BIT(listening)) { end_under(w, "epoll_wait", SHUT_RDWR, call_epoll_wait); }
CASE(race, shutdown_under_accept, BIT(listening)) { end_under(w, "accept", SHUT_RD, call_accept); }
CASE(race, shutdown_of_both_under_accept, BIT(listening)) { end_under(w, "accept", SHUT_RDWR, call_accept); }

static void reset_under(struct world *w, const char *what, long (*call)(struct world *)) {
    struct waiter waiter = {.w = w, .call = call};
    struct linger hard = {1, 0};
    block(w);
    begin(&waiter);
    MUST(setsockopt(w->p, SOL_SOCKET, SO_LINGER, &hard, sizeof hard));
    T(close(w->p));
    ended_by_cancel(&waiter);
    say_result(what, &waiter);
    T(recv(w->s, bytes, 8, MSG_DONTWAIT));
    T(send(w->s, bytes, 8, MSG_DONTWAIT));
}

CASE(race, reset_under_recv, TO_READ) { reset_under(w, "recv", call_recv); }
CASE(race, reset_under_send, BIT(full)) { reset_under(w, "send", send_little); }
CASE(race, reset_under_poll, TO_READ) { reset_under(w, "poll", call_poll); }

static long receive_one(struct world *w) { return recv(w->s, bytes, 1, 0); }

CASE(race, four_readers, TO_READ) {
    // Each byte goes to somebody.
    struct waiter waiter[4];
    long all = 0;
    block(w);
    for (int i = 0; i < 4; i++) {
        waiter[i] = (struct waiter){.w = w, .call = receive_one};
        begin(&waiter[i]);
    }
    MUST(send(w->p, "abcdef", 6, 0));
    for (int i = 0; i < 4; i++) {
        ended_by_cancel(&waiter[i]);
        all += waiter[i].result;
    }
    say("%ld bytes", all);
    T(recv(w->s, bytes, 8, MSG_DONTWAIT));
}

CASE(race, four_acceptors, BIT(listening)) {
    struct waiter waiter[4];
    block(w);
    for (int i = 0; i < 4; i++) {
        waiter[i] = (struct waiter){.w = w, .call = call_accept};
        begin(&waiter[i]);
    }
    for (int i = 0; i < 4; i++)
        release(w);
    for (int i = 0; i < 4; i++) {
        ended_by_cancel(&waiter[i]);
        say("%d: %s", i, waiter[i].result >= 0 ? "accepted" : errno_name(waiter[i].error));
    }
}
