/* Bytes in and out: read, write and their relatives with vectors, offsets and bad arguments. */
#include "differ.h"

static char b[64];

CASE(read, each, EVERY) {
    T(read(w->s, b, 0));
    T(read(w->s, b, 4));
    T(read(w->s, b, 64));
    T(read(w->s, b, 64));
}

CASE(write, each, EVERY) {
    T(write(w->s, b, 0));
    T(write(w->s, b, 4));
    T(write(w->s, b, 4));
}

CASE(write, to_the_dead, BIT(peer_closed) | BIT(last_words) | BIT(reset) | BIT(reset_told)) {
    // The first may pass, what comes back ends it.
    T(write(w->s, b, 4));
    nap(2);
    say("poll %s", polled(w->s));
    T(write(w->s, b, 4));
    T(write(w->s, b, 4));
    T(read(w->s, b, 64));
    T(read(w->s, b, 64));
    say("poll %s", polled(w->s));
}

CASE(read, waits, OPEN | BIT(connecting) | OVER) {
    nonblock(w->s, 0);
    B(read(w->s, b, 64));
}

CASE(write, waits, OPEN | BIT(connecting) | OVER) {
    nonblock(w->s, 0);
    B(write(w->s, b, 64));
}

CASE(read, in_time, BIT(connected) | BIT(accepted)) {
    struct timeval t = {0, 20000};
    nonblock(w->s, 0);
    MUST(setsockopt(w->s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    T(read(w->s, b, 64));
    T(recv(w->s, b, 64, MSG_PEEK));
    MUST(send(w->p, "part", 4, 0));
    T(recv(w->s, b, 64, MSG_WAITALL));
}

CASE(write, in_time, BIT(full)) {
    struct timeval t = {0, 20000};
    nonblock(w->s, 0);
    MUST(setsockopt(w->s, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    T(write(w->s, b, 64));
}

CASE(read, nowhere, EVERY) {
    T(read(w->s, NULL, 0));
    T(read(w->s, NULL, 4));
    T(recv(w->s, NULL, 4, MSG_PEEK | MSG_DONTWAIT));
    T(recv(w->s, NULL, 4, MSG_TRUNC | MSG_DONTWAIT));
    T(read(w->s, b, 64));
}

CASE(write, nothing, EVERY) {
    T(write(w->s, NULL, 0));
    T(write(w->s, NULL, 4));
    T(send(w->s, NULL, 4, MSG_DONTWAIT));
}

CASE(read, bad_pointer, BIT(data) | BIT(connected) | BIT(fresh) | BIT(closed)) {
    T(read(w->s, nowhere, 4));
    T(read(w->s, b, 64));
}

CASE(write, bad_pointer, BIT(connected) | BIT(shut_wr) | BIT(fresh) | BIT(closed)) { T(write(w->s, nowhere, 4)); }

CASE(read, half_bad_pointer, BIT(data)) {
    // What fits before the page that is not there.
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(munmap(page + 4096, 4096));
    T(read(w->s, page + 4090, 10));
    T(read(w->s, b, 64));
}

CASE(write, half_bad_pointer, BIT(connected)) {
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(munmap(page + 4096, 4096));
    T(write(w->s, page + 4090, 10));
    T(recv(w->p, b, 64, MSG_DONTWAIT));
}

CASE(read, absurd_length, BIT(data) | BIT(connected) | BIT(peer_shut) | BIT(fresh) | BIT(closed)) {
    T(read(w->s, b, huge));
    T(read(w->s, b, huge / 2 + 1));
}

CASE(recv, absurd_length, BIT(data) | BIT(connected) | BIT(peer_shut) | BIT(fresh) | BIT(closed)) {
    T(recv(w->s, b, huge, 0));
    T(recv(w->s, b, huge / 2 + 1, 0));
}

CASE(readv, counts, EVERY) {
    struct iovec v[1025];
    for (int i = 0; i < 1025; i++)
        v[i] = (struct iovec){b, 0};
    v[0].iov_len = 3, v[1].iov_len = 2;
    T(readv(w->s, v, 0));
    T(readv(w->s, v, -1));
    T(readv(w->s, v, 1025));
    T(readv(w->s, v, 2));
    T(readv(w->s, v, 1024));
    T(readv(w->s, NULL, 0));
    T(readv(w->s, NULL, 1));
}

CASE(writev, counts, EVERY) {
    struct iovec v[1025];
    for (int i = 0; i < 1025; i++)
        v[i] = (struct iovec){b, 0};
    v[0].iov_len = 3, v[1].iov_len = 2;
    T(writev(w->s, v, 0));
    T(writev(w->s, v, -1));
    T(writev(w->s, v, 1025));
    T(writev(w->s, v, 2));
    T(writev(w->s, v, 1024));
    T(writev(w->s, NULL, 0));
    T(writev(w->s, NULL, 1));
}

CASE(readv, lengths, BIT(data) | BIT(connected)) {
    struct iovec v[2] = {{b, SSIZE_MAX}, {b, SSIZE_MAX}};
    T(readv(w->s, v, 2));
    v[1].iov_len = SIZE_MAX;
    T(readv(w->s, v, 2));
    v[0].iov_len = 4, v[1] = (struct iovec){NULL, 4};
    T(readv(w->s, v, 2));
    T(read(w->s, b, 64));
}

CASE(writev, lengths, BIT(connected)) {
    struct iovec v[2] = {{b, SIZE_MAX}, {b, 4}};
    T(writev(w->s, v, 2));
    v[0] = (struct iovec){b, 4}, v[1] = (struct iovec){NULL, 4};
    T(writev(w->s, v, 2));
    T(recv(w->p, b, 64, MSG_DONTWAIT));
    v[0] = (struct iovec){NULL, 0}, v[1] = (struct iovec){b, 4};
    T(writev(w->s, v, 2));
    T(recv(w->p, b, 64, MSG_DONTWAIT));
}

CASE(pread, each, EVERY) {
    struct iovec v = {b, 4};
    T(pread(w->s, b, 4, 0));
    T(pread(w->s, b, 4, -1));
    T(preadv(w->s, &v, 1, 0));
    T(preadv2(w->s, &v, 1, 0, 0));
    T(preadv2(w->s, &v, 1, -1, 0));
    T(preadv2(w->s, &v, 1, -1, RWF_NOWAIT));
    T(preadv2(w->s, &v, 1, -1, 1 << 20));
}

CASE(pwrite, each, EVERY) {
    struct iovec v = {b, 4};
    T(pwrite(w->s, b, 4, 0));
    T(pwrite(w->s, b, 4, -1));
    T(pwritev(w->s, &v, 1, 0));
    T(pwritev2(w->s, &v, 1, 0, 0));
    T(pwritev2(w->s, &v, 1, -1, 0));
    T(pwritev2(w->s, &v, 1, -1, RWF_NOWAIT));
    T(pwritev2(w->s, &v, 1, -1, 1 << 20));
}

CASE(lseek, each, EVERY) {
    T(lseek(w->s, 0, SEEK_CUR));
    T(lseek(w->s, 0, SEEK_SET));
    T(lseek(w->s, 0, 99));
}

CASE(read, pieces, BIT(data)) {
    T(read(w->s, b, 4));
    say("%.4s", b);
    T(read(w->s, b, 4));
    say("%.4s", b);
    T(read(w->s, b, 4));
    say("%.2s", b);
    T(read(w->s, b, 4));
}

CASE(readv, pieces, BIT(data)) {
    char x[4] = "....", y[4] = "....";
    struct iovec v[2] = {{x, 3}, {y, 4}};
    T(readv(w->s, v, 2));
    say("%.4s %.4s", x, y);
    T(readv(w->s, v, 2));
    say("%.4s %.4s", x, y);
}

CASE(write, much, BIT(connected) | BIT(accepted)) {
    // More than any buffer holds: what is taken is taken in order.
    static unsigned char out[1 << 20], in[1 << 20];
    size_t sent = 0, got = 0;
    int wrong = 0;
    for (size_t i = 0; i < sizeof out; i++)
        out[i] = (unsigned char)(i * 7 + i / 251);
    while (got < sizeof out) {
        size_t left = sizeof out - sent;
        ssize_t n = left ? write(w->s, out + sent, left < 70000 ? left : 70000) : 0;
        sent += n > 0 ? (size_t)n : 0;
        n = read(w->p, in, sizeof in);
        for (ssize_t i = 0; i < n; i++)
            wrong += in[i] != out[got + (size_t)i];
        got += n > 0 ? (size_t)n : 0;
    }
    say("%zu bytes, %d wrong", got, wrong);
}

CASE(sendfile, each, EVERY) {
    char path[] = "/tmp/differ-XXXXXX";
    int file = (int)MUST(mkostemp(path, O_CLOEXEC));
    off_t at = 2, negative = -1, far = 100;
    unlink(path);
    MUST(write(file, "abcdefghij", 10));
    T(sendfile(w->s, file, NULL, 4));
    T(sendfile(w->s, file, &at, 4));
    say("at %ld, file at %ld", (long)at, (long)lseek(file, 0, SEEK_CUR));
    MUST(lseek(file, 0, SEEK_SET));
    T(sendfile(w->s, file, NULL, 100));
    say("file at %ld", (long)lseek(file, 0, SEEK_CUR));
    T(sendfile(w->s, file, &at, 0));
    T(sendfile(w->s, file, &negative, 4));
    T(sendfile(w->s, file, &far, 4));
    T(sendfile(w->s, -1, NULL, 4));
    T(sendfile(w->s, file, (off_t *)8, 4));
    T(sendfile(file, w->s, NULL, 4));
    T(sendfile(w->s, w->s, NULL, 4));
    if (w->state == STATE_connected)
        T(recv(w->p, b, 64, MSG_DONTWAIT)), say("%.16s", b);
}

CASE(sendfile, from_others, BIT(connected)) {
    int ends[2];
    MUST(pipe(ends));
    MUST(write(ends[1], "pipe", 4));
    T(sendfile(w->s, ends[0], NULL, 4));
    T(sendfile(w->s, ends[1], NULL, 4));
    int zero = open("/dev/zero", O_RDONLY), dir = open("/tmp", O_RDONLY), out = open("/dev/null", O_WRONLY);
    T(sendfile(w->s, zero, NULL, 4));
    T(sendfile(w->s, dir, NULL, 4));
    T(sendfile(w->s, out, NULL, 4));
    T(recv(w->p, b, 64, MSG_DONTWAIT));
}

CASE(splice, into, EVERY) {
    int ends[2];
    loff_t at = 0;
    MUST(pipe(ends));
    MUST(write(ends[1], "abcdefghij", 10));
    T(splice(ends[0], NULL, w->s, NULL, 0, 0));
    T(splice(ends[0], NULL, w->s, NULL, 4, 1 << 20));
    T(splice(ends[0], &at, w->s, NULL, 4, 0));
    T(splice(ends[0], NULL, w->s, &at, 4, 0));
    T(splice(ends[0], NULL, w->s, NULL, 4, SPLICE_F_NONBLOCK));
    T(splice(ends[0], NULL, w->s, NULL, 100, SPLICE_F_MORE | SPLICE_F_NONBLOCK));
    T(splice(ends[0], NULL, w->s, NULL, 100, SPLICE_F_NONBLOCK));
    int left = -1;
    ioctl(ends[0], FIONREAD, &left);
    say("left %d", left);
}

CASE(splice, out_of, EVERY) {
    int ends[2];
    loff_t at = 0;
    MUST(pipe(ends));
    T(splice(w->s, NULL, ends[1], NULL, 0, 0));
    T(splice(w->s, NULL, ends[1], NULL, 4, 1 << 20));
    T(splice(w->s, &at, ends[1], NULL, 4, 0));
    T(splice(w->s, NULL, ends[1], &at, 4, 0));
    T(splice(w->s, NULL, ends[1], NULL, 4, SPLICE_F_NONBLOCK));
    T(splice(w->s, NULL, ends[1], NULL, 100, SPLICE_F_NONBLOCK));
    T(splice(w->s, NULL, ends[1], NULL, 100, SPLICE_F_NONBLOCK));
    T(splice(w->s, NULL, ends[0], NULL, 4, SPLICE_F_NONBLOCK));
    T(splice(w->s, NULL, w->s, NULL, 4, SPLICE_F_NONBLOCK));
    T(splice(w->s, NULL, -1, NULL, 4, 0));
    T(splice(-1, NULL, w->s, NULL, 4, 0));
    int left = -1;
    ioctl(ends[0], FIONREAD, &left);
    say("left %d", left);
}

CASE(splice, full_pipe, BIT(data)) {
    int ends[2];
    MUST(pipe2(ends, O_NONBLOCK));
    MUST(fcntl(ends[1], F_SETPIPE_SZ, 4096));
    while (write(ends[1], b, sizeof b) > 0)
        ;
    T(splice(w->s, NULL, ends[1], NULL, 4, SPLICE_F_NONBLOCK));
    T(read(w->s, b, 64));
}

CASE(splice, relatives, BIT(connected) | BIT(data) | BIT(fresh)) {
    int ends[2];
    struct iovec v = {b, 4};
    MUST(pipe(ends));
    T(tee(w->s, ends[1], 4, 0));
    T(vmsplice(w->s, &v, 1, 0));
    T(copy_file_range(w->s, NULL, ends[1], NULL, 4, 0));
    T(copy_file_range(ends[0], NULL, w->s, NULL, 4, 0));
}

CASE(read, out_of_time, BIT(connected) | BIT(accepted) | BIT(data)) {
    struct timeval t = {-1, 0};
    nonblock(w->s, 0);
    MUST(setsockopt(w->s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    T(read(w->s, b, 64));
    T(recv(w->s, b, 64, MSG_WAITALL));
    MUST(send(w->p, "part", 4, 0));
    until(w->s, POLLIN);
    T(recv(w->s, b, 64, MSG_WAITALL));
}

CASE(write, out_of_time, BIT(full)) {
    struct timeval t = {-1, 0};
    nonblock(w->s, 0);
    MUST(setsockopt(w->s, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    T(write(w->s, b, 64));
}

CASE(accept, out_of_time, BIT(listening)) {
    struct timeval t = {-1, 0};
    nonblock(w->s, 0);
    MUST(setsockopt(w->s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    T(accept(w->s, NULL, NULL));
}

static void *sends_one(void *s) {
    T(send(*(int *)s, "x", 1, 0));
    return NULL;
}

CASE(send, into_a_larger_buffer, BIT(connected) | BIT(accepted)) {
    static char many[1 << 16];
    int bytes = 8192;
    pthread_t sender;
    MUST(setsockopt(w->s, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes));
    do {
        while (send(w->s, many, sizeof many, MSG_DONTWAIT) > 0)
            ;
        nap(10);
    } while (send(w->s, many, sizeof many, MSG_DONTWAIT) > 0);
    nonblock(w->s, 0);
    MUST(pthread_create(&sender, NULL, sends_one, &w->s));
    nap(30);
    bytes = 200000;
    MUST(setsockopt(w->s, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes));
    MUST(pthread_join(sender, NULL));
}
