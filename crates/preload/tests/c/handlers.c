/* Signal handlers that make the calls which POSIX lets them make (socket, connect, accept, close, fork and their like) while the program is
   in the middle of one of them, or of malloc. Most handlers set the timer anew when they end, so that the program goes on in between. With an
   interval timer the next signal may be due before the handler ends. */
#include "common.h"
#include <sys/time.h>

#define RUNS 400
#define FORKS 40

static struct sockaddr_in at;
static int l, spare, set;
static volatile sig_atomic_t runs, bad;

static void *serve(void *unused) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    char b;
    for (;;) {
        int fd = accept(l, NULL, NULL);
        if (fd < 0)
            continue;
        if (read(fd, &b, 1) == 1 && write(fd, &b, 1) != 1)
            continue;
        close(fd);
    }
    return unused;
}

static void set_timer(long every_us, long us) {
    struct itimerval timer = {{0, every_us}, {0, us}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void again(void) { set_timer(0, 300); }

/* One call to the server. A handler does not wait for the answer: the server may wait for the call that the handler has interrupted. */
static int ask(int waits) {
    char b;
    int fd = socket(AF_INET, SOCK_STREAM, 0), result = 0;
    if (fd < 0)
        return 1;
    if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0)
        result = 2;
    else if (write(fd, "x", 1) != 1)
        result = 3;
    while (waits && result == 0) {
        ssize_t n = read(fd, &b, 1);
        if (n == 1)
            break;
        if (n == 0 || errno != EINTR)
            result = 4;
    }
    close(fd);
    return result;
}

static int call(void) { return ask(1); }

static void calls(int signal) {
    int kept = errno;
    (void)signal;
    if (ask(0) != 0)
        bad = 1;
    runs++;
    if (runs < RUNS)
        again();
    errno = kept;
}

/* What else a handler may do with sockets. */
static void uses(int signal) {
    int kept = errno, one = 1;
    (void)signal;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), copy = dup(fd);
    struct epoll_event event = {.events = EPOLLIN};
    if (fd < 0 || copy < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0)
        bad = 2;
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0)
        bad = 3;
    if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0 && errno != EINPROGRESS)
        bad = 4;
    if (accept(spare, NULL, NULL) >= 0 || errno != EAGAIN)
        bad = 5;
    shutdown(fd, SHUT_RDWR);
    if (epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL) != 0)
        bad = 6;
    close(fd);
    close(copy);
    runs++;
    if (runs < RUNS)
        again();
    errno = kept;
}

static void fork_once(void) {
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(ask(0) == 0 ? 0 : 1);
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        bad = 7;
    runs++;
}

static void forks(int signal) {
    int kept = errno;
    (void)signal;
    fork_once();
    if (runs < FORKS)
        again();
    errno = kept;
}

static void forks_at_intervals(int signal) {
    int kept = errno;
    (void)signal;
    /* A signal may be pending when the timer is stopped. */
    if (runs < FORKS)
        fork_once();
    if (runs == FORKS)
        set_timer(0, 0);
    errno = kept;
}

/* Until the handler has run so often, `work` is interrupted by it. */
static void interrupt_every(long us, const char *name, void (*handler)(int), int most, int (*work)(void)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    int result = 0;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    runs = bad = 0;
    set_timer(us, 300);
    while (runs < most && result == 0)
        result = work();
    printf("%s: %d runs, bad %d, program %d\n", name, (int)runs, (int)bad, result);
}

static void interrupt(const char *name, void (*handler)(int), int most, int (*work)(void)) {
    interrupt_every(0, name, handler, most, work);
}

/* A listener comes, is connected to, accepts and goes. */
static int comes_and_goes(void) {
    struct sockaddr_in here;
    int own = listener(&here), one = connected(&here), other = accept(own, NULL, NULL);
    int result = other < 0;
    close(other);
    close(one);
    close(own);
    return result;
}

static int allocates(void) {
    static void *kept[64];
    static unsigned i;
    i = (i * 5 + 1) % 64;
    free(kept[i]);
    kept[i] = malloc(16 + i * 40);
    return kept[i] == NULL;
}

int main(void) {
    pthread_t thread;
    struct sockaddr_in unused;
    l = listener(&at);
    spare = listener(&unused);
    nonblock(spare);
    set = epoll_create1(0);
    CHECK(pthread_create(&thread, NULL, serve, NULL) == 0);
    interrupt("calls in calls", calls, RUNS, call);
    interrupt("uses in calls", uses, RUNS, call);
    interrupt("calls in listeners", calls, RUNS, comes_and_goes);
    interrupt("uses in listeners", uses, RUNS, comes_and_goes);
    interrupt("calls in malloc", calls, RUNS, allocates);
    interrupt("forks in calls", forks, FORKS, call);
    interrupt("forks in listeners", forks, FORKS, comes_and_goes);
    interrupt_every(10000, "forks at intervals", forks_at_intervals, FORKS, call);
    return 0;
}
