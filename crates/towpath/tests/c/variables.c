/* Says whether it has more rights than its caller, and which variables of the library it has; then what a program finds that it starts. */
#include "check.h"
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

extern char **environ;

int main(int count, char **words) {
    printf("%s secure %ld:", words[0], getauxval(AT_SECURE));
    for (char **each = environ; *each; each++)
        if (!strncmp(*each, "TOWPATH_", 8))
            printf(" %s", *each);
    puts("");
    fflush(stdout);
    if (count == 1)
        return 0;
    /* With the rights of the file's owner for good, the kernel sees no difference any more. */
    CHECK(setreuid(geteuid(), geteuid()) == 0);
    execl(words[1], "helper", (char *)NULL);
    return 1;
}
