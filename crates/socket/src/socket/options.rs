//! Socket options. The placeholder is a real kernel socket: what is set on it is checked, kept and answered by the kernel.
//! This file has the options that concern accelerated bytes, and those that no accelerated socket can honour.

use crate::session;
use crate::socket::settings::{Kept, Settings};
use crate::socket::{Sock, flag, pending_sockopts};
use crate::sys::{self, address};
use control::{Congestion, KernelReason, Reply, Request, SocketOptions, TcpInfo, tcp_state};
use endpoint::cork::LOOPBACK_MSS;
use endpoint::{Endpoint, state};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// `linux/tcp.h`; `libc` does not name it.
const TCP_INQ: i32 = 36;

/// Options that make `recvmsg` report when the bytes came. Where times have 64 bits the last two numbers equal the first two.
const STAMPS: [i32; 4] =
    [libc::SO_TIMESTAMP, libc::SO_TIMESTAMPNS, libc::SO_TIMESTAMP_NEW, libc::SO_TIMESTAMPNS_NEW];

/// Longest time limit in seconds, in place of any longer one: it can be added to the present time without overflow.
const LONGEST_S: u64 = 100 * 365 * 24 * 3600;

/// A socket option, as `setsockopt` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// `SOL_SOCKET`, `IPPROTO_TCP`, and so on.
    pub level: i32,
    /// The option's number at that level.
    pub name: i32,
}

/// The part of the system that obeys an inherited option.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// The service's TCP, which is told at once when the option is set.
    Service,
    /// This library, or the kernel for the placeholder.
    Library,
}

/// Options that a socket accepted from a listener inherits.
const INHERITED: [(i32, i32, By); 54] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, By::Service),
    (libc::SOL_SOCKET, libc::SO_RCVBUF, By::Service),
    (libc::SOL_SOCKET, libc::SO_SNDBUF, By::Library),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, By::Library),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO, By::Library),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO, By::Library),
    (libc::SOL_SOCKET, libc::SO_LINGER, By::Library),
    (libc::SOL_SOCKET, libc::SO_REUSEADDR, By::Library),
    (libc::SOL_SOCKET, libc::SO_PRIORITY, By::Library),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY, By::Library),
    (libc::IPPROTO_IP, libc::IP_TOS, By::Service),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, By::Service),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, By::Service),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY, By::Library),
    (libc::IPPROTO_TCP, libc::TCP_CORK, By::Library),
    (libc::IPPROTO_TCP, TCP_INQ, By::Library),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, By::Library),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, By::Service),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, By::Service),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, By::Service),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, By::Service),
    (libc::IPPROTO_TCP, libc::TCP_CONGESTION, By::Service),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG, By::Service),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2, By::Service),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT, By::Service),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, By::Service),
    (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, By::Service),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE, By::Library),
    (libc::SOL_SOCKET, libc::SO_BROADCAST, By::Library),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE, By::Library),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT, By::Library),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP, By::Library),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, By::Library),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP_NEW, By::Library),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS_NEW, By::Library),
    (libc::SOL_SOCKET, libc::SO_MARK, By::Library),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL, By::Library),
    (libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, By::Library),
    (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, By::Service),
    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, By::Library),
    (libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, By::Library),
    (libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, By::Library),
    (libc::IPPROTO_IP, libc::IP_TTL, By::Library),
    (libc::IPPROTO_IP, libc::IP_RECVERR, By::Library),
    (libc::IPPROTO_IP, libc::IP_RECVTOS, By::Library),
    (libc::IPPROTO_IP, libc::IP_PKTINFO, By::Library),
    (libc::IPPROTO_IP, libc::IP_FREEBIND, By::Library),
    (libc::IPPROTO_IP, libc::IP_MINTTL, By::Library),
    (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, By::Library),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, By::Library),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, By::Library),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, By::Library),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, By::Library),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, By::Library),
];

/// Options that only the kernel's TCP can carry out, with the reason for the statistics. Set before the decision they keep
/// the socket in the kernel; set on an accelerated connection they fail as on a kernel that lacks them.
const KERNEL_ONLY: [(i32, i32, KernelReason); 10] = [
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE, KernelReason::BindToDevice),
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, KernelReason::AttachFilter),
    (libc::SOL_SOCKET, libc::SO_ATTACH_BPF, KernelReason::AttachBpf),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, KernelReason::Timestamping),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF, KernelReason::PeekOffset),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT, KernelReason::Transparent),
    (libc::IPPROTO_TCP, libc::TCP_ULP, KernelReason::Ulp),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR, KernelReason::Repair),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG, KernelReason::Md5),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, KernelReason::FastOpenConnect),
];

/// Options that a connection refuses; its placeholder would not.
const UNCONNECTED_ONLY: [(i32, i32); 2] =
    [(libc::IPPROTO_TCP, libc::TCP_FASTOPEN), (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_NO_COOKIE)];

/// The part of the system that obeys an inherited option; `None` for any other option.
fn obeyed_by(level: i32, name: i32) -> Option<By> {
    INHERITED.iter().find(|(l, n, _)| (*l, *n) == (level, name)).map(|(_, _, by)| *by)
}

pub fn int(value: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(value.get(..4)?.try_into().ok()?))
}

fn long(value: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_ne_bytes(value.get(at..at + 8)?.try_into().ok()?))
}

/// A time limit as the kernel has accepted it (`struct timeval`); `None`: no limit. A negative time means at once.
fn timeval(value: &[u8]) -> Option<Duration> {
    let (s, us) = (long(value, 0)?, u32::try_from(long(value, 8)?).ok()?);
    match u64::try_from(s) {
        Ok(0) if us == 0 => None,
        Ok(s) => Some(Duration::new(s.min(LONGEST_S), us.min(999_999) * 1_000)),
        Err(_) => Some(Duration::ZERO),
    }
}

/// `setsockopt`: the kernel sets the option on the placeholder first, and its refusal stands; then this library obeys and remembers it.
///
/// # Errors
/// The kernel's; ENOPROTOOPT for an option that an accelerated connection cannot honour.
pub fn set(sock: &Sock, fd: RawFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    pending_sockopts::tell(sock, fd)?;
    note(sock, fd, level, name, value)?;
    pending_sockopts::forget(sock, level, name);
    if obeyed_by(level, name) == Some(By::Service) {
        tell(sock);
    }
    Ok(())
}

/// The congestion control of that name, if the service's TCP implements it.
fn congestion(name: &[u8]) -> Option<Congestion> {
    match name.split(|&byte| byte == 0).next()? {
        b"reno" => Some(Congestion::Reno),
        b"cubic" => Some(Congestion::Cubic),
        b"dctcp" => Some(Congestion::Dctcp),
        _ => None,
    }
}

/// `TCP_CONGESTION`: over a port the service's algorithms count, not the kernel's.
fn set_congestion(sock: &Sock, fd: RawFd, value: &[u8]) -> Result<(), Errno> {
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
    let over_port = sock.stream().is_some_and(|link| !link.mapped.pair);
    match (congestion(value).is_some(), over_port) {
        // The kernel may lack the module.
        (true, true) => {
            let _ = sys::setsockopt(fd, level, name, value);
            Ok(())
        }
        (false, true) => Err(Errno::NOENT),
        (true, false) => sys::setsockopt(fd, level, name, value),
        (false, false) => {
            sys::setsockopt(fd, level, name, value)?;
            if sock.role().is_none() {
                sock.keep_in_kernel(KernelReason::Congestion);
            }
            Ok(())
        }
    }
}

/// `IPV6_ADDRFORM`: only a connection between IPv4 addresses may become an IPv4 socket. The kernel cannot do it: the placeholder is
/// not connected.
fn become_ipv4(sock: &Sock, value: &[u8]) -> Result<(), Errno> {
    let link = sock.stream().ok_or(Errno::NOTCONN)?;
    match int(value) {
        _ if sock.family() != libc::AF_INET6 => Err(Errno::NOPROTOOPT),
        None => Err(Errno::INVAL),
        Some(libc::AF_INET) if address::plain(crate::connect::addresses(link).1).is_ipv4() => {
            sock.become_ipv4();
            Ok(())
        }
        Some(libc::AF_INET) => Err(Errno::ADDRNOTAVAIL),
        Some(_) => Err(Errno::INVAL),
    }
}

/// Sends the options to the service, when the socket is a connection over the port, or a listener.
pub fn tell(sock: &Sock) {
    let (region, slot) = match sock.role() {
        Some(crate::socket::Role::Listener(listener)) => (listener.queue.id, 0),
        Some(crate::socket::Role::Stream(link)) if !(link.mapped.pair || link.has_moved()) => {
            (link.mapped.id, link.slot())
        }
        _ => return,
    };
    if let Some(client) = crate::session::current() {
        client.say(Request::SetOptions { region, slot, options: of_socket(sock) });
    }
}

/// Sets one option on the placeholder, obeys and remembers it. Errors as [`set`].
fn note(sock: &Sock, fd: RawFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    const CAPPED: [(i32, i32); 3] = [
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
        (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    ];
    if let Some((_, _, reason)) = KERNEL_ONLY.iter().find(|(l, n, _)| (*l, *n) == (level, name)) {
        if sock.role().is_some() {
            return Err(Errno::NOPROTOOPT);
        }
        sys::setsockopt(fd, level, name, value)?;
        sock.keep_in_kernel(*reason);
        return Ok(());
    }
    let is_unclamped = (level, name, int(value)) == (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, Some(0));
    let is_refused = is_unclamped || UNCONNECTED_ONLY.contains(&(level, name));
    if is_refused && sock.stream().is_some_and(|link| !link.is_over()) {
        return Err(Errno::INVAL);
    }
    match (level, name) {
        (libc::IPPROTO_IPV6, libc::IPV6_ADDRFORM)
            if sock.stream().is_some() && sock.family() == libc::AF_INET6 =>
        {
            become_ipv4(sock, value)?;
        }
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => set_congestion(sock, fd, value)?,
        _ => sys::setsockopt(fd, level, name, value)?,
    }
    let mut capped = [0; 4];
    let is_capped =
        CAPPED.contains(&(level, name)) && sys::getsockopt(fd, level, name, &mut capped) == Ok(capped.len());
    // The kernel has changed the value: a low-water mark is at most half of the receive buffer (which grows with it), a window clamp has a
    // minimum, and a deferral time is rounded to a sum of retransmission timeouts.
    let value = if is_capped { &capped[..] } else { value };
    let name = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE) => libc::SO_SNDBUF,
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE) => libc::SO_RCVBUF,
        _ => name,
    };
    obey(sock, level, name, value);
    sock.set(|settings| settings.note(level, name, value));
    Ok(())
}

impl Settings {
    /// Remembers an option that has a meaning later.
    pub fn note(&mut self, level: i32, name: i32, value: &[u8]) {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => self.receive_limit = timeval(value),
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => self.send_limit = timeval(value),
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                // As the kernel reads it: a negative number is a large one.
                let seconds = value.get(4..).and_then(int).unwrap_or(0) as u32;
                self.linger = int(value).is_some_and(|on| on != 0).then_some(seconds);
            }
            (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => {
                self.notices.get_or_insert_default().switch(int(value).is_some_and(|on| on != 0));
            }
            _ => {}
        }
        if obeyed_by(level, name).is_some() {
            self.kept.retain(|(l, n, _)| (*l, *n) != (level, name));
            self.kept.push((level, name, value.into()));
        }
    }

    /// The option of [`STAMPS`] that is on; `None`: no timestamps.
    pub fn stamp(&self) -> Option<i32> {
        let is_one = |(level, name, _): &&Kept| *level == libc::SOL_SOCKET && STAMPS.contains(name);
        // The option that was set last counts; if that switched it off, all of them are off.
        let (_, name, value) = self.kept.iter().rev().find(is_one)?;
        int(value).filter(|on| *on != 0).map(|_| *name)
    }
}

/// Applies an option that is set now to the socket's flags and its connection.
fn obey(sock: &Sock, level: i32, name: i32, value: &[u8]) {
    let Some(number) = int(value) else { return };
    if (level, name) == (libc::IPPROTO_TCP, TCP_INQ) {
        sock.mark(flag::TELLS_UNREAD, number != 0);
    }
    if level == libc::SOL_SOCKET && STAMPS.contains(&name) {
        sock.mark(flag::TELLS_TIME, number != 0);
    }
    let Some(link) = sock.stream().filter(|link| !link.has_moved()) else { return };
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => link.set_inline(number != 0),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => {
            link.set_low_water(number as u32);
            sock.pass_on();
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => link.set_no_delay(number != 0),
        // As the kernel reads it: a negative number is a large one.
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
            link.set_buffer(number as u32);
            // A larger buffer may have room for threads that wait for space.
            sock.pass_on();
        }
        (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => link.set_lowat(number as u32),
        (libc::IPPROTO_TCP, libc::TCP_CORK) => link.set_cork(number != 0),
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => link.set_quick_ack(number != 0),
        (libc::IPPROTO_TCP, libc::TCP_LINGER2) => link.set_linger2(number),
        _ => {}
    }
}

/// The value of an option that was set.
fn find(kept: &[Kept], level: i32, name: i32) -> Option<&[u8]> {
    kept.iter().find(|(l, n, _)| (*l, *n) == (level, name)).map(|(_, _, value)| &value[..])
}

/// Applies the options that were set before the connection was made.
pub fn advise_all(sock: &Sock, link: &Endpoint) {
    let settings = sock.settings().unwrap_or_default();
    let set = |level, name| find(&settings.kept, level, name).and_then(int);
    let is_on = |name| set(libc::IPPROTO_TCP, name).is_some_and(|on| on != 0);
    if let Some(bytes) = set(libc::SOL_SOCKET, libc::SO_SNDBUF) {
        link.set_buffer(bytes as u32);
    }
    // Unless the program has set it, the system's default applies.
    link.set_lowat(set(libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT).unwrap_or(0) as u32);
    if set(libc::SOL_SOCKET, libc::SO_OOBINLINE).is_some_and(|on| on != 0) {
        link.set_inline(true);
    }
    if let Some(bytes) = set(libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
        link.set_low_water(bytes as u32);
    }
    if is_on(libc::TCP_NODELAY) {
        link.set_no_delay(true);
    }
    if is_on(libc::TCP_CORK) {
        link.set_cork(true);
    }
    if let Some(seconds) = set(libc::IPPROTO_TCP, libc::TCP_LINGER2) {
        link.set_linger2(seconds);
    }
    acknowledge_soon(link);
}

/// Turns `TCP_QUICKACK` on from the beginning, where the environment says so; the program may turn it off.
fn acknowledge_soon(link: &Endpoint) {
    if crate::session::config::quick_ack() && !link.mapped.pair {
        link.set_quick_ack(true);
    }
}

/// Gives an accepted socket the options of its listener. The placeholder gets them only when it matters (see `untold`).
pub fn inherit(from: &Sock, to: &Sock) {
    if let Some(link) = to.stream() {
        // The system's default, unless the listener's option replaces it below.
        link.set_lowat(0);
        acknowledge_soon(link);
    }
    let settings = from.settings();
    let mut passed_on = settings.iter().flat_map(|settings| settings.passed_on()).peekable();
    if passed_on.peek().is_some() {
        pending_sockopts::begin(to);
    }
    passed_on.for_each(|(level, name, value)| obey(to, *level, *name, value));
    to.share_settings(settings);
    if to.cookie() != 0 {
        to.set(|settings| settings.cookie = 0);
    }
}

/// Reads from the placeholder which options were set on a socket that comes from another process.
pub fn take_over(sock: &Sock, fd: RawFd) {
    const LONG: [(i32, i32, usize); 3] = [
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO, 16),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO, 16),
        (libc::SOL_SOCKET, libc::SO_LINGER, 8),
    ];
    const INTS: [(i32, i32); 8] = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
        (libc::SOL_SOCKET, libc::SO_REUSEADDR),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
        (libc::IPPROTO_IP, libc::IP_TOS),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    ];
    for (level, name, len) in LONG.into_iter().chain(INTS.map(|(level, name)| (level, name, 4))) {
        let mut value = vec![0; len];
        if sys::getsockopt(fd, level, name, &mut value) == Ok(len) {
            // The kernel accepts a value that it has just returned.
            let _ = note(sock, fd, level, name, &value);
        }
    }
}

/// Sets the options of this socket on another kernel socket.
pub fn repeat(sock: &Sock, fd: RawFd) {
    for (level, name, value) in sock.settings().iter().flat_map(|settings| &settings.kept) {
        // The kernel accepted each of these values before.
        let _ = sys::setsockopt(fd, *level, *name, value);
    }
}

/// The value of `IP_TOS`, which Linux also takes as one byte, or of `IPV6_TCLASS`, where -1 means the default.
fn service(value: &[u8]) -> u8 {
    let byte = || value.first().copied().unwrap_or(0);
    int(value).map_or_else(byte, |value| if value < 0 { 0 } else { value as u8 })
}

/// `SO_MAX_PACING_RATE` in bytes per second, from four or eight bytes; 0: no limit (all ones in the option).
fn pacing_rate(value: &[u8]) -> u64 {
    let short = || int(value).map_or(u64::MAX, |n| if n == -1 { u64::MAX } else { u64::from(n as u32) });
    let rate = long(value, 0).map_or_else(short, |n| n as u64);
    if rate == u64::MAX { 0 } else { rate }
}

/// Bytes that the peer may send ahead, by `SO_RCVBUF` and `TCP_WINDOW_CLAMP`; 0: the service's default.
fn receive_buffer(buffer: i32, clamp: i32) -> u32 {
    let limits = [buffer, clamp].into_iter().filter(|bytes| *bytes > 0);
    limits.min().unwrap_or(0) as u32
}

/// The options that the service's TCP obeys.
pub fn of_socket(sock: &Sock) -> SocketOptions {
    let settings = sock.settings().unwrap_or_default();
    let raw = |level, name| find(&settings.kept, level, name);
    let socket = |name| raw(libc::SOL_SOCKET, name).and_then(int).unwrap_or(0);
    let tcp = |name| raw(libc::IPPROTO_TCP, name).and_then(int).unwrap_or(0);
    // The kernel has checked the ranges; a value too large for the message becomes its largest value.
    let short = |value: i32| value.clamp(0, i32::from(i16::MAX)) as u16;
    let byte = |value: i32| value.clamp(0, i32::from(u8::MAX)) as u8;
    SocketOptions {
        keep_alive: socket(libc::SO_KEEPALIVE) != 0,
        keep_idle: short(tcp(libc::TCP_KEEPIDLE)),
        keep_interval: short(tcp(libc::TCP_KEEPINTVL)),
        keep_count: byte(tcp(libc::TCP_KEEPCNT)),
        user_timeout: tcp(libc::TCP_USER_TIMEOUT).max(0) as u32,
        max_segment: short(tcp(libc::TCP_MAXSEG)),
        receive_buffer: receive_buffer(socket(libc::SO_RCVBUF), tcp(libc::TCP_WINDOW_CLAMP)),
        max_pacing_rate: raw(libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE).map_or(0, pacing_rate),
        linger2: tcp(libc::TCP_LINGER2).clamp(-1, i32::from(i16::MAX)) as i16,
        syn_count: byte(tcp(libc::TCP_SYNCNT)),
        defer_accept: short(tcp(libc::TCP_DEFER_ACCEPT)),
        congestion: raw(libc::IPPROTO_TCP, libc::TCP_CONGESTION).and_then(congestion).unwrap_or_default(),
        tos: raw(libc::IPPROTO_IP, libc::IP_TOS).map_or(0, service),
        may_fragment: raw(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER)
            .is_some_and(|value| service(value) == libc::IP_PMTUDISC_DONT as u8),
        traffic_class: raw(libc::IPPROTO_IPV6, libc::IPV6_TCLASS).map_or(0, service),
        reuse_address: socket(libc::SO_REUSEADDR) != 0,
    }
}

/// `getsockopt`. `None`: the kernel's answer for the placeholder is correct.
pub fn get(sock: &Sock, level: i32, name: i32, out: &mut [u8]) -> Option<Result<usize, Errno>> {
    let link = sock.stream()?;
    if link.is_unconnected() && (level, name) != (libc::SOL_SOCKET, libc::SO_ERROR) {
        return None;
    }
    let switch = pending_sockopts::get(sock, level, name);
    let value = match (level, name) {
        _ if switch.is_some() => switch?,
        (libc::SOL_SOCKET, libc::SO_ERROR) => sock.take_error(),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => sock.family(),
        (libc::SOL_SOCKET, libc::SO_PEERNAME) => return Some(peer_name(sock, link, out)),
        (libc::IPPROTO_IPV6, libc::IPV6_ADDRFORM) if sock.family() == libc::AF_INET6 => sock.family(),
        (libc::IPPROTO_IP, libc::IP_MTU) if !(link.is_over() || link.is_closed()) => mtu(link),
        (libc::IPPROTO_IPV6, libc::IPV6_MTU)
            if sock.family() == libc::AF_INET6 && !(link.is_over() || link.is_closed()) =>
        {
            mtu(link)
        }
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => segment(link) as i32,
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => link.grown_buffer()? as i32,
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
            // Linux: a name of 16 bytes, zeros included.
            let mut name = asked(link)?.1.into_bytes();
            name.resize(16, 0);
            let n = out.len().min(name.len());
            out[..n].copy_from_slice(&name[..n]);
            return Some(Ok(n));
        }
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            let info = info(link).encode();
            let n = out.len().min(info.len());
            out[..n].copy_from_slice(&info[..n]);
            return Some(Ok(n));
        }
        _ => return None,
    };
    Some(Ok(put(out, value)))
}

/// Writes an int into `out`, cut to its length; returns the number of bytes.
pub fn put(out: &mut [u8], value: i32) -> usize {
    let n = out.len().min(4);
    out[..n].copy_from_slice(&value.to_ne_bytes()[..n]);
    n
}

/// `SO_PEERNAME`, also before and after the connection, as on Linux. EINVAL when `out` is longer than the address.
fn peer_name(sock: &Sock, link: &Endpoint, out: &mut [u8]) -> Result<usize, Errno> {
    let (bytes, full) = address::bytes(crate::connect::addresses(link).1, sock.family());
    if out.len() > full {
        return Err(Errno::INVAL);
    }
    out.copy_from_slice(&bytes[..out.len()]);
    Ok(out.len())
}

/// `IP_MTU`, `IPV6_MTU`: the path's; within one host that of the loopback interface, which IPv4 limits to 65,535.
fn mtu(link: &Endpoint) -> i32 {
    match asked(link) {
        Some((info, _)) => info.pmtu as i32,
        None if address::plain(crate::connect::addresses(link).1).is_ipv4() => 65_535,
        None => 65_536,
    }
}

/// `TCP_MAXSEG` of a connection, in bytes.
fn segment(link: &Endpoint) -> u32 {
    info(link).snd_mss
}

/// The service's `tcp_info` of the connection and the name of its congestion control; `None` within one host.
fn asked(link: &Endpoint) -> Option<(TcpInfo, String)> {
    if link.mapped.pair || link.is_over() {
        return None;
    }
    let request = Request::Info { region: link.mapped.id, slot: link.slot() };
    match session::present()?.ask(request).ok()? {
        (Reply::Info { info, congestion }, _) => Some((*info, congestion)),
        _ => None,
    }
}

/// The service's `tcp_info`; if there is none, what the slot says: state, segment size, bytes outstanding, bytes each way.
fn info(link: &Endpoint) -> TcpInfo {
    asked(link).map_or_else(|| known(link), |(info, _)| info)
}

/// Linux's values for a connection without measurable round trip: `TCP_RTO_MIN`, `TCP_ATO_MIN`; microseconds.
const RTO_MIN_US: u32 = 200_000;
const ATO_MIN_US: u32 = 40_000;

/// A `tcp_info` made from both halves of the slot.
fn known(link: &Endpoint) -> TcpInfo {
    use shm::half_flags::FIN;
    let seen = link.peer_flags();
    let bits = link.state();
    let (shut, finished) = (bits & state::SHUT_WR != 0, seen & FIN != 0);
    let state = match (link.is_over(), link.is_open()) {
        (true, _) => tcp_state::CLOSE,
        (_, false) => tcp_state::SYN_SENT,
        _ if shut && finished => tcp_state::CLOSE,
        _ if shut => tcp_state::FIN_WAIT2,
        _ if finished => tcp_state::CLOSE_WAIT,
        _ => tcp_state::ESTABLISHED,
    };
    let unsent = link.unsent() as u64;
    let sent = link.block().tx_head.load(Ordering::Relaxed);
    let unacked = unsent.div_ceil(u64::from(LOOPBACK_MSS)) as u32;
    TcpInfo {
        state,
        rto: RTO_MIN_US,
        ato: ATO_MIN_US,
        snd_mss: LOOPBACK_MSS,
        rcv_mss: LOOPBACK_MSS,
        advmss: LOOPBACK_MSS,
        pmtu: LOOPBACK_MSS + 52,
        unacked,
        snd_ssthresh: i32::MAX as u32,
        snd_cwnd: 10.max(unacked),
        reordering: 3,
        bytes_acked: sent - unsent,
        bytes_sent: sent,
        bytes_received: link.block().rx_tail.load(Ordering::Relaxed) + link.unread() as u64,
        ..TcpInfo::default()
    }
}
