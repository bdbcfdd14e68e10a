/* Echoes 64-byte requests of its own child with one epoll set, says so, and then waits for the end of its standard input. */
#include "check.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REQUESTS = 3000, SIZE = 64 };

static void ask(const struct sockaddr_in *at) {
    char b[SIZE] = {1};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(fd, (const struct sockaddr *)at, sizeof *at) == 0);
    for (int i = 0; i < REQUESTS; i++) {
        CHECK(send(fd, b, SIZE, 0) == SIZE);
        CHECK(recv(fd, b, SIZE, MSG_WAITALL) == SIZE);
    }
    close(fd);
}

int main(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    char b[SIZE];
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 8) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &len) == 0);
    pid_t child = fork();
    if (child == 0) {
        ask(&at);
        return 0;
    }
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0 && fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    for (ssize_t n = 1; n > 0;) {
        CHECK(epoll_wait(set, &event, 1, -1) == 1);
        while ((n = recv(fd, b, SIZE, 0)) > 0)
            CHECK(send(fd, b, n, 0) == n);
        n = n < 0;
    }
    close(fd);
    CHECK(waitpid(child, NULL, 0) == child);
    puts("done");
    fflush(stdout);
    while (read(0, b, sizeof b) > 0) {
    }
    return 0;
}
