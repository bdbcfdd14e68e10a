/* A server that forks for each connection. A debugger stops each child before its first instruction, while relatives of it end, then lets it go on:
   it answers the client for which it was forked. In the end one more child is killed before its first instruction, and the client sees the end. */
#include "common.h"
#include <sys/ptrace.h>

/* As many as a family has holder bits, and one more. */
#define MOST 64

static int to_debugger[2];

static void say(int fd, pid_t what) { CHECK(write(fd, &what, sizeof what) == sizeof what); }

static void answers(int fd) {
    char b[8];
    long n = read(fd, b, sizeof b);
    if (n > 0)
        CHECK(write(fd, b, n) == n);
    _exit(n > 0 ? 0 : 9);
}

/* A relative that says hello and ends. */
static void relative_ends(void) {
    pid_t child = fork();
    int status;
    CHECK(child >= 0);
    if (child == 0)
        _exit(0);
    say(to_debugger[1], child);
    CHECK(waitpid(child, &status, 0) == child);
}

static void round_of(int l, const struct sockaddr_in *at, int count) {
    int clients[MOST], answered = 0, ended = 0, status;
    pid_t children[MOST];
    for (int i = 0; i < count; i++) {
        clients[i] = connected(at);
        int s = accept(l, NULL, NULL);
        CHECK(s >= 0 && send(clients[i], "ask", 3, 0) == 3);
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0)
            answers(s);
        close(s);
    }
    relative_ends();
    /* Longer than the service has ever waited for a child. */
    nap(700);
    relative_ends();
    for (int i = 0; i < count; i++) {
        char b[4] = "";
        say(to_debugger[1], children[i]);
        answered += recv(clients[i], b, 3, MSG_WAITALL) == 3 && memcmp(b, "ask", 3) == 0;
        ended += waitpid(children[i], &status, 0) == children[i] && WIFEXITED(status) && WEXITSTATUS(status) == 0;
        close(clients[i]);
    }
    printf("of %d children %d answered, %d ended well\n", count, answered, ended);
}

static void server(void) {
    struct sockaddr_in at;
    int l = listener(&at), status;
    char b;
    if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0) {
        printf("skipped: no process may be traced\n");
        exit(0);
    }
    raise(SIGSTOP);
    round_of(l, &at, 1);
    round_of(l, &at, 48);
    round_of(l, &at, MOST);
    int c = connected(&at), s = accept(l, NULL, NULL);
    CHECK(s >= 0 && send(c, "ask", 3, 0) == 3);
    pid_t child = fork();
    if (child == 0)
        answers(s);
    close(s);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    printf("of a killed child: %s\n", said(recv(c, &b, 1, 0)));
    exit(0);
}

/* Lets the server go on at each of its stops, and each child when the server says so. */
int main(void) {
    int status;
    CHECK(pipe(to_debugger) == 0);
    pid_t traced = fork();
    if (traced == 0)
        server();
    nonblock(to_debugger[0]);
    for (;;) {
        pid_t who = waitpid(-1, &status, __WALL | WNOHANG), go;
        if (who < 0)
            return 0;
        if (who == traced && (WIFEXITED(status) || WIFSIGNALED(status)))
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        if (who == traced && WIFSTOPPED(status)) {
            ptrace(PTRACE_SETOPTIONS, traced, 0, PTRACE_O_TRACEFORK | PTRACE_O_EXITKILL);
            int number = WSTOPSIG(status);
            CHECK(ptrace(PTRACE_CONT, traced, 0, number == SIGSTOP || number == SIGTRAP ? 0 : number) == 0);
        }
        if (read(to_debugger[0], &go, sizeof go) == sizeof go) {
            /* It stops before its first instruction, perhaps only after the server has said so. */
            while (ptrace(PTRACE_DETACH, go, 0, 0) != 0) {
                CHECK(errno == ESRCH);
                usleep(200);
            }
        } else if (who == 0) {
            usleep(200);
        }
    }
}
