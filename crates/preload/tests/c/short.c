// Many short connections, one after another and at once: accepted in order, with the right names, reset when nobody accepts them.
#include "common.h"
#include <errno.h>
#include <sys/wait.h>

static struct sockaddr_in name_of(int fd, int peer) {
    struct sockaddr_in name = {0};
    socklen_t len = sizeof name;
    CHECK((peer ? getpeername : getsockname)(fd, (struct sockaddr *)&name, &len) == 0);
    return name;
}

static int place(int reuse, int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(!reuse || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 64) == 0);
    return fd;
}

static int port_of(int fd) { return ntohs(name_of(fd, 0).sin_port); }

static int reach(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

static void talk(int client, int server) {
    char byte = 0;
    CHECK(name_of(client, 0).sin_port == name_of(server, 1).sin_port);
    CHECK(name_of(client, 1).sin_port == name_of(server, 0).sin_port);
    CHECK(send(client, "a", 1, 0) == 1 && recv(server, &byte, 1, 0) == 1 && byte == 'a');
    CHECK(send(server, "b", 1, 0) == 1 && recv(client, &byte, 1, 0) == 1 && byte == 'b');
}

static void one_by_one(int listener, int n) {
    for (int i = 0; i < n; i++) {
        int client = reach(port_of(listener)), server = accept(listener, 0, 0);
        CHECK(server >= 0);
        talk(client, server);
        char byte;
        close(i % 2 ? client : server);
        CHECK(recv(i % 2 ? server : client, &byte, 1, 0) == 0);
        close(i % 2 ? server : client);
    }
}

static void in_order(int listener, int n) {
    int clients[64];
    for (int i = 0; i < n; i++) {
        clients[i] = reach(port_of(listener));
        CHECK(send(clients[i], &i, sizeof i, 0) == sizeof i);
    }
    for (int i = 0; i < n; i++) {
        int server = accept(listener, 0, 0), said = -1;
        CHECK(server >= 0 && recv(server, &said, sizeof said, 0) == sizeof said && said == i);
        talk(clients[i], server);
        close(server);
        close(clients[i]);
    }
}

static int resets(const int *clients, int n) {
    int found = 0;
    for (int i = 0; i < n; i++) {
        char byte;
        found += recv(clients[i], &byte, 1, 0) < 0 && errno == ECONNRESET;
        close(clients[i]);
    }
    return found;
}

static void unaccepted(int listener, int how) {
    int clients[10];
    for (int i = 0; i < 10; i++) clients[i] = reach(port_of(listener));
    if (how) shutdown(listener, SHUT_RDWR);
    else close(listener);
    printf("%d of 10 are reset\n", resets(clients, 10));
}

static void apart(int n, int port) {
    for (int i = 0; i < n; i++) {
        int fd = reach(port);
        char byte;
        CHECK(send(fd, "x", 1, 0) == 1 && recv(fd, &byte, 1, 0) == 1);
        close(fd);
    }
    // Left behind.
    for (int i = 0; i < 5; i++) CHECK(send(reach(port), "y", 1, 0) == 1);
}

static int serve(int listener, int n) {
    int left = 0;
    for (int i = 0; i < n; i++) {
        int fd = accept(listener, 0, 0);
        char byte;
        CHECK(fd >= 0 && recv(fd, &byte, 1, 0) == 1);
        if (byte == 'x') CHECK(send(fd, "z", 1, 0) == 1);
        left += byte == 'y' && recv(fd, &byte, 1, 0) == 0;
        close(fd);
    }
    return left;
}

int main(int argc, char **argv) {
    if (argc > 1) {
        apart(100, atoi(argv[1]));
        return 0;
    }
    int listener = place(0, 0), port = port_of(listener);
    one_by_one(listener, 200);
    in_order(listener, 20);
    in_order(listener, 60);
    printf("in order\n");
    unaccepted(listener, 0);

    listener = place(0, port);
    one_by_one(listener, 20);
    unaccepted(listener, 1);
    CHECK(listen(listener, 64) == 0);
    one_by_one(listener, 20);
    printf("and again\n");

    char text[16];
    snprintf(text, sizeof text, "%d", port);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", argv[0], text, (char *)0);
        _exit(1);
    }
    printf("%d of the other program's are left behind\n", serve(listener, 105));
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    // Some wait while it forks; both processes accept what comes.
    int clients[10];
    for (int i = 0; i < 10; i++) {
        clients[i] = reach(port);
        CHECK(send(clients[i], "x", 1, 0) == 1);
    }
    child = fork();
    if (child == 0) {
        serve(listener, 10);
        _exit(0);
    }
    char byte;
    for (int i = 0; i < 10; i++) {
        CHECK(recv(clients[i], &byte, 1, 0) == 1 && byte == 'z');
        close(clients[i]);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    one_by_one(listener, 20);
    printf("after a fork\n");
    close(listener);

    int two[2] = {place(1, 0), 0};
    port = port_of(two[0]);
    one_by_one(two[0], 20);
    two[1] = place(1, port);
    int taken = 0;
    for (int i = 0; i < 2; i++) CHECK(fcntl(two[i], F_SETFL, O_NONBLOCK) == 0);
    for (int i = 0; i < 40; i++) {
        int client = reach(port), server = accept(two[0], 0, 0);
        if (server < 0) server = accept(two[1], 0, 0);
        taken += server >= 0;
        talk(client, server);
        close(client);
        close(server);
    }
    printf("%d taken by either\n", taken);
    return 0;
}
