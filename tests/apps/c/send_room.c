// send_room serve|connect HOST PORT [measured]: what SO_SNDBUF and TCP_NOTSENT_LOWAT let a program write while nobody reads, and that
// it hears when there is room again. `measured`: the bytes go over TCP, where written and sent are two things.
#include "common.h"
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/ioctl.h>

#include <linux/sockios.h>

// The kernel's own header of TCP_INFO cannot be included beside netinet/tcp.h: its 4 bytes at 144 are tcpi_notsent_bytes.
enum { NOTSENT_AT = 144, BUFFER = 100000, LOWAT = 16384, SLACK = 65536, TOTAL = 8 << 20, DEAF_MS = 500 };

static char piece[16384];

static void serve(const char *host, const char *port) {
    int at = listen_at(host, port, 0);
    int fd = accept(at, NULL, NULL);
    CHECK(fd >= 0);
    usleep(DEAF_MS * 1000);
    long total = 0;
    for (ssize_t n; (n = recv(fd, piece, sizeof piece, 0)) != 0; total += n) CHECK(n > 0);
    CHECK(total == TOTAL);
}

static bool writable(int fd, int timeout_ms) {
    struct pollfd one = {.fd = fd, .events = POLLOUT};
    CHECK(poll(&one, 1, timeout_ms) >= 0);
    return one.revents & POLLOUT;
}

static void set(int fd, int level, int name, int value, int answer) {
    socklen_t length = sizeof value;
    CHECK(setsockopt(fd, level, name, &value, sizeof value) == 0);
    CHECK(getsockopt(fd, level, name, &value, &length) == 0 && value == answer);
}

static uint32_t unsent(int fd) {
    char info[256] = {0};
    uint32_t bytes;
    socklen_t length = sizeof info;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length) == 0 && length > NOTSENT_AT + 4);
    memcpy(&bytes, info + NOTSENT_AT, sizeof bytes);
    return bytes;
}

// Writes until there is no room for 50 ms: what is under way needs a moment.
static long fill(int fd) {
    long total = 0;
    while (writable(fd, 50)) {
        ssize_t n = send(fd, piece, sizeof piece, MSG_DONTWAIT);
        if (n < 0) CHECK(errno == EAGAIN);
        else total += n;
        CHECK(total < TOTAL);
    }
    return total;
}

static void talk(const char *host, const char *port, bool is_measured) {
    struct sockaddr_storage address;
    socklen_t length = parse_address(host, port, &address);
    int fd = socket(address.ss_family, SOCK_STREAM, 0), queued;
    CHECK(fd >= 0);
    // Before there is a connection, and on it.
    set(fd, SOL_SOCKET, SO_SNDBUF, BUFFER, 2 * BUFFER);
    CHECK(connect(fd, (struct sockaddr *)&address, length) == 0);
    set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, LOWAT, LOWAT);
    CHECK(writable(fd, 0));

    long total = fill(fd);
    CHECK(total > 0 && !writable(fd, 0));
    CHECK(ioctl(fd, SIOCOUTQ, &queued) == 0 && queued <= 2 * BUFFER + SLACK);
    if (is_measured) CHECK(unsent(fd) <= LOWAT + SLACK);
    // The reader wakes, and with it the writer.
    CHECK(writable(fd, 10 * DEAF_MS));
    while (total < TOTAL) {
        long rest = TOTAL - total;
        ssize_t n = send(fd, piece, rest < (long)sizeof piece ? (size_t)rest : sizeof piece, 0);
        CHECK(n > 0);
        total += n;
    }
    CHECK(shutdown(fd, SHUT_WR) == 0);
    CHECK(recv(fd, piece, sizeof piece, 0) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc >= 4);
    if (strcmp(argv[1], "serve") == 0) serve(argv[2], argv[3]);
    else talk(argv[2], argv[3], argc > 4);
    return 0;
}
