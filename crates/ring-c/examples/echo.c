/* Echoes what it gets: the smallest server on a ring, in C.
 *
 *   cc echo.c $(pkg-config --cflags --libs towpath) -o echo
 *   towpath up --detach; ./echo 127.0.0.1 7007 &
 *   towpath run -- nc 127.0.0.1 7007
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <towpath.h>

/* Bytes echoed at once: a client that sends without end does not keep the others waiting. */
enum { TURN = 64 << 10, EVENTS = 256 };

static int fail(const char *what)
{
    fprintf(stderr, "echo: %s: %s\n", what, towpath_why());
    return 1;
}

/* Sends back what has come, as much as there is room for. Returns less than 0 when the connection is over. */
static int echo(towpath_ring *ring, towpath_handle connection)
{
    size_t left = TURN;
    while (left > 0) {
        const void *bytes;
        ssize_t n = towpath_view(ring, connection, left, &bytes);
        if (n < 0)
            return -1;
        if (n == 0) /* everything is echoed: if the peer sends no more, that is all */
            return towpath_is_finished(ring, connection) == 1 ? -1 : 0;
        n = towpath_write(ring, connection, bytes, (size_t)n);
        if (n < 0)
            return -1;
        if (n == 0) /* no room: TOWPATH_WRITABLE tells when there is some */
            return 0;
        if (towpath_consume(ring, connection, (size_t)n) != 0)
            return -1;
        left -= (size_t)n < left ? (size_t)n : left;
    }
    return towpath_again(ring, connection); /* more may be there, or the end */
}

int main(int argc, char **argv)
{
    towpath_service *service;
    towpath_ring *ring;
    towpath_handle listener;
    towpath_event events[EVENTS];
    struct sockaddr_in at, *bound;
    struct sockaddr_storage storage;
    int i, count;

    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_port = htons((uint16_t)atoi(argc > 2 ? argv[2] : "7007"));
    if (inet_pton(AF_INET, argc > 1 ? argv[1] : "127.0.0.1", &at.sin_addr) != 1)
        return fprintf(stderr, "usage: echo [address [port]]\n"), 1;

    if (towpath_open(NULL, 0, &service) != 0 || towpath_ring_new(service, &ring) != 0)
        return fail("open");
    if (towpath_listen(ring, (struct sockaddr *)&at, sizeof at, 0, 4096, 0, &listener) != 0 ||
        towpath_local_address(ring, listener, &storage) != 0)
        return fail("listen");
    bound = (struct sockaddr_in *)&storage;
    fprintf(stderr, "echo: listens at %s:%d\n", inet_ntoa(bound->sin_addr), ntohs(bound->sin_port));

    /* Each wait publishes what the round before has written, all connections at once. */
    while ((count = towpath_wait(ring, events, EVENTS, -1)) >= 0)
        for (i = 0; i < count; i++)
            switch (events[i].kind) {
            case TOWPATH_READABLE:
            case TOWPATH_WRITABLE:
            case TOWPATH_FINISHED:
                if (echo(ring, events[i].handle) < 0)
                    towpath_close(ring, events[i].handle);
                break;
            case TOWPATH_CLOSED:
                towpath_close(ring, events[i].handle);
                break;
            default: /* TOWPATH_ACCEPTED: its bytes are told by themselves */
                break;
            }
    return fail("wait");
}
