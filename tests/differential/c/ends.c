/* shutdown, close, and the names of both ends. */
#include "differ.h"

#define AT(w) ((struct sockaddr *)&(w)->at)

CASE(shutdown, errors, EVERY) {
    T(shutdown(w->s, 3));
    T(shutdown(w->s, -1));
}

CASE(shutdown, read, EVERY) {
    char b[16];
    T(shutdown(w->s, SHUT_RD));
    T(shutdown(w->s, SHUT_RD));
    T(recv(w->s, b, 16, MSG_DONTWAIT));
    T(recv(w->s, b, 16, MSG_DONTWAIT));
    T(send(w->s, "x", 1, MSG_DONTWAIT));
    if (w->p >= 0 && w->state >= STATE_connected) {
        T(send(w->p, "y", 1, 0));
        nap(2);
        T(recv(w->s, b, 16, MSG_DONTWAIT));
    }
}

CASE(shutdown, write, EVERY) {
    char b[16];
    T(shutdown(w->s, SHUT_WR));
    T(shutdown(w->s, SHUT_WR));
    T(send(w->s, "x", 1, MSG_DONTWAIT));
    T(send(w->s, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL));
    T(recv(w->s, b, 16, MSG_DONTWAIT));
    if (w->p >= 0 && w->state >= STATE_connected && w->state != STATE_full) {
        T(recv(w->p, b, 16, MSG_DONTWAIT));
        T(send(w->p, "y", 1, MSG_DONTWAIT));
        nap(2);
        T(recv(w->s, b, 16, MSG_DONTWAIT));
    }
}

CASE(shutdown, both, EVERY) {
    char b[16];
    T(shutdown(w->s, SHUT_RDWR));
    T(shutdown(w->s, SHUT_RDWR));
    T(shutdown(w->s, SHUT_RD));
    T(shutdown(w->s, SHUT_WR));
    T(recv(w->s, b, 16, MSG_DONTWAIT));
    T(send(w->s, "x", 1, MSG_DONTWAIT));
    if (w->p >= 0 && w->state >= STATE_connected && w->state != STATE_full) {
        T(recv(w->p, b, 16, MSG_DONTWAIT));
        T(send(w->p, "y", 1, MSG_DONTWAIT));
        nap(2);
        T(send(w->p, "y", 1, MSG_DONTWAIT));
        T(recv(w->p, b, 16, MSG_DONTWAIT));
    }
}

CASE(shutdown, listener_again, BIT(listening) | BIT(waiting) | BIT(listening6)) {
    T(shutdown(w->s, SHUT_RD));
    T(accept(w->s, NULL, NULL));
    int c = fresh(w->family);
    nonblock(c, 1);
    connect(c, AT(w), w->at_len);
    until(c, POLLOUT);
    int error = -1;
    socklen_t len = sizeof error;
    T(getsockopt(c, SOL_SOCKET, SO_ERROR, &error, &len));
    say("connect: %s", errno_name(error));
    T(listen(w->s, 4));
    close(c);
    c = fresh(w->family);
    T(connect(c, AT(w), w->at_len));
    until(w->s, POLLIN);
    say("accept: %s", accept(w->s, NULL, NULL) >= 0 ? "ok" : errno_name(errno));
}

CASE(getsockname, each, EVERY) {
    struct sockaddr_storage me = {0};
    socklen_t len = sizeof me;
    T(getsockname(w->s, (void *)&me, &len));
    say("%u: %s", len, name_of(&me, len < sizeof me ? len : 0));
}

CASE(getpeername, each, EVERY) {
    struct sockaddr_storage peer = {0};
    socklen_t len = sizeof peer;
    T(getpeername(w->s, (void *)&peer, &len));
    say("%u: %s", len, name_of(&peer, len < sizeof peer ? len : 0));
}

CASE(getsockname, errors, EVERY) {
    struct sockaddr_storage me = {0};
    socklen_t len = sizeof me, negative = (socklen_t)-1, none = 0, some = 6;
    T(getsockname(w->s, NULL, NULL));
    T(getsockname(w->s, NULL, &len));
    T(getsockname(w->s, (void *)&me, NULL));
    T(getsockname(w->s, (void *)&me, &negative));
    T(getsockname(w->s, (void *)&me, &none));
    T(getsockname(w->s, (void *)&me, &some));
    say("%u %u", none, some);
}

CASE(getpeername, errors, EVERY) {
    struct sockaddr_storage me = {0};
    socklen_t len = sizeof me, negative = (socklen_t)-1, none = 0, some = 6;
    T(getpeername(w->s, NULL, NULL));
    T(getpeername(w->s, NULL, &len));
    T(getpeername(w->s, (void *)&me, NULL));
    T(getpeername(w->s, (void *)&me, &negative));
    T(getpeername(w->s, (void *)&me, &none));
    T(getpeername(w->s, (void *)&me, &some));
    say("%u %u", none, some);
}

CASE(close, each, EVERY) {
    char b[16];
    T(close(w->s));
    T(close(w->s));
    T(recv(w->s, b, 1, 0));
    if (w->p >= 0 && w->state != STATE_waiting) {
        until(w->p, POLLRDHUP);
        T(recv(w->p, b, 16, MSG_DONTWAIT | (w->state == STATE_full ? MSG_PEEK : 0)));
        T(send(w->p, "x", 1, MSG_DONTWAIT));
        nap(2);
        T(send(w->p, "x", 1, MSG_DONTWAIT));
    }
}

CASE(close, then_a_long_send, BIT(connected) | BIT(accepted) | BIT(connected6)) {
    // The peer's RST cuts it short, and is told by whoever asks first.
    static char b[1 << 20];
    MUST(close(w->p));
    until(w->s, POLLRDHUP);
    int error = -1;
    socklen_t len = sizeof error;
    T(send(w->s, b, sizeof b, 0));
    say("%s", polled(w->s));
    T(recv(w->s, b, 1, 0));
    T(getsockopt(w->s, SOL_SOCKET, SO_ERROR, &error, &len));
    say("%s, %s", errno_name(error), polled(w->s));
    T(getsockopt(w->s, SOL_SOCKET, SO_ERROR, &error, &len));
    say("%s", errno_name(error));
    T(send(w->s, b, sizeof b, 0));
    T(send(w->s, b, sizeof b, MSG_NOSIGNAL));
}

CASE(close, then_a_long_send_of_few_buffers, BIT(connected) | BIT(accepted)) {
    static char b[1 << 20];
    int sizes[] = {1024, 20000, 100000};
    for (int i = 0; i < 3; i++) {
        int f[2], error = -1;
        socklen_t len = sizeof error;
        join(AF_INET, f);
        MUST(setsockopt(f[0], SOL_SOCKET, SO_SNDBUF, &sizes[i], sizeof sizes[i]));
        MUST(close(f[1]));
        until(f[0], POLLRDHUP);
        T(send(f[0], b, sizeof b, i & 1 ? MSG_DONTWAIT : 0));
        T(send(f[0], b, sizeof b, 0));
        T(getsockopt(f[0], SOL_SOCKET, SO_ERROR, &error, &len));
        say("%s", errno_name(error));
        close(f[0]);
    }
}

CASE(close, then_a_send_wakes, BIT(connected) | BIT(accepted)) {
    // Whoever asks for edges hears of the RST, too.
    struct epoll_event e = {.events = EPOLLET | EPOLLIN | EPOLLOUT | EPOLLRDHUP};
    int set = MUST(epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, w->s, &e));
    MUST(close(w->p));
    until(w->s, POLLRDHUP);
    T(epoll_wait(set, &e, 1, 1000));
    say("%s", bits(e.events));
    T(epoll_wait(set, &e, 1, 0));
    T(send(w->s, "x", 1, 0));
    T(epoll_wait(set, &e, 1, 1000));
    say("%s", bits(e.events));
    close(set);
}

CASE(close, waiting_connection, BIT(waiting)) {
    // Connections that nobody has accepted are reset.
    char b;
    T(close(w->s));
    until(w->p, POLLIN);
    T(recv(w->p, &b, 1, MSG_DONTWAIT));
    T(send(w->p, &b, 1, MSG_DONTWAIT));
}

CASE(close, after_a_child, NONE) {
    // Who has waited for a child holds alone what both have held: to close it with bytes unread resets it at once.
    for (int way = 0; way < 2; way++) {
        int f[2];
        join(AF_INET, f);
        MUST(shutdown(f[1], SHUT_WR));
        until(f[0], POLLRDHUP);
        MUST(send(f[0], "abc", 3, 0));
        pid_t child = fork();
        if (child == 0) {
            if (way)
                exit(0);
            _exit(0);
        }
        MUST(waitpid(child, NULL, 0));
        MUST(close(f[1]));
        T(send(f[0], "d", 1, 0));
    }
}

CASE(close, lingering, BIT(connected) | BIT(full)) {
    struct linger soft = {1, 0}, hard = {1, 1};
    char b[16];
    MUST(setsockopt(w->s, SOL_SOCKET, SO_LINGER, w->state == STATE_full ? &hard : &soft, sizeof soft));
    T(close(w->s));
    if (w->state == STATE_connected)
        T(recv(w->p, b, 16, MSG_DONTWAIT));
}

/* A child stops its parent's listener: nobody listens any more, and what waits is reset. */
CASE(shutdown, listener_by_a_child, NONE) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    char b[8];
    int l = listener(AF_INET, 4, &at, &len), c = fresh(AF_INET), other = fresh(AF_INET), status;
    T(connect(c, (void *)&at, len));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        nonblock(l, 1);
        int s = accept(l, NULL, NULL);
        int waits = fresh(AF_INET);
        int is_bad = s < 0 || connect(waits, (void *)&at, len) || shutdown(l, SHUT_RD);
        struct pollfd one = {waits, POLLIN, 0};
        is_bad |= poll(&one, 1, 2000) != 1 || recv(waits, b, 8, 0) != -1 || errno != ECONNRESET;
        _exit(is_bad || send(s, "hello", 5, 0) != 5);
    }
    MUST(waitpid(child, &status, 0));
    say("the child ends with %d", status);
    T(recv(c, b, 8, 0));
    T(connect(other, (void *)&at, len));
    T(accept(l, NULL, NULL));
}

/* A listener goes whose backlog is full: who is connected hears of a reset, who is not yet, of a refusal. */
static void end_full(int is_shut) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    int l = listener(AF_INET, 0, &at, &len), c[2] = {fresh(AF_INET), fresh(AF_INET)};
    MUST(connect(c[0], (void *)&at, len));
    until(l, POLLIN);
    nonblock(c[1], 1);
    T(connect(c[1], (void *)&at, len));
    MUST(is_shut ? shutdown(l, SHUT_RD) : close(l));
    for (int i = 0; i < 2; i++) {
        struct pollfd one = {c[i], POLLIN, 0};
        T(poll(&one, 1, 5000));
        say("%s", polled(c[i]));
        T(read(c[i], &at, 1));
        T(read(c[i], &at, 1));
    }
}

CASE(close, full_listener, NONE) { end_full(0); }
CASE(shutdown, full_listener, NONE) { end_full(1); }
