/* Connections that programs get from those that start them, or from other processes, in ways of their own. */
#include "common.h"

/* What was said at the other end of `fd` until now and its end. */
static void hear(const char *what, int fd) {
    char b[1000];
    ssize_t n = recv(fd, b, sizeof b, 0);
    printf("%s %s: %.*s", what, said(n), n > 0 ? (int)n : 0, b);
}

static void by_shell(void) {
    int f[2];
    char command[100], line[100];
    pair(f);
    snprintf(command, sizeof command, "echo from the shell >&%d", f[1]);
    printf("system %d\n", system(command));
    hear("heard", f[0]);
    close(f[1]);
    printf("end %s\n", said(recv(f[0], line, 9, 0)));
    close(f[0]);

    pair(f);
    CHECK(send(f[0], "to the shell\n", 13, 0) == 13);
    snprintf(command, sizeof command, "read line <&%d; echo $line; echo back >&%d", f[1], f[1]);
    FILE *shell = popen(command, "r");
    CHECK(shell && fgets(line, sizeof line, shell));
    printf("popen %s", line);
    printf("pclose %d\n", pclose(shell));
    hear("heard", f[0]);
    close(f[0]), close(f[1]);
}

/* Messages with `each` descriptors, of which `fds` has two for each message. */
struct batch {
    struct mmsghdr messages[2];
    struct iovec parts[2];
    char words[2][8];
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } control[2];
};

static void fill(struct batch *b) {
    memset(b, 0, sizeof *b);
    for (int i = 0; i < 2; i++) {
        b->parts[i] = (struct iovec){b->words[i], sizeof b->words[i]};
        struct msghdr *m = &b->messages[i].msg_hdr;
        m->msg_iov = &b->parts[i];
        m->msg_iovlen = 1;
        m->msg_control = b->control[i].bytes;
        m->msg_controllen = sizeof b->control[i].bytes;
    }
}

static void in_batches(void) {
    int line[2], status;
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, line) == 0);
    /* Before there is any connection: the child has them by message only. */
    pid_t child = fork();
    if (child == 0) {
        struct batch b;
        char word[10];
        fill(&b);
        close(line[0]);
        for (int done = 0; done < 2;) {
            int n = recvmmsg(line[1], b.messages + done, 2 - done, MSG_WAITFORONE, NULL);
            CHECK(n > 0);
            done += n;
        }
        for (int i = 0; i < 2; i++) {
            int *fds = (int *)CMSG_DATA(CMSG_FIRSTHDR(&b.messages[i].msg_hdr));
            for (int k = 0; k < 2; k++) {
                CHECK(recv(fds[k], word, 4, MSG_WAITALL) == 4);
                CHECK(send(fds[k], word, 4, 0) == 4);
                CHECK(send(fds[k], "!\n", 2, 0) == 2);
                close(fds[k]);
            }
        }
        _exit(7);
    }
    close(line[1]);
    struct batch b;
    int ends[4];
    fill(&b);
    for (int i = 0; i < 2; i++) {
        struct cmsghdr *c = CMSG_FIRSTHDR(&b.messages[i].msg_hdr);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(2 * sizeof(int));
        for (int k = 0; k < 2; k++) {
            int f[2];
            pair(f);
            ends[2 * i + k] = f[0];
            CHECK(send(f[0], "ping", 4, 0) == 4);
            memcpy(CMSG_DATA(c) + k * sizeof(int), &f[1], sizeof(int));
        }
    }
    printf("sendmmsg %s\n", said(sendmmsg(line[0], b.messages, 2, 0)));
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) {
            int fd;
            memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&b.messages[i].msg_hdr)) + k * sizeof(int), sizeof fd);
            close(fd);
        }
    for (int i = 0; i < 4; i++) {
        char word[10];
        CHECK(recv(ends[i], word, 6, MSG_WAITALL) == 6);
        printf("heard %.6s", word);
        printf("end %s\n", said(recv(ends[i], word, 9, 0)));
        close(ends[i]);
    }
    CHECK(waitpid(child, &status, 0) == child);
    printf("child %d\n", WEXITSTATUS(status));
    printf("nothing %s\n", said(sendmmsg(line[0], NULL, 0, 0)));
    close(line[0]);
}

int main(void) {
    by_shell();
    in_batches();
    return 0;
}
