/* What TCP_CORK and MSG_MORE hold back, who sees it, and what lets it go. */
#include "differ.h"
#include <linux/sockios.h>
#include <sys/sendfile.h>

static char b[1 << 17];

static void cork(int fd, int on) { MUST(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on)); }

/* Both sides of what was sent: it comes at once or not at all for a while. */
static void both(struct world *w, const char *when) {
    int unread = -1, unacknowledged = -1, unsent = -1;
    nap(5);
    MUST(ioctl(w->p, FIONREAD, &unread));
    MUST(ioctl(w->s, SIOCOUTQ, &unacknowledged));
    say("%s: unread %d, poll %s", when, unread, polled(w->p));
    if (unread == 0) {
        MUST(ioctl(w->s, SIOCOUTQNSD, &unsent));
        say("waits %d, not sent %d, poll %s", unacknowledged, unsent, polled(w->s));
    }
}

static void taken(struct world *w) {
    until(w->p, POLLIN);
    T(recv(w->p, b, sizeof b, MSG_DONTWAIT));
}

#define CONNECTED BIT(connected) | BIT(accepted) | BIT(connected6)

CASE(held, more, CONNECTED) {
    T(send(w->s, b, 10, MSG_MORE));
    both(w, "more to come");
    T(recv(w->p, b, 64, MSG_DONTWAIT));
    T(send(w->s, b, 10, MSG_MORE));
    both(w, "and more");
    T(send(w->s, b, 0, 0));
    both(w, "after a call without bytes");
    T(send(w->s, b, 6, 0));
    taken(w);
    T(send(w->s, b, 10, MSG_MORE));
    struct iovec v[2] = {{b, 3}, {b, 4}};
    T(writev(w->s, v, 2));
    taken(w);
}

CASE(held, corked, CONNECTED) {
    cork(w->s, 1);
    T(send(w->s, b, 10, 0));
    T(write(w->s, b, 5));
    both(w, "corked");
    T(recv(w->p, b, 64, MSG_DONTWAIT | MSG_PEEK));
    cork(w->s, 1);
    both(w, "corked again");
    cork(w->s, 0);
    taken(w);
    T(send(w->s, b, 10, 0));
    taken(w);
}

CASE(held, no_delay, CONNECTED) {
    cork(w->s, 1);
    T(send(w->s, b, 10, 0));
    T(setsockopt(w->s, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)));
    taken(w);
    T(send(w->s, b, 7, 0));
    both(w, "the cork stays");
    T(setsockopt(w->s, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)));
    taken(w);
    T(send(w->s, b, 7, MSG_MORE));
    T(setsockopt(w->s, IPPROTO_TCP, TCP_NODELAY, &(int){0}, sizeof(int)));
    both(w, "taken back");
    cork(w->s, 0);
    taken(w);
}

CASE(held, more_and_corked, BIT(connected)) {
    cork(w->s, 1);
    T(send(w->s, b, 10, MSG_MORE));
    T(send(w->s, b, 10, 0));
    both(w, "the cork rules");
    cork(w->s, 0);
    taken(w);
    T(send(w->s, b, 10, MSG_MORE));
    cork(w->s, 0);
    taken(w);
}

static long ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Nobody comes back: 200 ms are the limit. */
static void limit(struct world *w, const char *what, int flags) {
    int on = flags == 0;
    cork(w->s, on);
    for (int i = 0; i < 3; i++) {
        long begin = ms();
        MUST(send(w->s, b, 10, flags));
        until(w->p, POLLIN);
        long waited = ms() - begin;
        say("%s: %s", what, waited < 100 ? "early" : waited > 500 ? "late" : "after about 200 ms");
        taken(w);
    }
    both(w, "nothing else");
}
CASE(held, limit_of_a_cork, CONNECTED) { limit(w, "corked", 0); }
CASE(held, limit_of_more, CONNECTED) { limit(w, "more", MSG_MORE); }

CASE(held, limit_of_two, BIT(connected)) {
    int other[2];
    join(AF_INET, other);
    cork(w->s, 1);
    MUST(send(w->s, b, 10, 0));
    MUST(send(other[0], b, 20, MSG_MORE));
    until(w->p, POLLIN);
    until(other[1], POLLIN);
    T(recv(w->p, b, 64, MSG_DONTWAIT));
    T(recv(other[1], b, 64, MSG_DONTWAIT));
    MUST(send(other[0], b, 20, MSG_MORE));
    T(recv(other[1], b, 64, 0));
    MUST(close(other[0]));
    MUST(close(other[1]));
}

CASE(held, whole_segments, CONNECTED) {
    int unread = 0;
    nonblock(w->s, 0);
    cork(w->s, 1);
    T(send(w->s, b, 70000, 0));
    until(w->p, POLLIN);
    nap(5);
    MUST(ioctl(w->p, FIONREAD, &unread));
    say("segments go, the rest waits: %d", unread > 60000 && unread < 70000);
    cork(w->s, 0);
    for (int left = 70000; left > 0;) {
        until(w->p, POLLIN);
        left -= MUST(recv(w->p, b, sizeof b, 0));
    }
    say("all of it");
}

CASE(held, of_small_pieces, BIT(connected)) {
    int unread = 0;
    cork(w->s, 1);
    for (int i = 0; i < 30; i++)
        MUST(send(w->s, b, 1000, 0));
    both(w, "30 pieces");
    for (int i = 0; i < 40; i++)
        MUST(send(w->s, b, 1000, 0));
    nap(5);
    MUST(ioctl(w->p, FIONREAD, &unread));
    say("segments are filled: %d", unread > 30000 && unread < 70000);
}

CASE(held, shut, CONNECTED) {
    cork(w->s, 1);
    T(send(w->s, b, 10, 0));
    T(shutdown(w->s, SHUT_WR));
    taken(w);
    T(recv(w->p, b, 64, 0));
}

CASE(held, closed, CONNECTED) {
    T(send(w->s, b, 10, MSG_MORE));
    T(close(w->s));
    taken(w);
    T(recv(w->p, b, 64, 0));
}

CASE(held, lingering, BIT(connected)) {
    struct linger limit = {1, 1};
    MUST(setsockopt(w->s, SOL_SOCKET, SO_LINGER, &limit, sizeof limit));
    T(send(w->s, b, 10, MSG_MORE));
    long begin = ms();
    T(close(w->s));
    say("at once: %d", ms() - begin < 500);
    taken(w);
}

CASE(held, urgent, BIT(connected)) {
    cork(w->s, 1);
    T(send(w->s, b, 10, 0));
    T(send(w->s, b, 1, MSG_OOB));
    taken(w);
}

CASE(held, killed, BIT(fresh)) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 4, &at, &len);
    pid_t child = fork();
    if (child == 0) {
        nonblock(w->s, 0);
        MUST(connect(w->s, (void *)&at, len));
        cork(w->s, 1);
        MUST(send(w->s, b, 10, 0));
        MUST(send(w->s, b, 10, MSG_MORE));
        kill(getpid(), SIGKILL);
    }
    int s = MUST(accept(l, NULL, NULL)), status;
    MUST(close(w->s));
    MUST(waitpid(child, &status, 0));
    until(s, POLLRDHUP);
    T(recv(s, b, 64, 0));
    T(recv(s, b, 64, 0));
}

CASE(held, of_a_child, CONNECTED) {
    int status;
    cork(w->s, 1);
    pid_t child = fork();
    if (child == 0)
        _exit(send(w->s, b, 10, 0) != 10);
    MUST(waitpid(child, &status, 0));
    say("the child: %d", status);
    both(w, "what it sent");
    T(send(w->s, b, 10, 0));
    child = fork();
    if (child == 0) {
        cork(w->s, 0);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0));
    taken(w);
    T(send(w->s, b, 10, 0));
    taken(w);
}

CASE(held, told_once, BIT(connected) | BIT(accepted)) {
    struct epoll_event e = {.events = EPOLLIN | EPOLLET}, seen;
    int set = MUST(epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, w->p, &e));
    cork(w->s, 1);
    MUST(send(w->s, b, 10, 0));
    T(epoll_wait(set, &seen, 1, 20));
    MUST(send(w->s, b, 10, 0));
    T(epoll_wait(set, &seen, 1, 0));
    cork(w->s, 0);
    T(epoll_wait(set, &seen, 1, 1000));
    T(epoll_wait(set, &seen, 1, 20));
    T(recv(w->p, b, 64, MSG_DONTWAIT));
    MUST(close(set));
}

CASE(held, of_a_short_file, BIT(connected)) {
    int file = MUST(memfd_create("short", 0));
    MUST(write(file, b, 10));
    off_t from = 0;
    T(sendfile(w->s, file, &from, 100));
    taken(w);
    cork(w->s, 1);
    from = 0;
    T(sendfile(w->s, file, &from, 10));
    both(w, "corked");
    from = 0;
    T(sendfile(w->s, file, &from, 100));
    both(w, "corked, to the end of the file");
    cork(w->s, 0);
    taken(w);
    MUST(close(file));
}

CASE(held, without_space, BIT(connected)) {
    cork(w->s, 1);
    nonblock(w->s, 1);
    while (send(w->s, b, 7000, 0) > 0)
        ;
    say("then %s", errno_name(errno));
    long total = 0;
    for (ssize_t n = 1; n > 0; total += n > 0 ? n : 0) {
        until(w->p, POLLIN);
        n = recv(w->p, b, sizeof b, MSG_DONTWAIT);
    }
    say("it was read: %d", total > 60000);
    until(w->s, POLLOUT);
    say("poll %s", polled(w->s));
}
