/* A client on a ring that changes bytes which it has sent, while a server looks at them: they lie in memory that both have mapped, and that this
 * program may write. Arguments: the server's port; what it is asked at the end; how its answer begins; requests. Prints nothing if the server
 * answers the last connection, which behaves well, as if nothing had been. */
#include "check.h"
#include <sched.h>

enum { ROUNDS = 150, CHANGES = 400, COPIES = 4 };

static struct sockaddr_in server;

static towpath_handle begin(void)
{
    towpath_handle connection;
    IS(towpath_connect(ring, (struct sockaddr *)&server, sizeof server, 0, 0, &connection), 0);
    IS(next(TOWPATH_CONNECTED), connection);
    return connection;
}

/* Sends a request several times, and changes one byte after the other of all of them. */
static void scribble(const char *request)
{
    static const char bytes[] = "0123456789$*-: \r\nGETSEThx";
    towpath_handle connection = begin();
    towpath_room room;
    size_t len = strlen(request), i;
    volatile char *sent;
    if (towpath_reserve(ring, connection, COPIES * len, COPIES * len, &room) < (ssize_t)(COPIES * len)) {
        printf("no room: %s\n", towpath_why());
        exit(1);
    }
    /* The first bytes of a ring lie in one piece. */
    IS(room.len[0], COPIES * len);
    for (i = 0; i < COPIES; i++)
        memcpy((char *)room.data[0] + i * len, request, len);
    IS(towpath_commit(ring, connection, COPIES * len), 0);
    IS(towpath_flush(ring), 0);
    sent = room.data[0];
    for (i = 0; i < CHANGES; i++) {
        sent[(size_t)random() % (COPIES * len)] = bytes[(size_t)random() % (sizeof bytes - 1)];
        if (i % 50 == 0)
            sched_yield();
    }
    IS(towpath_reset(ring, connection), 0);
}

int main(int argc, char **argv)
{
    towpath_service *service;
    towpath_handle connection;
    const void *data;
    const char *asked, *answer;
    int i;
    if (argc < 5)
        return 2;
    asked = argv[2];
    answer = argv[3];
    server = any_port();
    server.sin_port = htons((unsigned short)atoi(argv[1]));
    srandom(1);
    IS(towpath_open(NULL, 0, &service), 0);
    IS(towpath_ring_new(service, &ring), 0);
    for (i = 0; i < ROUNDS; i++)
        scribble(argv[4 + i % (argc - 4)]);
    connection = begin();
    IS(towpath_write(ring, connection, asked, strlen(asked)), strlen(asked));
    while (towpath_view(ring, connection, SIZE_MAX, &data) < (ssize_t)strlen(answer))
        next(TOWPATH_READABLE);
    if (memcmp(data, answer, strlen(answer)) != 0)
        printf("the answer is %.*s\n", (int)strlen(answer), (const char *)data);
    towpath_ring_free(ring);
    towpath_service_free(service);
    return 0;
}
