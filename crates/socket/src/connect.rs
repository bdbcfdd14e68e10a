//! `connect`: the service's answer decides whether it or the kernel carries the connection.

mod close;
pub(crate) mod disconnect;
pub mod fallback;
pub(crate) mod listen;

use crate::process::{io_uring, visibility};
use crate::socket::{Role, Sock, options, placeholder};
use crate::wait::{self, Patience};
use control::{KernelReason, Reply, Request};
use endpoint::blocked::Blocked;
use endpoint::{Endpoint, state};
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::connect::{self, Outcome, Wanted, is_candidate, somewhere};
use session::sys::signal::Deferred;
use session::sys::{self, address};
use session::{self, Client, detached, direct, reserved};
use std::net::SocketAddr;
use std::sync::Arc;
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
    Ok(sys::namespace(fd) != client.namespace)
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
        false => direct::connect(&client, index, plain, sock.family(), sock.is_nonblocking()),
    };
    if let Some(link) = by_grant {
        options::advise_all(sock, &link);
        return establish(sock, link);
    }
    if !client.has_room() {
        connect::free(&client, index);
        return kernel(KernelReason::NoDescriptor, Errno::MFILE);
    }
    let wanted = Wanted {
        block: index,
        remote,
        plain,
        family: sock.family(),
        is_nonblocking: sock.is_nonblocking(),
        shown: is_shown.then_some(fd),
        options: options::of_socket(sock),
    };
    match connect::by_service(&client, &wanted) {
        Outcome::Begun(link) => {
            options::advise_all(sock, &link);
            establish(sock, link)
        }
        Outcome::Refused(e) => Err(e),
        Outcome::Kernel(reason) => kernel(reason, absent),
        Outcome::NoService => Ok(Connected::Kernel(Why::NO_SERVICE)),
    }
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
    let _changing = reserved::begin();
    let Ok(other) = placeholder::idle(sock.family()) else { return Errno::INVAL };
    let bound = sys::bind(other, name);
    let _ = sys::close(other);
    match bound {
        Ok(()) | Err(Errno::ADDRINUSE) => Errno::INVAL,
        Err(e) => e,
    }
}

/// Asks the service for a port that the kernel says is taken; with port 0, for any port when the kernel has none. True: the service has held
/// it, and has given it back.
pub fn is_port_back(name: &[u8]) -> bool {
    let Ok(at) = address::parse(name).map(address::plain) else { return false };
    let _deferred = Deferred::begin();
    session::current()
        .is_some_and(|client| matches!(client.ask(Request::WantPort { at }), Ok((Reply::Done, _))))
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
    let mut is_last = false;
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
        if is_last {
            return Err(Errno::INPROGRESS);
        }
        let patience = Patience { deferred: deferred.as_ref(), ..Patience::until(deadline) };
        is_last = wait::for_call(sock, Blocked::Connect, patience)?;
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
