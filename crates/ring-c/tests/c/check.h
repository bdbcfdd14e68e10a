/* What the tests in C share. A test prints nothing if every answer is as it should be. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <towpath.h>

#define IS(call, expected)                                                                                          \
    do {                                                                                                            \
        long found = (long)(call);                                                                                  \
        if (found != (long)(expected))                                                                              \
            printf("%d: %s is %ld, not %ld: %s, %s\n", __LINE__, #call, found, (long)(expected), towpath_why(),     \
                   strerror(errno));                                                                                \
    } while (0)

/* Milliseconds to wait for one event; a test that waits longer hangs. */
#ifndef PATIENCE_MS
#define PATIENCE_MS 30000
#endif

static towpath_ring *ring;

/* Waits for an event of a kind. */
static towpath_handle next(uint32_t kind)
{
    towpath_event event;
    while (towpath_wait(ring, &event, 1, PATIENCE_MS) == 1)
        if (event.kind == kind)
            return event.handle;
    printf("no event of kind %u: %s\n", kind, towpath_why());
    exit(1);
}

/* The loopback address with a port that the listener chooses. */
static struct sockaddr_in any_port(void)
{
    struct sockaddr_in at;
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}
