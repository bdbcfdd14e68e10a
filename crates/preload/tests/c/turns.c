/* Workers that take one connection at a time from a listener of their parent's: whoever is free first serves the next one, however long
   the others are held up. */
#include "common.h"

#define ROUNDS 12

/* How a worker waits for connections. */
enum way { BLOCKED, POLLED, IN_A_SET, WAYS };

/* 'h' is held until the other end closes, after 'n' it takes a nap. */
static void work(enum way way, int l) {
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd one = {.fd = l, .events = POLLIN};
    char b;
    int set = epoll_create1(0);
    CHECK(fcntl(l, F_SETFL, way == BLOCKED ? 0 : O_NONBLOCK) == 0);
    if (way == IN_A_SET)
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, l, &event) == 0);
    for (;;) {
        if (way == POLLED)
            CHECK(poll(&one, 1, -1) == 1);
        if (way == IN_A_SET)
            CHECK(epoll_wait(set, &event, 1, -1) == 1);
        int s = accept(l, NULL, NULL);
        if (s < 0 && way != BLOCKED)
            continue;
        CHECK(s >= 0);
        CHECK(fcntl(s, F_SETFL, 0) == 0);
        CHECK(recv(s, &b, 1, 0) == 1 && send(s, &b, 1, 0) == 1);
        if (b == 'h')
            CHECK(recv(s, &b, 1, 0) == 0);
        close(s);
        if (b == 'n')
            usleep(20000);
    }
}

/* A connection on which `what` was said; whether it was answered within a second. */
static int said_to_one(const struct sockaddr_in *at, char what, int *answered) {
    int c = connected(at);
    char b = 0;
    struct pollfd one = {.fd = c, .events = POLLIN};
    CHECK(send(c, &what, 1, 0) == 1);
    *answered = poll(&one, 1, 1000) == 1 && recv(c, &b, 1, 0) == 1 && b == what;
    return c;
}

int main(void) {
    for (enum way way = BLOCKED; way < WAYS; way++) {
        struct sockaddr_in at;
        int l = listener(&at), served = 0, answered;
        pid_t workers[2];
        for (int i = 0; i < 2; i++) {
            workers[i] = fork();
            CHECK(workers[i] >= 0);
            if (workers[i] == 0)
                work(way, l);
        }
        for (int i = 0; i < ROUNDS; i++) {
            int held = said_to_one(&at, 'h', &answered);
            int napped = said_to_one(&at, 'n', &answered);
            int next = said_to_one(&at, 'q', &answered);
            served += answered;
            close(held);
            close(napped);
            close(next);
            usleep(25000);
        }
        for (int i = 0; i < 2; i++) {
            kill(workers[i], SIGKILL);
            CHECK(waitpid(workers[i], NULL, 0) == workers[i]);
        }
        close(l);
        printf("way %d: %d of %d were served while one worker was held up\n", way, served, ROUNDS);
    }
    return 0;
}
