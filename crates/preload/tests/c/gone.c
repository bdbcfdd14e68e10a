/* A child of the listener's process answers and closes before the client has read. Then another client comes, the first one gone. */
#include "common.h"

#define CLIENTS 3
#define CONNECTIONS 100

static void serve(int l) {
    for (;;) {
        int s = accept(l, NULL, NULL);
        CHECK(s >= 0);
        CHECK(write(s, "x", 1) == 1);
        close(s);
    }
}

static void ask(const struct sockaddr_in *at) {
    char b;
    for (int i = 0; i < CONNECTIONS; i++) {
        int c = connected(at);
        struct pollfd one = {.fd = c, .events = POLLRDHUP};
        CHECK(poll(&one, 1, 10000) == 1);
        CHECK(read(c, &b, 1) == 1 && b == 'x');
        CHECK(read(c, &b, 1) == 0);
        close(c);
    }
}

int main(int argc, char **argv) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char port[8];
    int status;
    if (argc > 1) {
        at.sin_port = htons((uint16_t)atoi(argv[1]));
        ask(&at);
        return 0;
    }
    int l = listener(&at);
    snprintf(port, sizeof port, "%d", ntohs(at.sin_port));
    pid_t server = fork();
    CHECK(server >= 0);
    if (server == 0)
        serve(l);
    for (int i = 0; i < CLIENTS; i++) {
        pid_t client = fork();
        CHECK(client >= 0);
        if (client == 0) {
            execl("/proc/self/exe", argv[0], port, NULL);
            _exit(1);
        }
        CHECK(waitpid(client, &status, 0) == client && status == 0);
        /* The service takes a while to take a dead process's memory back. If it is not done by then, nothing is shown. */
        sleep(1);
    }
    kill(server, SIGKILL);
    CHECK(waitpid(server, &status, 0) == server);
    printf("%d answers\n", CLIENTS * CONNECTIONS);
    return 0;
}
