/* Objects that the program loads with RTLD_DEEPBIND: they look for the C library's symbols there first. */
#include "differ.h"
#include "object/deep.h"
#include <dlfcn.h>

static char b[64];

static void over_and_back(struct world *w, const char *name, int how) {
    char path[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", path, sizeof path - 32);
    char *file = memrchr(path, '/', (size_t)MUST(len)) + 1;
    strcpy(file, name);
    void *object = dlopen(path, how | RTLD_LOCAL | RTLD_DEEPBIND);
    struct deep *deep = object ? dlsym(object, "deep") : NULL;
    if (!deep) {
        say("%s", dlerror());
        return;
    }
    /* A program that has loaded something makes or ends a descriptor before it uses one there. */
    MUST(close(MUST(dup(w->p))));
    T(deep->send(w->s, "over", 4, 0));
    until(w->p, POLLIN);
    T(recv(w->p, b, 64, MSG_DONTWAIT));
    T(send(w->p, "back", 4, 0));
    struct pollfd one = {w->s, POLLIN, 0};
    T(deep->poll(&one, 1, 1000));
    say("revents %x", one.revents);
    T(deep->read(w->s, b, 64));
    T(deep->setsockopt(w->s, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)));
    int value = 0;
    socklen_t room = sizeof value;
    T(getsockopt(w->s, IPPROTO_TCP, TCP_NODELAY, &value, &room));
    say("set %d", value);
    T(deep->close(w->s));
    until(w->p, POLLRDHUP);
    T(recv(w->p, b, 64, MSG_DONTWAIT));
}

CASE(deepbound, bound_now, BIT(connected) | BIT(accepted)) { over_and_back(w, "deep-now.so", RTLD_NOW); }

CASE(deepbound, bound_late, BIT(connected) | BIT(accepted)) { over_and_back(w, "deep-late.so", RTLD_LAZY); }
