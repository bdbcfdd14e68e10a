/* Children that make no call on the sockets they inherit. */
#include "common.h"
#include <sys/syscall.h>

static void ends_at_once(const char *what, pid_t child) {
    int status;
    if (child == 0)
        _exit(0);
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    printf("%s %d\n", what, status);
}

int main(void) {
    int f[2];
    pair(f);
    /* Another program gets none of them. */
    CHECK(fcntl(f[0], F_SETFD, FD_CLOEXEC) == 0 && fcntl(f[1], F_SETFD, FD_CLOEXEC) == 0);
    ends_at_once("fork", fork());
    ends_at_once("_Fork", _Fork());
    ends_at_once("by its number", (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    ends_at_once("another program", child);
    return 0;
}
