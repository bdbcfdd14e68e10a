// hostile HOST PORT private|scribble SECONDS | hostile HOST PORT holes 0: an application that talks to an echo server and then
// breaks the rules. `scribble` writes at random over every shared region it has mapped while a second thread goes on
// using its sockets; `private` does the same work on memory of its own, so that its load can be subtracted. `holes` tries
// to take pages away from under the others. Its own death by a signal is its own affair.
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { AREAS = 64, DESCRIPTORS = 1024 };

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
