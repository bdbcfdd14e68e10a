//! Names of Linux's constants with their values.

use libc::*;

/// From `linux/tcp.h`; `libc` does not define it.
const TCP_INQ: i32 = 36;

macro_rules! table {
    ($($name:ident)*) => { &[$((stringify!($name), $name as i64),)*] };
}

const NAMES: &[(&str, i64)] = table! {
    AF_INET AF_INET6 AF_UNSPEC PF_INET PF_INET6
    SOCK_STREAM SOCK_DGRAM SOCK_RAW SOCK_NONBLOCK SOCK_CLOEXEC
    IPPROTO_IP IPPROTO_TCP IPPROTO_UDP IPPROTO_ICMP IPPROTO_IPV6 IPPROTO_ICMPV6 IPPROTO_RAW
    SHUT_RD SHUT_WR SHUT_RDWR
    SOL_SOCKET SOL_IP SOL_IPV6 SOL_TCP SOL_UDP
    SO_ACCEPTCONN SO_BINDTODEVICE SO_BROADCAST SO_DEBUG SO_DONTROUTE SO_ERROR SO_KEEPALIVE SO_LINGER SO_MARK
    SO_NO_CHECK SO_OOBINLINE SO_PRIORITY SO_RCVBUF SO_RCVLOWAT SO_RCVTIMEO SO_REUSEADDR SO_REUSEPORT SO_SNDBUF
    SO_SNDLOWAT SO_SNDTIMEO SO_TIMESTAMP SO_TIMESTAMPING SO_TYPE SO_ZEROCOPY SO_MAX_PACING_RATE
    IP_TOS IP_MTU_DISCOVER IP_PMTUDISC_WANT IP_PMTUDISC_DONT IP_PMTUDISC_DO IP_PMTUDISC_PROBE IP_RECVERR IP_FREEBIND
    IP_TTL IPV6_MTU_DISCOVER IPV6_RECVERR IPV6_TCLASS IPV6_UNICAST_HOPS IPV6_V6ONLY IP_MTU IPV6_MTU
    TCP_NODELAY TCP_MAXSEG TCP_CORK TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_SYNCNT TCP_LINGER2 TCP_DEFER_ACCEPT
    TCP_INFO TCP_QUICKACK TCP_CONGESTION TCP_MD5SIG TCP_THIN_LINEAR_TIMEOUTS TCP_THIN_DUPACK TCP_USER_TIMEOUT
    TCP_FASTOPEN TCP_FASTOPEN_CONNECT TCP_TIMESTAMP TCP_WINDOW_CLAMP TCP_INQ
    O_RDONLY O_WRONLY O_RDWR O_ACCMODE O_CREAT O_EXCL O_NOCTTY O_TRUNC O_APPEND O_NONBLOCK
    F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL FD_CLOEXEC
    MSG_OOB MSG_DONTROUTE MSG_PEEK MSG_CTRUNC MSG_EOR MSG_WAITALL MSG_TRUNC MSG_ERRQUEUE MSG_DONTWAIT MSG_CONFIRM
    MSG_NOSIGNAL MSG_MORE MSG_CMSG_CLOEXEC MSG_FASTOPEN
    FIONREAD FIONBIO
    POLLIN POLLPRI POLLOUT POLLRDNORM POLLRDBAND POLLWRNORM POLLWRBAND POLLRDHUP POLLERR POLLHUP POLLNVAL
    EPOLLIN EPOLLPRI EPOLLOUT EPOLLRDNORM EPOLLRDBAND EPOLLWRNORM EPOLLWRBAND EPOLLMSG EPOLLERR EPOLLHUP EPOLLRDHUP
    EPOLLONESHOT EPOLLEXCLUSIVE EPOLL_CTL_ADD EPOLL_CTL_MOD EPOLL_CTL_DEL
    SPLICE_F_MOVE SPLICE_F_NONBLOCK SPLICE_F_MORE SPLICE_F_GIFT
};

/// Constants with a negative value in `libc`, or that `libc` does not define.
const OTHERS: &[(&str, i64)] = &[
    ("NULL", 0),
    ("EPOLLET", 1 << 31),
    ("MSG_FIN", 0x200),
    ("MSG_SYN", 0x400),
    ("MSG_RST", 0x1000),
    ("MSG_ZEROCOPY", 0x400_0000),
    ("SIOCATMARK", sim::SIOCATMARK as i64),
    ("SIOCINQ", FIONREAD as i64),
    ("SIOCOUTQ", TIOCOUTQ as i64),
    ("TCP_FASTOPEN_KEY", 33),
    ("TCP_FASTOPEN_NO_COOKIE", 34),
    ("TCP_NOTSENT_LOWAT", 25),
    ("TCP_CM_INQ", 36),
    ("TCP_TX_DELAY", 37),
    ("TCP_INFINITE_SSTHRESH", 0x7FFF_FFFF),
];

macro_rules! errnos {
    ($($name:ident)*) => { &[$((stringify!($name), $name),)*] };
}

const ERRNOS: &[(&str, i32)] = errnos! {
    EPERM ENOENT EINTR EIO ENXIO EBADF EAGAIN EWOULDBLOCK ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV EINVAL ENFILE EMFILE
    ENOTTY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE ERANGE ENOSYS EPROTO EBADMSG EOVERFLOW ENOTSOCK EDESTADDRREQ EMSGSIZE
    EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE
    EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN
    ETOOMANYREFS ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE ECANCELED
};

/// The value of the constant `name`.
pub(crate) fn constant(name: &str) -> Option<i64> {
    let found = NAMES.iter().chain(OTHERS).find(|(known, _)| *known == name);
    found.map(|(_, value)| *value).or_else(|| errno(name).map(i64::from))
}

/// The number of the error `name`.
pub(crate) fn errno(name: &str) -> Option<i32> {
    ERRNOS.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

/// The name of an error number.
pub(crate) fn errno_name(number: i32) -> String {
    let found = ERRNOS.iter().find(|(_, value)| *value == number);
    found.map_or_else(|| format!("errno {number}"), |(name, _)| (*name).to_owned())
}

/// The names of `poll` and `epoll` bits.
pub(crate) fn event_names(bits: u32) -> String {
    const EVENTS: [&str; 13] = [
        "EPOLLIN",
        "EPOLLPRI",
        "EPOLLOUT",
        "EPOLLERR",
        "EPOLLHUP",
        "EPOLLRDNORM",
        "EPOLLRDBAND",
        "EPOLLWRNORM",
        "EPOLLWRBAND",
        "EPOLLMSG",
        "EPOLLRDHUP",
        "EPOLLONESHOT",
        "EPOLLET",
    ];
    let is_set = |name: &&str| constant(name).is_some_and(|bit| i64::from(bits) & bit != 0);
    let names: Vec<&str> = EVENTS.into_iter().filter(is_set).collect();
    if names.is_empty() { "0".to_owned() } else { names.join("|") }
}

/// Constants from `linux/tcp.h` for code between `%{` and `}%`.
pub(crate) const CODE: &[(&str, i128)] = &[
    ("TCP_ESTABLISHED", 1),
    ("TCP_SYN_SENT", 2),
    ("TCP_SYN_RECV", 3),
    ("TCP_FIN_WAIT1", 4),
    ("TCP_FIN_WAIT2", 5),
    ("TCP_TIME_WAIT", 6),
    ("TCP_CLOSE", 7),
    ("TCP_CLOSE_WAIT", 8),
    ("TCP_LAST_ACK", 9),
    ("TCP_LISTEN", 10),
    ("TCP_CLOSING", 11),
    ("TCP_CA_Open", 0),
    ("TCP_CA_Disorder", 1),
    ("TCP_CA_CWR", 2),
    ("TCP_CA_Recovery", 3),
    ("TCP_CA_Loss", 4),
    ("TCPI_OPT_TIMESTAMPS", 1),
    ("TCPI_OPT_SACK", 2),
    ("TCPI_OPT_WSCALE", 4),
    ("TCPI_OPT_ECN", 8),
    ("TCPI_OPT_ECN_SEEN", 16),
    ("TCPI_OPT_SYN_DATA", 32),
    ("TCPI_OPT_USEC_TS", 64),
    ("TCP_INFINITE_SSTHRESH", 0x7FFF_FFFF),
];
