/* At the limit of descriptors: calls that need a number say EMFILE as long as the program has none, and what waits goes on waiting. */
#include "common.h"

#define LIMIT 40

/* Duplicates until there is no number left. */
static void fill(void) {
    while (dup(0) >= 0)
        ;
    CHECK(errno == EMFILE);
}

int main(void) {
    struct rlimit limit = {LIMIT, LIMIT};
    struct sockaddr_in at;
    char b[9];
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    int l = listener(&at), fd;
    nonblock(l);
    fill();
    close(LIMIT - 1);
    int one = socket(AF_INET, SOCK_STREAM, 0);
    printf("the last number: %d\n", one == LIMIT - 1);
    printf("connect %s\n", said(connect(one, (struct sockaddr *)&at, sizeof at)));
    CHECK(send(one, "waits", 5, 0) == 5);
    struct pollfd p = {l, POLLIN, 0};
    CHECK(poll(&p, 1, 5000) == 1);
    for (int i = 0; i < 3; i++) {
        printf("accept %s,", said(accept(l, NULL, NULL)));
        printf(" accept4 %s,", said(accept4(l, NULL, NULL, SOCK_NONBLOCK)));
        printf(" dup %s,", said(dup(0)));
        printf(" socket %s\n", said(socket(AF_INET, SOCK_STREAM, 0)));
    }
    CHECK(poll(&p, 1, 5000) == 1);
    int number = LIMIT - 2;
    CHECK(number != one && number != l);
    close(number);
    fd = accept(l, NULL, NULL);
    printf("with a number: %d, read %s\n", fd == number, said(recv(fd, b, 9, 0)));
    printf("then %s\n", said(accept(l, NULL, NULL)));
    return 0;
}
