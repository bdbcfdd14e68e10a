/* Uses of released bytes and calls out of order, with TOWPATH_CHECK=1. Prints nothing if each is found and named. */
#include "check.h"

static void says(const char *text)
{
    if (strstr(towpath_why(), text) == NULL)
        printf("the reason is: %s, not: %s\n", towpath_why(), text);
}

static int is_poisoned(const unsigned char *bytes, size_t len)
{
    size_t i;
    for (i = 0; i < len; i++)
        if (bytes[i] != 0xdb)
            return 0;
    return 1;
}

int main(void)
{
    towpath_service *service;
    towpath_handle listener, ours, theirs;
    towpath_room room;
    struct sockaddr_in at = any_port();
    struct sockaddr_storage bound;
    const void *data;

    IS(towpath_open(NULL, TOWPATH_TRUST_LOCAL_PEERS, &service), 0);
    IS(towpath_ring_new(service, &ring), 0);
    IS(towpath_listen(ring, (struct sockaddr *)&at, sizeof at, 0, 5, 1, &listener), 0);
    IS(towpath_local_address(ring, listener, &bound), 0);
    IS(towpath_connect(ring, (struct sockaddr *)&bound, sizeof at, 0, 2, &ours), 0);
    theirs = next(TOWPATH_ACCEPTED);

    /* A room: what is written in it is sent, and not what is written behind the commit. */
    IS(towpath_reserve(ring, ours, 8, 8, &room), 8);
    memcpy(room.data[0], "12345678", 8);
    IS(towpath_commit(ring, ours, 8), 0);
    IS(is_poisoned(room.data[0], 8), 1);
    IS(towpath_flush(ring), 0);
    memcpy(room.data[0], "XXXX", 4);
    IS(towpath_flush(ring), -EINVAL);
    says("byte 0 of the room of a reserve was written after it was released");
    IS(towpath_flush(ring), 0);

    /* A room ends with a flush. */
    IS(towpath_reserve(ring, ours, 4, 4, &room), 4);
    IS(towpath_flush(ring), 0);
    IS(towpath_commit(ring, ours, 4), -EINVAL);
    says("after its end");

    /* A view ends with its consume, with the next view, and with a wait. */
    while (towpath_view(ring, theirs, 100, &data) == 0)
        next(TOWPATH_READABLE);
    IS(towpath_view(ring, theirs, 100, &data), 8);
    IS(memcmp(data, "12345678", 8), 0);
    IS(towpath_consume(ring, theirs, 4), 0);
    IS(is_poisoned(data, 8), 1);
    IS(towpath_view(ring, theirs, 100, &data), 4);
    IS(memcmp(data, "5678", 4), 0);
    IS(towpath_view(ring, ours, 100, &data), 0);
    IS(towpath_view(ring, theirs, 100, &data), 4);
    IS(towpath_write(ring, ours, "9", 1), 1);
    next(TOWPATH_READABLE);
    IS(is_poisoned(data, 4), 1);

    /* Five bytes are there, and the program has seen four. */
    IS(towpath_consume(ring, theirs, 5), -EINVAL);
    says("consume of 5 bytes, of which 4 were shown by a read");
    IS(towpath_view(ring, theirs, 100, &data), 5);
    IS(towpath_consume(ring, theirs, 5), 0);
    towpath_ring_free(ring);
    towpath_service_free(service);
    return 0;
}
