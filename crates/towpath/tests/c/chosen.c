/* Chooses a congestion control for a socket, says what getsockopt returns at each step, and sends a pattern until its input ends.
 * Usage: chosen connect|listen ADDRESS PORT NAME ("-": chooses none) */
#define _GNU_SOURCE
#include "check.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PERIOD = 251, BLOCK = PERIOD * 32 };

static void say(const char *when, int fd) {
    char name[16] = {0};
    socklen_t len = sizeof name;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len) == 0);
    printf("%s %s\n", when, name);
    fflush(stdout);
}

static void pour(int fd) {
    static char block[BLOCK];
    unsigned long long sent = 0;
    for (int i = 0; i < BLOCK; i++)
        block[i] = (char)(i % PERIOD);
    for (;;) {
        struct pollfd input = {.fd = 0, .events = POLLIN};
        char word[16];
        if (poll(&input, 1, 0) > 0 && read(0, word, sizeof word) <= 0)
            break;
        unsigned long long at = sent % PERIOD;
        ssize_t n = send(fd, block + at, BLOCK - PERIOD, 0);
        CHECK(n > 0);
        sent += (unsigned long long)n;
    }
    say("end", fd);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 0);
    printf("sent %llu\n", sent);
}

int main(int argc, char **argv) {
    CHECK(argc == 5);
    signal(SIGPIPE, SIG_IGN);
    int fd = socket(AF_INET, SOCK_STREAM, 0), is_listener = strcmp(argv[1], "listen") == 0;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[3]))};
    CHECK(inet_pton(AF_INET, argv[2], &at.sin_addr) == 1);
    if (strcmp(argv[4], "-") != 0) {
        int failed = setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, argv[4], (socklen_t)strlen(argv[4]));
        printf("set %s\n", failed ? strerrorname_np(errno) : "well");
    }
    say("before", fd);
    if (is_listener) {
        int on = 1;
        CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
        CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 4) == 0);
        say("listening", fd);
        int accepted = accept(fd, NULL, NULL);
        CHECK(accepted >= 0);
        fd = accepted;
    } else {
        CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    }
    say("connected", fd);
    pour(fd);
    return 0;
}
