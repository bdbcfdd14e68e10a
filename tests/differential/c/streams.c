/* FILE streams over sockets, and what else the C library writes by itself. */
#include "differ.h"

static char b[256];

static void heard(int fd) {
    until(fd, POLLIN);
    ssize_t n = recv(fd, b, sizeof b, MSG_DONTWAIT);
    say("heard: %s %.*s", said(n), n > 0 ? (int)n : 0, b);
}

CASE(stream, both_ways, BIT(connected) | BIT(connected6) | BIT(accepted)) {
    nonblock(w->s, 0);
    FILE *f = fdopen(w->s, "r+");
    say("number %d", fileno(f) == w->s);
    T(fprintf(f, "%s %d %.2f\n", "words", 42, 2.5));
    say("held back: %s", polled(w->p));
    T(fflush(f));
    heard(w->p);
    MUST(send(w->p, "one\ntwo\nthr", 11, 0));
    say("%s", fgets(b, sizeof b, f));
    say("%s", fgets(b, sizeof b, f));
    T(fseek(f, 0, SEEK_CUR));
    T(fputs("answer\n", f));
    T(fflush(f));
    heard(w->p);
    MUST(send(w->p, "ee\n", 3, 0));
    MUST(shutdown(w->p, SHUT_WR));
    say("%s", fgets(b, sizeof b, f));
    say("end: %d", fgets(b, sizeof b, f) == NULL);
    T(feof(f));
    T(ferror(f));
    T(fclose(f));
    until(w->p, POLLIN);
    heard(w->p);
    T(fcntl(w->s, F_GETFD));
}

CASE(stream, opened_before, BIT(fresh)) {
    struct sockaddr_storage at;
    socklen_t len;
    int l = listener(AF_INET, 4, &at, &len);
    FILE *f = fdopen(w->s, "w");
    nonblock(w->s, 0);
    MUST(connect(w->s, (void *)&at, len));
    int s = MUST(accept(l, NULL, NULL));
    T(fputs("early\n", f));
    T(fclose(f));
    heard(s);
    heard(s);
}

CASE(stream, errors, BIT(connected) | BIT(peer_closed) | BIT(shut_wr)) {
    FILE *f = fdopen(w->s, "q");
    say("mode: %s", f ? "ok" : errno_name(errno));
    f = fdopen(w->s, "r+");
    setvbuf(f, NULL, _IONBF, 0);
    T(fgetc(f));
    T(ferror(f));
    clearerr(f);
    for (int i = 0; i < 3; i++)
        T(fputc('x', f));
    T(ferror(f));
    T(fclose(f));
    T(fclose(fdopen(MUST(dup(2)), "w")));
}

CASE(stream, of_a_dup, BIT(connected)) {
    FILE *in = fdopen(w->s, "r"), *to = fdopen(MUST(dup(w->s)), "w");
    T(fputs("to\n", to));
    T(fclose(to));
    heard(w->p);
    MUST(send(w->p, "in\n", 3, 0));
    until(w->s, POLLIN);
    say("%s", fgets(b, sizeof b, in));
    T(fclose(in));
    heard(w->p);
}

CASE(stream, dprintf, BIT(connected) | BIT(peer_closed) | BIT(shut_wr)) {
    T(dprintf(w->s, "%d %ld %s %c %d %d %d %d", 1, 2L, "three", '4', 5, 6, 7, 8));
    if (w->state == STATE_connected)
        heard(w->p);
    T(dprintf(w->s, "%.1f %.1f %.1f %.1f %.1f %.1f %.1f %.1f %.1f %d", 1., 2., 3., 4., 5., 6., 7., 8., 9., 10));
    if (w->state == STATE_connected)
        heard(w->p);
}

/* As inetd starts a program: the standard descriptors are the socket. */
static void be_standard(int fd) {
    MUST(dup2(fd, 0));
    MUST(dup2(fd, 1));
    close(fd);
}

static void converse(void) {
    printf("welcome %d\n", 1);
    fflush(stdout);
    if (fgets(b, sizeof b, stdin))
        printf("you said %s", b);
    // The rest goes out at the end.
    puts("good bye");
}

CASE(stream, standard_in_a_child, BIT(connected) | BIT(accepted)) {
    nonblock(w->s, 0);
    fflush(stdout);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        close(w->p);
        printf("before\n");
        be_standard(w->s);
        converse();
        exit(0);
    }
    close(w->s);
    until(w->p, POLLIN);
    nap(20);
    heard(w->p);
    MUST(send(w->p, "word\n", 5, 0));
    MUST(waitpid(child, NULL, 0));
    heard(w->p);
    heard(w->p);
}

CASE(stream, standard_of_a_program, BIT(connected) | BIT(accepted)) {
    // awk, whose streams are the C library's.
    nonblock(w->s, 0);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        close(w->p);
        be_standard(w->s);
        execlp("awk", "awk", "{ print \"got \" $1; exit }", NULL);
        _exit(9);
    }
    close(w->s);
    MUST(send(w->p, "word\n", 5, 0));
    int status = -1;
    MUST(waitpid(child, &status, 0));
    say("it ends with %d", status);
    heard(w->p);
    heard(w->p);
}

CASE(stream, standard_and_back, BIT(connected)) {
    fflush(stdout);
    int kept = MUST(dup(1)), null = MUST(open("/dev/null", O_WRONLY));
    MUST(dup2(w->s, 1));
    printf("to the socket\n");
    fflush(stdout);
    heard(w->p);
    MUST(dup2(null, 1));
    T(printf("nowhere\n"));
    T(fflush(stdout));
    MUST(dup2(kept, 1));
    say("nothing more: %s", polled(w->p));
}
