/* Calls that block ask for no memory, once what they need is there. */
#include "common.h"

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static __thread int counts, asked;
void *malloc(size_t n) {
    asked += counts;
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t m) {
    asked += counts;
    return __libc_calloc(n, m);
}
void *realloc(void *p, size_t n) {
    asked += counts;
    return __libc_realloc(p, n);
}

/* What the library asks for past them, in whichever thread. */
extern unsigned long towpath_allocations __attribute__((weak));
static unsigned long by_library(void) { return &towpath_allocations ? towpath_allocations : 0; }

static void *later(void *fd) {
    nap(20);
    CHECK(send(*(int *)fd, "late", 4, 0) == 4);
    return NULL;
}

int main(void) {
    enum { RECV, POLL, EPOLL, WAYS };
    static const char *const names[] = {"recv", "poll", "epoll_wait"};
    int f[2], ep = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN};
    char b[9];
    pair(f);
    CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, f[1], &e) == 0);
    for (int round = 0; round < 8; round++)
        for (int way = 0; way < WAYS; way++) {
            struct pollfd p = {f[1], POLLIN, 0};
            pthread_t t;
            CHECK(pthread_create(&t, NULL, later, &f[0]) == 0);
            unsigned long before = by_library();
            asked = 0, counts = 1;
            long n = way == RECV ? recv(f[1], b, 9, 0) : way == POLL ? poll(&p, 1, 2000) : epoll_wait(ep, &e, 1, 2000);
            counts = 0;
            asked += by_library() - before;
            CHECK(way == RECV || recv(f[1], b, 9, 0) == 4);
            CHECK(pthread_join(t, NULL) == 0);
            if (round == 7)
                printf("%s %ld asks for memory %d times\n", names[way], n, asked);
        }
    return 0;
}
