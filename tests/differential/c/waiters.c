/* See waiters.h. */
#include "waiters.h"

char bytes[SMALL], large[LARGE];
struct iovec vector = {bytes, 8}, large_vector = {large, LARGE};
struct mmsghdr message = {.msg_hdr = {.msg_iov = &vector, .msg_iovlen = 1}};
struct mmsghdr large_message = {.msg_hdr = {.msg_iov = &large_vector, .msg_iovlen = 1}};
struct epoll_event event;

#define X(name, states, call) long call_##name(struct world *w) { return (long)(call); }
WAITING_CALLS(X)
#undef X

int select_on(int fd, int seconds) {
    fd_set read;
    struct timeval limit = {seconds, 0};
    FD_ZERO(&read);
    FD_SET(fd, &read);
    return select(fd + 1, &read, NULL, NULL, seconds < 0 ? NULL : &limit);
}

int pselect_on(int fd) {
    fd_set read;
    FD_ZERO(&read);
    FD_SET(fd, &read);
    return pselect(fd + 1, &read, NULL, NULL, NULL, NULL);
}

int set_of(int fd) {
    struct epoll_event wanted = {EPOLLIN, {.fd = fd}};
    int set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted));
    return set;
}

static void clean(void *at) { ((struct waiter *)at)->cleaned++; }

static void *wait_there(void *at) {
    struct waiter *me = at;
    pthread_setcanceltype(me->kind, NULL);
    pthread_cleanup_push(clean, me);
    errno = 0;
    me->result = me->call(me->w);
    me->error = errno;
    me->returned = 1;
    pthread_cleanup_pop(0);
    return NULL;
}

void begin(struct waiter *waiter) {
    MUST(-pthread_create(&waiter->thread, NULL, wait_there, waiter));
    nap(ASLEEP_MS);
}

int ended_by_cancel(struct waiter *waiter) {
    void *end = NULL;
    MUST(-pthread_join(waiter->thread, &end));
    return end == PTHREAD_CANCELED;
}

void say_result(const char *what, struct waiter *waiter) {
    errno = waiter->error;
    say("%s: %s", what, said(waiter->result));
}

/* Nothing more goes in, even a while later. */
static void fill(int fd) {
    for (int quiet = 0; quiet < 4; quiet++, nap(2))
        while (send(fd, large, SMALL, MSG_DONTWAIT) > 0 || send(fd, large, 1, MSG_DONTWAIT) > 0)
            quiet = 0;
}

void block(struct world *w) {
    if (w->state == STATE_full)
        fill(w->s);
    nonblock(w->s, 0);
}

static void drain(int fd) {
    while (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        nap(1);
}

void release(struct world *w) {
    switch (w->state) {
    case STATE_full:
        // Until nothing more comes.
        while (poll(&(struct pollfd){w->p, POLLIN, 0}, 1, 50) > 0 && recv(w->p, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            ;
        break;
    case STATE_listening:
    case STATE_listening6:
        MUST(connect(fresh(w->family), (struct sockaddr *)&w->at, w->at_len));
        break;
    case STATE_connecting:
        MUST(accept(w->l, NULL, NULL));
        break;
    default:
        // What comes next does not wait for an acknowledgement of this.
        MUST(setsockopt(w->p, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)));
        MUST(send(w->p, "x", 1, 0));
    }
}

void say_usable(struct world *w) {
    nonblock(w->s, 1);
    switch (w->state) {
    case STATE_full:
        drain(w->p);
        until(w->s, POLLOUT);
        T(send(w->s, "again", 5, 0));
        break;
    case STATE_listening:
    case STATE_listening6:
        release(w);
        until(w->s, POLLIN);
        say("accept: %s", accept(w->s, NULL, NULL) >= 0 ? "ok" : errno_name(errno));
        break;
    case STATE_connecting:
        T(connect(w->s, (struct sockaddr *)&w->at, w->at_len));
        break;
    default:
        MUST(send(w->p, "again", 5, 0));
        nap(2);
        until(w->s, POLLIN);
        T(recv(w->s, bytes, 8, 0));
        T(send(w->s, "too", 3, 0));
    }
}
