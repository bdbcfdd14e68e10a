/* pthread_cancel: of a thread in a call that waits, and of one that is about to make a call. */
#include "waiters.h"

static void cancel_in(struct world *w, long (*call)(struct world *)) {
    static const int kinds[] = {PTHREAD_CANCEL_DEFERRED, PTHREAD_CANCEL_ASYNCHRONOUS};
    for (int i = 0; i < 2; i++) {
        struct waiter waiter = {.w = w, .call = call, .kind = kinds[i]};
        block(w);
        begin(&waiter);
        say("%s: waits %d", i ? "asynchronous" : "deferred", !waiter.returned);
        T(pthread_cancel(waiter.thread));
        int cancelled = ended_by_cancel(&waiter);
        say("cancelled %d, cleaned up %d", cancelled, waiter.cleaned);
    }
    say_usable(w);
}

#define X(name, states, call)                                                                                          \
    CASE(cancel, name, states) { cancel_in(w, call_##name); }
WAITING_CALLS(X)
#undef X

static long receive_in_time(struct world *w) {
    struct timeval limit = {3, 0};
    MUST(setsockopt(w->s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    return recv(w->s, bytes, 8, 0);
}

CASE(cancel, recv_in_time, BIT(connected)) { cancel_in(w, receive_in_time); }

static int ends[2];

static long read_pipe(struct world *w) {
    (void)w;
    return read(ends[0], bytes, 8);
}

static long poll_pipe(struct world *w) {
    struct pollfd p[2] = {{ends[0], POLLIN, 0}, {w->s, POLLIN, 0}};
    return poll(p, 2, -1);
}

static long splice_out(struct world *w) { return splice(w->s, NULL, ends[1], NULL, 8, 0); }

CASE(cancel, beside_a_pipe, BIT(connected)) {
    MUST(pipe(ends));
    cancel_in(w, read_pipe);
    cancel_in(w, poll_pipe);
    cancel_in(w, splice_out);
}

/* Cancelled before the call, which does not wait. */
static long (*about_to)(struct world *);
static volatile int is_cancelled;

static long call_cancelled(struct world *w) {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    while (!is_cancelled)
        nap(1);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    return about_to(w);
}

static void cancel_before(struct world *w, const char *what, long (*call)(struct world *)) {
    struct waiter waiter = {.w = w, .call = call_cancelled};
    about_to = call, is_cancelled = 0;
    begin(&waiter);
    MUST(-pthread_cancel(waiter.thread));
    is_cancelled = 1;
    int cancelled = ended_by_cancel(&waiter);
    say("%s: cancelled %d, returned %d", what, cancelled, waiter.returned);
}

static long send_word(struct world *w) { return send(w->s, "word", 4, 0); }
static long poll_now(struct world *w) { return poll(&(struct pollfd){w->s, POLLIN, 0}, 1, 0); }
static long close_it(struct world *w) { return close(w->s); }
static long ask(struct world *w) {
    int n;
    return ioctl(w->s, FIONREAD, &n);
}
static int file;
static long send_file(struct world *w) {
    off_t at = 0;
    long sent = sendfile(w->s, file, &at, 4);
    pthread_testcancel();
    return sent;
}

CASE(cancel, before_the_call, BIT(data)) {
    // What is a cancellation point ends the thread and does nothing.
    cancel_before(w, "recv", call_recv);
    cancel_before(w, "send", send_word);
    cancel_before(w, "poll", poll_now);
    cancel_before(w, "close", close_it);
    T(fcntl(w->s, F_GETFD));
    T(recv(w->s, bytes, 64, 0));
    nap(2);
    T(recv(w->p, bytes, 64, 0));
}

CASE(cancel, no_point, BIT(data)) {
    file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    cancel_before(w, "ioctl", ask);
    cancel_before(w, "sendfile", send_file);
    until(w->p, POLLIN);
    T(recv(w->p, bytes, 64, 0));
}

static long receive_undisturbed(struct world *w) {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    long n = recv(w->s, bytes, 8, 0);
    long ready = poll(&(struct pollfd){w->s, POLLIN, 0}, 1, 30);
    w->l = (int)(n * 10 + ready);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    pthread_testcancel();
    return n;
}

CASE(cancel, forbidden, BIT(connected)) {
    // The thread goes on until it allows it.
    struct waiter waiter = {.w = w, .call = receive_undisturbed};
    block(w);
    begin(&waiter);
    T(pthread_cancel(waiter.thread));
    T(pthread_cancel(waiter.thread));
    nap(ASLEEP_MS);
    say("waits %d, cleaned up %d", !waiter.returned, waiter.cleaned);
    MUST(send(w->p, "abc", 3, 0));
    int cancelled = ended_by_cancel(&waiter);
    say("cancelled %d, cleaned up %d; received and saw %d", cancelled, waiter.cleaned, w->l);
    say_usable(w);
}

static volatile int rounds;

static long look_for_ever(struct world *w) {
    while (recv(w->s, bytes, 8, MSG_DONTWAIT) < 0)
        rounds++;
    return 0;
}

CASE(cancel, never_waiting, BIT(connected)) {
    struct waiter waiter = {.w = w, .call = look_for_ever};
    begin(&waiter);
    T(pthread_cancel(waiter.thread));
    int cancelled = ended_by_cancel(&waiter);
    say("cancelled %d, cleaned up %d, ran %d", cancelled, waiter.cleaned, rounds > 0);
    say_usable(w);
}

CASE(cancel, one_of_three, BIT(connected) | BIT(listening)) {
    // Who is left gets what comes.
    struct waiter waiter[3];
    block(w);
    for (int i = 0; i < 3; i++) {
        waiter[i] = (struct waiter){.w = w, .call = w->state == STATE_listening ? call_accept : call_recv};
        begin(&waiter[i]);
    }
    MUST(-pthread_cancel(waiter[0].thread));
    MUST(-pthread_cancel(waiter[2].thread));
    for (int i = 0; i < 3; i += 2)
        say("%d: cancelled %d", i, ended_by_cancel(&waiter[i]));
    say("1: waits %d", !waiter[1].returned);
    release(w);
    int cancelled = ended_by_cancel(&waiter[1]);
    say("1: cancelled %d, result %s", cancelled, waiter[1].result > 0 ? "some" : "none");
}

CASE(cancel, in_a_child, BIT(connected)) {
    // A forked child has one thread, which makes others and cancels them as its parent does.
    int status;
    pid_t child = fork();
    if (child == 0) {
        cancel_in(w, call_recv);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0));
    say("the child ends with %d", status);
    cancel_in(w, call_recv);
}

CASE(cancel, while_forking, BIT(connected)) {
    // Another thread waits, and is not in the child.
    struct waiter waiter = {.w = w, .call = call_recv};
    int status;
    block(w);
    begin(&waiter);
    pid_t child = fork();
    if (child == 0) {
        struct waiter other = {.w = w, .call = call_recv};
        begin(&other);
        MUST(-pthread_cancel(other.thread));
        say("child: cancelled %d", ended_by_cancel(&other));
        _exit(0);
    }
    MUST(waitpid(child, &status, 0));
    say("the child ends with %d; waits %d", status, !waiter.returned);
    MUST(-pthread_cancel(waiter.thread));
    say("cancelled %d", ended_by_cancel(&waiter));
    say_usable(w);
}
