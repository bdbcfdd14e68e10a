/* A process whose threads are always in the middle of some call forks again and again: every child can use sockets. */
#include "common.h"
#define CHILDREN 60

static volatile int over;

static void talk(void) {
    int fds[2], ep = epoll_create1(0);
    char b[8] = "";
    pair(fds);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fds[1]}, got;
    CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fds[1], &e) == 0);
    CHECK(write(fds[0], "hello", 6) == 6);
    CHECK(epoll_wait(ep, &got, 1, 5000) == 1 && got.data.fd == fds[1]);
    CHECK(read(fds[1], b, sizeof b) == 6 && strcmp(b, "hello") == 0);
    CHECK(write(fds[1], b, 6) == 6);
    CHECK(read(fds[0], b, sizeof b) == 6);
    close(fds[0]), close(fds[1]), close(ep);
}

static void *busy(void *p) {
    while (!over)
        talk();
    return p;
}

int main(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, busy, NULL);
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            alarm(10);
            talk();
            _exit(7);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    over = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    printf("%d children\n", CHILDREN);
    return 0;
}
