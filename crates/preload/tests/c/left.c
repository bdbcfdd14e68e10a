/* Who listens forks, closes the socket and connects to it: its children go on accepting, whether they had begun to or not. */
#include "common.h"

#define ROUNDS 20

/* How a child waits for connections. */
enum way { BLOCKED, POLLED, IN_A_SET, WAYS };

static void await(enum way way, int l, int set) {
    struct epoll_event event;
    struct pollfd one = {.fd = l, .events = POLLIN};
    if (way == POLLED)
        CHECK(poll(&one, 1, -1) == 1);
    if (way == IN_A_SET)
        CHECK(epoll_wait(set, &event, 1, -1) == 1);
}

/* Answers ROUNDS connections, the odd ones by a child of its own. */
static void serve(enum way way, int l, int set) {
    char b[4];
    for (int i = 0; i < ROUNDS; i++) {
        await(way, l, set);
        int s = accept(l, NULL, NULL);
        CHECK(s >= 0);
        if (i % 2 == 0 || fork() == 0) {
            if (i % 2)
                close(l);
            CHECK(recv(s, b, 4, MSG_WAITALL) == 4);
            CHECK(write(s, b, 4) == 4);
            CHECK(read(s, b, 1) == 0);
            if (i % 2)
                _exit(0);
        }
        close(s);
    }
    while (wait(NULL) > 0) {
    }
    _exit(7);
}

static void ask(const struct sockaddr_in *at) {
    char b[4];
    int c = connected(at);
    CHECK(write(c, "well", 4) == 4);
    CHECK(recv(c, b, 4, MSG_WAITALL) == 4);
    CHECK(memcmp(b, "well", 4) == 0);
    close(c);
}

/* `early`: so many connections are made before the socket is closed. */
static void leave(enum way way, int pause_us, int early) {
    struct sockaddr_in at;
    int l = listener(&at), status;
    int set = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, l, &wanted) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        serve(way, l, set);
    usleep(pause_us);
    for (int i = 0; i < early; i++)
        ask(&at);
    close(l);
    close(set);
    for (int i = early; i < ROUNDS; i++)
        ask(&at);
    CHECK(waitpid(child, &status, 0) == child);
    printf("way %d, left after %d us and %d: child %d\n", way, pause_us, early, WEXITSTATUS(status));
    fflush(stdout);
}

/* A child that never accepts: what comes to it waits until it ends. */
static void nobody(void) {
    struct sockaddr_in at;
    char b;
    int l = listener(&at), go[2];
    CHECK(pipe(go) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(go[1]);
        CHECK(read(go[0], &b, 1) == 0);
        _exit(0);
    }
    close(go[0]);
    close(l);
    int c = connected(&at);
    close(go[1]);
    CHECK(waitpid(child, NULL, 0) == child);
    struct pollfd one = {.fd = c, .events = POLLIN};
    CHECK(poll(&one, 1, 5000) == 1);
    CHECK(read(c, &b, 1) == -1);
    printf("nobody accepts: %s\n", strerror(errno));
    close(c);
}

int main(void) {
    for (enum way way = BLOCKED; way < WAYS; way++) {
        leave(way, 0, 0);
        leave(way, 20000, 0);
        leave(way, 0, 5);
    }
    nobody();
    return 0;
}
