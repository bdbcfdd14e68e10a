/* What the two halves of the stress test share. */
#include "differ.h"

int chaos(uint64_t seed, int ms);

/* What a byte at a place of a stream is. */
static inline unsigned char byte_at(uint32_t salt, uint64_t at) { return (unsigned char)(at * 31 + at / 257 * 7 + salt); }

static inline void need(int holds, const char *what) {
    if (!holds) {
        printf("stress: %s: %s\n", what, strerrorname_np(errno));
        fflush(stdout);
        _exit(1);
    }
}

static inline int listen_here(struct sockaddr_in *at) {
    socklen_t len = sizeof *at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    need(fd >= 0, "socket");
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    need(bind(fd, (void *)at, sizeof *at) == 0 && listen(fd, 64) == 0, "listen");
    need(getsockname(fd, (void *)at, &len) == 0, "getsockname");
    return fd;
}
