/* Sockets that other processes and other programs get: by fork, exec, posix_spawn, and in messages. */
#include "differ.h"
#include <spawn.h>
#include <sys/syscall.h>

extern char **environ;
static char b[64];

/* What a program or a child does with the socket it was given. */
static void talk(int fd) {
    nonblock(fd, 0);
    T(recv(fd, b, 64, 0));
    say("%.5s", b);
    T(send(fd, "reply", 5, 0));
    T(recv(fd, b, 64, 0));
    say("poll %s", polled(fd));
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    T(getpeername(fd, (void *)&at, &len));
    say("%s", name_of(&at, len));
}

static void serve(int fd) {
    nonblock(fd, 0);
    for (int i = 0; i < 2; i++) {
        int s = accept(fd, NULL, NULL);
        say("accept: %s", s >= 0 ? "ok" : errno_name(errno));
        T(recv(s, b, 64, 0));
        T(send(s, "served", 6, 0));
        close(s);
    }
}

static void serve_one(int fd) {
    say("%s", fcntl(fd, F_GETFL) & O_NONBLOCK ? "nonblocking" : "blocking");
    until(fd, POLLIN);
    int s = accept(fd, NULL, NULL);
    say("accept: %s", s >= 0 ? "ok" : errno_name(errno));
    T(recv(s, b, 64, 0));
    T(send(s, "served", 6, 0));
}

static void take_one(int fd) {
    until(fd, POLLIN);
    int s = accept(fd, NULL, NULL);
    say("accept: %s", s >= 0 ? "ok" : errno_name(errno));
    T(recv(s, b, 64, 0));
    T(recv(s, b, 64, 0));
}

static void uncork(int fd) {
    int value = -1;
    socklen_t len = sizeof value;
    T(send(fd, "more", 4, 0));
    T(getsockopt(fd, IPPROTO_TCP, TCP_CORK, &value, &len));
    say("corked %d", value);
    value = 0;
    T(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &value, sizeof value));
}

int in_another_program(char **arguments) {
    int fd = atoi(arguments[1]);
    if (strcmp(arguments[0], "talk") == 0)
        talk(fd);
    else if (strcmp(arguments[0], "serve") == 0)
        serve(fd);
    else if (strcmp(arguments[0], "serve_one") == 0)
        serve_one(fd);
    else if (strcmp(arguments[0], "take_one") == 0)
        take_one(fd);
    else if (strcmp(arguments[0], "uncork") == 0)
        uncork(fd);
    else
        T(fcntl(fd, F_GETFD));
    return 0;
}

enum way { FORK, FORK_BY_NUMBER, FORK_UNTOLD, FORK_EXEC, FORK_EXEC_BARE, VFORK_EXEC, SPAWN, SPAWN_BARE };

static void execute(const char *word, int fd) {
    char where[16], number[16];
    snprintf(where, sizeof where, "%d", output());
    snprintf(number, sizeof number, "%d", fd);
    execl("/proc/self/exe", "differ", "--program", where, word, number, NULL);
    say("exec: %s", errno_name(errno));
    _exit(1);
}

/* In functions of their own: what a vfork child changes its parent sees. */
__attribute__((noinline)) static pid_t vfork_program(char **arguments) {
    pid_t child = vfork();
    if (child == 0) {
        execv("/proc/self/exe", arguments);
        _exit(1);
    }
    return child;
}

static void be_cat(int in, int to) {
    dup2(in, 0);
    dup2(to, 1);
    close_range(3, ~0u, 0);
    execlp("cat", "cat", NULL);
    _exit(1);
}

__attribute__((noinline)) static pid_t vfork_cat(int in, int to) {
    pid_t child = vfork();
    if (child == 0)
        be_cat(in, to);
    return child;
}

/* A process that has the socket and not its peer. Only one of both prints until the other ends. */
static pid_t start(struct world *w, enum way way, const char *word) {
    pid_t child = -1;
    char where[16], number[16];
    snprintf(where, sizeof where, "%d", output());
    snprintf(number, sizeof number, "%d", w->s);
    char *arguments[] = {"differ", "--program", where, (char *)word, number, NULL};
    if (w->p >= 0)
        MUST(fcntl(w->p, F_SETFD, FD_CLOEXEC));
    static char *const nothing[] = {NULL};
    switch (way) {
    case SPAWN:
    case SPAWN_BARE:
        MUST(-posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, way == SPAWN ? environ : nothing));
        break;
    case VFORK_EXEC:
        child = vfork_program(arguments);
        break;
    default:
        child = way == FORK_BY_NUMBER ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)
                : way == FORK_UNTOLD  ? _Fork()
                                      : fork();
        if (child == 0 && way == FORK_EXEC)
            execute(word, w->s);
        if (child == 0 && way == FORK_EXEC_BARE) {
            execve("/proc/self/exe", arguments, nothing);
            _exit(1);
        }
        if (child == 0) {
            close(w->p);
            in_another_program(arguments + 3);
            _exit(0);
        }
    }
    MUST(child);
    close(atoi(where));
    return child;
}

static void finish(pid_t child) {
    int status = -1;
    MUST(waitpid(child, &status, 0));
    say("it ends with %d", status);
}

/* What has come, to be told later. */
struct answer {
    long n;
    int error;
    char bytes[64];
};

static struct answer answer(int fd) {
    struct answer a = {0};
    until(fd, POLLIN);
    a.n = recv(fd, a.bytes, sizeof a.bytes, MSG_DONTWAIT);
    a.error = errno;
    return a;
}

static void say_answer(const char *who, const struct answer *a) {
    errno = a->error;
    say("%s: %s %.*s", who, said(a->n), a->n > 0 ? (int)a->n : 0, a->bytes);
}

/* The peer's side of `talk`. */
static void hear(int peer, pid_t child) {
    struct answer first = answer(peer);
    MUST(shutdown(peer, SHUT_WR));
    finish(child);
    say_answer("peer", &first);
    until(peer, POLLRDHUP);
    T(recv(peer, b, 64, MSG_DONTWAIT));
}

static void converse(struct world *w, enum way way) {
    MUST(send(w->p, "hello", 5, 0));
    pid_t child = start(w, way, "talk");
    MUST(close(w->s));
    hear(w->p, child);
}

CASE(fork, connection, BIT(connected) | BIT(accepted)) { converse(w, FORK); }
CASE(fork, connection_by_number, BIT(connected) | BIT(accepted)) { converse(w, FORK_BY_NUMBER); }
CASE(fork, connection_untold, BIT(connected) | BIT(accepted)) { converse(w, FORK_UNTOLD); }
CASE(exec, connection, BIT(connected) | BIT(accepted) | BIT(connected6)) { converse(w, FORK_EXEC); }
CASE(exec, connection_without_environment, BIT(connected) | BIT(accepted)) { converse(w, FORK_EXEC_BARE); }
CASE(posix_spawn, connection_without_environment, BIT(connected)) { converse(w, SPAWN_BARE); }
CASE(vfork, connection, BIT(connected) | BIT(accepted)) { converse(w, VFORK_EXEC); }
CASE(posix_spawn, connection, BIT(connected) | BIT(accepted)) { converse(w, SPAWN); }

/* Of `serve`: one connection waits, the other comes later. */
static void hear_both(int first, const struct world *w, pid_t child) {
    int second = fresh(AF_INET);
    MUST(connect(second, (const void *)&w->at, w->at_len));
    MUST(send(second, "second", 6, 0));
    struct answer each[] = {answer(first), answer(second)};
    finish(child);
    say_answer("first", &each[0]);
    say_answer("second", &each[1]);
}

static void be_served(struct world *w, enum way way) {
    MUST(send(w->p, "first", 5, 0));
    pid_t child = start(w, way, "serve");
    MUST(close(w->s));
    hear_both(w->p, w, child);
    T(connect(fresh(AF_INET), (void *)&w->at, w->at_len));
}

CASE(fork, listener, BIT(waiting)) { be_served(w, FORK); }
CASE(fork, listener_by_number, BIT(waiting)) { be_served(w, FORK_BY_NUMBER); }
CASE(fork, listener_untold, BIT(waiting)) { be_served(w, FORK_UNTOLD); }
CASE(exec, listener, BIT(waiting)) { be_served(w, FORK_EXEC); }
CASE(vfork, listener, BIT(waiting)) { be_served(w, VFORK_EXEC); }
CASE(posix_spawn, listener, BIT(waiting)) { be_served(w, SPAWN); }

/* Another program has accepted the first connection; who let it goes on himself, as inetd does. */
static void go_on(struct world *w, int first, pid_t child) {
    int second = fresh(AF_INET);
    struct answer served = answer(first);
    finish(child);
    say_answer("first", &served);
    say("poll %s", polled(w->s));
    MUST(connect(second, (void *)&w->at, w->at_len));
    MUST(send(second, "second", 6, 0));
    until(w->s, POLLIN);
    int s = accept(w->s, NULL, NULL);
    say("accept: %s", s >= 0 ? "ok" : errno_name(errno));
    T(recv(s, b, 64, 0));
}

static void be_helped(struct world *w, enum way way, int nonblocking) {
    nonblock(w->s, nonblocking);
    MUST(send(w->p, "first", 5, 0));
    until(w->s, POLLIN);
    go_on(w, w->p, start(w, way, "serve_one"));
}

CASE(fork, listener_kept, BIT(waiting)) { be_helped(w, FORK, 0); }
CASE(exec, listener_kept, BIT(waiting)) { be_helped(w, FORK_EXEC, 0); }
CASE(exec, listener_without_environment, BIT(waiting)) { be_helped(w, FORK_EXEC_BARE, 0); }
CASE(vfork, listener_kept, BIT(waiting)) { be_helped(w, VFORK_EXEC, 1); }
CASE(posix_spawn, listener_kept, BIT(waiting)) { be_helped(w, SPAWN, 0); }

/* Its client has come and gone before another program accepts the connection. */
static void be_taken(struct world *w, enum way way, int is_kept) {
    MUST(send(w->p, "first", 5, 0));
    MUST(close(w->p));
    w->p = -1;
    pid_t child = start(w, way, "take_one");
    if (!is_kept)
        MUST(close(w->s));
    finish(child);
}

CASE(fork, closed_before_accepted, BIT(waiting)) { be_taken(w, FORK, 1); }
CASE(exec, closed_before_accepted, BIT(waiting)) { be_taken(w, FORK_EXEC, 0); }
CASE(exec, closed_before_accepted_kept, BIT(waiting)) { be_taken(w, FORK_EXEC, 1); }
CASE(posix_spawn, closed_before_accepted, BIT(waiting)) { be_taken(w, SPAWN, 0); }

CASE(fork, listen_again, BIT(waiting)) {
    // Its child accepts, too; then it stops to listen for a while.
    int line[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, line));
    pid_t child = fork();
    if (child == 0) {
        until(w->s, POLLIN);
        MUST(accept(w->s, NULL, NULL));
        MUST(write(line[0], "x", 1));
        MUST(read(line[0], b, 1));
        _exit(0);
    }
    MUST(child);
    MUST(read(line[1], b, 1));
    T(shutdown(w->s, SHUT_RD));
    T(listen(w->s, 4));
    // It has another port now.
    T(getsockname(w->s, (void *)&w->at, &w->at_len));
    int c = fresh(AF_INET);
    T(connect(c, (void *)&w->at, w->at_len));
    until(w->s, POLLIN);
    int s = accept(w->s, NULL, NULL);
    say("accept: %s", s >= 0 ? "ok" : errno_name(errno));
    MUST(send(c, "word", 4, 0));
    until(s, POLLIN);
    T(recv(s, b, 64, 0));
    MUST(write(line[1], "x", 1));
    finish(child);
}

CASE(exec, in_the_place_of_a_server, NONE) {
    // What has come before the new program runs is its to accept.
    struct world *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int line[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, line));
    pid_t child = fork();
    if (child == 0) {
        c->s = listener(AF_INET, 4, &c->at, &c->at_len);
        nonblock(c->s, 0);
        MUST(write(line[0], "x", 1));
        MUST(read(line[0], b, 1));
        execute("serve", c->s);
    }
    MUST(child);
    MUST(read(line[1], b, 1));
    int first = fresh(AF_INET);
    MUST(connect(first, (void *)&c->at, c->at_len));
    MUST(send(first, "first", 5, 0));
    MUST(write(line[1], "x", 1));
    hear_both(first, c, child);
    T(connect(fresh(AF_INET), (void *)&c->at, c->at_len));
}

CASE(exec, close_on_exec, BIT(connected) | BIT(listening)) {
    // Not for the other program, and nothing happens to it here.
    MUST(fcntl(w->s, F_SETFD, FD_CLOEXEC));
    finish(start(w, FORK_EXEC, "look"));
    finish(start(w, SPAWN, "look"));
    if (w->state == STATE_connected) {
        T(send(w->s, "x", 1, 0));
        until(w->p, POLLIN);
        T(recv(w->p, b, 64, MSG_DONTWAIT));
    } else
        T(connect(fresh(AF_INET), (void *)&w->at, w->at_len));
}

CASE(exec, failed, BIT(connected) | BIT(listening)) {
    // The socket is as it was before.
    T(execl("/nonexistent", "nothing", NULL));
    T(execlp("/proc/self/maps", "nothing", NULL));
    if (w->state == STATE_connected) {
        T(send(w->s, "x", 1, 0));
        until(w->p, POLLIN);
        T(recv(w->p, b, 64, MSG_DONTWAIT));
        T(send(w->p, "yz", 2, 0));
        until(w->s, POLLIN);
        T(recv(w->s, b, 64, MSG_DONTWAIT));
    } else
        T(connect(fresh(AF_INET), (void *)&w->at, w->at_len));
}

/* `cat` with the connection as its input. */
static void read_by_cat(struct world *w, int from) {
    ssize_t n, all = 0;
    close(w->s);
    MUST(send(w->p, "world\n", 6, 0));
    MUST(shutdown(w->p, SHUT_WR));
    while ((n = read(from, b + all, sizeof b - (size_t)all)) > 0)
        all += n;
    say("%zd bytes: %.*s", all, all == 12 ? 5 : 0, b + 6);
    until(w->p, POLLRDHUP);
    T(recv(w->p, b, 1, MSG_DONTWAIT));
}

CASE(posix_spawn, with_file_actions, BIT(connected)) {
    int ends[2];
    pid_t child;
    posix_spawn_file_actions_t actions;
    char *arguments[] = {"cat", NULL};
    nonblock(w->s, 0);
    MUST(pipe2(ends, O_CLOEXEC));
    MUST(fcntl(w->p, F_SETFD, FD_CLOEXEC));
    MUST(send(w->p, "hello ", 6, 0));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, w->s, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addclose(&actions, w->s);
    MUST(-posix_spawnp(&child, "cat", &actions, NULL, arguments, environ));
    close(ends[1]);
    read_by_cat(w, ends[0]);
    finish(child);
}

CASE(vfork, dup2_and_close_range, BIT(connected) | BIT(accepted)) {
    int ends[2];
    nonblock(w->s, 0);
    MUST(pipe2(ends, O_CLOEXEC));
    MUST(send(w->p, "hello ", 6, 0));
    pid_t child = vfork_cat(w->s, ends[1]);
    MUST(child);
    close(ends[1]);
    read_by_cat(w, ends[0]);
    finish(child);
}

CASE(fork, dup2_and_close_range, BIT(connected)) {
    int ends[2];
    nonblock(w->s, 0);
    MUST(pipe2(ends, O_CLOEXEC));
    MUST(send(w->p, "hello ", 6, 0));
    pid_t child = fork();
    if (child == 0)
        be_cat(w->s, ends[1]);
    MUST(child);
    close(ends[1]);
    read_by_cat(w, ends[0]);
    finish(child);
}

CASE(fork, both_sides, BIT(connected) | BIT(accepted)) {
    // Parent and child use it in turn; what one closes the other still has.
    int turn[2];
    char word;
    nonblock(w->s, 0);
    MUST(pipe(turn));
    pid_t child = fork();
    if (child == 0) {
        close(w->p);
        T(send(w->s, "c", 1, 0));
        T(recv(w->s, b, 3, MSG_WAITALL));
        MUST(write(turn[1], "x", 1));
        _exit(0);
    }
    MUST(send(w->p, "abcd", 4, 0));
    MUST(read(turn[0], &word, 1));
    finish(child);
    T(recv(w->s, b, 4, MSG_DONTWAIT));
    T(send(w->s, "p", 1, 0));
    until(w->p, POLLIN);
    nap(2);
    T(recv(w->p, b, 64, MSG_DONTWAIT));
    T(close(w->s));
    until(w->p, POLLRDHUP);
    T(recv(w->p, b, 64, MSG_DONTWAIT));
}

CASE(fork, both_accept, BIT(listening)) {
    int first = fresh(AF_INET), second = fresh(AF_INET);
    nonblock(w->s, 0);
    MUST(connect(first, (void *)&w->at, w->at_len));
    pid_t child = fork();
    if (child == 0) {
        int s = accept(w->s, NULL, NULL);
        say("child: %s", s >= 0 ? "accepted" : errno_name(errno));
        T(send(s, "child", 5, 0));
        _exit(0);
    }
    finish(child);
    until(first, POLLIN);
    T(recv(first, b, 64, MSG_DONTWAIT));
    MUST(connect(second, (void *)&w->at, w->at_len));
    int s = accept(w->s, NULL, NULL);
    say("parent: %s", s >= 0 ? "accepted" : errno_name(errno));
    T(send(s, "parent", 6, 0));
    until(second, POLLIN);
    T(recv(second, b, 64, MSG_DONTWAIT));
}

static union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
} control;

static long hand_over(int to, int fd) {
    struct iovec v = {"m", 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.bytes};
    *CMSG_FIRSTHDR(&m) = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof fd);
    return sendmsg(to, &m, 0);
}

static int take_over(int from) {
    struct iovec v = {b, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.bytes};
    int fd;
    MUST(recvmsg(from, &m, MSG_CMSG_CLOEXEC));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    say("close-on-exec %d", fcntl(fd, F_GETFD));
    return fd;
}

/* A process that was there before the socket, and gets it in a message. */
static pid_t receiver(struct world *w, void (*use)(int), enum state state, int is_kept) {
    int line[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, line));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        close(line[0]);
        use(take_over(line[1]));
        _exit(0);
    }
    close(line[1]);
    reach(w, state);
    MUST(send(w->p, "hello", 5, 0));
    MUST(hand_over(line[0], w->s));
    if (!is_kept)
        MUST(close(w->s));
    close(line[0]);
    return child;
}

CASE(rights, connection, NONE) {
    struct world c;
    pid_t child = receiver(&c, talk, STATE_connected, 0);
    hear(c.p, child);
}

CASE(rights, listener, NONE) {
    struct world c;
    pid_t child = receiver(&c, serve, STATE_waiting, 0);
    hear_both(c.p, &c, child);
}

CASE(rights, listener_kept, NONE) {
    struct world c;
    pid_t child = receiver(&c, serve_one, STATE_waiting, 1);
    go_on(&c, c.p, child);
}

CASE(rights, back_again, BIT(connected) | BIT(listening)) {
    // A descriptor in a message to oneself is one more for the same socket.
    int line[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, line));
    T(hand_over(line[0], w->s));
    int again = take_over(line[1]);
    T(close(w->s));
    if (w->state == STATE_connected) {
        T(send(again, "x", 1, 0));
        until(w->p, POLLIN);
        T(recv(w->p, b, 64, MSG_DONTWAIT));
        T(close(again));
        until(w->p, POLLRDHUP);
        T(recv(w->p, b, 64, MSG_DONTWAIT));
    } else {
        T(connect(fresh(AF_INET), (void *)&w->at, w->at_len));
        until(again, POLLIN);
        say("accept: %s", accept(again, NULL, NULL) >= 0 ? "ok" : errno_name(errno));
    }
}

CASE(rights, never_taken, BIT(connected)) {
    // Nobody reads the message: with it goes the last descriptor.
    int line[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, line));
    T(hand_over(line[0], w->s));
    T(close(w->s));
    nap(5);
    T(send(w->p, "x", 1, MSG_DONTWAIT));
    T(close(line[1]));
    T(close(line[0]));
    until(w->p, POLLIN);
    T(recv(w->p, b, 64, MSG_DONTWAIT));
}

/* Two processes have the descriptor; one uses it, and the other, which had the connection, sends it on without looking. */
CASE(rights, sent_on_after_it_went_back, NONE) {
    struct world c;
    int line[2], status;
    char word;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, line));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        int fd = take_over(line[1]);
        T(send(fd, "child ", 6, 0));
        MUST(send(line[1], "1", 1, 0));
        MUST(recv(line[1], &word, 1, 0));
        T(hand_over(line[1], fd));
        MUST(recv(line[1], &word, 1, 0));
        T(send(fd, "and child", 9, 0));
        _exit(0);
    }
    reach(&c, STATE_connected);
    nonblock(c.p, 0);
    MUST(hand_over(line[0], c.s));
    MUST(recv(line[0], &word, 1, 0));
    T(send(c.s, "parent ", 7, 0));
    nap(30);
    MUST(send(line[0], "2", 1, 0));
    int again = take_over(line[0]);
    T(send(again, "again ", 6, 0));
    MUST(send(line[0], "3", 1, 0));
    MUST(waitpid(child, &status, 0));
    T(recv(c.p, b, 28, MSG_WAITALL));
    say("%.28s", b);
}

/* What one program holds back another one lets go. */
CASE(program, corked, BIT(connected) | BIT(accepted) | BIT(connected6)) {
    int status;
    nonblock(w->s, 0);
    nonblock(w->p, 0);
    MUST(setsockopt(w->s, IPPROTO_TCP, TCP_CORK, &(int){1}, sizeof(int)));
    T(send(w->s, "first", 5, 0));
    pid_t child = fork();
    if (child == 0)
        execute("uncork", w->s);
    MUST(waitpid(child, &status, 0));
    T(recv(w->p, b, 9, MSG_WAITALL));
    say("%.9s", b);
    T(send(w->s, "again", 5, 0));
    T(recv(w->p, b, 5, MSG_WAITALL));
    say("%.5s", b);
}
