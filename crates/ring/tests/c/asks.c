/* An ordinary client of an echo server at a port, or at an address and a port: sends what it has in pieces of all sizes, reads it back, ends its stream, and waits for the end. */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static unsigned char sent[1 << 22], got[1 << 22];

static int one(struct sockaddr_in to, size_t total)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    size_t out = 0, in = 0;
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        return perror("connect"), 1;
    while (in < total) {
        struct pollfd wait = {fd, POLLIN, 0};
        if (out < total) {
            size_t piece = 1 + (out * 7919) % 50000;
            ssize_t n = send(fd, sent + out, piece < total - out ? piece : total - out, MSG_DONTWAIT);
            if (n > 0)
                out += n;
            else
                wait.events |= POLLOUT;
            if (out == total)
                shutdown(fd, SHUT_WR);
        }
        poll(&wait, 1, out < total && !(wait.events & POLLOUT) ? 0 : 10000);
        ssize_t n = recv(fd, got + in, total - in, MSG_DONTWAIT);
        if (n > 0)
            in += n;
        else if (n == 0)
            return fprintf(stderr, "ended after %zu of %zu\n", in, total), 1;
    }
    if (memcmp(sent, got, total) != 0)
        return fprintf(stderr, "other bytes\n"), 1;
    if (read(fd, got, 1) != 0)
        return perror("no end"), 1;
    close(fd);
    return 0;
}

int main(int argc, char **argv)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[argc - 1]))};
    size_t sizes[] = {1, 64, 4096, 4097, 100000, 1 << 20, sizeof sent}, i;
    inet_pton(AF_INET, argc > 2 ? argv[1] : "127.0.0.1", &to.sin_addr);
    for (i = 0; i < sizeof sent; i++)
        sent[i] = i * 31 + i / 251;
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (one(to, sizes[i]) != 0)
            return 1;
    puts("all came back");
    return 0;
}
