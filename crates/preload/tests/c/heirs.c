/* A child for each connection, many times as many as would fit into the memory of their parent's if each took a part of it along. */
#include "common.h"

#define CHILDREN 250
#define ANSWER (32 << 10)

/* How a child ends, and who accepts. */
enum end { CLOSES, EXITS, IS_KILLED, ACCEPTS, ENDS };
static const char *const NAMES[] = {"closes", "exits", "is killed", "accepts for itself"};

static char answer[ANSWER];

static void serve(enum end end, int s) {
    char b[4];
    CHECK(recv(s, b, 4, MSG_WAITALL) == 4);
    CHECK(write(s, answer, ANSWER) == ANSWER);
    if (end == CLOSES)
        close(s);
    if (end == IS_KILLED)
        raise(SIGKILL);
    _exit(0);
}

static void server(enum end end, int l) {
    for (int i = 0; i < CHILDREN; i++) {
        int s = end == ACCEPTS ? -1 : accept(l, NULL, NULL);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            serve(end, end == ACCEPTS ? accept(l, NULL, NULL) : s);
        if (s >= 0)
            close(s);
        if (end == ACCEPTS || i % 8 == 7)
            CHECK(waitpid(end == ACCEPTS ? child : -1, NULL, 0) > 0);
    }
    while (wait(NULL) > 0) {
    }
    _exit(0);
}

int main(void) {
    static char got[ANSWER];
    memset(answer, 'a', ANSWER);
    for (enum end end = CLOSES; end < ENDS; end++) {
        struct sockaddr_in at;
        int l = listener(&at), whole = 0, status;
        struct timeval patience = {.tv_sec = 20};
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            server(end, l);
        close(l);
        for (int i = 0; i < CHILDREN; i++) {
            int c = connected(&at);
            CHECK(setsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
            CHECK(write(c, "well", 4) == 4);
            whole += recv(c, got, ANSWER, MSG_WAITALL) == ANSWER && memcmp(got, answer, ANSWER) == 0 &&
                     read(c, got, 1) == 0;
            close(c);
            if (whole <= i)
                break;
        }
        if (whole < CHILDREN)
            kill(child, SIGKILL);
        CHECK(waitpid(child, &status, 0) == child);
        printf("a child %s: %d answers are whole, the server ends with %d\n", NAMES[end], whole, status);
    }
    return 0;
}
