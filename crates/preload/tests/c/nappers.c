/* A thread for each connection, many more than a process has contexts: each waits without a turn of its own of the processor, is woken by
 * its own news and by no other, and by all that ends a call on Linux. With an argument: that limit of descriptors. */
#include "common.h"
#include <dirent.h>
#define CROWD 600
#define ROUNDS 2000

static int at_server[CROWD], at_client[CROWD];
static pthread_t threads[CROWD];
static pid_t tids[CROWD];
static long result[CROWD];
static int error[CROWD];
static int crowd = CROWD;

/* Echoes until the end of the stream or an error. */
static void *serve(void *p) {
    long i = (long)p;
    char b[64];
    long r;
    __atomic_store_n(&tids[i], gettid(), __ATOMIC_SEQ_CST);
    while ((r = recv(at_server[i], b, sizeof b, 0)) > 0)
        if (send(at_server[i], b, r, MSG_NOSIGNAL) != r)
            break;
    error[i] = r < 0 ? errno : 0;
    result[i] = r;
    return NULL;
}

/* The field of a thread's status, a number or the first letter. */
static long status(pid_t tid, const char *name) {
    char path[64], line[256];
    long value = -1;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name))) {
            const char *v = line + strlen(name) + strspn(line + strlen(name), ": \t");
            value = *v >= '0' && *v <= '9' ? atol(v) : *v;
        }
    if (f)
        fclose(f);
    return value;
}

static void until_asleep(int i) {
    while (!__atomic_load_n(&tids[i], __ATOMIC_SEQ_CST) || status(tids[i], "State") != 'S')
        sched_yield();
}

/* How often the threads from `first` on have left the processor. */
static long turns(int first) {
    long all = 0;
    for (int i = first; i < crowd; i++)
        all += status(tids[i], "voluntary_ctxt_switches");
    return all;
}

static void round_trip(int i, char what) {
    char b = 0;
    CHECK(send(at_client[i], &what, 1, 0) == 1);
    CHECK(recv(at_client[i], &b, 1, 0) == 1 && b == what);
}

static void ends(int i, const char *how) {
    pthread_join(threads[i], NULL);
    printf("%s %ld %d\n", how, result[i], error[i]);
}

static void *twice(void *p) {
    char b;
    long r = recv(at_server[(long)p], &b, 1, 0);
    return (void *)(r == 1 ? (long)b : -1);
}

static void ignore(int s) { (void)s; }

int main(int argc, char **argv) {
    struct rlimit most;
    getrlimit(RLIMIT_NOFILE, &most);
    most.rlim_cur = argc > 1 ? (rlim_t)atoi(argv[1]) : most.rlim_max < 4096 ? most.rlim_max : 4096;
    CHECK(setrlimit(RLIMIT_NOFILE, &most) == 0);
    if (argc > 1)
        crowd = (most.rlim_cur - 100) / 2;
    struct sockaddr_in at;
    int l = listener(&at);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 << 10);
    for (long i = 0; i < crowd; i++) {
        at_client[i] = connected(&at);
        CHECK((at_server[i] = accept(l, NULL, NULL)) >= 0);
        CHECK(pthread_create(&threads[i], &small, serve, (void *)i) == 0);
    }
    for (int i = 0; i < crowd; i++)
        until_asleep(i);
    printf("all %d\n", crowd);
    for (int i = 0; i < crowd; i++)
        round_trip(i, 'a' + i % 26);
    for (int i = 0; i < crowd; i++)
        until_asleep(i);

    /* Threads 1 and on wait while the first has all the news. What looks each millisecond has left the processor far more often. */
    long before = turns(1);
    for (int i = 0; i < ROUNDS; i++)
        round_trip(0, 'x');
    printf("quiet %d\n", turns(1) - before < ROUNDS);
    /* The last thread has all the news: it must wake no other. */
    before = turns(0) - status(tids[crowd - 1], "voluntary_ctxt_switches");
    for (int i = 0; i < ROUNDS; i++)
        round_trip(crowd - 1, 'y');
    printf("alone %d\n", turns(0) - status(tids[crowd - 1], "voluntary_ctxt_switches") - before < ROUNDS);

    int n = crowd - 1;
    CHECK(shutdown(at_server[n], SHUT_RD) == 0);
    ends(n--, "shutdown here");
    CHECK(shutdown(at_client[n], SHUT_WR) == 0);
    ends(n--, "shutdown there");
    CHECK(close(at_client[n]) == 0);
    ends(n--, "close there");
    struct linger hard = {1, 0};
    CHECK(setsockopt(at_client[n], SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0 && close(at_client[n]) == 0);
    ends(n--, "reset there");
    void *left;
    CHECK(pthread_cancel(threads[n]) == 0 && pthread_join(threads[n--], &left) == 0);
    printf("cancelled %d\n", left == PTHREAD_CANCELED);
    /* It sleeps no more than once, so the signal is sent until it has ended a call. */
    struct sigaction act = {.sa_handler = ignore};
    CHECK(sigaction(SIGUSR1, &act, NULL) == 0);
    until_asleep(n);
    while (pthread_tryjoin_np(threads[n], NULL) != 0) {
        pthread_kill(threads[n], SIGUSR1);
        usleep(1000);
    }
    printf("signal %ld %d\n", result[n], error[n]), n--;

    /* Two threads at one connection. */
    pthread_t two[2];
    CHECK(shutdown(at_client[n], SHUT_WR) == 0 && pthread_join(threads[n], NULL) == 0);
    at_client[n] = connected(&at);
    CHECK((at_server[n] = accept(l, NULL, NULL)) >= 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&two[i], &small, twice, (void *)(long)n) == 0);
    CHECK(send(at_client[n], "1", 1, 0) == 1 && send(at_client[n], "2", 1, 0) == 1);
    long sum = 0;
    for (int i = 0; i < 2; i++)
        pthread_join(two[i], &left), sum += (long)left;
    printf("two %ld\n", sum);

    /* A time limit. */
    struct timeval soon = {0, 20000};
    char b;
    CHECK(setsockopt(at_client[0], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
    printf("limit %s\n", said(recv(at_client[0], &b, 1, 0)));
    soon.tv_usec = 0;
    CHECK(setsockopt(at_client[0], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);

    /* A child uses a connection beside the sleeping threads of its parent. */
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        CHECK(send(at_client[1], "c", 1, 0) == 1);
        CHECK(recv(at_client[1], &b, 1, 0) == 1 && b == 'c');
        _exit(0);
    }
    int how;
    CHECK(waitpid(child, &how, 0) == child);
    printf("child %d\n", how);
    for (int i = 0; i < n - 2; i++)
        round_trip(i, 'z');
    printf("done\n");
    return 0;
}
