/* fork, dup, dup2, close_range-like closing, threads on one socket, sendfile, vectors. */
#include "common.h"

static int echo_until_eof(int fd) {
    char b[4096];
    long n, total = 0;
    while ((n = read(fd, b, sizeof b)) > 0) {
        CHECK(write(fd, b, n) == n);
        total += n;
    }
    return total;
}

static void *half_writer(void *p) {
    int fd = *(int *)p;
    char b[1000];
    memset(b, 'x', sizeof b);
    for (int i = 0; i < 2000; i++)
        CHECK(send(fd, b, sizeof b, 0) == sizeof b);
    return NULL;
}

int main(void) {
    struct sockaddr_in at;
    int l = listener(&at), status;
    char b[70000], c2[70000];
    /* The child serves what the parent accepted. */
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 3; i++) {
            int s = accept(l, NULL, NULL);
            CHECK(s >= 0);
            pid_t grandchild = fork();
            if (grandchild == 0) {
                close(l);
                _exit(echo_until_eof(s) > 0 ? 7 : 8);
            }
            close(s);
            CHECK(waitpid(grandchild, &status, 0) == grandchild);
            if (WEXITSTATUS(status) != 7)
                _exit(9);
        }
        _exit(5);
    }
    for (int i = 0; i < 3; i++) {
        int c = connected(&at);
        CHECK(send(c, "forked", 6, 0) == 6);
        printf("echo %s", said(recv(c, b, 6, MSG_WAITALL)));
        printf(" %.6s\n", b);
        CHECK(shutdown(c, SHUT_WR) == 0);
        printf("eof %s\n", said(recv(c, b, 6, 0)));
        close(c);
    }
    CHECK(waitpid(child, &status, 0) == child);
    printf("child %d\n", WEXITSTATUS(status));

    /* A descriptor lives as long as one of its duplicates, also in another process. */
    int f[2];
    pair(f);
    int d = dup(f[1]), e = fcntl(f[1], F_DUPFD_CLOEXEC, 50);
    close(f[1]);
    CHECK(send(f[0], "dup", 3, 0) == 3);
    printf("dup %s %d\n", said(recv(d, b, 9, 0)), e >= 50);
    CHECK(dup2(f[0], 60) == 60);
    close(f[0]);
    CHECK(send(e, "two", 3, 0) == 3);
    printf("dup2 %s\n", said(recv(60, b, 9, 0)));
    close(d), close(e);
    printf("eof %s\n", said(recv(60, b, 9, 0)));
    int p[2];
    CHECK(pipe(p) == 0);
    CHECK(dup2(p[0], 60) == 60);
    CHECK(write(p[1], "pipe", 4) == 4);
    printf("replaced %s\n", said(read(60, b, 9)));
    close(60);

    pair(f);
    child = fork();
    if (child == 0) {
        close(f[0]);
        nap(50);
        CHECK(send(f[1], "from the child", 14, 0) == 14);
        _exit(0);
    }
    close(f[1]);
    printf("child sent %s", said(recv(f[0], b, sizeof b, 0)));
    printf(" %.14s\n", b);
    printf("child gone %s\n", said(recv(f[0], b, sizeof b, 0)));
    CHECK(waitpid(child, &status, 0) == child);
    close(f[0]);

    /* Two threads send on one socket; nothing is lost or cut. */
    pair(f);
    pthread_t t[2];
    pthread_create(&t[0], NULL, half_writer, &f[0]);
    pthread_create(&t[1], NULL, half_writer, &f[0]);
    long total = 0, n;
    while (total < 4000000 && (n = recv(f[1], b, sizeof b, 0)) > 0)
        total += n;
    printf("threads %ld\n", total);
    pthread_join(t[0], NULL), pthread_join(t[1], NULL);

    FILE *file = tmpfile();
    for (int i = 0; i < 50000; i++)
        fputc('a' + i % 26, file);
    fflush(file);
    off_t from = 100;
    printf("sendfile %s", said(sendfile(f[0], fileno(file), &from, 40000)));
    printf(" %ld\n", (long)from);
    printf("received %s", said(recv(f[1], b, 40000, MSG_WAITALL)));
    printf(" %c\n", b[0]);
    struct iovec v[20];
    for (int i = 0; i < 20; i++)
        v[i] = (struct iovec){b + i * 100, 100};
    printf("writev %s", said(writev(f[0], v, 20)));
    struct iovec w[3] = {{c2, 1}, {NULL, 0}, {c2 + 1, 1999}};
    struct msghdr m = {.msg_iov = w, .msg_iovlen = 3};
    printf(" recvmsg %s", said(recvmsg(f[1], &m, MSG_WAITALL)));
    printf(" same %d\n", !memcmp(b, c2, 2000));
    close(f[0]), close(f[1]);
    return 0;
}
