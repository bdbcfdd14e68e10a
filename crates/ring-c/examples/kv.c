/* A store of keys and values that speaks RESP2, the protocol of Redis, in C: PING GET SET DEL INCR EXPIRE MGET INFO.
 *
 *   cc kv.c $(pkg-config --cflags --libs towpath) -o kv
 *   towpath up --detach; ./kv 127.0.0.1 6380 &
 *   towpath run -- redis-cli -p 6380 set greeting hello
 *
 * One thread, one ring, one round: wait; for each readable connection run all whole requests and write the replies; the next wait publishes
 * the replies of all connections at once. kv.rs in Rust is the same program.
 */
#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <towpath.h>

enum { EVENTS = 256, WORDS_MOST = 1024 };
/* Longest request; and replies that wait for room beyond this stop the reading of further requests. */
static const size_t REQUEST_MOST = 1 << 20, REPLIES_MOST = 1 << 20;

/* Bytes that grow. */
struct bytes {
    char *data;
    size_t len, room;
};

static void put(struct bytes *to, const void *data, size_t len)
{
    if (to->room - to->len < len) {
        to->room = 2 * (to->len + len);
        if ((to->data = realloc(to->data, to->room)) == NULL)
            abort();
    }
    if (len > 0)
        memcpy(to->data + to->len, data, len);
    to->len += len;
}

static void text(struct bytes *to, const char *line)
{
    put(to, line, strlen(line));
}

/* A line of one character and a number: `:5`, `$11`, `*2`. */
static void number(struct bytes *to, char kind, long long value)
{
    char line[32];
    put(to, line, (size_t)snprintf(line, sizeof line, "%c%lld\r\n", kind, value));
}

/* Words of a request, which lie in the view of its connection. */
struct word {
    const char *at;
    size_t len;
};

struct entry {
    struct entry *next;
    long long end_ms; /* 0: it does not expire */
    size_t key_len, value_len;
    char *value;
    char key[];
};

static struct store {
    struct entry **heads;
    size_t heads_len, count; /* heads_len is a power of two */
    long long now_ms;        /* the time of this round */
} store;

static size_t hash(struct word key)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < key.len; i++)
        h = (h ^ (unsigned char)key.at[i]) * 1099511628211u;
    return (size_t)(h ^ h >> 32);
}

/* Takes the entry that `*at` points to out of its list. */
static void forget(struct entry **at)
{
    struct entry *gone = *at;
    *at = gone->next;
    free(gone->value);
    free(gone);
    store.count--;
}

/* Where the pointer to the key's entry is, or would be. An expired entry is removed first. */
static struct entry **find(struct word key)
{
    struct entry **at = &store.heads[hash(key) & (store.heads_len - 1)];
    while (*at && ((*at)->key_len != key.len || memcmp((*at)->key, key.at, key.len) != 0))
        at = &(*at)->next;
    if (*at && (*at)->end_ms && (*at)->end_ms <= store.now_ms) {
        forget(at);
        return find(key);
    }
    return at;
}

static void grow(void)
{
    struct entry **old = store.heads, *entry, *next;
    size_t old_len = store.heads_len, i;
    store.heads_len = old_len ? 2 * old_len : 1024;
    if ((store.heads = calloc(store.heads_len, sizeof *store.heads)) == NULL)
        abort();
    for (i = 0; i < old_len; i++)
        for (entry = old[i]; entry; entry = next) {
            struct entry **head = &store.heads[hash((struct word){entry->key, entry->key_len}) & (store.heads_len - 1)];
            next = entry->next;
            entry->next = *head;
            *head = entry;
        }
    free(old);
}

static void set(struct word key, struct word value, long long end_ms)
{
    struct entry **at = find(key);
    if (*at == NULL) {
        if (store.count++ == store.heads_len) {
            grow();
            at = find(key);
        }
        if ((*at = calloc(1, sizeof **at + key.len)) == NULL)
            abort();
        (*at)->key_len = key.len;
        memcpy((*at)->key, key.at, key.len);
    }
    if ((*at)->value_len != value.len || (*at)->value == NULL) {
        free((*at)->value);
        if (((*at)->value = malloc(value.len + 1)) == NULL) /* never of 0 bytes */
            abort();
    }
    memcpy((*at)->value, value.at, value.len);
    (*at)->value_len = value.len;
    (*at)->end_ms = end_ms;
}

/* 1: the key was there; else 0. */
static int delete(struct word key)
{
    struct entry **at = find(key);
    int was_there = *at != NULL;
    if (was_there)
        forget(at);
    return was_there;
}

/* The whole number that is all of `digits`. 0: it is none, or too large. */
static int whole(const char *digits, size_t len, long long *value)
{
    char line[24], *end;
    if (len == 0 || len >= sizeof line || (digits[0] != '-' && (digits[0] < '0' || digits[0] > '9')))
        return 0;
    memcpy(line, digits, len);
    line[len] = 0;
    *value = strtoll(line, &end, 10);
    /* What strtoll limits is no value of a key here. */
    return end == line + len && *value != LLONG_MAX && *value != LLONG_MIN;
}

static void value_of(struct word key, struct bytes *replies)
{
    struct entry *entry = *find(key);
    if (entry == NULL) {
        text(replies, "$-1\r\n");
        return;
    }
    number(replies, '$', (long long)entry->value_len);
    put(replies, entry->value, entry->value_len);
    text(replies, "\r\n");
}

static void increment(struct word key, struct bytes *replies)
{
    struct entry *entry = *find(key);
    long long value = 0;
    char line[24];
    if (entry && !whole(entry->value, entry->value_len, &value)) {
        text(replies, "-ERR value is not an integer or out of range\r\n");
        return;
    }
    value++;
    set(key, (struct word){line, (size_t)snprintf(line, sizeof line, "%lld", value)}, entry ? entry->end_ms : 0);
    number(replies, ':', value);
}

static void expire(struct word key, struct word seconds, struct bytes *replies)
{
    struct entry *entry = *find(key);
    long long value;
    if (!whole(seconds.at, seconds.len, &value) || value < 0 || value > UINT32_MAX) {
        text(replies, "-ERR value is not an integer or out of range\r\n");
        return;
    }
    if (entry)
        entry->end_ms = store.now_ms + 1000 * value;
    number(replies, ':', entry != NULL);
}

static int is(struct word word, const char *name)
{
    return word.len == strlen(name) && strncasecmp(word.at, name, word.len) == 0;
}

/* Runs one request. */
static void run(const struct word *words, int count, struct bytes *replies)
{
    long long deleted = 0, time;
    int i;
    if (is(words[0], "PING") && count == 1) {
        text(replies, "+PONG\r\n");
    } else if (is(words[0], "GET") && count == 2) {
        value_of(words[1], replies);
    } else if (is(words[0], "MGET") && count > 1) {
        number(replies, '*', count - 1);
        for (i = 1; i < count; i++)
            value_of(words[i], replies);
    } else if (is(words[0], "SET") && count == 3) {
        set(words[1], words[2], 0);
        text(replies, "+OK\r\n");
    } else if (is(words[0], "SET") && count == 5 && (is(words[3], "EX") || is(words[3], "PX")) &&
               whole(words[4].at, words[4].len, &time) && time > 0 && time <= UINT32_MAX) {
        set(words[1], words[2], store.now_ms + (is(words[3], "EX") ? 1000 * time : time));
        text(replies, "+OK\r\n");
    } else if (is(words[0], "DEL") && count > 1) {
        for (i = 1; i < count; i++)
            deleted += delete(words[i]);
        number(replies, ':', deleted);
    } else if (is(words[0], "INCR") && count == 2) {
        increment(words[1], replies);
    } else if (is(words[0], "EXPIRE") && count == 3) {
        expire(words[1], words[2], replies);
    } else if (is(words[0], "INFO")) {
        char lines[96];
        int len = snprintf(lines, sizeof lines, "# Server\r\nserver:kv on towpath\r\n# Keyspace\r\nkeys:%zu\r\n", store.count);
        number(replies, '$', len);
        put(replies, lines, (size_t)len);
        text(replies, "\r\n");
    } else {
        text(replies, "-ERR unknown command or wrong arguments\r\n");
    }
}

/* A line `*2` or `$11` at `*at`, which is moved behind it. 1: whole; 0: only its beginning; -1: something else. */
static int counted(const char *bytes, size_t len, size_t *at, char kind, size_t most, size_t *value)
{
    const char *end = memchr(bytes + *at, '\n', len - *at);
    long long found;
    if (*at < len && bytes[*at] != kind)
        return -1;
    if (end == NULL)
        return len - *at > 32 ? -1 : 0;
    if (end - bytes < (long)*at + 2 || end[-1] != '\r' || !whole(bytes + *at + 1, (size_t)(end - bytes) - *at - 2, &found))
        return -1;
    if (found < 0 || (size_t)found > most)
        return -1;
    *value = (size_t)found;
    *at = (size_t)(end - bytes) + 1;
    return 1;
}

/* Finds the words of the request at the beginning of `bytes`, and its length. 1: whole; 0: only its beginning is there; -1: it is none. */
static int parse(const char *bytes, size_t len, struct word *words, size_t *count, size_t *used)
{
    size_t at = 0, i, n;
    int found = counted(bytes, len, &at, '*', WORDS_MOST, count);
    for (i = 0; found == 1 && i < *count; i++) {
        found = counted(bytes, len, &at, '$', REQUEST_MOST, &n);
        if (found != 1)
            break;
        if (len - at < n + 2)
            found = 0;
        words[i] = (struct word){bytes + at, n};
        at += n + 2;
    }
    *used = at;
    return found == 0 && len > REQUEST_MOST ? -1 : found;
}

/* Runs all whole requests among `bytes`. Returns how many bytes they take; `*is_sound` says whether something else follows them. */
static size_t run_all(const char *bytes, size_t len, struct bytes *replies, int *is_sound)
{
    static struct word words[WORDS_MOST];
    size_t at = 0, count, used;
    int found = 1;
    while (at < len && replies->len < REPLIES_MOST && (found = parse(bytes + at, len - at, words, &count, &used)) == 1) {
        if (count > 0)
            run(words, (int)count, replies);
        at += used;
    }
    *is_sound = found >= 0;
    if (found < 0)
        text(replies, "-ERR Protocol error\r\n");
    return at;
}

/* One turn of a connection. `waiting`: its replies for which there was no room. Returns less than 0 when the connection is over. */
static int turn(towpath_ring *ring, towpath_handle connection, struct bytes *waiting)
{
    const void *bytes;
    int is_sound = 1;
    ssize_t n;
    if (waiting->len < REPLIES_MOST) {
        if ((n = towpath_view(ring, connection, SIZE_MAX, &bytes)) < 0)
            return -1;
        n = (ssize_t)run_all(bytes, (size_t)n, waiting, &is_sound);
        if (towpath_consume(ring, connection, (size_t)n) != 0)
            return -1;
    }
    if (waiting->len > 0) {
        if ((n = towpath_write(ring, connection, waiting->data, waiting->len)) < 0)
            return -1;
        memmove(waiting->data, waiting->data + n, waiting->len - (size_t)n);
        waiting->len -= (size_t)n;
    }
    return is_sound && (waiting->len > 0 || towpath_is_finished(ring, connection) == 0) ? 0 : -1;
}

/* Replies that wait for room, by the small number that each handle has in its low half. */
static struct bytes *clients;
static size_t clients_len;

static struct bytes *client(towpath_handle connection)
{
    size_t index = (uint32_t)connection;
    if (index >= clients_len) {
        size_t len = 2 * index + 64;
        if ((clients = realloc(clients, len * sizeof *clients)) == NULL)
            abort();
        memset(clients + clients_len, 0, (len - clients_len) * sizeof *clients);
        clients_len = len;
    }
    return &clients[index];
}

static void serve(towpath_ring *ring, const towpath_event *event)
{
    struct bytes *waiting = client(event->handle);
    int is_readable = event->kind == TOWPATH_READABLE || event->kind == TOWPATH_WRITABLE || event->kind == TOWPATH_FINISHED;
    /* An event of a connection that an earlier event of this round has ended fails here, and so does the close. */
    if ((is_readable && turn(ring, event->handle, waiting) < 0) || event->kind == TOWPATH_CLOSED) {
        if (towpath_close(ring, event->handle) == 0)
            waiting->len = 0;
    }
}

static int fail(const char *what)
{
    fprintf(stderr, "kv: %s: %s\n", what, towpath_why());
    return 1;
}

int main(int argc, char **argv)
{
    towpath_service *service;
    towpath_ring *ring;
    towpath_handle listener;
    towpath_event events[EVENTS];
    struct sockaddr_in at = {.sin_family = AF_INET}, *bound;
    struct sockaddr_storage storage;
    struct timespec now;
    int i, count;

    at.sin_port = htons((uint16_t)atoi(argc > 2 ? argv[2] : "6380"));
    if (inet_pton(AF_INET, argc > 1 ? argv[1] : "127.0.0.1", &at.sin_addr) != 1)
        return fprintf(stderr, "usage: kv [address [port]]\n"), 1;
    grow();
    if (towpath_open(NULL, 0, &service) != 0 || towpath_ring_new(service, &ring) != 0)
        return fail("open");
    if (towpath_listen(ring, (struct sockaddr *)&at, sizeof at, 0, 4096, 0, &listener) != 0 ||
        towpath_local_address(ring, listener, &storage) != 0)
        return fail("listen");
    bound = (struct sockaddr_in *)&storage;
    fprintf(stderr, "kv: listens at %s:%d\n", inet_ntoa(bound->sin_addr), ntohs(bound->sin_port));
    while ((count = towpath_wait(ring, events, EVENTS, -1)) >= 0) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        store.now_ms = 1000 * (long long)now.tv_sec + now.tv_nsec / 1000000;
        for (i = 0; i < count; i++)
            serve(ring, &events[i]);
    }
    return fail("wait");
}
