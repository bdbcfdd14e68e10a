/* Runs the cases, each in each of its states in a process of its own: a hang or a crash is a result like any other.
 *
 * usage: differ [--list] [CASE@STATE...]
 *        differ --program OUTPUT WORD DESCRIPTOR    what programs.c executes
 *
 * Prints `group.case@state: line`, and a last line `group.case@state# word` that says whether its connections were Towpath's:
 * that one is not compared. */
#include "differ.h"
#include <dlfcn.h>

enum { CASES_MAX = 1024, LIMIT_MS = 5000 };

static struct one cases[CASES_MAX];
static int count;
static int out = 1;
static int seen_kernel, seen_towpath;
volatile int pipes, alarms;
void *volatile nowhere = (void *)8;
volatile size_t huge = SIZE_MAX;
static int pipes_told;

void enlist(struct one one) {
    if (count == CASES_MAX)
        abort();
    cases[count++] = one;
}

static void emit(const char *text, size_t len) {
    while (len > 0) {
        ssize_t n = write(out, text, len);
        if (n <= 0)
            _exit(3);
        text += n, len -= (size_t)n;
    }
}

void say(const char *format, ...) {
    char line[2048];
    va_list rest;
    va_start(rest, format);
    int n = vsnprintf(line, sizeof line - 1, format, rest);
    va_end(rest);
    if (n > (int)sizeof line - 2)
        n = sizeof line - 2;
    line[n++] = '\n';
    int error = errno;
    emit(line, (size_t)n);
    errno = error;
}

int output(void) { return fcntl(out, F_DUPFD, 901); }

const char *errno_name(int error) {
    static char number[16];
    const char *name = strerrorname_np(error);
    if (name)
        return name;
    snprintf(number, sizeof number, "errno %d", error);
    return number;
}

const char *said(long result) {
    static char text[8][64];
    static int i;
    char *t = text[i++ & 7];
    int error = errno;
    const char *pipe = pipes != pipes_told ? " SIGPIPE" : "";
    pipes_told = pipes;
    if (result == -1)
        snprintf(t, 64, "%s%s", errno_name(error), pipe);
    else
        snprintf(t, 64, "%ld%s", result, pipe);
    return t;
}

void told(const char *what, long result) {
    int error = errno;
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    errno = error;
    if (result == -1 && error == EINTR && alarms)
        say("%s waits", what);
    else
        say("%s = %s", what, said(result));
    alarms = 0;
}

void hurry(void) {
    struct itimerval t = {{0, 40000}, {0, 40000}};
    alarms = 0;
    setitimer(ITIMER_REAL, &t, NULL);
}

long must(const char *what, long result, const char *file, int line) {
    if (result < 0) {
        say("failed: %s:%d: %s: %s", file, line, what, said(result));
        _exit(2);
    }
    return result;
}

/* libc's own function, past what is preloaded: it sees the placeholder. */
void look(int fd) {
    static int (*libcs)(int, int, int, void *, socklen_t *);
    if (!libcs) {
        void *libc = dlopen("libc.so.6", RTLD_NOLOAD | RTLD_LAZY);
        libcs = libc ? (int (*)(int, int, int, void *, socklen_t *))dlsym(libc, "getsockopt") : getsockopt;
    }
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    if (libcs(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0)
        *(info.tcpi_state == TCP_CLOSE ? &seen_towpath : &seen_kernel) = 1;
}

static void on_pipe(int s) { (void)s, pipes++; }
static void on_alarm(int s) { (void)s, alarms++; }

static void run_here(const struct one *one, enum state state) {
    struct sigaction alarm = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &alarm, NULL);
    signal(SIGPIPE, on_pipe);
    struct world w;
    reach(&w, state);
    w.about = one->about;
    pipes = pipes_told = 0;
    one->run(&w);
    say("#%s", seen_kernel ? "kernel" : seen_towpath ? "towpath" : "none");
    _exit(0);
}

static long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Prints the child's lines until it ends; false when it did not within the limit. */
static int relay(const char *name, int from) {
    char buffer[65536];
    size_t have = 0;
    long end = now_ms() + LIMIT_MS;
    for (;;) {
        struct pollfd p = {from, POLLIN, 0};
        long left = end - now_ms();
        if (left <= 0 || poll(&p, 1, (int)left) <= 0)
            return 0;
        ssize_t n = read(from, buffer + have, sizeof buffer - have);
        if (n <= 0)
            return 1;
        have += (size_t)n;
        char *line = buffer, *newline;
        while ((newline = memchr(line, '\n', have - (size_t)(line - buffer)))) {
            *newline = 0;
            printf("%s%s%s\n", name, *line == '#' ? "" : ": ", line);
            line = newline + 1;
        }
        have -= (size_t)(line - buffer);
        memmove(buffer, line, have);
        if (have == sizeof buffer)
            have = 0;
    }
}

static void run(const struct one *one, enum state state) {
    char name[128];
    int ends[2], status;
    snprintf(name, sizeof name, "%s.%s@%s", one->group, one->name, state_name(state));
    if (pipe2(ends, O_CLOEXEC) != 0)
        exit(3);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setpgid(0, 0);
        close(ends[0]);
        // A number that no case is told of, whatever it opens.
        out = fcntl(ends[1], F_DUPFD_CLOEXEC, 900);
        close(ends[1]);
        run_here(one, state);
    }
    close(ends[1]);
    int ended = relay(name, ends[0]);
    close(ends[0]);
    // Whatever the case left behind; its own process is still a zombie, so that the group is nobody else's.
    siginfo_t info;
    if (!ended)
        kill(child, SIGKILL);
    waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT);
    kill(-child, SIGKILL);
    waitpid(child, &status, 0);
    if (!ended)
        printf("%s: hangs\n", name);
    else if (WIFSIGNALED(status))
        printf("%s: dies of SIG%s\n", name, sigabbrev_np(WTERMSIG(status)));
}

/* `group`, `group.case` or `group.case@state`; nothing given is everything. */
static int is_chosen(const char *name, int n, char **wanted) {
    for (int i = 0; i < n; i++) {
        size_t len = strlen(wanted[i]);
        if (strncmp(name, wanted[i], len) == 0 && strchr(".@", name[len]))
            return 1;
    }
    return n == 0;
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "--program") == 0) {
        out = atoi(argv[2]);
        return in_another_program(argv + 3);
    }
    int list = argc > 1 && strcmp(argv[1], "--list") == 0;
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    for (int i = 0; i < count; i++)
        for (int state = 0; state < STATE_COUNT; state++) {
            char name[128];
            snprintf(name, sizeof name, "%s.%s@%s", cases[i].group, cases[i].name, state_name(state));
            if (!(cases[i].states >> state & 1) || !is_chosen(name, argc - 1 - list, argv + 1 + list))
                continue;
            if (list)
                puts(name);
            else
                run(&cases[i], state);
        }
    return 0;
}
