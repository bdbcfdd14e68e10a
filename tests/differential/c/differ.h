/* What the cases share. A case is a few calls on the sockets of a world; it prints what they returned, and must print the same
 * on the kernel and on Towpath: so no addresses, ports, numbers of descriptors or processes, and no times. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What the socket under test has been through. */
#define STATES(S)                                                                                                      \
    S(none) S(fresh) S(bound) S(listening) S(waiting) S(connecting) S(refused) S(connected) S(accepted) S(data)        \
    S(peer_shut) S(shut_wr) S(shut_rd) S(shut_both) S(both_shut) S(peer_closed) S(last_words) S(reset) S(reset_told)   \
    S(full) S(closed) S(fresh6) S(bound6) S(listening6) S(connected6) S(accepted6) S(mapped) S(dual)

enum state {
#define S(name) STATE_##name,
    STATES(S)
#undef S
    STATE_COUNT
};

#define BIT(name) (1u << STATE_##name)
#define NONE BIT(none)
#define UNCONNECTED (BIT(fresh) | BIT(bound) | BIT(listening) | BIT(waiting) | BIT(connecting) | BIT(refused))
#define OPEN                                                                                                           \
    (BIT(connected) | BIT(accepted) | BIT(data) | BIT(peer_shut) | BIT(shut_wr) | BIT(shut_rd) | BIT(shut_both) |      \
     BIT(both_shut) | BIT(full))
#define OVER (BIT(peer_closed) | BIT(last_words) | BIT(reset) | BIT(reset_told))
#define LIVE (UNCONNECTED | OPEN | OVER)
#define SIX (BIT(fresh6) | BIT(bound6) | BIT(listening6) | BIT(connected6) | BIT(accepted6) | BIT(mapped) | BIT(dual))
#define EVERY (LIVE | BIT(closed) | SIX)

/* `s` is under test; `p` is its peer, `l` the listener they met at, which listens at `at`. -1 where there is none.
 * `about` is what the case was enlisted with. */
struct world {
    enum state state;
    const void *about;
    int family, s, p, l;
    struct sockaddr_storage at;
    socklen_t at_len;
};

struct one {
    const char *group, *name;
    unsigned states;
    void (*run)(struct world *);
    const void *about;
};

void enlist(struct one one);

#define CASE(group, name, states)                                                                                      \
    static void group##_##name(struct world *w);                                                                       \
    __attribute__((constructor)) static void enlist_##group##_##name(void) {                                           \
        enlist((struct one){#group, #name, states, group##_##name, NULL});                                                   \
    }                                                                                                                  \
    static void group##_##name(__attribute__((unused)) struct world *w)

/* A line of the case. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A program that is executed goes on with the case: where it is to write, a number that it inherits; and what it does. */
int output(void);
int in_another_program(char **arguments);
/* What a call returned, in words: a number or the name of errno, and whether SIGPIPE came. */
const char *said(long result);
/* As say: `what = said(result)`. */
void told(const char *what, long result);
/* The next calls are interrupted when they wait. */
void hurry(void);

#define T(call) told(#call, (errno = 0, (long)(call)))
/* A call that may wait: that it does is what is told. */
#define B(call) (hurry(), told(#call, (errno = 0, (long)(call))))
/* What has to work, or the case says nothing. */
#define MUST(call) must(#call, (errno = 0, (long)(call)), __FILE__, __LINE__)
long must(const char *what, long result, const char *file, int line);

/* States. */
void reach(struct world *w, enum state state);
const char *state_name(enum state state);
int fresh(int family);
socklen_t loopback(int family, struct sockaddr_storage *at);
int listener(int family, int backlog, struct sockaddr_storage *at, socklen_t *len);
void join(int family, int fds[2]);
/* Takes note whether a connection is the kernel's or Towpath's. */
void look(int fd);
/* Waits until poll reports one of the events, a second at most. */
void until(int fd, short events);
void nap(int ms);
void nonblock(int fd, int on);

/* Words. */
const char *bits(unsigned events);
/* What poll says of it now. */
const char *polled(int fd);
void set_port(struct sockaddr_storage *at, in_port_t port);
void set_int(int fd, int level, int option, int value);
const char *name_of(const void *at, socklen_t len);
const char *errno_name(int error);
extern volatile int pipes, alarms;
/* An address where nothing is, and the largest length: volatile, so that no compiler argues. */
extern void *volatile nowhere;
extern volatile size_t huge;
