// A small stand-in for packetdrill: loads the shared object as the tool does and plays connections through its interface.
// Usage: tool SHARED_OBJECT PART. Exit status 0 and "ok" when everything is as it must be.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

// What the shared object fills in: a pointer for us, then one function for each call.
struct calls {
    void *self;
    void (*end)(void *);
    int (*socket)(void *, int, int, int);
    int (*bind)(void *, int, const struct sockaddr *, socklen_t);
    int (*listen)(void *, int, int);
    int (*accept)(void *, int, struct sockaddr *, socklen_t *);
    int (*connect)(void *, int, const struct sockaddr *, socklen_t);
    ssize_t (*read)(void *, int, void *, size_t);
    ssize_t (*readv)(void *, int, const struct iovec *, int);
    ssize_t (*recv)(void *, int, void *, size_t, int);
    ssize_t (*recvfrom)(void *, int, void *, size_t, int, struct sockaddr *, socklen_t *);
    ssize_t (*recvmsg)(void *, int, struct msghdr *, int);
    ssize_t (*write)(void *, int, const void *, size_t);
    ssize_t (*writev)(void *, int, const struct iovec *, int);
    ssize_t (*send)(void *, int, const void *, size_t, int);
    ssize_t (*sendto)(void *, int, const void *, size_t, int, const struct sockaddr *, socklen_t);
    ssize_t (*sendmsg)(void *, int, const struct msghdr *, int);
    int (*fcntl)(void *, int, int, ...);
    int (*ioctl)(void *, int, unsigned long, ...);
    int (*close)(void *, int);
    int (*shutdown)(void *, int, int);
    int (*getsockopt)(void *, int, int, int, void *, socklen_t *);
    int (*setsockopt)(void *, int, int, int, const void *, socklen_t);
    int (*poll)(void *, struct pollfd *, nfds_t, int);
    int (*netdev_send)(void *, const void *, size_t);
    int (*netdev_receive)(void *, void *, size_t *, long long *);
    int (*usleep)(void *, useconds_t);
    int (*gettimeofday)(void *, struct timeval *, struct timezone *);
    int (*epoll_create)(void *, int);
    int (*epoll_ctl)(void *, int, int, int, struct epoll_event *);
    int (*epoll_wait)(void *, int, struct epoll_event *, int, int);
    int (*pipe)(void *, int[2]);
    ssize_t (*splice)(void *, int, loff_t *, int, loff_t *, size_t, unsigned);
};

static struct calls c;

#define CHECK(what)                                                                                 \
    do {                                                                                            \
        if (!(what)) {                                                                              \
            printf("line %d: %s (errno %d)\n", __LINE__, #what, errno);                             \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

enum { FIN = 1, SYN = 2, RST = 4, PSH = 8, ACK = 16 };

// The machine under test, and us.
static const uint8_t local[4] = {192, 168, 0, 1}, remote[4] = {192, 0, 2, 1};
static uint16_t local_port = 8080, remote_port = 40000;
static uint32_t seq = 1000, ack; // ours

static void put16(uint8_t *p, uint32_t v) { p[0] = v >> 8, p[1] = v; }
static void put32(uint8_t *p, uint32_t v) { put16(p, v >> 16), put16(p + 2, v); }
static uint32_t get16(const uint8_t *p) { return p[0] << 8 | p[1]; }
static uint32_t get32(const uint8_t *p) { return get16(p) << 16 | get16(p + 2); }

static uint16_t checksum(uint32_t sum, const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++) sum += i % 2 ? p[i] : p[i] << 8;
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return ~sum;
}

// A segment from us; it counts in `seq`.
static void send_segment(int flags, const void *data, size_t len) {
    uint8_t p[1500] = {0};
    size_t total = 40 + len;
    p[0] = 0x45, p[8] = 64, p[9] = 6;
    put16(p + 2, total);
    memcpy(p + 12, remote, 4), memcpy(p + 16, local, 4);
    put16(p + 10, checksum(0, p, 20));
    put16(p + 20, remote_port), put16(p + 22, local_port);
    put32(p + 24, seq), put32(p + 28, flags & ACK ? ack : 0);
    p[32] = 0x50, p[33] = flags;
    put16(p + 34, 32768);
    memcpy(p + 40, data, len);
    uint32_t pseudo = get16(p + 12) + get16(p + 14) + get16(p + 16) + get16(p + 18) + 6 + 20 + len;
    put16(p + 36, checksum(pseudo, p + 20, 20 + len));
    CHECK(c.netdev_send(c.self, p, total) == 0);
    seq += len + !!(flags & (SYN | FIN));
}

// The next segment from the machine: its flags must be these. Its end is what we acknowledge next. Returns its payload's length.
static size_t expect(int flags, long long *at_us) {
    uint8_t p[65536];
    size_t n = sizeof(p);
    CHECK(c.netdev_receive(c.self, p, &n, at_us) == 0);
    CHECK(n >= 40 && p[0] == 0x45 && p[9] == 6 && get16(p + 2) == n);
    CHECK(checksum(0, p, 20) == 0);
    uint32_t pseudo = get16(p + 12) + get16(p + 14) + get16(p + 16) + get16(p + 18) + 6 + n - 20;
    CHECK(checksum(pseudo, p + 20, n - 20) == 0);
    CHECK(p[33] == flags);
    CHECK(!(flags & ACK) || get32(p + 28) == seq);
    local_port = get16(p + 20);
    size_t header = (p[32] >> 4) * 4;
    size_t len = n - 20 - header;
    ack = get32(p + 24) + len + !!(flags & (SYN | FIN));
    return len;
}

static long long now(void) {
    struct timeval tv;
    CHECK(c.gettimeofday(c.self, &tv, NULL) == 0);
    return tv.tv_sec * 1000000LL + tv.tv_usec;
}

static struct sockaddr_in at(const uint8_t ip[4], int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    memcpy(&a.sin_addr, ip, 4);
    return a;
}

static int listener(void) {
    struct sockaddr_in a = at(local, local_port);
    int fd = c.socket(c.self, AF_INET, SOCK_STREAM, IPPROTO_TCP);
    CHECK(fd > 2);
    CHECK(c.bind(c.self, fd, (struct sockaddr *)&a, sizeof(a)) == 0);
    CHECK(c.listen(c.self, fd, 5) == 0);
    return fd;
}

static int accepted(int fd) {
    send_segment(SYN, "", 0);
    expect(SYN | ACK, &(long long){0});
    send_segment(ACK, "", 0);
    struct sockaddr_in peer;
    socklen_t len = sizeof(peer);
    int conn = c.accept(c.self, fd, (struct sockaddr *)&peer, &len);
    CHECK(conn > 2 && conn != fd);
    CHECK(len == sizeof(peer) && memcmp(&peer.sin_addr, remote, 4) == 0 && ntohs(peer.sin_port) == remote_port);
    return conn;
}

// Handshake, data both ways, close from the machine and from us.
static void passive(void) {
    long long time;
    char data[2000] = {0};
    int fd = accepted(listener());
    send_segment(ACK | PSH, "hello", 5);
    CHECK(c.read(c.self, fd, data, sizeof(data)) == 5 && memcmp(data, "hello", 5) == 0);
    expect(ACK, &time);
    CHECK(c.write(c.self, fd, data, 2000) == 2000);
    size_t first = expect(ACK, &time), second = expect(ACK, &time);
    CHECK(first == 536 && second == 536); // No MSS option: RFC 9293 section 3.7.1.
    CHECK(expect(ACK, &time) + expect(ACK | PSH, &time) == 2000 - 1072);
    send_segment(ACK, "", 0);
    CHECK(c.close(c.self, fd) == 0);
    expect(FIN | ACK, &time);
    send_segment(FIN | ACK, "", 0);
    expect(ACK, &time);
}

// A segment that nobody acknowledges comes again when the timer says so, and time has passed by just that.
static void timers(void) {
    long long first, again, gone = -1;
    int fd = accepted(listener());
    CHECK(c.write(c.self, fd, "x", 1) == 1);
    long long begun = now();
    CHECK(expect(ACK | PSH, &first) == 1 && first <= begun);
    CHECK(expect(ACK | PSH, &again) == 1);
    CHECK(again - first >= 200000 && again - first < 1500000); // RFC 6298: at least the least RTO, at most that of the SYN.
    CHECK(now() - again < 10);
    send_segment(ACK, "", 0);
    begun = now();
    CHECK(c.usleep(c.self, 5000000) == 0);
    CHECK(now() - begun >= 5000000 && now() - begun < 5000010);
    // A packet that never comes is no hang.
    uint8_t p[1500];
    size_t n = sizeof(p);
    CHECK(c.netdev_receive(c.self, p, &n, &gone) == 0 && n == 0);
}

static int blocked;
static long long ended;

static void *reader(void *unused) {
    char data[10];
    CHECK(c.read(c.self, blocked, data, sizeof(data)) == 3);
    ended = now();
    return unused;
}

// A call of another thread waits, and ends at the very time at which it can.
static void blocking(void) {
    blocked = accepted(listener());
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, reader, NULL) == 0);
    usleep(50000); // The kernel's: so that the thread has begun to wait.
    CHECK(c.usleep(c.self, 700000) == 0);
    long long sent = now();
    send_segment(ACK | PSH, "abc", 3);
    CHECK(c.usleep(c.self, 300000) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(ended >= sent && ended - sent < 10);
}

static void *sleeper(void *unused) {
    struct pollfd p = {.fd = blocked, .events = POLLIN};
    long long begun = now();
    CHECK(c.poll(c.self, &p, 1, 400) == 0 && p.revents == 0);
    ended = now() - begun;
    return unused;
}

// The driver waits for a call of another thread outside: time passes all the same.
static void waiting(void) {
    blocked = accepted(listener());
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, sleeper, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(ended >= 400000 && ended < 400010);
}

// An open from the machine, non-blocking, with epoll.
static void active(void) {
    long long time;
    int value = -1;
    socklen_t len = sizeof(value);
    struct sockaddr_in a = at(remote, remote_port);
    int fd = c.socket(c.self, AF_INET, SOCK_STREAM, 0);
    CHECK(c.fcntl(c.self, fd, F_SETFL, O_RDWR | O_NONBLOCK) == 0);
    CHECK(c.fcntl(c.self, fd, F_GETFL) == (O_RDWR | O_NONBLOCK));
    int ep = c.epoll_create(c.self, 1);
    struct epoll_event event = {.events = EPOLLOUT | EPOLLET, .data.u64 = 0x1122334455667788};
    CHECK(c.epoll_ctl(c.self, ep, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(c.connect(c.self, fd, (struct sockaddr *)&a, sizeof(a)) == -1 && errno == EINPROGRESS);
    expect(SYN, &time);
    send_segment(SYN | ACK, "", 0);
    expect(ACK, &time);
    memset(&event, 0, sizeof(event));
    CHECK(c.epoll_wait(c.self, ep, &event, 1, -1) == 1);
    CHECK(event.events == EPOLLOUT && event.data.u64 == 0x1122334455667788);
    CHECK(c.getsockopt(c.self, fd, SOL_SOCKET, SO_ERROR, &value, &len) == 0 && value == 0 && len == 4);
    send_segment(ACK | PSH, "12345", 5);
    CHECK(c.ioctl(c.self, fd, FIONREAD, &value) == 0 && value == 5);
    CHECK(c.recv(c.self, fd, NULL, 5, MSG_TRUNC) == 5);
    CHECK(c.recv(c.self, fd, &value, 1, 0) == -1 && errno == EAGAIN);
    CHECK(c.shutdown(c.self, fd, SHUT_WR) == 0);
}

// What the tool asks the C library about our descriptors comes to us, whatever else it asks goes to the kernel.
static void interposed(void) {
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);
    int value = 0;
    int fd = accepted(listener());
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && len > 100 && info.tcpi_state == TCP_ESTABLISHED);
    int real = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(real >= 0 && real != fd);
    len = sizeof(value);
    CHECK(getsockopt(real, SOL_SOCKET, SO_TYPE, &value, &len) == 0 && value == SOCK_STREAM);
    CHECK(close(real) == 0 && close(real) == -1 && errno == EBADF);
    int file = memfd_create("bytes", 0);
    CHECK(file >= 0 && write(file, "0123456789", 10) == 10);
    off_t offset = 4;
    CHECK(sendfile(fd, file, &offset, 100) == 6 && offset == 10);
    CHECK(expect(ACK | PSH, &(long long){0}) == 6);
    // As the tool does with what a script leaves open: the machine sends its FIN.
    CHECK(close(fd) == 0);
    expect(FIN | ACK, &(long long){0});
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == -1);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    void *so = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | RTLD_DEEPBIND);
    if (so == NULL) {
        printf("%s\n", dlerror());
        return 1;
    }
    void (*init)(const char *, struct calls *) =
        (void (*)(const char *, struct calls *))dlsym(so, "packetdrill_interface_init");
    CHECK(init != NULL);
    init(NULL, &c);
    const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"passive", passive}, {"timers", timers},   {"blocking", blocking},
                 {"waiting", waiting}, {"active", active}, {"interposed", interposed}};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (strcmp(argv[2], parts[i].name) == 0) {
            parts[i].run();
            c.end(c.self);
            CHECK(c.socket(c.self, AF_INET, SOCK_STREAM, 0) == -1 && errno == EBADF);
            printf("ok\n");
            return 0;
        }
    }
    printf("no part %s\n", argv[2]);
    return 1;
}
