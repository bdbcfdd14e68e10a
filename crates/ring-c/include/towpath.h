/* towpath.h: connections without descriptors, for programs written for Towpath. Link with -ltowpath (pkg-config towpath).
 *
 * Replaces no symbol of the C library, so it may be used beside the preload library or without it. docs/ring-c.md describes each call.
 *
 * - Calls return 0 or a number that is not negative, or -errno. towpath_why() says more about the last failure of the calling thread.
 * - A ring belongs to one thread at a time (-EBUSY) and to the process that made it: in a forked child every call is -EPERM.
 * - A handle of a closed connection is -EBADF, never another's connection. 0 is no handle. The low 32 bits of a handle are a small number
 *   that no other open connection or listener of the ring has: an index for a table of the program's.
 * - With TOWPATH_CHECK=1 in the environment bytes that were released are overwritten (0xDB), and calls out of order fail with -EINVAL.
 * - When the service ends every call is -ENETRESET, once towpath_wait has told TOWPATH_CLOSED of every connection.
 */
#ifndef TOWPATH_H
#define TOWPATH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct towpath_service towpath_service;
typedef struct towpath_ring towpath_ring;
typedef struct towpath_waker towpath_waker;
typedef uint64_t towpath_handle;

/* What has happened, in the order in which one connection's events come. */
enum towpath_kind {
    TOWPATH_ACCEPTED = 1, /* a listener has a new connection; `listener` says which */
    TOWPATH_CONNECTED,    /* a connection of towpath_connect is made */
    TOWPATH_FAILED,       /* it is not made: `error`; close the handle */
    TOWPATH_READABLE,     /* bytes have come since the last view */
    TOWPATH_WRITABLE,     /* there is room after a call that found none */
    TOWPATH_FINISHED,     /* the peer sends no more */
    TOWPATH_CLOSED,       /* the connection has ended: `error`; close the handle */
    TOWPATH_TIMER,        /* a timer is due */
    TOWPATH_WOKEN         /* towpath_wake was called */
};

typedef struct towpath_event {
    towpath_handle handle;   /* 0 for TIMER and WOKEN */
    towpath_handle listener; /* for ACCEPTED, else 0 */
    uint64_t token;          /* as given to connect, listen, set_token or timer */
    uint32_t kind;           /* enum towpath_kind */
    int32_t error;           /* errno for FAILED and CLOSED, else 0 */
} towpath_event;

/* Room for bytes to be sent: the second piece continues the first. */
typedef struct towpath_room {
    void *data[2];
    size_t len[2];
} towpath_room;

typedef struct towpath_connection_info {
    struct sockaddr_storage local, peer;
    uint64_t unread;   /* bytes that have come and are not consumed */
    uint64_t unsent;   /* bytes committed that the peer has not taken */
    int32_t is_pair;   /* the peer is a process of this host, with shared memory */
    int32_t is_accepted;
} towpath_connection_info;

typedef struct towpath_counters {
    uint64_t accepted, kernel_refused, in_place, copied, flushes, barriers, bells, waits, sleeps, events;
} towpath_counters;

/* Flags of towpath_open. */
#define TOWPATH_TRUST_LOCAL_PEERS 1u /* show bytes of other processes of this user without a copy */
/* Flags of towpath_listen and towpath_connect. */
#define TOWPATH_REUSE_PORT 1u /* SO_REUSEPORT (listen) */
#define TOWPATH_DELAY 2u      /* without TCP_NODELAY */

/* Settings of towpath_set. */
enum towpath_setting {
    TOWPATH_NO_DELAY = 1,          /* TCP_NODELAY: 0 or 1 */
    TOWPATH_QUICK_ACK,             /* TCP_QUICKACK: 0 or 1 */
    TOWPATH_NOT_SENT_LOW_WATER,    /* TCP_NOTSENT_LOWAT in bytes */
    TOWPATH_SEND_BUFFER            /* SO_SNDBUF in bytes */
};

/* Registers this process; a second call is cheap. control: path of the service's socket, NULL: as TOWPATH_CONTROL says. */
int towpath_open(const char *control, unsigned flags, towpath_service **service);
/* The rings made of it go on. */
void towpath_service_free(towpath_service *service);
int towpath_ring_new(towpath_service *service, towpath_ring **ring);
/* Closes all that is open in it. */
void towpath_ring_free(towpath_ring *ring);

int towpath_listen(towpath_ring *ring, const struct sockaddr *address, socklen_t len, unsigned flags, int backlog, uint64_t token,
                   towpath_handle *listener);
int towpath_local_address(towpath_ring *ring, towpath_handle listener, struct sockaddr_storage *address);
int towpath_connect(towpath_ring *ring, const struct sockaddr *address, socklen_t len, unsigned flags, uint64_t token,
                    towpath_handle *connection);

/* Takes over the connection of a socket that the preload library carries. The program keeps `fd`: calls on it and its duplicates fail with
 * EBUSY until the ring gives the connection back or closes it. On failure nothing has changed. */
int towpath_attach(towpath_ring *ring, int fd, uint64_t token, towpath_handle *connection);
/* Gives a connection to the program's sockets: returns a descriptor of it, close-on-exec. The handle is gone. */
int towpath_detach(towpath_ring *ring, towpath_handle connection);

/* Publishes what was committed, then waits for events: at most `most`. timeout_ms: 0 does not wait, -1 for ever. Returns how many. */
int towpath_wait(towpath_ring *ring, towpath_event *events, int most, int timeout_ms);
int towpath_flush(towpath_ring *ring);
/* For a program that sleeps on towpath_fd: 1: sleep now, then call towpath_wait with timeout 0; 0: there are events, do not sleep. */
int towpath_arm(towpath_ring *ring);
int towpath_fd(towpath_ring *ring);
/* TOWPATH_TIMER with `token` in so many milliseconds. */
int towpath_timer(towpath_ring *ring, uint64_t milliseconds, uint64_t token);

/* Shows up to `most` unread bytes in one piece, which does not change before the connection's next consume or close, the next view or wait
 * of this ring. Returns how many. */
ssize_t towpath_view(towpath_ring *ring, towpath_handle connection, size_t most, const void **data);
/* Copies unread bytes, and leaves them unread. */
ssize_t towpath_copy(towpath_ring *ring, towpath_handle connection, void *to, size_t most);
/* The first `n` unread bytes are done with. -EINVAL: there are not so many. */
int towpath_consume(towpath_ring *ring, towpath_handle connection, size_t n);
/* Tells READABLE and FINISHED once more, if they are so. */
int towpath_again(towpath_ring *ring, towpath_handle connection);
/* 1 when the peer sends no more and every byte is consumed. */
int towpath_is_finished(towpath_ring *ring, towpath_handle connection);

/* Copies as many bytes as there is room for, and commits them. Returns how many; if fewer than n, WRITABLE tells of more room. */
ssize_t towpath_write(towpath_ring *ring, towpath_handle connection, const void *bytes, size_t n);
/* Room for `least` to `most` bytes, good until the next reserve, flush or wait of this ring. Returns the bytes of both pieces; 0: WRITABLE tells. */
ssize_t towpath_reserve(towpath_ring *ring, towpath_handle connection, size_t least, size_t most, towpath_room *room);
/* The first `n` bytes of the last reserve are sent at the next flush. -EINVAL: that was no reserve of this connection, or less. */
int towpath_commit(towpath_ring *ring, towpath_handle connection, size_t n);

/* Ends this side's stream behind what was committed. */
int towpath_finish(towpath_ring *ring, towpath_handle connection);
/* Closes a connection or a listener; the handle is gone. */
int towpath_close(towpath_ring *ring, towpath_handle handle);
int towpath_reset(towpath_ring *ring, towpath_handle connection);
int towpath_set_token(towpath_ring *ring, towpath_handle connection, uint64_t token);
int towpath_set(towpath_ring *ring, towpath_handle connection, int setting, int value);
int towpath_info(towpath_ring *ring, towpath_handle connection, towpath_connection_info *info);
int towpath_count(towpath_ring *ring, towpath_counters *counters);

/* Wakes a ring from any thread. The waker may outlive the ring. */
int towpath_waker_new(towpath_ring *ring, towpath_waker **waker);
void towpath_wake(towpath_waker *waker);
void towpath_waker_free(towpath_waker *waker);

/* Says why the last call of this thread failed; good until its next failure. */
const char *towpath_why(void);

#ifdef __cplusplus
}
#endif

#endif
