/* An ordinary server: tells its port, echoes one connection until its end. */
#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

int main(void)
{
    static char bytes[65536];
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 5) != 0)
        return perror("listen"), 1;
    getsockname(listener, (struct sockaddr *)&at, &len);
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    int fd = accept(listener, NULL, NULL);
    for (;;) {
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n <= 0)
            return n != 0;
        if (send(fd, bytes, n, 0) != n)
            return 1;
    }
}
