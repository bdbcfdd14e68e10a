/* What the test programs share. */
#include <stdio.h>
#include <stdlib.h>

/* Ends the program with the reason of the last call unless `what` is true. */
#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            perror(#what);                                                                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
