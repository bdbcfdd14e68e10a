/* What the kernel has behind accepted connections: how many sockets of its own they are, which nobody asks a descriptor to learn. */
#include "common.h"
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define MANY 6

static int fds[MANY], peers[MANY];

static long file_number(int fd) {
    char path[40], name[40] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    CHECK(readlink(path, name, sizeof name - 1) > 0 && memcmp(name, "socket:[", 8) == 0);
    return atol(name + 8);
}

static int different(void) {
    int n = 0;
    for (int i = 0; i < MANY; i++) {
        int is_new = 1;
        for (int k = 0; k < i; k++)
            is_new &= file_number(fds[k]) != file_number(fds[i]);
        n += is_new;
    }
    return n;
}

static void accept_many(int l, const struct sockaddr_in *at) {
    for (int i = 0; i < MANY; i++) {
        peers[i] = connected(at);
        fds[i] = accept4(l, NULL, NULL, SOCK_CLOEXEC);
        CHECK(fds[i] >= 0);
    }
}

static void close_all(void) {
    for (int i = 0; i < MANY; i++)
        CHECK(close(fds[i]) == 0 && close(peers[i]) == 0);
}

static void bytes_pass(void) {
    char b[8];
    for (int i = 0; i < MANY; i++) {
        CHECK(send(peers[i], "there", 5, 0) == 5 && recv(fds[i], b, 5, MSG_WAITALL) == 5);
        CHECK(send(fds[i], "back", 4, 0) == 4 && recv(peers[i], b, 4, MSG_WAITALL) == 4);
    }
}

static void *change(void *at) {
    for (int i = 0; i < 200; i++) {
        int fd = fds[(long)at % MANY];
        (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
        (void)fcntl(fd, F_SETFL, i & 1 ? O_NONBLOCK : 0);
    }
    return NULL;
}

static void *look(void *none) {
    struct stat about;
    for (int i = 0; i < 20; i++)
        (void)fstat(fds[0], &about);
    return none;
}

__attribute__((noinline)) static pid_t vfork_and_end(void) {
    pid_t child = vfork();
    if (child == 0)
        _exit(0);
    return child;
}

int main(void) {
    struct sockaddr_in at;
    int l = listener(&at);
    struct stat about;
    accept_many(l, &at);
    printf("accepted: %d\n", different());
    bytes_pass();
    CHECK(fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0 && setsockopt(fds[0], IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0);
    CHECK((fcntl(fds[0], F_GETFL) & O_NONBLOCK) != 0 && (fcntl(fds[1], F_GETFL) & O_NONBLOCK) == 0);
    CHECK(fcntl(fds[0], F_SETFL, 0) == 0);
    printf("made non-blocking and back: %d\n", different());
    CHECK(setsockopt(fds[1], SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int)) == 0);
    printf("one has an option: %d\n", different());
    CHECK(syscall(SYS_fstat, fds[2], &about) == 0 && fchmod(fds[2], 0600) == 0 && fstat(fds[2], &about) == 0);
    CHECK((about.st_mode & 0777) == 0600);
    printf("one was looked at: %d\n", different());
    int twin = dup(fds[3]);
    CHECK(twin >= 0 && file_number(twin) == file_number(fds[3]) && close(twin) == 0);
    printf("one was duplicated: %d\n", different());
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(0);
    CHECK(waitpid(child, NULL, 0) == child);
    printf("there was a child: %d\n", different());
    bytes_pass();
    close_all();

    accept_many(l, &at);
    printf("accepted again: %d\n", different());
    child = vfork_and_end();
    CHECK(child > 0 && waitpid(child, NULL, 0) == child);
    printf("there was a child by vfork: %d\n", different());
    close_all();

    accept_many(l, &at);
    CHECK(fcntl(fds[0], F_SETFD, 0) == 0);
    char *arguments[] = {"true", NULL};
    extern char **environ;
    CHECK(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0 && waitpid(child, NULL, 0) == child);
    printf("one went to another program: %d\n", different());
    bytes_pass();
    close_all();

    // Threads that change the same ones, while they come and go.
    for (int round = 0; round < 50; round++) {
        pthread_t threads[2 * MANY];
        accept_many(l, &at);
        for (long i = 0; i < 2 * MANY; i++)
            CHECK(pthread_create(&threads[i], NULL, change, (void *)i) == 0);
        if (round & 1)
            close_all();
        for (int i = 0; i < 2 * MANY; i++)
            CHECK(pthread_join(threads[i], NULL) == 0);
        if (!(round & 1)) {
            int on = 0;
            socklen_t len = sizeof on;
            for (int i = 0; i < MANY; i++)
                CHECK(fcntl(fds[i], F_SETFL, 0) == 0 && getsockopt(fds[i], SOL_SOCKET, SO_KEEPALIVE, &on, &len) == 0 && on == 1);
            bytes_pass();
            close_all();
        }
    }
    // What one thread says of a descriptor holds, while another has it get a socket of its own.
    for (int round = 0; round < 300; round++) {
        pthread_t thread;
        accept_many(l, &at);
        CHECK(fcntl(fds[0], F_SETFD, 0) == 0);
        CHECK(pthread_create(&thread, NULL, look, NULL) == 0);
        for (int spin = 0; spin < round * 10; spin++)
            __asm__ volatile("" ::: "memory");
        CHECK(fcntl(fds[0], F_SETFD, FD_CLOEXEC) == 0 && fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0);
        CHECK(fcntl(fds[0], F_GETFL) & O_NONBLOCK);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(fcntl(fds[0], F_GETFL) & O_NONBLOCK && fcntl(fds[0], F_GETFD) == FD_CLOEXEC);
        CHECK(fcntl(fds[0], F_SETFL, 0) == 0);
        close_all();
    }
    // So few that what was kept for it lies beyond.
    CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){256, 256}) == 0);
    accept_many(l, &at);
    while (dup(0) >= 0)
        ;
    CHECK(errno == EMFILE);
    for (int i = 0; i < MANY; i++)
        CHECK(setsockopt(fds[i], SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int)) == 0);
    printf("options without a free number: %d\n", different());
    return 0;
}
