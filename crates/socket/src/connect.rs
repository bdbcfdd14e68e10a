//! `connect`: the service's answer decides whether it or the kernel carries the connection.

pub(crate) mod accept_queue;
pub mod direct;
pub(crate) mod disconnect;
pub mod fallback;
pub(crate) mod listen;

use crate::process::{fd_passing, io_uring, visibility};
use crate::session::log::{Level, log};
use crate::session::{self, Client, detached};
use crate::socket::{Role, Sock, options, placeholder};
use crate::sys::signal::Deferred;
use crate::sys::{self, address};
use crate::wait::{self, Patience};
use control::{KernelReason, Reply, Request};
use endpoint::stream::ready;
use endpoint::{Endpoint, state};
use rustix::fd::{OwnedFd, RawFd};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Why the kernel is to carry a socket.
#[derive(Debug, PartialEq, Eq)]
pub struct Why {
    /// The reason.
    pub reason: KernelReason,
    /// The error of the call where no socket may be the kernel's.
    pub errno: Errno,
}

impl Why {
    /// The program asked for something that only the kernel has.
    pub const fn asked(reason: KernelReason) -> Self {
        Self { reason, errno: Errno::OPNOTSUPP }
    }

    /// There is no service, or none any more.
    pub const NO_SERVICE: Self = Self { reason: KernelReason::NoService, errno: Errno::NETDOWN };
}

/// The registration to ask about `sock`, for which `fd` stands.
///
/// # Errors
/// Why the socket is the kernel's.
pub fn whom_to_ask(sock: &Sock, fd: RawFd) -> Result<Arc<Client>, Why> {
    match sock.kernel_only().or_else(fallback::reason) {
        Some(reason) => Err(Why::asked(reason)),
        None if detached::is_locked() => Err(Why::asked(KernelReason::Seccomp)),
        None => {
            let client = session::current().ok_or(Why::NO_SERVICE)?;
            visibility::look(&client, sock, fd).map(|()| client)
        }
    }
}

/// The result of `connect`.
#[derive(Debug, PartialEq, Eq)]
pub enum Connected {
    /// The connection is established.
    Now,
    /// The kernel is to connect this socket.
    Kernel(Why),
    /// Nothing is decided: the kernel is to report what is wrong with the address.
    Nowhere,
}

/// Writes both ends' addresses into the socket block.
pub fn store_addresses(link: &Endpoint, local: SocketAddr, peer: SocketAddr, family: i32) {
    let b = link.block();
    for (words, address) in [(&b.local, local), (&b.peer, peer)] {
        let [low, high] = address::to_words(address);
        words[0].store(low, Ordering::Relaxed);
        words[1].store(high, Ordering::Relaxed);
    }
    b.ports.store(u32::from(local.port()) << 16 | u32::from(peer.port()), Ordering::Relaxed);
    b.family.store(family as u32, Ordering::Relaxed);
}

/// Local and peer address of a connection.
#[must_use]
pub fn addresses(link: &Endpoint) -> (SocketAddr, SocketAddr) {
    let b = link.block();
    let ports = b.ports.load(Ordering::Relaxed);
    let words = |w: &[std::sync::atomic::AtomicU64; 2]| w.each_ref().map(|x| x.load(Ordering::Relaxed));
    let local = address::from_words(words(&b.local), (ports >> 16) as u16);
    (local, address::from_words(words(&b.peer), ports as u16))
}

/// True when `ip` is an address of the service, not of the kernel.
pub fn is_own(client: &Client, ip: IpAddr) -> bool {
    client.welcome.settings.own.iter().any(|(own, _)| *own == ip)
}

/// True when the service may carry connections to `ip`.
fn is_candidate(client: &Client, ip: IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified() || is_own(client, ip) || client.welcome.settings.has_port
}

/// True when the socket must be shown to the service: it is bound, by the kernel's word, or in another network namespace than the one in
/// which this process has registered.
fn must_be_shown(client: &Client, sock: &Sock, fd: RawFd) -> Result<bool, Errno> {
    if !sock.is_untouched() {
        let bound = name_of(fd)?;
        if bound.port() != 0 {
            sock.note_bound();
        }
        // Bound without a port: `IP_BIND_ADDRESS_NO_PORT`.
        if bound.port() != 0 || !address::plain(bound).ip().is_unspecified() {
            return Ok(true);
        }
    }
    Ok(fd_passing::namespace(fd) != client.namespace)
}

/// The source address of connections to this host.
fn loopback(remote: IpAddr) -> IpAddr {
    match remote {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

fn name_of(fd: RawFd) -> Result<SocketAddr, Errno> {
    let mut bytes = [0; address::ADDRESS_MAX];
    let n = sys::getsockname(fd, &mut bytes)?;
    address::parse(&bytes[..n])
}

/// `connect` of `sock`, for which `fd` stands, to the C address `name`.
///
/// # Errors
/// As Linux's.
pub fn connect(sock: &Arc<Sock>, fd: RawFd, name: &[u8]) -> Result<Connected, Errno> {
    match sock.role() {
        Some(Role::Listener(listener)) if is_unspecified(name) => {
            let in_kernel = || rustix::net::connect_unspec(sys::borrow(fd));
            return listen::stop_after_kernel(listener, in_kernel).map(|()| Connected::Now);
        }
        // Only the kernel knows whether the socket has a port.
        Some(Role::Listener(listener)) if listener.queue.is_over() => {
            listen::wait_as_wanted(sock, fd)?;
            return Ok(Connected::Kernel(Why::asked(KernelReason::HasListened)));
        }
        Some(Role::Listener(_)) => return Err(Errno::ISCONN),
        Some(Role::Stream(link)) => return again(sock, link, name),
        None => {}
    }
    // The kernel reports errors for AF_UNSPEC and for addresses of other families.
    let Ok(remote) = address::parse(name).map(somewhere) else { return Ok(Connected::Nowhere) };
    if remote.is_ipv4() != (sock.family() == libc::AF_INET) {
        return Ok(Connected::Nowhere);
    }
    let client = match whom_to_ask(sock, fd) {
        Ok(client) => client,
        Err(why) => return Ok(Connected::Kernel(why)),
    };
    if let Err(why) = io_uring::look(sock) {
        let is_put_off =
            is_candidate(&client, address::plain(remote).ip()) && io_uring::put_off_connect(sock, name);
        return if is_put_off { Err(Errno::INPROGRESS) } else { Ok(Connected::Kernel(why)) };
    }
    let plain = address::plain(remote);
    // The error of a host without an accelerated listener there, or without a way there.
    let absent = if plain.ip().is_loopback() { Errno::CONNREFUSED } else { Errno::NETUNREACH };
    let kernel = |reason, errno| Ok(Connected::Kernel(Why { reason, errno }));
    if !is_candidate(&client, plain.ip()) {
        return kernel(KernelReason::NoPortThere, absent);
    }
    let _deciding = sock.begin_deciding();
    let is_shown = must_be_shown(&client, sock, fd)?;
    let Some(index) = client.take_block() else {
        return kernel(KernelReason::TooManySockets, Errno::NOBUFS);
    };
    // The ports of grants are held without `SO_REUSEADDR`.
    let by_grant = match is_shown || options::reuses_address(sock) {
        true => None,
        false => direct::connect(&client, sock, index, plain),
    };
    if let Some(link) = by_grant {
        options::advise_all(sock, &link);
        return establish(sock, link);
    }
    if !client.has_room() {
        free(&client, index);
        return kernel(KernelReason::NoDescriptor, Errno::MFILE);
    }
    ask_service(sock, &client, Wanted { index, remote, plain, shown: is_shown.then_some(fd), absent })
}

/// A connection that the service is asked for.
struct Wanted {
    /// The socket block taken for it.
    index: u32,
    /// The address as the program gave it, and as an IPv4 address where it is one.
    remote: SocketAddr,
    plain: SocketAddr,
    /// The descriptor to be shown; `None`: none is needed.
    shown: Option<RawFd>,
    /// The error where no socket may be the kernel's.
    absent: Errno,
}

fn ask_service(sock: &Arc<Sock>, client: &Client, wanted: Wanted) -> Result<Connected, Errno> {
    let Wanted { index, remote, plain, shown, absent } = wanted;
    if !plain.ip().is_loopback() {
        client.expect_first();
    }
    let options = options::of_socket(sock);
    let request = |has_looked| Request::Connect { remote, options, has_looked };
    match ask(client, request, shown) {
        Ok((Reply::Connecting { region, slot, local, lent, deferred }, _)) => {
            let mapped = client.region(region.id, region.side).filter(|m| m.has(slot));
            let Some(mapped) = mapped else {
                free(client, index);
                return Err(Errno::NOBUFS);
            };
            lent.iter().for_each(|lent| direct::learn(client, plain, &mapped, lent));
            client.expect(&mapped, slot);
            let link = Endpoint::new(mapped, slot, client.home.clone(), index);
            link.begin(sock.is_nonblocking(), false);
            if deferred {
                link.note(state::DEFERRED);
            }
            options::advise_all(sock, &link);
            store_addresses(&link, local, plain, sock.family());
            establish(sock, link)
        }
        Ok((Reply::Refused { errno, reason }, _)) => {
            free(client, index);
            log(Level::Info, format_args!("connect to {remote}: {reason}"));
            Err(Errno::from_raw_os_error(errno))
        }
        Ok((Reply::Kernel { reason }, _)) => {
            free(client, index);
            log(Level::Info, format_args!("connect to {remote} in the kernel: {reason}"));
            Ok(Connected::Kernel(Why { reason, errno: absent }))
        }
        _ => {
            free(client, index);
            Ok(Connected::Kernel(Why::NO_SERVICE))
        }
    }
}

/// Asks the service for a connection; it is the kernel's where the listener may wait by an io_uring.
fn ask(
    client: &Client,
    request: impl Fn(bool) -> Request,
    shown: Option<RawFd>,
) -> Result<(Reply, Vec<OwnedFd>), Errno> {
    match client.ask_with(request(false), shown) {
        Ok((Reply::Look { asker, acceptors }, _)) => match io_uring::reason_for_kernel(asker, &acceptors) {
            None => client.ask_with(request(true), shown),
            Some(reason) => Ok((Reply::Kernel { reason }, Vec::new())),
        },
        other => other,
    }
}

/// Replaces the unspecified address by loopback: it means this host.
fn somewhere(to: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match to.ip() {
        ip if ip.is_unspecified() => loopback(ip),
        ip => ip,
    };
    let mut to = to;
    to.set_ip(ip);
    to
}

fn is_unspecified(name: &[u8]) -> bool {
    name.first_chunk().is_some_and(|family| i32::from(u16::from_ne_bytes(*family)) == libc::AF_UNSPEC)
}

/// True for an address that a socket of this family may be bound to, as far as its form goes.
pub fn fits(sock: &Sock, name: &[u8]) -> bool {
    name.len() <= size_of::<libc::sockaddr_storage>()
        && address::parse(name).is_ok_and(|at| at.is_ipv4() == (sock.family() == libc::AF_INET))
}

/// The error of `bind` on a socket that is connected, and so has an address: the kernel's for a bad name, else EINVAL.
pub fn why_not_bound(sock: &Sock, name: &[u8]) -> Errno {
    let _changing = visibility::begin();
    let Ok(other) = placeholder::idle(sock.family()) else { return Errno::INVAL };
    let bound = sys::bind(other, name);
    let _ = sys::close(other);
    match bound {
        Ok(()) | Err(Errno::ADDRINUSE) => Errno::INVAL,
        Err(e) => e,
    }
}

/// Asks the service for a port that the kernel says is taken. True: the service has held it, and has given it back.
pub fn is_port_back(name: &[u8]) -> bool {
    let Ok(at) = address::parse(name).map(address::plain) else { return false };
    let _deferred = Deferred::begin();
    let client = session::current().filter(|_| at.port() != 0);
    client.is_some_and(|client| matches!(client.ask(Request::WantPort { at }), Ok((Reply::Done, _))))
}

fn free(client: &Client, block: u32) {
    if let Some(b) = client.home.region.sock(block) {
        b.holders.store(0, Ordering::Release);
    }
}

fn establish(sock: &Arc<Sock>, link: Endpoint) -> Result<Connected, Errno> {
    if !sock.decide(link) {
        return Err(Errno::ALREADY);
    }
    for (set, fd) in sock.sets() {
        set.adopt(sock, fd);
    }
    sock.announce_again();
    if sock.is_nonblocking() {
        // As Linux: a non-blocking connect is never done at once, not even over loopback.
        return Err(Errno::INPROGRESS);
    }
    finish(sock)
}

/// Waits until the handshake is over.
fn finish(sock: &Arc<Sock>) -> Result<Connected, Errno> {
    let Some(link) = sock.stream() else { return Err(Errno::NOTCONN) };
    // A signal handler runs only inside the sleep.
    let deferred = Deferred::begin();
    let _open = sock.begin_use()?;
    let deadline = sock.send_limit().map(|t| Instant::now() + t);
    loop {
        let _ = link.peer_flags();
        // First: if the peer has accepted and then reset the connection, the next call reports the reset.
        if link.is_open() {
            link.note(state::TOLD);
            return Ok(Connected::Now);
        }
        if link.is_over() {
            return Err(link.take_error().unwrap_or(Errno::CONNABORTED));
        }
        let patience = Patience { deferred: deferred.as_ref(), ..Patience::until(deadline) };
        match wait::for_one(sock, ready::OUT, patience) {
            Err(Errno::AGAIN) => return Err(Errno::INPROGRESS),
            other => other?,
        }
    }
}

/// `connect` on a socket that has connected or tried to.
fn again(sock: &Arc<Sock>, link: &Endpoint, name: &[u8]) -> Result<Connected, Errno> {
    if link.is_unconnected() {
        // The kernel reports what is wrong with the address, unless it is `AF_UNSPEC` once more.
        return Ok(if is_unspecified(name) { Connected::Now } else { Connected::Nowhere });
    }
    if is_unspecified(name) {
        return disconnect::give_up(sock, link).map(|()| Connected::Now);
    }
    if link.state() & state::TOLD != 0 {
        return Err(Errno::ISCONN);
    }
    if let (true, Some(e)) = (link.peer_flags() != 0 && link.is_over(), link.take_error()) {
        return Err(e);
    }
    if link.is_open() {
        let told = link.note(state::TOLD) & state::TOLD != 0;
        return if told { Err(Errno::ISCONN) } else { Ok(Connected::Now) };
    }
    if sock.is_nonblocking() {
        return Err(Errno::ALREADY);
    }
    // On a timeout: the connect is still the earlier call's.
    finish(sock).map_err(|e| if e == Errno::INPROGRESS { Errno::ALREADY } else { e })
}
