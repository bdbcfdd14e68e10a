//! Socket options. The placeholder is a real kernel socket: what is set on it is checked, kept and answered by the kernel.
//! This file has the options that concern accelerated bytes, and those that no accelerated socket can honour.

use crate::socket::settings::Settings;
use crate::socket::{Sock, flag, pending_sockopts};
use control::{CongestionName, KernelReason, Reply, Request, SocketOptions, TcpInfo, tcp_state};
use endpoint::cork::LOOPBACK_MSS;
use endpoint::option_values::{int, put, put_congestion};
use endpoint::options::{By, Name, Options, SOL_TOWPATH, TCP_INQ};
use endpoint::{Endpoint, state};
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::sys::{self, address};
use std::sync::atomic::Ordering;

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

/// `setsockopt`: the kernel sets the option on the placeholder first, and its refusal stands; then this library obeys and remembers it.
///
/// # Errors
/// The kernel's; ENOPROTOOPT for an option that an accelerated connection cannot honour.
pub fn set(sock: &Sock, fd: RawFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    pending_sockopts::tell(sock, fd)?;
    note(sock, fd, level, name, value)?;
    pending_sockopts::forget(sock, level, name);
    if Name::new(level, name).obeyed_by() == Some(By::Service) {
        tell(sock);
    }
    Ok(())
}

/// `TCP_CONGESTION`: over a port the service's names count, not the kernel's, so a service with a port judges names also before it is known
/// where the connection goes. The kernel's socket gets the name as well, as far as the kernel has it.
fn set_congestion(sock: &Sock, fd: RawFd, value: &[u8]) -> Result<(), Errno> {
    let of_kernel = || sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, value);
    if value.is_empty() {
        return Err(Errno::INVAL);
    }
    let is_over_port = sock.stream().is_some_and(|link| !link.mapped.pair);
    match judged(value) {
        Some(Ok(())) => {
            // The kernel may lack the module.
            let _ = of_kernel();
            Ok(())
        }
        Some(Err(Errno::NOENT)) if sock.role().is_none() => {
            of_kernel()?;
            sock.keep_in_kernel(KernelReason::Congestion);
            Ok(())
        }
        Some(Err(Errno::NOENT)) if !is_over_port => of_kernel(),
        Some(Err(refusal)) => Err(refusal),
        None if is_over_port => Err(Errno::NOENT),
        None => of_kernel(),
    }
}

/// Whether the service lets this process have the congestion control of that name; `None`: there is no service, or it has no port.
fn judged(value: &[u8]) -> Option<Result<(), Errno>> {
    let client = session::current().filter(|client| client.welcome.settings.has_port)?;
    let Some(name) = CongestionName::of_option(value) else { return Some(Err(Errno::NOENT)) };
    match client.ask(Request::Congestion { name }).ok()? {
        (Reply::Done, _) => Some(Ok(())),
        (Reply::Refused { errno, .. }, _) => Some(Err(Errno::from_raw_os_error(errno))),
        _ => None,
    }
}

/// `getsockopt(TCP_CONGESTION)`: of a connection over the port what the service has chosen, else what the program has. `None`: the kernel's
/// answer for the placeholder is correct.
fn congestion(sock: &Sock) -> Option<String> {
    let connected = sock.stream().filter(|link| !link.is_unconnected());
    let of_service = connected.and_then(asked).map(|(_, name)| name);
    let of_program = || sock.settings()?.options.congestion().map(String::from);
    of_service.or_else(of_program)
}

/// `IPV6_ADDRFORM`: only a connection between IPv4 addresses may become an IPv4 socket. The kernel cannot do it: the placeholder is
/// not connected.
fn become_ipv4(sock: &Sock, value: &[u8]) -> Result<(), Errno> {
    let link = sock.stream().ok_or(Errno::NOTCONN)?;
    match int(value) {
        _ if sock.family() != libc::AF_INET6 => Err(Errno::NOPROTOOPT),
        None => Err(Errno::INVAL),
        Some(libc::AF_INET) if address::plain(session::addresses::both(link).1).is_ipv4() => {
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
    if let Some(client) = session::current() {
        client.say(Request::SetOptions { region, slot, options: of_socket(sock) });
    }
}

/// Sets one option on the placeholder, obeys and remembers it. Errors as [`set`].
fn note(sock: &Sock, fd: RawFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
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
        // The kernel's socket has no such option: its check is ours.
        (SOL_TOWPATH, _) => drop(Options::default().accept(Name::new(level, name), value)?),
        _ => sys::setsockopt(fd, level, name, value)?,
    }
    let option = Name::new(level, name);
    let mut capped = [0; 4];
    let is_capped = option.is_capped() && sys::getsockopt(fd, level, name, &mut capped) == Ok(capped.len());
    let value = if is_capped { &capped[..] } else { value };
    obey(sock, option.kept_as(), value);
    sock.set(|settings| settings.note(option.kept_as(), value));
    Ok(())
}

impl Settings {
    /// Remembers an option that has a meaning later.
    pub fn note(&mut self, option: Name, value: &[u8]) {
        if option == Name::new(libc::SOL_SOCKET, libc::SO_ZEROCOPY) {
            self.notices.get_or_insert_default().switch(int(value).is_some_and(|on| on != 0));
        }
        self.options.note(option, value);
    }
}

/// Applies an option that is set now to the socket's flags and its connection.
fn obey(sock: &Sock, option: Name, value: &[u8]) {
    let Some(number) = int(value) else { return };
    if option == Name::new(libc::IPPROTO_TCP, TCP_INQ) {
        sock.mark(flag::TELLS_UNREAD, number != 0);
    }
    if option.is_stamp() {
        sock.mark(flag::TELLS_TIME, number != 0);
    }
    let link = sock.stream().filter(|link| !link.has_moved());
    if link.is_some_and(|link| link.obey(option, number)) {
        sock.pass_on();
    }
}

/// Applies the options that were set before the connection was made.
pub fn advise_all(sock: &Sock, link: &Endpoint) {
    if let Some(settings) = sock.settings() {
        settings.options.apply_to(link);
    }
    acknowledge_soon(link);
}

/// Turns `TCP_QUICKACK` on from the beginning, where the environment says so; the program may turn it off.
fn acknowledge_soon(link: &Endpoint) {
    if session::config::quick_ack() && !link.mapped.pair {
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
    let mut passed_on = settings.iter().flat_map(|settings| settings.options.passed_on()).peekable();
    if passed_on.peek().is_some() {
        pending_sockopts::begin(to);
    }
    passed_on.for_each(|(option, value)| obey(to, option, value));
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
    for (Name { level, name }, value) in sock.settings().iter().flat_map(|settings| settings.options.all()) {
        // The kernel accepted each of these values before.
        let _ = sys::setsockopt(fd, level, name, value);
    }
}

/// The options that the service's TCP obeys.
pub fn of_socket(sock: &Sock) -> SocketOptions {
    sock.settings().map_or_else(SocketOptions::default, |settings| settings.options.told())
}

/// True when the socket has `SO_REUSEADDR` set.
pub fn reuses_address(sock: &Sock) -> bool {
    sock.settings().is_some_and(|settings| settings.options.is_on(libc::SOL_SOCKET, libc::SO_REUSEADDR))
}

/// `getsockopt`. `None`: the kernel's answer for the placeholder is correct.
pub fn get(sock: &Sock, level: i32, name: i32, out: &mut [u8]) -> Option<Result<usize, Errno>> {
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
        return congestion(sock).map(|name| Ok(put_congestion(out, &name)));
    }
    if level == SOL_TOWPATH {
        let option = Name::new(level, name);
        let settings = sock.settings();
        let answer = settings.map_or_else(|| Options::default().answer(option), |s| s.options.answer(option));
        return Some(answer.map(|value| put(out, &value.to_ne_bytes())));
    }
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
        (libc::IPPROTO_TCP, libc::TCP_INFO) => return Some(Ok(put(out, &info(link).encode()))),
        _ => return None,
    };
    Some(Ok(put(out, &value.to_ne_bytes())))
}

/// `SO_PEERNAME`, also before and after the connection, as on Linux. EINVAL when `out` is longer than the address.
fn peer_name(sock: &Sock, link: &Endpoint, out: &mut [u8]) -> Result<usize, Errno> {
    let (bytes, full) = address::bytes(session::addresses::both(link).1, sock.family());
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
        None if address::plain(session::addresses::both(link).1).is_ipv4() => 65_535,
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

#[cfg(test)]
mod tests {
    use super::*;
    use control::AppType;
    use endpoint::options::TOWPATH_APP_TYPE;
    use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};
    use rustix::fd::AsRawFd;
    use rustix::net::{AddressFamily, SocketType, socket};

    /// What the kernel returns for an option after it was set.
    fn kernels(fd: RawFd, level: i32, name: i32, value: i32) -> Result<i32, Errno> {
        sys::setsockopt(fd, level, name, &value.to_ne_bytes())?;
        let mut told = [0; 4];
        sys::getsockopt(fd, level, name, &mut told).map(|_| i32::from_ne_bytes(told))
    }

    /// The same by the rules of the simulator.
    fn simulators(level: i32, name: i32, value: i32) -> Result<i32, Errno> {
        let (option, mut options) = (Name::new(level, name), endpoint::options::Options::default());
        let kept = options.accept(option, &value.to_ne_bytes())?.unwrap_or(value);
        options.note(option, &kept.to_ne_bytes());
        options.answer(option)
    }

    #[test]
    fn the_type_of_an_application_is_kept_here_and_the_kernel_has_no_such_option() {
        let placeholder = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let fd = placeholder.as_raw_fd();
        assert_eq!(kernels(fd, SOL_TOWPATH, TOWPATH_APP_TYPE, 1), Err(Errno::NOPROTOOPT));
        let sock = Sock::new(libc::AF_INET, false);
        let told = || {
            let mut value = [0; 4];
            get(&sock, SOL_TOWPATH, TOWPATH_APP_TYPE, &mut value).map(|n| (n, i32::from_ne_bytes(value)))
        };
        let set = |name, value: i32| set(&sock, fd, SOL_TOWPATH, name, &value.to_ne_bytes());
        assert_eq!((told(), of_socket(&sock).app_type), (Some((Ok(4), 0)), AppType::Unset));
        for (value, app_type) in [(1, AppType::Latency), (2, AppType::Throughput), (0, AppType::Unset)] {
            assert_eq!(set(TOWPATH_APP_TYPE, value), Ok(()));
            assert_eq!((told(), of_socket(&sock).app_type), (Some((Ok(4), value)), app_type));
        }
        assert_eq!(set(TOWPATH_APP_TYPE, 3), Err(Errno::INVAL));
        assert_eq!(set(TOWPATH_APP_TYPE + 1, 1), Err(Errno::NOPROTOOPT));
        assert!(sock.role().is_none(), "the socket is still to be accelerated");
    }

    #[test]
    fn the_simulators_rules_are_the_kernels() {
        let socket = socket(AddressFamily::INET6, SocketType::STREAM, None).unwrap();
        for (level, name) in [
            (SOL_SOCKET, libc::SO_KEEPALIVE),
            (SOL_SOCKET, libc::SO_OOBINLINE),
            (SOL_SOCKET, libc::SO_REUSEADDR),
            (SOL_SOCKET, libc::SO_MAX_PACING_RATE),
            (IPPROTO_TCP, libc::TCP_NODELAY),
            (IPPROTO_TCP, libc::TCP_CORK),
            (IPPROTO_TCP, TCP_INQ),
            (IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
            (IPPROTO_TCP, libc::TCP_KEEPIDLE),
            (IPPROTO_TCP, libc::TCP_KEEPINTVL),
            (IPPROTO_TCP, libc::TCP_KEEPCNT),
            (IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
            (IPPROTO_TCP, libc::TCP_SYNCNT),
            (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
            (IPPROTO_IP, libc::IP_TOS),
            (IPPROTO_IP, libc::IP_FREEBIND),
            (IPPROTO_IPV6, libc::IPV6_TCLASS),
            (IPPROTO_IPV6, libc::IPV6_V6ONLY),
        ] {
            for value in [-2, -1, 0, 1, 2, 3, 7, 100, 127, 128, 254, 255, 256, 32_767, 32_768, 1 << 20] {
                let real = kernels(socket.as_raw_fd(), level, name, value);
                let ours = simulators(level, name, value);
                assert_eq!(ours, real, "level {level}, option {name}, value {value}");
            }
        }
    }
}
