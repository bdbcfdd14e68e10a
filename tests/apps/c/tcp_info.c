// tcp_info serve|connect HOST PORT [measured]: an echo of 256 KiB, and what TCP_INFO says of it at the connecting end, read by the
// kernel's own header: a field that lies elsewhere shows as nonsense. `measured`: the bytes went over TCP, so there are round trips
// and segments. Prints the fields, as `ss -i` would.
#include <arpa/inet.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BYTES = 256 * 1024, PIECE = 8192, ESTABLISHED = 1 };

#define CHECK(condition)                                                                         \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

static char buffer[PIECE];

static struct addrinfo *find(const char *host, const char *port) {
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found;
    CHECK(getaddrinfo(host, port, &hints, &found) == 0);
    return found;
}

static void serve(struct addrinfo *at) {
    int fd = socket(at->ai_family, SOCK_STREAM, 0), on = 1;
    CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, 8) == 0);
    int with = accept(fd, NULL, NULL);
    CHECK(with >= 0);
    for (ssize_t n; (n = recv(with, buffer, sizeof buffer, 0)) > 0;) CHECK(send(with, buffer, (size_t)n, 0) == n);
}

static struct tcp_info ask(int fd) {
    struct tcp_info info;
    memset(&info, 0, sizeof info);
    socklen_t length = sizeof info;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
    CHECK(length >= 232);
    return info;
}

static void talk(int fd) {
    for (int sent = 0; sent < BYTES; sent += PIECE) {
        CHECK(send(fd, buffer, sizeof buffer, 0) == PIECE);
        CHECK(recv(fd, buffer, sizeof buffer, MSG_WAITALL) == PIECE);
    }
}

static void measured(int fd, const struct tcp_info *i) {
    CHECK(i->tcpi_rtt > 0 && i->tcpi_rtt < 1000000 && i->tcpi_rttvar < 1000000);
    CHECK(i->tcpi_min_rtt > 0 && i->tcpi_min_rtt <= i->tcpi_rtt + 4 * i->tcpi_rttvar + 1000);
    CHECK(i->tcpi_rto >= 200000 && i->tcpi_rto <= 120000000);
    CHECK(i->tcpi_snd_mss >= 500 && i->tcpi_advmss >= 500 && i->tcpi_rcv_mss >= 500);
    CHECK(i->tcpi_pmtu >= i->tcpi_snd_mss + 40 && i->tcpi_pmtu <= 65536);
    CHECK(i->tcpi_snd_cwnd >= 2 && i->tcpi_snd_cwnd < 1000000 && i->tcpi_snd_ssthresh >= 2);
    CHECK(i->tcpi_segs_out >= BYTES / 65536 && i->tcpi_segs_in >= BYTES / 65536);
    CHECK(i->tcpi_data_segs_out >= BYTES / 65536 && i->tcpi_data_segs_out <= i->tcpi_segs_out);
    CHECK(i->tcpi_data_segs_in >= BYTES / 65536 && i->tcpi_data_segs_in <= i->tcpi_segs_in);
    CHECK(i->tcpi_bytes_sent >= BYTES && i->tcpi_bytes_sent <= BYTES + i->tcpi_bytes_retrans + 2);
    CHECK(i->tcpi_pacing_rate > 0 && i->tcpi_snd_wnd >= 1000 && i->tcpi_reordering >= 3);
    CHECK((i->tcpi_options & (TCPI_OPT_TIMESTAMPS | TCPI_OPT_SACK | TCPI_OPT_WSCALE)) == 7);
    CHECK(i->tcpi_snd_wscale >= 1 && i->tcpi_snd_wscale <= 14 && i->tcpi_rcv_wscale >= 1 && i->tcpi_rcv_wscale <= 14);
    CHECK(i->tcpi_last_ack_recv < 5000 && i->tcpi_last_data_recv < 5000);
    int mss = 0;
    socklen_t length = sizeof mss;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, &length) == 0 && (unsigned)mss == i->tcpi_snd_mss);
}

int main(int count, char **words) {
    CHECK(count >= 4);
    struct addrinfo *at = find(words[2], words[3]);
    if (strcmp(words[1], "serve") == 0) {
        serve(at);
        return 0;
    }
    int fd = socket(at->ai_family, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) == 0);
    talk(fd);
    // The acknowledgement of the last piece came with its echo, or comes within the delay.
    usleep(300000);
    struct tcp_info i = ask(fd);
    printf("state %u mss %u pmtu %u rtt %u/%u min %u rto %u cwnd %u segs %u/%u data %u/%u retrans %u wscale %u,%u\n", i.tcpi_state,
           i.tcpi_snd_mss, i.tcpi_pmtu, i.tcpi_rtt, i.tcpi_rttvar, i.tcpi_min_rtt, i.tcpi_rto, i.tcpi_snd_cwnd, i.tcpi_segs_out,
           i.tcpi_segs_in, i.tcpi_data_segs_out, i.tcpi_data_segs_in, i.tcpi_total_retrans, i.tcpi_snd_wscale, i.tcpi_rcv_wscale);
    fflush(stdout);
    CHECK(i.tcpi_state == ESTABLISHED && i.tcpi_ca_state == 0 && i.tcpi_backoff == 0 && i.tcpi_probes == 0);
    CHECK(i.tcpi_unacked == 0 && i.tcpi_notsent_bytes == 0 && i.tcpi_lost == 0 && i.tcpi_sacked == 0);
    // The kernel counts the SYN of an active open.
    CHECK(i.tcpi_bytes_acked >= BYTES && i.tcpi_bytes_acked <= BYTES + 1 && i.tcpi_bytes_received == BYTES);
    if (count > 4) measured(fd, &i);
    // A caller with less room gets the beginning, as from a newer kernel.
    unsigned char start[8] = {0};
    socklen_t length = sizeof start;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, start, &length) == 0 && length == sizeof start && start[0] == ESTABLISHED);
    return 0;
}
