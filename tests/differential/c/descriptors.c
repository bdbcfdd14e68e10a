/* dup, fcntl, ioctl, and what else is done to descriptors. */
#include "differ.h"
#include <linux/fs.h>
#include <linux/sockios.h>
#include <sys/file.h>
#include <sys/statfs.h>

static char b[64];

/* Says whether two descriptors are one socket: what one sets the other has. */
static void say_if_one(int a, int c) {
    int value = -1;
    socklen_t len = sizeof value;
    nonblock(a, !(fcntl(a, F_GETFL) & O_NONBLOCK));
    say("flags as one: %d", fcntl(a, F_GETFL) == fcntl(c, F_GETFL));
    nonblock(a, 1);
    MUST(setsockopt(a, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int)));
    MUST(getsockopt(c, SOL_SOCKET, SO_KEEPALIVE, &value, &len));
    say("options as one: %d", value);
}

CASE(dup, each, EVERY) {
    int d = dup(w->s);
    say("dup %s", d >= 0 ? "ok" : errno_name(errno));
    if (d < 0)
        return;
    say("close-on-exec %d", fcntl(d, F_GETFD));
    T(recv(d, b, 4, 0));
    T(send(d, b, 4, 0));
    T(close(w->s));
    say("poll %s", polled(d));
    T(recv(d, b, 4, 0));
    T(send(d, b, 4, 0));
    T(close(d));
    if (w->p >= 0 && w->state != STATE_waiting && w->state != STATE_full) {
        nap(2);
        say("peer: poll %s", polled(w->p));
        T(recv(w->p, b, 64, MSG_DONTWAIT));
    }
}

CASE(dup, is_one, LIVE) {
    int d = (int)MUST(dup(w->s));
    say_if_one(w->s, d);
    T(shutdown(d, SHUT_WR));
    say("poll %s %s", polled(w->s), polled(d));
}

CASE(dup2, each, EVERY) {
    T(dup2(w->s, -1));
    T(dup2(w->s, 1 << 30));
    say("to itself: %s", dup2(w->s, w->s) == w->s ? "ok" : errno_name(errno));
    T(dup2(w->s, 700));
    T(recv(700, b, 4, 0));
    T(send(700, b, 4, 0));
    T(close(w->s));
    T(send(700, b, 4, 0));
    T(close(700));
    T(close(700));
}

CASE(dup2, over_a_connection, BIT(connected) | BIT(data) | BIT(fresh) | BIT(listening) | BIT(closed)) {
    // What it replaces is closed: its peer sees the end.
    int ends[2];
    join(AF_INET, ends);
    int r = dup2(w->s, ends[0]);
    say("dup2 %s", r == ends[0] ? "ok" : errno_name(errno));
    until(ends[1], w->state == STATE_closed ? 0 : POLLRDHUP);
    T(recv(ends[1], b, 4, MSG_DONTWAIT));
    T(recv(ends[0], b, 4, MSG_DONTWAIT));
}

CASE(dup2, a_file_over_it, EVERY) {
    int null = open("/dev/null", O_RDWR);
    MUST(dup2(null, 700));
    T(dup2(700, w->s) == w->s);
    T(read(w->s, b, 4));
    T(recv(w->s, b, 4, 0));
    T(write(w->s, b, 4));
    if (w->p >= 0 && w->state >= STATE_connected && w->state != STATE_full) {
        until(w->p, POLLRDHUP);
        T(recv(w->p, b, 64, MSG_DONTWAIT));
    }
}

CASE(dup3, each, EVERY) {
    T(dup3(w->s, w->s, 0));
    T(dup3(w->s, 700, 1));
    T(dup3(w->s, 700, O_NONBLOCK));
    T(dup3(w->s, -1, 0));
    T(dup3(w->s, 700, O_CLOEXEC));
    say("close-on-exec %d", fcntl(700, F_GETFD));
    T(send(700, b, 4, 0));
}

CASE(fcntl, each, EVERY) {
    static const struct {
        const char *name;
        int command;
        long argument;
    } commands[] = {
        {"F_GETFD", F_GETFD, 0},
        {"F_SETFD 1", F_SETFD, 1},
        {"F_GETFD", F_GETFD, 0},
        {"F_SETFD 0", F_SETFD, 0},
        {"F_GETFL", F_GETFL, 0},
        {"F_SETFL 0", F_SETFL, 0},
        {"F_GETFL", F_GETFL, 0},
        {"F_SETFL O_NONBLOCK", F_SETFL, O_NONBLOCK},
        {"F_GETFL", F_GETFL, 0},
        {"F_SETFL O_NONBLOCK O_APPEND", F_SETFL, O_NONBLOCK | O_APPEND},
        {"F_GETFL", F_GETFL, 0},
        {"F_SETFL O_NONBLOCK O_DIRECT", F_SETFL, O_NONBLOCK | O_DIRECT},
        {"F_GETFL", F_GETFL, 0},
        {"F_SETFL O_NONBLOCK O_ASYNC", F_SETFL, O_NONBLOCK | O_ASYNC},
        {"F_GETFL", F_GETFL, 0},
        {"F_SETFL O_NONBLOCK", F_SETFL, O_NONBLOCK},
        {"F_GETOWN", F_GETOWN, 0},
        {"F_GETSIG", F_GETSIG, 0},
        {"F_SETSIG 10", F_SETSIG, 10},
        {"F_GETSIG", F_GETSIG, 0},
        {"F_SETSIG 999", F_SETSIG, 999},
        {"F_GETPIPE_SZ", F_GETPIPE_SZ, 0},
        {"F_GET_SEALS", F_GET_SEALS, 0},
        {"F_GETLEASE", F_GETLEASE, 0},
        {"F_DUPFD -1", F_DUPFD, -1},
        {"F_DUPFD 1<<30", F_DUPFD, 1 << 30},
        {"F_DUPFD 701", F_DUPFD, 701},
        {"F_DUPFD_CLOEXEC 702", F_DUPFD_CLOEXEC, 702},
        {"999", 999, 0},
    };
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        errno = 0;
        long r = fcntl(w->s, commands[i].command, commands[i].argument);
        say("fcntl %s = %s", commands[i].name, said(r));
    }
    T(fcntl(702, F_GETFD));
    T(send(701, b, 1, 0));
}

CASE(fcntl, nonblocking_shared, BIT(connected) | BIT(listening)) {
    // A flag of the open file, not of the descriptor, nor of accepted sockets.
    int d = (int)MUST(dup(w->s));
    nonblock(d, 0);
    say("%#x", fcntl(w->s, F_GETFL));
    B(w->state == STATE_listening ? accept(w->s, NULL, NULL) : recv(w->s, b, 1, 0));
    nonblock(w->s, 1);
    T(w->state == STATE_listening ? accept(d, NULL, NULL) : recv(d, b, 1, 0));
}

CASE(fcntl, owner_and_signal, BIT(connected) | BIT(listening)) {
    // SIGIO when bytes come.
    sigset_t io;
    sigemptyset(&io), sigaddset(&io, SIGIO);
    sigprocmask(SIG_BLOCK, &io, NULL);
    T(fcntl(w->s, F_SETOWN, getpid()));
    say("owner %d", fcntl(w->s, F_GETOWN) == getpid());
    T(fcntl(w->s, F_SETFL, O_NONBLOCK | O_ASYNC));
    int c = -1;
    if (w->state == STATE_connected)
        MUST(send(w->p, b, 4, 0));
    else {
        c = fresh(AF_INET);
        MUST(connect(c, (void *)&w->at, w->at_len));
    }
    siginfo_t info;
    say("signal %s", sigtimedwait(&io, &info, &(struct timespec){0, 50000000}) == SIGIO ? "SIGIO" : errno_name(errno));
}

/* The signals of `of` that come within 50 ms, one after the other. */
static void signalled(const sigset_t *of) {
    siginfo_t info;
    int signal;
    while ((signal = sigtimedwait(of, &info, &(struct timespec){0, 50000000})) > 0)
        say("signal %d", signal);
    say("no more");
}

CASE(fcntl, urgent_signal, BIT(connected) | BIT(accepted)) {
    sigset_t urgent;
    sigemptyset(&urgent), sigaddset(&urgent, SIGURG);
    sigprocmask(SIG_BLOCK, &urgent, NULL);
    MUST(send(w->p, "u", 1, MSG_OOB));
    until(w->s, POLLPRI);
    T(w->state == STATE_connected ? fcntl(w->s, F_SETOWN, getpid()) : ioctl(w->s, SIOCSPGRP, &(int){getpid()}));
    signalled(&urgent);
    MUST(send(w->p, "xyz", 3, 0));
    signalled(&urgent);
    for (int i = 0; i < 2; i++) {
        MUST(send(w->p, "u", 1, MSG_OOB));
        signalled(&urgent);
    }
    T(fcntl(w->s, F_SETOWN, 0));
    MUST(send(w->p, "u", 1, MSG_OOB));
    signalled(&urgent);
}

CASE(fcntl, signal_of_choice, BIT(connected)) {
    sigset_t chosen;
    sigemptyset(&chosen), sigaddset(&chosen, SIGRTMIN + 3);
    sigprocmask(SIG_BLOCK, &chosen, NULL);
    struct f_owner_ex me = {F_OWNER_TID, gettid()};
    T(fcntl(w->s, F_SETOWN_EX, &me));
    T(fcntl(w->s, F_SETSIG, SIGRTMIN + 3));
    T(fcntl(w->s, F_SETFL, O_NONBLOCK | O_ASYNC));
    MUST(send(w->p, "x", 1, 0));
    siginfo_t info;
    say("came %d", sigtimedwait(&chosen, &info, &(struct timespec){1, 0}) == SIGRTMIN + 3);
    say("descriptor %d readable %d", info.si_fd == w->s, (info.si_band & POLLIN) != 0);
    T(fcntl(w->s, F_SETFL, O_NONBLOCK));
    MUST(send(w->p, "x", 1, 0));
    say("%s", sigtimedwait(&chosen, &info, &(struct timespec){0, 50000000}) < 0 ? errno_name(errno) : "another");
}

CASE(ioctl, FIONREAD, EVERY) {
    int n = -7;
    T(ioctl(w->s, FIONREAD, &n));
    say("%d", n);
    T(ioctl(w->s, FIONREAD, NULL));
    T(recv(w->s, b, 3, 0));
    n = -7;
    T(ioctl(w->s, FIONREAD, &n));
    say("%d", n);
}

CASE(ioctl, SIOCOUTQ, EVERY) {
    int n = -7;
    T(ioctl(w->s, TIOCOUTQ, &n));
    say("%s", n > 0 ? "some" : n == 0 ? "none" : "unset");
    n = -7;
    T(ioctl(w->s, SIOCOUTQNSD, &n));
    say("%s", n > 0 ? "some" : n == 0 ? "none" : "unset");
    T(ioctl(w->s, TIOCOUTQ, NULL));
}

CASE(ioctl, SIOCATMARK, EVERY) {
    int n = -7;
    T(ioctl(w->s, SIOCATMARK, &n));
    say("%d", n);
    T(ioctl(w->s, SIOCATMARK, NULL));
}

CASE(ioctl, FIONBIO, EVERY) {
    T(ioctl(w->s, FIONBIO, &(int){0}));
    say("%#x", (unsigned)fcntl(w->s, F_GETFL));
    T(ioctl(w->s, FIONBIO, &(int){5}));
    say("%#x", (unsigned)fcntl(w->s, F_GETFL));
    T(ioctl(w->s, FIONBIO, NULL));
    T(recv(w->s, b, 1, 0));
    T(ioctl(w->s, FIOASYNC, &(int){1}));
    say("%#x", (unsigned)fcntl(w->s, F_GETFL));
    T(ioctl(w->s, FIOCLEX));
    T(fcntl(w->s, F_GETFD));
    T(ioctl(w->s, FIONCLEX));
    T(fcntl(w->s, F_GETFD));
}

CASE(ioctl, others, EVERY) {
    int n = -7;
    T(ioctl(w->s, SIOCGPGRP, &n));
    say("%d", n);
    T(ioctl(w->s, FIOGETOWN, &n));
    T(ioctl(w->s, SIOCGSTAMP, b));
    T(ioctl(w->s, TIOCGWINSZ, b));
    T(ioctl(w->s, TCGETS, b));
    T(ioctl(w->s, FIGETBSZ, &n));
    T(ioctl(w->s, 0x89ff, b));
    T(ioctl(w->s, 0xdead, b));
    T(isatty(w->s));
}

CASE(files, each, EVERY) {
    struct stat st = {0};
    struct statfs fs;
    T(fstat(w->s, &st));
    say("socket %d, size %ld, mode %o", S_ISSOCK(st.st_mode), (long)st.st_size, st.st_mode & 07777);
    T(fstatfs(w->s, &fs));
    T(ftruncate(w->s, 0));
    T(fsync(w->s));
    T(fdatasync(w->s));
    T(fallocate(w->s, 0, 0, 1));
    T(posix_fadvise(w->s, 0, 0, POSIX_FADV_NORMAL));
    T(readahead(w->s, 0, 1));
    T(sync_file_range(w->s, 0, 1, 0));
    T(flock(w->s, LOCK_SH | LOCK_NB));
    T(fchmod(w->s, 0600));
    T(fchdir(w->s));
    void *at = mmap(NULL, 4096, PROT_READ, MAP_SHARED, w->s, 0);
    say("mmap: %s", at == MAP_FAILED ? errno_name(errno) : "ok");
    char path[32], to[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", w->s);
    ssize_t n = readlink(path, to, sizeof to);
    say("link: %.8s", n < 0 ? errno_name(errno) : to);
    T(open(path, O_RDWR));
}

CASE(files, identity, BIT(connected) | BIT(listening)) {
    // A descriptor keeps its inode, and each socket has its own.
    struct stat before, after, other;
    MUST(fstat(w->s, &before));
    int d = (int)MUST(dup(w->s));
    MUST(fstat(d, &after));
    say("as its duplicate %d", before.st_ino == after.st_ino);
    MUST(fstat(w->state == STATE_connected ? w->p : fresh(AF_INET), &other));
    say("as another %d", before.st_ino == other.st_ino);
    uint64_t cookie[2] = {0};
    socklen_t len = sizeof *cookie;
    T(getsockopt(w->s, SOL_SOCKET, SO_COOKIE, &cookie[0], &len));
    T(getsockopt(d, SOL_SOCKET, SO_COOKIE, &cookie[1], &len));
    say("cookie %d", cookie[0] != 0 && cookie[0] == cookie[1]);
}

CASE(close_range, each, LIVE) {
    T(close_range(5, 4, 0));
    T(close_range(500, 600, 1 << 20));
    T(fcntl(w->s, F_DUPFD, 500) == 500);
    T(fcntl(w->s, F_DUPFD_CLOEXEC, 510) == 510);
    T(close_range(500, 509, 0));
    T(fcntl(500, F_GETFD));
    T(send(510, b, 1, 0));
    T(close_range(500, 600, CLOSE_RANGE_CLOEXEC));
    T(fcntl(510, F_GETFD));
    T(close_range((unsigned)w->s, (unsigned)w->s, 0));
    T(send(w->s, b, 1, 0));
    T(send(510, b, 1, 0));
    T(close_range(510, 510, CLOSE_RANGE_UNSHARE));
    T(send(510, b, 1, 0));
    if (w->p >= 0 && w->state >= STATE_connected) {
        until(w->p, POLLRDHUP);
        say("peer: poll %s", polled(w->p));
    }
}

CASE(descriptors, bad, NONE) {
    static const int numbers[] = {-1, -100, 9999, 1 << 20, INT_MAX, INT_MIN};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int fd = numbers[i], n = 0;
        struct sockaddr_in at = {.sin_family = AF_INET};
        socklen_t len = sizeof at;
        struct pollfd p = {fd, POLLIN, 0};
        say("number %d", fd);
        T(recv(fd, b, 1, 0));
        T(send(fd, b, 1, 0));
        T(bind(fd, (void *)&at, len));
        T(listen(fd, 1));
        T(connect(fd, (void *)&at, len));
        T(accept(fd, NULL, NULL));
        T(getsockopt(fd, SOL_SOCKET, SO_ERROR, &n, &len));
        T(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &n, sizeof n));
        T(fcntl(fd, F_GETFL));
        T(ioctl(fd, FIONREAD, &n));
        T(dup(fd));
        T(dup2(fd, 700));
        T(shutdown(fd, SHUT_RD));
        T(close(fd));
        T(poll(&p, 1, 0));
        say("%s", bits((unsigned)p.revents));
    }
}

CASE(descriptors, not_sockets, NONE) {
    int null = open("/dev/null", O_RDWR), ends[2], n;
    socklen_t len = sizeof n;
    MUST(pipe(ends));
    MUST(write(ends[1], "pipe", 4));
    int each[] = {null, ends[0], ends[1]};
    for (int i = 0; i < 3; i++) {
        T(recv(each[i], b, 1, 0));
        T(send(each[i], b, 1, MSG_NOSIGNAL));
        T(listen(each[i], 1));
        T(accept(each[i], NULL, NULL));
        T(shutdown(each[i], SHUT_RD));
        T(getsockopt(each[i], SOL_SOCKET, SO_ERROR, &n, &len));
        T(setsockopt(each[i], SOL_SOCKET, SO_KEEPALIVE, &n, len));
        T(getsockname(each[i], NULL, NULL));
    }
}

CASE(descriptors, reused, BIT(connected) | BIT(listening) | BIT(fresh)) {
    // The number's next owner has nothing of the last one.
    int fd = w->s, ends[2];
    MUST(close(fd));
    MUST(pipe(ends));
    say("the number again: %d", ends[0] == fd);
    T(recv(fd, b, 1, MSG_DONTWAIT));
    MUST(write(ends[1], "x", 1));
    T(read(fd, b, 1));
    close(ends[0]);
    say("a socket again: %d", fresh(AF_INET) == fd);
    T(recv(fd, b, 1, MSG_DONTWAIT));
    T(accept(fd, NULL, NULL));
    say("poll %s", polled(fd));
}
