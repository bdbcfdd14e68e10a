/* A server that forks for each connection, with more children at once than a family of processes has holder bits. */
#include "common.h"

#define CHILDREN 100

static void echo_until_eof(int fd) {
    char b[64];
    long n;
    while ((n = read(fd, b, sizeof b)) > 0)
        CHECK(write(fd, b, n) == n);
    _exit(n == 0 ? 7 : 8);
}

/* Answered before the next one connects: whoever serves it has been forked. */
static void ask(int fd, const char *text) {
    char b[8];
    CHECK(write(fd, text, 4) == 4);
    CHECK(recv(fd, b, 4, MSG_WAITALL) == 4);
    CHECK(memcmp(b, text, 4) == 0);
}

static void client(const struct sockaddr_in *at) {
    int fds[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        fds[i] = connected(at);
        ask(fds[i], "once");
    }
    for (int i = 0; i < CHILDREN; i++)
        ask(fds[i], "more");
    printf("answered twice %d\n", CHILDREN);
    for (int i = 0; i < CHILDREN; i++)
        close(fds[i]);
    exit(0);
}

int main(void) {
    struct sockaddr_in at;
    int l = listener(&at), status, ended = 0;
    if (fork() == 0) {
        close(l);
        client(&at);
    }
    for (int i = 0; i < CHILDREN; i++) {
        int s = accept(l, NULL, NULL);
        CHECK(s >= 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            close(l);
            echo_until_eof(s);
        }
        close(s);
    }
    while (wait(&status) > 0)
        ended += WIFEXITED(status) && (WEXITSTATUS(status) == 7 || WEXITSTATUS(status) == 0);
    printf("ended well %d\n", ended);
    /* What children without a bit have closed is still the parent's. */
    int c = connected(&at), s = accept(l, NULL, NULL);
    CHECK(s >= 0);
    CHECK(write(c, "last", 4) == 4);
    printf("listens %s\n", said(read(s, (char[8]){0}, 8)));
    return 0;
}
