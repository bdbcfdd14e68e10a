/* A child by `vfork` gets a descriptor of its parent's by a message. It has descriptors of its own, and its parent's memory: the number that it
   gets means nothing to its parent. */
#include "common.h"

static int line[2];
static const char *const paths[] = {"/nowhere/echo", "/bin/echo/echo", NULL, "", "/bin/echo"};

static void pass(int fd) {
    char byte = 'p', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    CHECK(sendmsg(line[0], &m, 0) == 1);
}

static int received(void) {
    int fd = -1;
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(line[1], &m, 0) == 1 && CMSG_FIRSTHDR(&m))
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

/* In a function of its own: what a vfork child changes its parent sees. The child ends with the number that it got, or says so by another
   program. */
__attribute__((noinline)) static int child_gets(int says) {
    int status;
    pid_t child = vfork();
    if (child == 0) {
        int fd = received();
        /* As a search through PATH does. */
        if (says && dup2(fd, 1) == 1)
            for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++)
                execve(paths[i], (char *[]){"echo", "said", NULL}, environ);
        _exit(says || fd < 0 ? 255 : fd);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* What the parent makes at the number that the child got is what the parent made. */
static void use_number(const char *what, int number) {
    int ends[2];
    char b[4] = "";
    CHECK(number > 2 && number < 255);
    printf("%s: at the child's number %s", what, said(fcntl(number, F_GETFD)));
    CHECK(pipe(ends) == 0);
    printf(", then a pipe %d", ends[0] == number);
    CHECK(write(ends[1], "pip", 3) == 3);
    printf(": read %s", said(read(number, b, 3)));
    printf(" %s\n", b);
    close(ends[0]), close(ends[1]);
}

/* What there is to read at `fd` within ten seconds, or its end. */
static void hear(const char *what, int fd) {
    char b[10];
    struct pollfd one = {.fd = fd, .events = POLLIN};
    int is_ready = poll(&one, 1, 10000);
    ssize_t n = is_ready == 1 ? recv(fd, b, sizeof b, 0) : -1;
    printf("%s: ready %d, %s %.*s\n", what, is_ready, said(n), n > 0 ? (int)n : 0, b);
}

static void connection(void) {
    int f[2];
    pair(f);
    pass(f[1]);
    use_number("connection", child_gets(0));
    CHECK(send(f[1], "still", 5, 0) == 5);
    hear("parent's own", f[0]);
    pass(f[1]);
    printf("program %d\n", child_gets(1));
    hear("child's program", f[0]);
    close(f[1]);
    hear("after the parent's close", f[0]);
    close(f[0]);
}

static void listening(void) {
    struct sockaddr_in at;
    int l = listener(&at);
    pass(l);
    use_number("listener", child_gets(0));
    int c = connected(&at), s = accept(l, NULL, NULL);
    CHECK(s >= 0 && send(s, "hello", 5, 0) == 5);
    hear("accepted", c);
    close(c), close(s), close(l);
    c = socket(AF_INET, SOCK_STREAM, 0);
    printf("connect after the parent's close: %s\n", said(connect(c, (struct sockaddr *)&at, sizeof at)));
    close(c);
}

int main(void) {
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, line) == 0);
    connection();
    listening();
    return 0;
}
