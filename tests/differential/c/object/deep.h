/* What an object of its own calls; by functions, that each call goes by the object's own slots. */
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

struct deep {
    ssize_t (*send)(int, const void *, size_t, int);
    ssize_t (*read)(int, void *, size_t);
    int (*poll)(struct pollfd *, nfds_t, int);
    int (*setsockopt)(int, int, int, const void *, socklen_t);
    int (*close)(int);
};
