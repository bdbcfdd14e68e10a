/* Every socket option in every state: what it is, what may be set, how it is refused; and whether it outlives connect and accept. */
#include "differ.h"
#include <linux/filter.h>
#include <linux/in6.h>

/* How a value is told: as a number, as text, as bytes; only whether it is zero; only its length. */
enum kind { NUMBER, TEXT, BYTES, MASKED, LENGTH };

#define SEEN                                                                                                           \
    (BIT(fresh) | BIT(bound) | BIT(listening) | BIT(connecting) | BIT(connected) | BIT(accepted) | BIT(shut_wr) |      \
     BIT(peer_closed) | BIT(reset) | BIT(closed) | BIT(fresh6) | BIT(listening6) | BIT(connected6) | BIT(mapped) |     \
     BIT(dual))

static const char *value_word(enum kind kind, const unsigned char *at, socklen_t len) {
    static char text[256];
    unsigned any = 0;
    int number;
    for (socklen_t i = 0; i < len && i < 64; i++)
        any |= at[i];
    if (kind == LENGTH || len > 64)
        snprintf(text, sizeof text, "%u bytes", len);
    else if (kind == MASKED)
        snprintf(text, sizeof text, "%u bytes %s", len, any ? "not zero" : "zero");
    else if (kind == TEXT)
        snprintf(text, sizeof text, "%u bytes %.*s", len, (int)len, (const char *)at);
    else if (kind == NUMBER && len == sizeof number)
        memcpy(&number, at, sizeof number), snprintf(text, sizeof text, "%d", number);
    else {
        int n = snprintf(text, sizeof text, "%u bytes", len);
        for (socklen_t i = 0; i < len && i < 16; i++)
            n += snprintf(text + n, sizeof text - (size_t)n, " %02x", at[i]);
    }
    return text;
}

static void say_value(int fd, int level, int name, enum kind kind, socklen_t room) {
    unsigned char value[256];
    socklen_t len = room;
    memset(value, 0xee, sizeof value);
    errno = 0;
    long r = getsockopt(fd, level, name, value, &len);
    if (r == 0)
        say("get into %d: %s", (int)room, value_word(kind, value, len));
    else
        say("get into %d: %s, length %d", (int)room, said(r), (int)len);
}

static void set_numbers(int fd, int level, int name, enum kind kind) {
    static const int values[] = {1, 0, -1, 2, 3, 100, 5000, INT_MAX, INT_MIN, 1};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        errno = 0;
        long r = setsockopt(fd, level, name, &values[i], sizeof values[i]);
        say("set %d: %s", values[i], said(r));
        say_value(fd, level, name, kind, 64);
    }
}

static void set_lengths(int fd, int level, int name) {
    static const socklen_t lengths[] = {0, 1, 2, 3, 5, 8, 12, 16, 64, 200, (socklen_t)-1};
    unsigned char value[256] = {0};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        errno = 0;
        long r = setsockopt(fd, level, name, value, lengths[i]);
        say("set %d bytes of zero: %s", (int)lengths[i], said(r));
    }
    T(setsockopt(fd, level, name, NULL, 4));
    T(setsockopt(fd, level, name, NULL, 0));
    T(setsockopt(fd, level, name, nowhere, 4));
}

static void set_bytes(int fd, int level, int name, enum kind kind, const char *word, const void *value, socklen_t len) {
    errno = 0;
    long r = setsockopt(fd, level, name, value, len);
    say("set %s: %s", word, said(r));
    say_value(fd, level, name, kind, 64);
}

static void try_option(struct world *w, int level, int name, enum kind kind) {
    static const socklen_t rooms[] = {64, 16, 8, 4, 3, 2, 1, 0, (socklen_t)-1};
    unsigned char value[64];
    socklen_t len = sizeof value;
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++)
        say_value(w->s, level, name, kind, rooms[i]);
    T(getsockopt(w->s, level, name, NULL, &len));
    T(getsockopt(w->s, level, name, value, NULL));
    set_lengths(w->s, level, name);
    say_value(w->s, level, name, kind, 64);
}

static const struct option {
    const char *word;
    int level, name;
    enum kind kind;
} OPTIONS[] = {
#define O(level, name, kind) {#name, level, name, kind}
    O(SOL_SOCKET, SO_DEBUG, NUMBER),
    O(SOL_SOCKET, SO_REUSEADDR, NUMBER),
    O(SOL_SOCKET, SO_TYPE, NUMBER),
    O(SOL_SOCKET, SO_ERROR, NUMBER),
    O(SOL_SOCKET, SO_DONTROUTE, NUMBER),
    O(SOL_SOCKET, SO_BROADCAST, NUMBER),
    /* What a connection's has grown to depends on the host's congestion control: 2.5 MiB with CUBIC, 4 with BBR, as ours. */
    O(SOL_SOCKET, SO_SNDBUF, LENGTH),
    O(SOL_SOCKET, SO_RCVBUF, NUMBER),
    O(SOL_SOCKET, SO_KEEPALIVE, NUMBER),
    O(SOL_SOCKET, SO_OOBINLINE, NUMBER),
    O(SOL_SOCKET, SO_NO_CHECK, NUMBER),
    O(SOL_SOCKET, SO_PRIORITY, NUMBER),
    O(SOL_SOCKET, SO_BSDCOMPAT, NUMBER),
    O(SOL_SOCKET, SO_REUSEPORT, NUMBER),
    O(SOL_SOCKET, SO_PASSCRED, NUMBER),
    O(SOL_SOCKET, SO_PEERCRED, LENGTH),
    O(SOL_SOCKET, SO_RCVLOWAT, NUMBER),
    O(SOL_SOCKET, SO_SNDLOWAT, NUMBER),
    O(SOL_SOCKET, SO_PEERNAME, LENGTH),
    O(SOL_SOCKET, SO_TIMESTAMP, NUMBER),
    O(SOL_SOCKET, SO_ACCEPTCONN, NUMBER),
    O(SOL_SOCKET, SO_PEERSEC, LENGTH),
    O(SOL_SOCKET, SO_SNDBUFFORCE, NUMBER),
    O(SOL_SOCKET, SO_RCVBUFFORCE, NUMBER),
    O(SOL_SOCKET, SO_PASSSEC, NUMBER),
    O(SOL_SOCKET, SO_TIMESTAMPNS, NUMBER),
    O(SOL_SOCKET, SO_MARK, NUMBER),
    O(SOL_SOCKET, SO_TIMESTAMPING, BYTES),
    O(SOL_SOCKET, SO_PROTOCOL, NUMBER),
    O(SOL_SOCKET, SO_DOMAIN, NUMBER),
    O(SOL_SOCKET, SO_RXQ_OVFL, NUMBER),
    O(SOL_SOCKET, SO_WIFI_STATUS, NUMBER),
    O(SOL_SOCKET, SO_PEEK_OFF, NUMBER),
    O(SOL_SOCKET, SO_NOFCS, NUMBER),
    O(SOL_SOCKET, SO_LOCK_FILTER, NUMBER),
    O(SOL_SOCKET, SO_DETACH_FILTER, LENGTH),
    O(SOL_SOCKET, SO_SELECT_ERR_QUEUE, NUMBER),
    O(SOL_SOCKET, SO_BUSY_POLL, NUMBER),
    O(SOL_SOCKET, SO_MAX_PACING_RATE, BYTES),
    O(SOL_SOCKET, SO_BPF_EXTENSIONS, NUMBER),
    O(SOL_SOCKET, SO_INCOMING_CPU, LENGTH),
    O(SOL_SOCKET, SO_ATTACH_BPF, LENGTH),
    O(SOL_SOCKET, SO_CNX_ADVICE, NUMBER),
    O(SOL_SOCKET, SO_MEMINFO, LENGTH),
    O(SOL_SOCKET, SO_INCOMING_NAPI_ID, LENGTH),
    O(SOL_SOCKET, SO_COOKIE, MASKED),
    O(SOL_SOCKET, SO_PEERGROUPS, LENGTH),
    O(SOL_SOCKET, SO_ZEROCOPY, NUMBER),
    O(SOL_SOCKET, SO_TXTIME, BYTES),
    O(SOL_SOCKET, SO_BINDTOIFINDEX, NUMBER),
    O(SOL_SOCKET, SO_PREFER_BUSY_POLL, NUMBER),
    O(SOL_SOCKET, SO_BUSY_POLL_BUDGET, NUMBER),
    O(SOL_SOCKET, SO_NETNS_COOKIE, LENGTH),
    O(SOL_SOCKET, SO_BUF_LOCK, NUMBER),
    O(SOL_SOCKET, SO_RESERVE_MEM, NUMBER),
    O(SOL_SOCKET, SO_TXREHASH, NUMBER),
    O(SOL_SOCKET, SO_RCVMARK, NUMBER),
    O(IPPROTO_TCP, TCP_NODELAY, NUMBER),
    O(IPPROTO_TCP, TCP_MAXSEG, NUMBER),
    O(IPPROTO_TCP, TCP_CORK, NUMBER),
    O(IPPROTO_TCP, TCP_KEEPIDLE, NUMBER),
    O(IPPROTO_TCP, TCP_KEEPINTVL, NUMBER),
    O(IPPROTO_TCP, TCP_KEEPCNT, NUMBER),
    O(IPPROTO_TCP, TCP_SYNCNT, NUMBER),
    O(IPPROTO_TCP, TCP_LINGER2, NUMBER),
    O(IPPROTO_TCP, TCP_DEFER_ACCEPT, NUMBER),
    O(IPPROTO_TCP, TCP_WINDOW_CLAMP, NUMBER),
    O(IPPROTO_TCP, TCP_MD5SIG, LENGTH),
    O(IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, NUMBER),
    O(IPPROTO_TCP, TCP_THIN_DUPACK, NUMBER),
    O(IPPROTO_TCP, TCP_USER_TIMEOUT, NUMBER),
    O(IPPROTO_TCP, TCP_REPAIR_QUEUE, LENGTH),
    O(IPPROTO_TCP, TCP_QUEUE_SEQ, LENGTH),
    O(IPPROTO_TCP, TCP_FASTOPEN, NUMBER),
    O(IPPROTO_TCP, TCP_TIMESTAMP, LENGTH),
    O(IPPROTO_TCP, TCP_NOTSENT_LOWAT, NUMBER),
    O(IPPROTO_TCP, TCP_CC_INFO, LENGTH),
    O(IPPROTO_TCP, TCP_SAVE_SYN, NUMBER),
    O(IPPROTO_TCP, TCP_SAVED_SYN, LENGTH),
    O(IPPROTO_TCP, TCP_FASTOPEN_CONNECT, NUMBER),
    O(IPPROTO_TCP, TCP_FASTOPEN_KEY, LENGTH),
    O(IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, NUMBER),
    O(IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, LENGTH),
    O(IPPROTO_TCP, TCP_INQ, NUMBER),
    O(IPPROTO_TCP, TCP_TX_DELAY, NUMBER),
    O(IPPROTO_IP, IP_TOS, NUMBER),
    O(IPPROTO_IP, IP_TTL, NUMBER),
    O(IPPROTO_IP, IP_HDRINCL, NUMBER),
    O(IPPROTO_IP, IP_OPTIONS, LENGTH),
    O(IPPROTO_IP, IP_ROUTER_ALERT, NUMBER),
    O(IPPROTO_IP, IP_RECVOPTS, NUMBER),
    O(IPPROTO_IP, IP_RETOPTS, NUMBER),
    O(IPPROTO_IP, IP_PKTINFO, NUMBER),
    O(IPPROTO_IP, IP_MTU_DISCOVER, NUMBER),
    O(IPPROTO_IP, IP_RECVERR, NUMBER),
    O(IPPROTO_IP, IP_RECVTTL, NUMBER),
    O(IPPROTO_IP, IP_RECVTOS, NUMBER),
    O(IPPROTO_IP, IP_MTU, NUMBER),
    O(IPPROTO_IP, IP_FREEBIND, NUMBER),
    O(IPPROTO_IP, IP_TRANSPARENT, NUMBER),
    O(IPPROTO_IP, IP_MINTTL, NUMBER),
    O(IPPROTO_IP, IP_NODEFRAG, NUMBER),
    O(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, NUMBER),
    O(IPPROTO_IP, IP_MULTICAST_IF, BYTES),
    O(IPPROTO_IP, IP_MULTICAST_TTL, NUMBER),
    O(IPPROTO_IP, IP_MULTICAST_LOOP, NUMBER),
    O(IPPROTO_IP, IP_ADD_MEMBERSHIP, LENGTH),
    O(IPPROTO_IP, IP_UNICAST_IF, NUMBER),
    O(IPPROTO_IPV6, IPV6_V6ONLY, NUMBER),
    O(IPPROTO_IPV6, IPV6_UNICAST_HOPS, NUMBER),
    O(IPPROTO_IPV6, IPV6_MULTICAST_HOPS, NUMBER),
    O(IPPROTO_IPV6, IPV6_MULTICAST_LOOP, NUMBER),
    O(IPPROTO_IPV6, IPV6_MULTICAST_IF, NUMBER),
    O(IPPROTO_IPV6, IPV6_MTU_DISCOVER, NUMBER),
    O(IPPROTO_IPV6, IPV6_MTU, NUMBER),
    O(IPPROTO_IPV6, IPV6_RECVERR, NUMBER),
    O(IPPROTO_IPV6, IPV6_TCLASS, NUMBER),
    O(IPPROTO_IPV6, IPV6_RECVTCLASS, NUMBER),
    O(IPPROTO_IPV6, IPV6_RECVPKTINFO, NUMBER),
    O(IPPROTO_IPV6, IPV6_RECVHOPLIMIT, NUMBER),
    O(IPPROTO_IPV6, IPV6_DONTFRAG, NUMBER),
    O(IPPROTO_IPV6, IPV6_ADDRFORM, NUMBER),
    O(IPPROTO_IPV6, IPV6_FREEBIND, NUMBER),
    O(IPPROTO_IPV6, IPV6_TRANSPARENT, NUMBER),
    O(IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, NUMBER),
    O(IPPROTO_IPV6, IPV6_ADDR_PREFERENCES, NUMBER),
    O(IPPROTO_IPV6, IPV6_MINHOPCOUNT, NUMBER),
    O(IPPROTO_IPV6, IPV6_UNICAST_IF, NUMBER),
#undef O
};

static void try_each(struct world *w) {
    const struct option *o = w->about;
    try_option(w, o->level, o->name, o->kind);
    set_numbers(w->s, o->level, o->name, o->kind);
}

__attribute__((constructor)) static void enlist_options(void) {
    for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++)
        enlist((struct one){"option", OPTIONS[i].word, SEEN, try_each, &OPTIONS[i]});
}

CASE(option, SO_RCVTIMEO, SEEN) {
    struct timeval times[] = {{1, 500000}, {0, 0}, {-1, 0}, {0, -1}, {0, 1000000}, {1L << 40, 0}};
    try_option(w, SOL_SOCKET, SO_RCVTIMEO, BYTES);
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        set_bytes(w->s, SOL_SOCKET, SO_RCVTIMEO, BYTES, "a time", &times[i], sizeof times[i]);
}

CASE(option, SO_SNDTIMEO, SEEN) {
    struct timeval times[] = {{1, 500000}, {0, 0}, {-1, 0}, {0, -1}, {0, 1000000}, {1L << 40, 0}};
    try_option(w, SOL_SOCKET, SO_SNDTIMEO, BYTES);
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        set_bytes(w->s, SOL_SOCKET, SO_SNDTIMEO, BYTES, "a time", &times[i], sizeof times[i]);
}

CASE(option, SO_LINGER, SEEN) {
    struct linger each[] = {{1, 0}, {1, 5}, {0, 5}, {5, 1}, {1, -1}, {-1, 70000}, {0, 0}};
    try_option(w, SOL_SOCKET, SO_LINGER, BYTES);
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        set_bytes(w->s, SOL_SOCKET, SO_LINGER, BYTES, "a linger", &each[i], sizeof each[i]);
}

CASE(option, SO_BINDTODEVICE, SEEN) {
    try_option(w, SOL_SOCKET, SO_BINDTODEVICE, TEXT);
    set_bytes(w->s, SOL_SOCKET, SO_BINDTODEVICE, TEXT, "nothing like it", "nosuch0", 7);
    set_bytes(w->s, SOL_SOCKET, SO_BINDTODEVICE, TEXT, "lo", "lo", 3);
}

CASE(option, SO_ATTACH_FILTER, SEEN) {
    struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, 0x40000);
    struct sock_fprog program = {1, &all};
    try_option(w, SOL_SOCKET, SO_ATTACH_FILTER, LENGTH);
    set_bytes(w->s, SOL_SOCKET, SO_ATTACH_FILTER, LENGTH, "a filter", &program, sizeof program);
}

CASE(option, TCP_CONGESTION, SEEN) {
    static const char *const names[] = {"reno", "cubic", "nosuch", "", "a name that is longer than sixteen"};
    try_option(w, IPPROTO_TCP, TCP_CONGESTION, TEXT);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        set_bytes(w->s, IPPROTO_TCP, TCP_CONGESTION, TEXT, names[i], names[i], (socklen_t)strlen(names[i]));
}

CASE(option, TCP_ULP, SEEN) {
    try_option(w, IPPROTO_TCP, TCP_ULP, TEXT);
    set_bytes(w->s, IPPROTO_TCP, TCP_ULP, TEXT, "nosuch", "nosuch", 6);
}

/* While an acknowledgement is due, of a FIN for one, the kernel says otherwise: until its timer, 40 ms at the least. */
CASE(option, TCP_QUICKACK, SEEN) {
    usleep(100000);
    try_option(w, IPPROTO_TCP, TCP_QUICKACK, NUMBER);
    set_numbers(w->s, IPPROTO_TCP, TCP_QUICKACK, NUMBER);
}

CASE(option, TCP_REPAIR, BIT(fresh) | BIT(listening) | BIT(connected) | BIT(closed)) {
    try_option(w, IPPROTO_TCP, TCP_REPAIR, NUMBER);
    set_numbers(w->s, IPPROTO_TCP, TCP_REPAIR, NUMBER);
}

CASE(option, TCP_INFO, EVERY) {
    struct tcp_info i = {0};
    socklen_t len = sizeof i, small = 2, negative = (socklen_t)-1;
    T(getsockopt(w->s, IPPROTO_TCP, TCP_INFO, &i, &negative));
    T(getsockopt(w->s, IPPROTO_TCP, TCP_INFO, &i, &small));
    say("length %u", small);
    T(getsockopt(w->s, IPPROTO_TCP, TCP_INFO, &i, &len));
    say("state %d, ca %d, backoff %d, probes %d, retransmits %d, ato %s", i.tcpi_state, i.tcpi_ca_state, i.tcpi_backoff,
        i.tcpi_probes, i.tcpi_retransmits, i.tcpi_ato ? "set" : "0");
    say("options %#x, scale %d", i.tcpi_options, i.tcpi_snd_wscale);
    say("mss %u %u, pmtu %u, advmss %u", i.tcpi_snd_mss, i.tcpi_rcv_mss, i.tcpi_pmtu, i.tcpi_advmss);
    say("unacked %u, sacked %u, lost %u, retrans %u, fackets %u, reordering %u", i.tcpi_unacked, i.tcpi_sacked,
        i.tcpi_lost, i.tcpi_retrans, i.tcpi_fackets, i.tcpi_reordering);
    say("rto %s, rtt %s, ssthresh %u, cwnd %s", i.tcpi_rto ? "set" : "0", i.tcpi_rtt ? "set" : "0", i.tcpi_snd_ssthresh,
        i.tcpi_snd_cwnd ? "set" : "0");
    T(setsockopt(w->s, IPPROTO_TCP, TCP_INFO, &i, sizeof i));
}

static void say_switches(const char *who, int fd) {
    static const int names[] = {TCP_NODELAY, TCP_CORK, TCP_QUICKACK};
    int value[3] = {-1, -1, -1};
    for (int i = 0; i < 3; i++) {
        socklen_t len = sizeof *value;
        getsockopt(fd, IPPROTO_TCP, names[i], value + i, &len);
    }
    say("%s: no delay %d, corked %d, acknowledges at once %d", who, value[0], value[1], value[2]);
}

/* Whoever else has the descriptor sees what was set, and what it sets is seen. */
CASE(option, of_a_child, BIT(connected) | BIT(accepted) | BIT(connected6)) {
    int on = 1, off = 0, seen[2];
    MUST(pipe(seen));
    T(setsockopt(w->s, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    T(setsockopt(w->s, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on));
    say_switches("before", w->s);
    pid_t child = fork();
    if (child == 0) {
        int corked = -1;
        socklen_t len = sizeof corked;
        getsockopt(w->s, IPPROTO_TCP, TCP_CORK, &corked, &len);
        setsockopt(w->s, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
        setsockopt(w->s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        _exit(write(seen[1], &corked, sizeof corked) != sizeof corked);
    }
    int corked = -1, status = 0;
    MUST(read(seen[0], &corked, sizeof corked));
    MUST(waitpid(child, &status, 0));
    say("in the child: corked %d, ends with %d", corked, status);
    say_switches("after", w->s);
    T(setsockopt(w->s, IPPROTO_TCP, TCP_NODELAY, &off, sizeof off));
    T(setsockopt(w->s, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    say_switches("alone again", w->s);
    int other = dup(w->s);
    say_switches("by another number", other);
    MUST(close(other));
    MUST(close(seen[0]));
    MUST(close(seen[1]));
}

/* By number, what has no name here. */
static void try_numbers(struct world *w, int level, int last) {
    for (int name = 0; name <= last; name++) {
        char word[64] = "";
        socklen_t len = 4;
        errno = 0;
        long r = getsockopt(w->s, level, name, word, &len);
        say("get %d: %s", name, said(r));
    }
}

CASE(option, each_of_SOL_SOCKET, BIT(fresh) | BIT(listening) | BIT(connected)) { try_numbers(w, SOL_SOCKET, 90); }
CASE(option, each_of_IPPROTO_TCP, BIT(fresh) | BIT(listening) | BIT(connected)) { try_numbers(w, IPPROTO_TCP, 45); }
CASE(option, each_of_IPPROTO_IP, BIT(fresh) | BIT(listening) | BIT(connected)) { try_numbers(w, IPPROTO_IP, 64); }
CASE(option, each_of_IPPROTO_IPV6, BIT(fresh6) | BIT(connected6) | BIT(connected)) { try_numbers(w, IPPROTO_IPV6, 90); }

CASE(option, other_levels, BIT(fresh) | BIT(listening) | BIT(connected) | BIT(reset)) {
    static const int levels[] = {-1, 2, IPPROTO_UDP, IPPROTO_MPTCP, 132, 255, SOL_PACKET, 282, 999};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        int value = 1;
        socklen_t len = sizeof value;
        say("level %d", levels[i]);
        T(getsockopt(w->s, levels[i], 1, &value, &len));
        T(setsockopt(w->s, levels[i], 1, &value, sizeof value));
    }
}
