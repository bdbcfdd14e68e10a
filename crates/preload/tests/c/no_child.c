/* A fork that fails leaves nothing behind: the last close of a connection ends it, and later children hold what they inherit. In a namespace of
   process numbers whose first process has ended no process can be made. Needs root; without it every fork succeeds. */
#include "common.h"
#include <sched.h>
#include <sys/syscall.h>

#define FORKS 80

static int closed_by_handler = -1;

static void close_in_handler(void) {
    if (closed_by_handler >= 0)
        close(closed_by_handler);
    closed_by_handler = -1;
}

static void ends(const char *what, int fd) {
    char b;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    int is_ready = poll(&one, 1, 10000);
    printf("%s: ready %d, %s\n", what, is_ready, said(is_ready == 1 ? recv(fd, &b, 1, 0) : -1));
}

static pid_t waited(pid_t child) {
    if (child == 0)
        _exit(0);
    return child > 0 && waitpid(child, NULL, 0) == child ? 1 : child;
}

int main(void) {
    int f[2], g[2], h[2], status;
    char b;
    pair(f);
    pair(g);
    pair(h);
    /* In a child, whose own children are of the namespace. */
    pid_t child = fork();
    if (child == 0) {
        printf("a namespace of its own: %d\n", unshare(CLONE_NEWPID) == 0);
        printf("its first process: %d\n", (int)waited(fork()));
        int failed = 0;
        closed_by_handler = h[1];
        CHECK(pthread_atfork(NULL, close_in_handler, NULL) == 0);
        /* More often than there can be holders of a connection. */
        for (int i = 0; i < FORKS; i++)
            failed += waited(fork()) < 0;
        printf("fork: %d fail, errno %d\n", failed, failed ? errno : 0);
        printf("fork by its number: %d\n", (int)waited((pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) < 0);
        CHECK(send(f[1], "x", 1, 0) == 1);
        fflush(stdout);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0 && recv(f[0], &b, 1, 0) == 1);
    close(f[1]);
    ends("closed by all", f[0]);
    close(g[0]);
    ends("closed by all", g[1]);
    close(h[1]);
    ends("closed in a fork handler", h[0]);
    return 0;
}
