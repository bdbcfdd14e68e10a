/* Signals in calls that wait: which go on afterwards, as signal(7) has it, and which never do. */
#include "waiters.h"

static volatile int handled;
static void on_signal(int s) { (void)s, handled++; }

static pthread_t waiting;
static volatile int is_back;

/* Interrupts the call, then ends its wait if it goes on. */
static void *disturb(void *at) {
    struct world *w = at;
    nap(ASLEEP_MS);
    pthread_kill(waiting, SIGUSR1);
    nap(ASLEEP_MS);
    if (!is_back)
        release(w);
    return NULL;
}

static void catch(int flags) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    // No other handler of this process has anything to say.
    signal(SIGALRM, SIG_DFL);
    MUST(sigaction(SIGUSR1, &action, NULL));
}

static void interrupt_now(struct world *w, const char *what, long (*call)(struct world *)) {
    pthread_t other;
    handled = is_back = 0;
    waiting = pthread_self();
    MUST(-pthread_create(&other, NULL, disturb, w));
    errno = 0;
    long result = call(w);
    int signals = handled, error = errno;
    is_back = 1;
    pthread_join(other, NULL);
    errno = error;
    // Of much only a part fits, which is another one each time; a descriptor's number means nothing.
    int is_some = result > 0 && (w->state == STATE_full || w->state == STATE_listening || w->state == STATE_listening6);
    say("%s: %s after %d signals", what, is_some ? "some" : said(result), signals);
    say_usable(w);
}

static void interrupt(struct world *w, const char *what, long (*call)(struct world *)) {
    block(w);
    interrupt_now(w, what, call);
}

#define X(name, states, call)                                                                                          \
    CASE(interrupt, name, states) {                                                                                    \
        catch(0);                                                                                                      \
        interrupt(w, "EINTR", call_##name);                                                                            \
    }                                                                                                                  \
    CASE(restart, name, states) {                                                                                      \
        catch(SA_RESTART);                                                                                             \
        interrupt(w, "SA_RESTART", call_##name);                                                                       \
    }
WAITING_CALLS(X)
#undef X

static void limit(struct world *w) {
    struct timeval t = {3, 0};
    MUST(setsockopt(w->s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    MUST(setsockopt(w->s, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
}

/* With a time limit nothing goes on. */
#define X(name, states)                                                                                                \
    CASE(restart, name##_with_a_limit, states) {                                                                       \
        catch(SA_RESTART);                                                                                             \
        limit(w);                                                                                                      \
        interrupt(w, "SA_RESTART", call_##name);                                                                       \
    }
X(read, TO_READ)
X(recv, TO_READ)
X(recvmsg, TO_READ)
X(send, BIT(full))
X(writev, BIT(full))
X(accept, BIT(listening))
X(connect, BIT(connecting))
#undef X

static long receive_all(struct world *w) { return recv(w->s, bytes, 64, MSG_WAITALL); }

CASE(interrupt, with_a_part_received, BIT(data)) {
    // What is there is returned, whatever the handler's flags.
    catch(0);
    interrupt(w, "EINTR", receive_all);
    MUST(send(w->p, "abc", 3, 0));
    catch(SA_RESTART);
    interrupt(w, "SA_RESTART", receive_all);
}

static long send_much(struct world *w) {
    long n = send(w->s, large, LARGE, 0);
    return n == LARGE ? 0 : n;
}

CASE(interrupt, with_a_part_sent, BIT(connected)) {
    catch(SA_RESTART);
    block(w);
    w->state = STATE_full;
    interrupt_now(w, "SA_RESTART", send_much);
}

CASE(interrupt, early_in_a_send, BIT(full)) {
    // Signals come quickly, from the beginning of the wait on.
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    pthread_t other;
    sigset_t alarm;
    sigemptyset(&alarm), sigaddset(&alarm, SIGALRM);
    catch(SA_RESTART);
    MUST(sigaction(SIGALRM, &action, NULL));
    block(w);
    // The other thread has no part in it.
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    is_back = 0, waiting = pthread_self();
    MUST(-pthread_create(&other, NULL, disturb, w));
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    T(send(w->s, "end", 3, 0));
    setitimer(ITIMER_REAL, &never, NULL);
    is_back = 1;
    pthread_join(other, NULL);
    say("signals: %s", handled > 5 ? "many" : "few");
}

CASE(interrupt, another_handler, BIT(connected)) {
    // Whether the call goes on is a matter of the handler that ran.
    struct sigaction other = {.sa_handler = on_signal};
    catch(SA_RESTART);
    MUST(sigaction(SIGUSR2, &other, NULL));
    interrupt(w, "SA_RESTART", call_recv);
}

CASE(interrupt, blocked, BIT(connected) | BIT(listening)) {
    // A blocked signal is none, until ppoll lets it in.
    sigset_t usr1, before;
    sigemptyset(&usr1), sigaddset(&usr1, SIGUSR1);
    catch(0);
    sigprocmask(SIG_BLOCK, &usr1, &before);
    interrupt(w, "blocked", w->state == STATE_listening ? call_accept : call_recv);
    struct pollfd p = {w->s, POLLIN, 0};
    struct timespec second = {1, 0};
    T(ppoll(&p, 1, &second, &before));
    say("%d signals", handled);
    MUST(raise(SIGUSR1));
    T(epoll_pwait(set_of(w->s), &event, 1, 1000, &before));
    MUST(raise(SIGUSR1));
    fd_set read;
    FD_ZERO(&read);
    FD_SET(w->s, &read);
    T(pselect(w->s + 1, &read, NULL, NULL, &second, &before));
    say("%d signals", handled);
}

CASE(interrupt, ignored, BIT(connected)) {
    signal(SIGALRM, SIG_DFL);
    signal(SIGUSR1, SIG_IGN);
    interrupt(w, "ignored", call_recv);
    interrupt(w, "ignored", call_poll);
}

static int is_pending(void) {
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, SIGPIPE);
}

CASE(pipe, of_each_call, BIT(reset_told) | BIT(shut_wr)) {
    // Every call that sends, with the signal and without it.
    struct iovec v = {bytes, 4};
    struct mmsghdr m = {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}};
    int file = open("/proc/self/exe", O_RDONLY), fds[2];
    off_t at = 0;
    MUST(pipe(fds));
    MUST(write(fds[1], "abcd", 4));
    T(write(w->s, bytes, 4));
    T(writev(w->s, &v, 1));
    T(send(w->s, bytes, 4, 0));
    T(send(w->s, bytes, 4, MSG_NOSIGNAL));
    T(sendto(w->s, bytes, 4, 0, NULL, 0));
    T(sendto(w->s, bytes, 4, MSG_NOSIGNAL, NULL, 0));
    T(sendmsg(w->s, &m.msg_hdr, 0));
    T(sendmsg(w->s, &m.msg_hdr, MSG_NOSIGNAL));
    T(sendmmsg(w->s, &m, 1, 0));
    T(sendmmsg(w->s, &m, 1, MSG_NOSIGNAL));
    T(sendfile(w->s, file, &at, 4));
    T(splice(fds[0], NULL, w->s, NULL, 4, 0));
    T(pwritev2(w->s, &v, 1, -1, 0));
}

static void *send_to_the_dead(void *at) {
    struct world *w = at;
    sigset_t pipe;
    sigemptyset(&pipe), sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, NULL);
    T(send(w->s, bytes, 4, 0));
    say("pending %d", is_pending());
    T(send(w->s, bytes, 4, 0));
    siginfo_t info;
    say("signal %s", sigtimedwait(&pipe, &info, &(struct timespec){0, 0}) == SIGPIPE ? "SIGPIPE" : errno_name(errno));
    say("%s, from here %d, of this user %d, errno %d", info.si_code == SI_USER ? "SI_USER" : "another code",
        info.si_pid == getpid(), info.si_uid == getuid(), info.si_errno);
    T(send(w->s, bytes, 4, MSG_NOSIGNAL));
    say("pending %d", is_pending());
    return NULL;
}

CASE(pipe, is_for_the_thread, BIT(reset_told) | BIT(shut_wr)) {
    pthread_t other;
    MUST(-pthread_create(&other, NULL, send_to_the_dead, w));
    pthread_join(other, NULL);
    say("here %d, pending %d", pipes, is_pending());
}

CASE(pipe, by_default, BIT(shut_wr)) {
    signal(SIGPIPE, SIG_IGN);
    T(send(w->s, bytes, 4, 0));
    signal(SIGPIPE, SIG_DFL);
    T(send(w->s, bytes, 4, MSG_NOSIGNAL));
    T(send(w->s, bytes, 4, 0));
}
