/* An ordinary client: sends its second argument, prints what comes until the end, and does not end its own stream before. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    char bytes[4096];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(argc > 2 ? atoi(argv[1]) : 0)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ssize_t n;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        return perror("connect"), 1;
    if (send(fd, argv[2], strlen(argv[2]), 0) < 0)
        return perror("send"), 1;
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
        fwrite(bytes, 1, n, stdout);
    return n < 0 ? perror("recv"), 1 : 0;
}
