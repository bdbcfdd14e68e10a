// hostile HOST PORT private|scribble SECONDS | hostile HOST PORT holes 0 | hostile HOST 0 itself SEED: an application that talks to an echo server and then
// breaks the rules. `scribble` writes at random over every shared region it has mapped while a second thread goes on
// using its sockets; `private` does the same work on memory of its own, so that its load can be subtracted. `holes` tries
// to take pages away from under the others. Its own death by a signal is its own affair. `itself` overwrites words of its own
// between calls on its own connections: each call must return, with a result or an errno that Linux has for a reset connection.
#include "common.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { AREAS = 64, DESCRIPTORS = 1024, USED = 16384 };

// Lines, tables and first pages: most writes go here. The rest of a region is sparse; all of it would fill the machine.
static const size_t HOT = 8 << 20, REACH = 128 << 20;

static struct { char *start; size_t length; } areas[AREAS];
static int area_count;
static const char *host, *port;
static volatile int stop;

static uint64_t random_u64(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void find_regions(void) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps != NULL);
    area_count = 0;
    while (fgets(line, sizeof line, maps) != NULL) {
        unsigned long start, end;
        char access[8];
        if (strstr(line, "towpath") == NULL || strstr(line, "memfd:") == NULL) continue;
        if (sscanf(line, "%lx-%lx %7s", &start, &end, access) != 3 || access[1] != 'w' || access[3] != 's') continue;
        if (area_count < AREAS) {
            areas[area_count].start = (char *)start;
            areas[area_count++].length = end - start;
        }
    }
    fclose(maps);
}

static void use_private_memory(void) {
    areas[0].length = 64 << 20;
    areas[0].start = mmap(NULL, areas[0].length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(areas[0].start != MAP_FAILED);
    area_count = 1;
}

static void scribble_once(uint64_t *state) {
    uint64_t choice = random_u64(state), place = random_u64(state), value = random_u64(state);
    char *start = areas[choice % (unsigned)area_count].start;
    size_t length = areas[choice % (unsigned)area_count].length, reach = (choice >> 32) % 8 == 0 ? REACH : HOT;
    if (length > reach) length = reach;
    uint64_t *word = (uint64_t *)(start + place % (length / 8) * 8);
    switch ((choice >> 40) % 6) {
    case 0: *word = value; break;
    case 1: *word = 0; break;
    case 2: *word = ~0ull; break;
    case 3: *word += 1 + value % 4096; break;
    case 4: *(uint32_t *)word = (uint32_t)value % 65536; break;
    default: *word ^= 1ull << (value % 64); break;
    }
}

// The words of all regions that are not 0: those that calls look at. A region's first page, which is written once, is left out.
static uint64_t *used_words[USED];
static uint64_t used_count;

static void find_used_words(void) {
    used_count = 0;
    for (int i = 0; i < area_count; i++) {
        uint64_t *words = (uint64_t *)areas[i].start;
        size_t length = areas[i].length < HOT ? areas[i].length : HOT;
        for (size_t at = 512; at < length / 8 && used_count < USED; at++)
            if (words[at] != 0) used_words[used_count++] = words + at;
    }
}

static void scribble_used_word(uint64_t *state) {
    uint64_t choice = random_u64(state), place = random_u64(state), value = random_u64(state);
    uint64_t *word = used_words[place % used_count];
    switch (choice % 9) {
    case 0: *word = value; break;
    case 1: *word = 0; break;
    case 2: *word = ~0ull; break;
    case 3: *word += 1 + value % 4096; break;
    case 4: *(uint32_t *)word = (uint32_t)value % 65536; break;
    case 5: *((uint32_t *)word + 1) = (uint32_t)value; break;
    case 6: *word -= value % 4096; break;
    // The word beside it may be 0.
    case 7: word[choice >> 40 & 1 ? 1 : -1] = value; break;
    default: *word ^= 1ull << (value % 64); break;
    }
}

// Ordinary use of sockets, whatever comes of it. A broken connection takes its time, too: `scribble` is not to open more of them than `private`.
static void *use_sockets(void *unused) {
    struct sockaddr_storage address;
    socklen_t length = parse_address(host, port, &address);
    char bytes[512] = {0};
    while (!stop) {
        int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct timeval limit = {.tv_usec = 20000};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (connect(fd, (struct sockaddr *)&address, length) == 0) {
            int is_broken = 0;
            for (int i = 0; i < 20 && !stop; i++) {
                is_broken = is_broken || send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) <= 0 || recv(fd, bytes, sizeof bytes, 0) <= 0;
                usleep(500);
            }
        } else {
            usleep(10000);
        }
        close(fd);
        usleep(1000);
    }
    return unused;
}

static void scribble(double seconds, int on_regions) {
    pthread_t user;
    uint64_t state = 0x9E3779B97F4A7C15ull ^ (uint64_t)getpid() << 20;
    int64_t end = now_ns() + (int64_t)(seconds * 1e9), refreshed = 0;
    if (!on_regions) use_private_memory();
    CHECK(pthread_create(&user, NULL, use_sockets, NULL) == 0);
    while (now_ns() < end) {
        if (on_regions && now_ns() - refreshed > 50000000) {
            find_regions();
            refreshed = now_ns();
        }
        for (int i = 0; i < 256 && area_count > 0; i++) scribble_once(&state);
        // A tenth of a core's worth of damage is damage enough, and leaves the cores to the neighbours.
        usleep(50);
    }
    stop = 1;
    printf("scribbled over %d areas\n", area_count);
    fflush(stdout);
    _exit(0);
}

// What a call may say of a connection whose words were overwritten.
static void check_errno(const char *call, long result) {
    static const int LAWFUL[] = {
        EAGAIN, ECONNRESET, EPIPE, ENOTCONN, EBADF, EINVAL, EINPROGRESS, ECONNABORTED, ENOBUFS, ENOMEM, EPROTO, EOPNOTSUPP, EUSERS,
        // What ends an attempt to connect.
        ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, ENOPROTOOPT, EADDRINUSE, EADDRNOTAVAIL,
    };
    if (result >= 0) return;
    for (size_t i = 0; i < sizeof LAWFUL / sizeof *LAWFUL; i++)
        if (errno == LAWFUL[i]) return;
    fprintf(stderr, "%s: %s\n", call, strerror(errno));
    exit(1);
}

enum { PAIRS = 4, ROUNDS = 600 };

// A listener of its own, and both ends of connections to it. Without a service's answer they are the kernel's, which are checked in the same way.
static int open_pairs(int ends[PAIRS][2]) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    struct timeval limit = {.tv_usec = 1000};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&address, length) == 0);
    check_errno("listen", listen(listener, 16));
    CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    for (int i = 0; i < PAIRS; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        check_errno("connect", connect(fd, (struct sockaddr *)&address, length));
        ends[i][0] = fd;
        ends[i][1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        check_errno("accept", ends[i][1]);
        // One end of each blocks, for a moment.
        if (ends[i][1] >= 0) {
            setsockopt(ends[i][1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
            setsockopt(ends[i][1], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        }
    }
    return listener;
}

static void use_an_end(int fd, int listener, uint64_t choice) {
    static char bytes[70000];
    struct pollfd polled[2] = {{.fd = fd, .events = POLLIN | POLLOUT}, {.fd = listener, .events = POLLIN}};
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | (choice >> 50 & 1 ? EPOLLET : 0)};
    size_t size = choice >> 20 & 1 ? 1 + choice % 100 : 1 + choice % sizeof bytes;
    int error = 0, set;
    socklen_t length = sizeof error;
    switch ((choice >> 40) % 10) {
    case 0: case 1: check_errno("send", send(fd, bytes, size, MSG_NOSIGNAL | (choice >> 30 & 1 ? MSG_MORE : 0))); break;
    case 2: case 3: check_errno("recv", recv(fd, bytes, size, choice >> 30 & 1 ? MSG_PEEK : 0)); break;
    case 4: check_errno("poll", poll(polled, 2, 1)); break;
    case 5:
        set = epoll_create1(EPOLL_CLOEXEC);
        CHECK(set >= 0);
        check_errno("epoll_ctl", epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
        check_errno("epoll_wait", epoll_wait(set, &event, 1, 1));
        close(set);
        break;
    case 6: check_errno("accept", accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)); break;
    case 7: check_errno("getsockopt", getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length)); break;
    case 8: check_errno("send", send(fd, bytes, 1, MSG_NOSIGNAL | MSG_OOB)); break;
    default: check_errno("shutdown", choice >> 30 & 7 ? 0 : shutdown(fd, SHUT_WR)); break;
    }
}

// Only words that this process writes, or its peer, which is itself: not the data areas, which hold no words.
static void scribble_itself(uint64_t seed) {
    uint64_t state = 0x9E3779B97F4A7C15ull ^ seed << 20 ^ seed;
    int ends[PAIRS][2], rounds = 0;
    for (int i = 0; i < 5; i++) random_u64(&state);
    signal(SIGPIPE, SIG_IGN);
    // Not one call may hang.
    alarm(60);
    while (rounds < ROUNDS) {
        int listener = open_pairs(ends);
        find_regions();
        for (int i = 0; i < 100; i++, rounds++) {
            uint64_t choice = random_u64(&state);
            int fd = ends[choice % PAIRS][choice >> 10 & 1];
            if (fd >= 0) use_an_end(fd, listener, random_u64(&state));
            if (i % 10 == 0) find_used_words();
            if (used_count > 0 && i > 10) scribble_used_word(&state);
        }
        for (int i = 0; i < PAIRS; i++)
            for (int side = 0; side < 2; side++)
                if (ends[i][side] >= 0) check_errno("close", close(ends[i][side]));
        check_errno("close", close(listener));
    }
    printf("%d calls, over %d areas\n", rounds, area_count);
}

static int may_be_a_region(int fd) {
    char path[64], target[256];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n <= 0) return 0;
    target[n] = 0;
    return strstr(target, "memfd:") != NULL;
}

// Tries every way to take pages away through a descriptor; the number of those that worked.
static int take_pages(int fd, const char *what) {
    int worked = 0;
    struct stat status;
    CHECK(fstat(fd, &status) == 0);
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, status.st_size) == 0) { worked++; printf("punched a hole through %s\n", what); }
    if (ftruncate(fd, 0) == 0) { worked++; printf("truncated through %s\n", what); }
    if (ftruncate(fd, status.st_size * 2) == 0) { worked++; printf("extended through %s\n", what); }
    return worked;
}

static int reopen_and_take(const char *path) {
    int worked = 0, fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        worked = take_pages(fd, path);
        close(fd);
    }
    return worked;
}

static void holes(void) {
    int worked = 0, tried = 0;
    char path[128];
    find_regions();
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        if (!may_be_a_region(fd)) continue;
        tried++;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        worked += take_pages(fd, "a descriptor") + reopen_and_take(path);
    }
    for (int i = 0; i < area_count; i++) {
        tried++;
        snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", (unsigned long)areas[i].start, (unsigned long)areas[i].start + areas[i].length);
        worked += reopen_and_take(path);
        if (madvise(areas[i].start, areas[i].length, MADV_REMOVE) == 0) { worked++; printf("removed the pages of a mapping\n"); }
    }
    printf("holes: %d tried, %d worked\n", tried, worked);
    fflush(stdout);
}

int main(int argc, char **argv) {
    CHECK(argc == 5);
    host = argv[1];
    port = argv[2];
    if (strcmp(argv[3], "itself") == 0) {
        scribble_itself(strtoull(argv[4], NULL, 10));
        return 0;
    }
    char bytes[64] = {0};
    int fd = connect_to(host, port);
    for (int i = 0; i < 100; i++) {
        CHECK(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) == sizeof bytes);
        CHECK(recv(fd, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
    }
    if (strcmp(argv[3], "holes") == 0) {
        holes();
        CHECK(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) == sizeof bytes);
        CHECK(recv(fd, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
        return 0;
    }
    scribble(atof(argv[4]), strcmp(argv[3], "scribble") == 0);
}
