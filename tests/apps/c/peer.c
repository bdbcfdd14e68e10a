// peer listen|connect HOST PORT pump|mute|watch|feed: one connection, for the tests that kill one of its ends.
//   pump   sends for ever                      mute  says hello, then reads nothing of what comes
//   watch  reads to the end                    feed  sends 64 KiB, then reads to the end
// A listener serves one connection after the other. mute prints `ready` when input has come, watch and feed when the transfer is under way, and
// `eof NANOSECONDS` or `reset NANOSECONDS` (monotonic clock) at its end.
#include "common.h"
#include <poll.h>
#include <signal.h>

static char buffer[65536];

static void pump(int fd) {
    while (send(fd, buffer, sizeof buffer, MSG_NOSIGNAL) > 0) {
    }
}

static void mute(int fd) {
    CHECK(send(fd, "hello", 5, MSG_NOSIGNAL) == 5);
    struct pollfd input = {.fd = fd, .events = POLLIN};
    CHECK(poll(&input, 1, -1) == 1);
    printf("ready\n");
    fflush(stdout);
    for (;;) pause();
}

static void read_to_end(int fd, size_t ready_after) {
    size_t got = 0;
    int said = 0;
    for (;;) {
        ssize_t n = recv(fd, buffer, sizeof buffer, 0);
        if (n <= 0) {
            int64_t now = now_ns();
            if (n < 0 && errno != ECONNRESET) printf("%s ", strerror(errno));
            printf("%s %lld\n", n == 0 ? "eof" : "reset", (long long)now);
            fflush(stdout);
            return;
        }
        got += (size_t)n;
        if (!said && got >= ready_after) {
            said = 1;
            printf("ready\n");
            fflush(stdout);
        }
    }
}

static void talk(int fd, const char *mode) {
    if (strcmp(mode, "pump") == 0) pump(fd);
    else if (strcmp(mode, "mute") == 0) mute(fd);
    else if (strcmp(mode, "watch") == 0) read_to_end(fd, 1 << 20);
    else {
        CHECK(strcmp(mode, "feed") == 0);
        CHECK(send(fd, buffer, sizeof buffer, MSG_NOSIGNAL) == sizeof buffer);
        read_to_end(fd, 1);
    }
    close(fd);
}

int main(int argc, char **argv) {
    CHECK(argc == 5);
    signal(SIGPIPE, SIG_IGN);
    if (strcmp(argv[1], "connect") == 0) {
        talk(connect_to(argv[2], argv[3]), argv[4]);
        return 0;
    }
    int listener = listen_at(argv[2], argv[3], 0);
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        CHECK(fd >= 0);
        talk(fd, argv[4]);
    }
}
