/* Says that it listens on the port it is given, answers one connection with what that sends, and ends when that ends. */
#include "check.h"
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **words) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    char bytes[4096];
    ssize_t n;
    CHECK(count == 2);
    at.sin_port = htons((unsigned short)atoi(words[1]));
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 8) == 0);
    puts("ready");
    fflush(stdout);
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
        CHECK(send(fd, bytes, n, 0) == n);
    close(fd);
    return 0;
}
