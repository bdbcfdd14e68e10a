/* What a program can do wrong, and what a forked child sees. Prints nothing if every answer is as it should be. */
#define PATIENCE_MS 10000
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

static void *waits(void *unused)
{
    towpath_event event;
    int told;
    while ((told = towpath_wait(ring, &event, 1, -1)) == -EBUSY)
        sched_yield(); /* the main thread is in its call */
    IS(told, 1);
    IS(event.kind, TOWPATH_WOKEN);
    return unused;
}

static void child(towpath_handle connection)
{
    towpath_service *service;
    towpath_ring *own;
    towpath_handle other;
    struct sockaddr_in any = any_port();
    const void *data;
    IS(towpath_view(ring, connection, 1, &data), -EPERM);
    IS(towpath_write(ring, connection, "x", 1), -EPERM);
    IS(towpath_close(ring, connection), -EPERM);
    IS(towpath_flush(ring), -EPERM);
    IS(towpath_listen(ring, (struct sockaddr *)&any, sizeof any, 0, 5, 0, &other), -EPERM);
    towpath_ring_free(ring); /* the parent's: nothing of it is closed */
    IS(towpath_open(NULL, 0, &service), 0);
    IS(towpath_ring_new(service, &own), 0);
    IS(towpath_listen(own, (struct sockaddr *)&any, sizeof any, 0, 5, 0, &other), 0);
    towpath_ring_free(own);
    fflush(stdout);
    _exit(0);
}

int main(void)
{
    towpath_service *service;
    towpath_handle listener, ours, theirs;
    towpath_waker *waker;
    towpath_room room;
    towpath_connection_info info;
    towpath_counters counters;
    struct sockaddr_in at = any_port();
    struct sockaddr_storage bound;
    const void *data;
    char copy[8];
    pthread_t thread;
    int status;

    IS(towpath_open(NULL, 0, NULL), -EFAULT);
    IS(towpath_open(NULL, 1u << 31, &service), -EINVAL);
    IS(towpath_open(NULL, 0, &service), 0);
    IS(towpath_ring_new(service, &ring), 0);
    IS(towpath_listen(ring, (struct sockaddr *)&at, 3, 0, 5, 0, &listener), -EINVAL);
    IS(towpath_listen(ring, (struct sockaddr *)&at, sizeof at, 0, 5, 1, &listener), 0);
    IS(towpath_local_address(ring, listener, &bound), 0);
    IS(towpath_connect(ring, (struct sockaddr *)&bound, sizeof at, 0, 2, &ours), 0);
    theirs = next(TOWPATH_ACCEPTED);
    IS(towpath_info(ring, theirs, &info), 0);
    IS(info.is_pair + 2 * info.is_accepted, 3);

    /* Handles. */
    IS(towpath_view(ring, 0, 1, &data), -EBADF);
    IS(towpath_view(ring, ours + ((uint64_t)1 << 32), 1, &data), -EBADF);
    IS(towpath_write(ring, listener, "x", 1), -EINVAL);

    /* More than was reserved, than is there, than any ring holds. */
    IS(towpath_commit(ring, ours, 1), -EINVAL);
    IS(towpath_reserve(ring, ours, (size_t)-1 / 2, (size_t)-1 / 2, &room), -EMSGSIZE);
    IS(towpath_reserve(ring, ours, 6, 6, &room), 6);
    IS(towpath_commit(ring, theirs, 6), -EINVAL);
    IS(towpath_commit(ring, ours, 7), -EINVAL);
    memcpy(room.data[0], "octets", 6);
    IS(towpath_commit(ring, ours, 6), 0);
    IS(towpath_commit(ring, ours, 0), -EINVAL);
    IS(next(TOWPATH_READABLE), theirs);
    IS(towpath_view(ring, theirs, 100, &data), 6);
    IS(memcmp(data, "octets", 6), 0);
    IS(towpath_consume(ring, theirs, 7), -EINVAL);
    IS(towpath_consume(ring, theirs, 2), 0);
    IS(towpath_copy(ring, theirs, copy, sizeof copy), 4);
    IS(memcmp(copy, "tets", 4), 0);
    IS(towpath_set(ring, ours, 99, 1), -EINVAL);
    IS(towpath_set(ring, ours, TOWPATH_NO_DELAY, 1), 0);

    /* A forked child: nothing is its own, and nothing of its parent's ends. */
    fflush(stdout);
    if (fork() == 0)
        child(theirs);
    wait(&status);
    IS(status, 0);
    IS(towpath_write(ring, ours, "more", 4), 4);
    IS(next(TOWPATH_READABLE), theirs);
    IS(towpath_view(ring, theirs, 100, &data), 8);
    IS(towpath_consume(ring, theirs, 8), 0);

    /* Two threads. */
    IS(towpath_waker_new(ring, &waker), 0);
    pthread_create(&thread, NULL, waits, NULL);
    while (towpath_flush(ring) != -EBUSY)
        sched_yield(); /* until the other thread waits */
    towpath_wake(waker);
    pthread_join(thread, NULL);
    towpath_waker_free(waker);

    /* Ends. */
    IS(towpath_finish(ring, ours), 0);
    IS(towpath_write(ring, ours, "x", 1), -EPIPE);
    IS(next(TOWPATH_FINISHED), theirs);
    IS(towpath_is_finished(ring, theirs), 1);
    IS(towpath_close(ring, theirs), 0);
    IS(towpath_close(ring, theirs), -EBADF);
    IS(towpath_count(ring, &counters), 0);
    IS(counters.accepted, 1);
    IS(towpath_close(ring, listener), 0);
    towpath_ring_free(ring);
    towpath_service_free(service);
    return 0;
}
