// What the test programs share: addresses, clocks, and an end with a reason. Plain sockets, nothing of Towpath.
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                              \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno));      \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// As many descriptors as the hard limit allows.
static inline void raise_descriptor_limit(void) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static inline socklen_t parse_address(const char *host, const char *port, struct sockaddr_storage *out) {
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found;
    int problem = getaddrinfo(host, port, &hints, &found);
    if (problem != 0) {
        fprintf(stderr, "%s: %s\n", host, gai_strerror(problem));
        exit(1);
    }
    socklen_t length = found->ai_addrlen;
    memcpy(out, found->ai_addr, length);
    freeaddrinfo(found);
    return length;
}

static inline int listen_at(const char *host, const char *port, int flags) {
    struct sockaddr_storage address;
    socklen_t length = parse_address(host, port, &address);
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0), on = 1;
    CHECK(fd >= 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(fd, (struct sockaddr *)&address, length) == 0);
    CHECK(listen(fd, 4096) == 0);
    return fd;
}

static inline int connect_to(const char *host, const char *port) {
    struct sockaddr_storage address;
    socklen_t length = parse_address(host, port, &address);
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    CHECK(fd >= 0);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    CHECK(connect(fd, (struct sockaddr *)&address, length) == 0);
    return fd;
}
