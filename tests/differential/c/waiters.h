/* A thread in a call that waits, and what is done to it meanwhile. */
#include "differ.h"

/* Long enough for a thread to be asleep; more than any buffer grows to. */
enum { ASLEEP_MS = 25, SMALL = 1 << 16, LARGE = 64 << 20 };

/* `call` is made in a thread of its own. */
struct waiter {
    struct world *w;
    long (*call)(struct world *);
    /* PTHREAD_CANCEL_DEFERRED or _ASYNCHRONOUS. */
    int kind;
    pthread_t thread;
    volatile int returned, cleaned;
    long result;
    int error;
};

void begin(struct waiter *waiter);
/* Joins the thread; true when it was cancelled. */
int ended_by_cancel(struct waiter *waiter);
/* Says what its call returned. */
void say_result(const char *what, struct waiter *waiter);
/* Whatever the state: the socket is one that blocks. */
void block(struct world *w);
/* What ends the wait of any call on the socket in its state. */
void release(struct world *w);
/* The socket does what it did before. */
void say_usable(struct world *w);

/* The calls that wait on a socket, by their names: `X(name, states, call)`. */
#define TO_READ (BIT(connected) | BIT(accepted))
#define WAITING_CALLS(X)                                                                                               \
    X(read, TO_READ, read(w->s, bytes, 8))                                                                             \
    X(readv, TO_READ, readv(w->s, &vector, 1))                                                                         \
    X(recv, TO_READ | BIT(connected6), recv(w->s, bytes, 8, 0))                                                        \
    X(recv_all, TO_READ, recv(w->s, bytes, 1, MSG_WAITALL))                                                            \
    X(recv_peek, TO_READ, recv(w->s, bytes, 8, MSG_PEEK))                                                              \
    X(recvfrom, TO_READ, recvfrom(w->s, bytes, 8, 0, NULL, NULL))                                                      \
    X(recvmsg, TO_READ, recvmsg(w->s, &message.msg_hdr, 0))                                                            \
    X(recvmmsg, TO_READ, recvmmsg(w->s, &message, 1, 0, NULL))                                                         \
    X(write, BIT(full), write(w->s, large, LARGE))                                                                     \
    X(writev, BIT(full), writev(w->s, &large_vector, 1))                                                               \
    X(send, BIT(full), send(w->s, large, LARGE, 0))                                                                    \
    X(sendto, BIT(full), sendto(w->s, large, LARGE, 0, NULL, 0))                                                       \
    X(sendmsg, BIT(full), sendmsg(w->s, &large_message.msg_hdr, 0))                                                    \
    X(sendmmsg, BIT(full), sendmmsg(w->s, &large_message, 1, 0))                                                       \
    X(accept, BIT(listening) | BIT(listening6), accept(w->s, NULL, NULL))                                              \
    X(accept4, BIT(listening), accept4(w->s, NULL, NULL, SOCK_CLOEXEC))                                                \
    X(connect, BIT(connecting), connect(w->s, (struct sockaddr *)&w->at, w->at_len))                                   \
    X(poll, TO_READ | BIT(listening), poll(&(struct pollfd){w->s, POLLIN, 0}, 1, -1))                                  \
    X(poll_to_write, BIT(full), poll(&(struct pollfd){w->s, POLLOUT, 0}, 1, -1))                                       \
    X(poll_in_time, TO_READ | BIT(listening), poll(&(struct pollfd){w->s, POLLIN, 0}, 1, 3000))                        \
    X(ppoll, TO_READ, ppoll(&(struct pollfd){w->s, POLLIN, 0}, 1, NULL, NULL))                                         \
    X(select, TO_READ | BIT(listening), select_on(w->s, -1))                                                           \
    X(select_in_time, TO_READ, select_on(w->s, 3))                                                                     \
    X(pselect, TO_READ, pselect_on(w->s))                                                                              \
    X(epoll_wait, TO_READ | BIT(listening), epoll_wait(set_of(w->s), &event, 1, -1))                                   \
    X(epoll_wait_in_time, TO_READ | BIT(listening), epoll_wait(set_of(w->s), &event, 1, 3000))                         \
    X(epoll_pwait, TO_READ, epoll_pwait(set_of(w->s), &event, 1, -1, NULL))                                            \
    X(epoll_pwait2, TO_READ, epoll_pwait2(set_of(w->s), &event, 1, NULL, NULL))

extern char bytes[SMALL], large[LARGE];
extern struct iovec vector, large_vector;
extern struct mmsghdr message, large_message;
extern struct epoll_event event;
int select_on(int fd, int seconds);
int pselect_on(int fd);
/* A set with the socket in it. */
int set_of(int fd);
/* Each call by its name, as WAITING_CALLS has it. */
#define X(name, states, call) long call_##name(struct world *w);
WAITING_CALLS(X)
#undef X
