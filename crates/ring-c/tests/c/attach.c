/* Runs under the preload library: accepts and authenticates by sockets, serves by a ring, goes on by sockets, and back. Prints nothing if every
 * answer is as it should be. */
#include "check.h"
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAILS(call, error)                                                                                          \
    do {                                                                                                            \
        errno = 0;                                                                                                  \
        IS((call) < 0 ? errno : 0, error);                                                                          \
    } while (0)

static void says(int fd, const char *line)
{
    IS(write(fd, line, strlen(line)), strlen(line));
}

static void hears(int fd, const char *line)
{
    char bytes[16] = "";
    size_t len = 0;
    ssize_t n = 1;
    while (len < strlen(line) && (n = read(fd, bytes + len, strlen(line) - len)) > 0)
        len += (size_t)n;
    IS(n < 0 ? errno : 0, 0);
    if (strcmp(bytes, line) != 0)
        printf("hears %s, not %s\n", bytes, line);
}

/* The peer: sockets only. */
static int client(const struct sockaddr_in *at)
{
    char byte;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    IS(connect(fd, (const struct sockaddr *)at, sizeof *at), 0);
    says(fd, "secret\none\n");
    hears(fd, "one\n");
    says(fd, "two\n");
    hears(fd, "two\n");
    says(fd, "three\n");
    hears(fd, "three\n");
    IS(read(fd, &byte, 1), 0);
    fflush(stdout);
    return 0;
}

/* Echoes one line by the ring. */
static void echo(towpath_handle connection, const char *line)
{
    const void *bytes;
    ssize_t n;
    while ((n = towpath_view(ring, connection, 100, &bytes)) == 0)
        next(TOWPATH_READABLE);
    IS(n, strlen(line));
    IS(memcmp(bytes, line, strlen(line)), 0);
    IS(towpath_write(ring, connection, bytes, (size_t)n), n);
    IS(towpath_consume(ring, connection, (size_t)n), 0);
    IS(towpath_flush(ring), 0);
}

static void wrong_descriptors(int listener)
{
    towpath_handle connection;
    int ends[2], udp = socket(AF_INET, SOCK_DGRAM, 0), fresh = socket(AF_INET, SOCK_STREAM, 0), closed;
    IS(pipe(ends), 0);
    closed = dup(udp);
    close(closed);
    IS(towpath_attach(ring, -1, 0, &connection), -EBADF);
    IS(towpath_attach(ring, closed, 0, &connection), -EBADF);
    IS(towpath_attach(ring, ends[0], 0, &connection), -EINVAL);
    IS(towpath_attach(ring, udp, 0, &connection), -EINVAL);
    IS(towpath_attach(ring, listener, 0, &connection), -EINVAL);
    IS(towpath_attach(ring, fresh, 0, &connection), -EOPNOTSUPP);
    IS(towpath_attach(ring, 0, 0, NULL), -EFAULT);
    IS(towpath_detach(ring, 12345), -EBADF);
    close(ends[0]);
    close(ends[1]);
    close(udp);
    close(fresh);
}

/* Another holder of the descriptor. */
static void is_busy(int fd, towpath_handle attached)
{
    towpath_handle again;
    char byte;
    FAILS(read(fd, &byte, 1), EBUSY);
    FAILS(write(fd, "x", 1), EBUSY);
    FAILS(shutdown(fd, SHUT_WR), EBUSY);
    if (attached)
        IS(towpath_attach(ring, fd, 0, &again), -EBUSY);
}

/* A connection that a ring has made goes to the sockets. */
static void from_ring_to_sockets(const struct sockaddr_in *at, int listener)
{
    towpath_handle connection;
    int ours, theirs;
    IS(towpath_connect(ring, (const struct sockaddr *)at, sizeof *at, 0, 0, &connection), 0);
    theirs = accept(listener, NULL, NULL);
    IS(next(TOWPATH_CONNECTED), connection);
    IS(towpath_write(ring, connection, "by ring\n", 8), 8);
    ours = towpath_detach(ring, connection);
    IS(ours >= 0, 1);
    IS(towpath_detach(ring, connection), -EBADF);
    hears(theirs, "by ring\n");
    says(ours, "by socket\n");
    hears(theirs, "by socket\n");
    says(theirs, "back\n");
    hears(ours, "back\n");
    close(ours);
    IS(read(theirs, &ours, 1), 0);
    close(theirs);
}

int main(void)
{
    towpath_service *service;
    towpath_handle connection;
    struct sockaddr_in at = any_port();
    socklen_t len = sizeof at;
    int listener, fd, copy, back, status;
    pid_t peer, child;

    listener = socket(AF_INET, SOCK_STREAM, 0);
    IS(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    IS(listen(listener, 5), 0);
    IS(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    fflush(stdout);
    if ((peer = fork()) == 0)
        _exit(client(&at));
    IS(towpath_open(NULL, 0, &service), 0);
    IS(towpath_ring_new(service, &ring), 0);
    wrong_descriptors(listener);

    fd = accept(listener, NULL, NULL);
    hears(fd, "secret\n"); /* the rest stays unread */
    copy = dup(fd);
    IS(towpath_attach(ring, fd, 7, &connection), 0);
    is_busy(fd, connection);
    is_busy(copy, connection);
    fflush(stdout);
    if ((child = fork()) == 0) {
        is_busy(fd, 0);
        IS(towpath_detach(ring, connection), -EPERM);
        fflush(stdout);
        _exit(0);
    }
    IS(waitpid(child, &status, 0), child);
    IS(status, 0);
    echo(connection, "one\n");

    back = towpath_detach(ring, connection);
    IS(back >= 0, 1);
    IS(fcntl(back, F_GETFD), FD_CLOEXEC);
    hears(back, "two\n");
    says(copy, "two\n"); /* each descriptor is the same connection */

    IS(towpath_attach(ring, fd, 8, &connection), 0);
    is_busy(back, connection);
    echo(connection, "three\n");
    close(fd);
    close(copy);
    close(back);
    IS(towpath_close(ring, connection), 0);
    IS(waitpid(peer, &status, 0), peer);
    IS(status, 0);

    from_ring_to_sockets(&at, listener);
    towpath_ring_free(ring);
    towpath_service_free(service);
    return 0;
}
