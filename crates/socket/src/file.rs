//! The calls of the sockets API, by descriptor. `None` from any of them: the kernel is to make the call.

mod amounts;

use crate::connect::fallback::{self, fall_back};
pub use crate::connect::listen::Closing;
use crate::connect::listen::{self, Accepted, Listened};
use crate::connect::{self, Connected, disconnect};
use crate::epoll::Set;
use crate::fd::tables::{self, SETS, SOCKS, put};
pub use crate::fd::tables::{has_any, is_borrowed, is_ours, settle};
use crate::process::io_uring::rings;
use crate::process::{fd_passing, io_uring, visibility};
use crate::socket::{Role, Sock, options, pending_sockopts, placeholder, reported};
pub use amounts::{Beside, beside, has_space, held_back, is_at_mark, low_water, unread, unsent};
use control::KernelReason;
use cycles::Section;
use endpoint::Endpoint;
use endpoint::option_values;
use endpoint::options::Name;
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::reserved;
use session::reserved::Changing;
use session::sys::signal::Deferred;
use session::sys::{self, address, cycle_account};
use session::{self, config};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The result of a call; `None` when the kernel is to make the call.
pub type Handled<T> = Option<Result<T, Errno>>;

/// True once the program has made an epoll set.
static HAS_SETS: AtomicBool = AtomicBool::new(false);

/// Notes a socket that the kernel has made, if it is a TCP socket.
pub fn opened(fd: RawFd, domain: i32, kind: i32, protocol: i32) {
    let tcp = matches!(protocol, 0 | libc::IPPROTO_TCP | libc::IPPROTO_MPTCP);
    let stream = kind & 0xf == libc::SOCK_STREAM && tcp;
    let inet = domain == libc::AF_INET || domain == libc::AF_INET6;
    let _controlling = cycle_account::enter(Section::Control);
    if !(stream && inet) || config::is_disabled() || is_borrowed() {
        return;
    }
    if let Some(reason) = fallback::reason() {
        return fallback::count(reason, Some(fd));
    }
    tables::settle_first();
    let sock = Sock::new(domain, kind & libc::SOCK_NONBLOCK != 0);
    if protocol == libc::IPPROTO_MPTCP {
        sock.keep_in_kernel(KernelReason::Mptcp);
    }
    put(&SOCKS, fd, Arc::new(sock));
}

/// Notes the epoll set that the kernel makes by `make`. Returns what `make` returns: its descriptor, or a negative number.
pub fn open_set(make: impl FnOnce() -> RawFd) -> RawFd {
    let _deferred = Deferred::begin();
    let _changing = reserved::begin();
    let fd = make();
    if fd >= 0 && !(config::is_disabled() || is_borrowed()) {
        HAS_SETS.store(true, Ordering::Relaxed);
        put(&SETS, fd, Set::new(fd));
    }
    fd
}

/// `fd` is about to be duplicated. The caller keeps the result until [`duplicated`] has returned.
pub fn duplicating(fd: RawFd) -> Option<Changing> {
    (SETS.is_taken(fd) || rings::is_watched(fd)).then(reserved::begin)
}

/// `fd` is about to be closed or replaced. The caller keeps the result until that is done.
///
/// # Errors
/// EBADF when `fd` is one of the library's own descriptors.
pub fn closing(fd: RawFd) -> Result<Closing, Errno> {
    visibility::forget(fd);
    if reserved::is_internal(fd) {
        // A `vfork` child may not close them either: it has yet to say what it takes along to its program.
        return Err(Errno::BADF);
    }
    if !(is_ours(fd) || rings::is_watched(fd)) || is_borrowed() {
        return Ok(Closing::default());
    }
    let _deferred = Deferred::begin();
    let _controlling = cycle_account::enter(Section::Control);
    io_uring::settle_connect(fd);
    let mut ended = None;
    if let Some(sock) = SOCKS.remove(fd) {
        sock.close_common();
        sock.drop_descriptor();
        ended = sock.listener().filter(|l| l.is_port_needed.load(Ordering::Relaxed)).map(|l| l.queue.id);
    }
    let changing = duplicating(fd);
    rings::forget(fd);
    if let Some(set) = SETS.remove(fd) {
        set.drop_descriptor();
    }
    Ok(Closing::new(ended, changing))
}

/// `new` was made a duplicate of `old`: both stand for the same object from now on.
pub fn duplicated(old: RawFd, new: RawFd) {
    if old == new {
        return;
    }
    if is_borrowed() {
        // A `vfork` child's numbers are not its parent's: by this cookie the parent's socket is found again.
        if let (Some(sock), Some(cookie)) = (SOCKS.pin(old), sys::cookie(new)) {
            sock.set(|settings| settings.cookie = cookie);
        }
        return;
    }
    if !(is_ours(old) || rings::is_watched(old)) {
        return;
    }
    let _deferred = Deferred::begin();
    if let Some(sock) = SOCKS.pin(old).map(|s| s.share()) {
        tables::share(&sock, new);
    } else if rings::is_watched(old) {
        io_uring::duplicated(old, new);
    } else if let Some(set) = SETS.pin(old).map(|s| s.share()) {
        set.add_descriptor();
        if !put(&SETS, new, set.clone()) {
            set.drop_descriptor();
        }
    }
}

/// Gives the socket behind `fd` a placeholder of its own (see `placeholder`), before the kernel is asked or told something about it, or
/// duplicates it.
///
/// # Errors
/// The kernel's, when it can make no socket.
#[inline]
pub fn single_out(fd: RawFd) -> Result<(), Errno> {
    SOCKS.pin(fd).map_or(Ok(()), |sock| placeholder::own(&sock, fd))
}

/// Makes a call that changes only the descriptor's own flags (`FD_CLOEXEC`): see [`placeholder::steady`].
pub fn steadily<R>(fd: RawFd, call: impl FnOnce() -> R) -> R {
    match SOCKS.pin(fd) {
        Some(sock) => placeholder::steady(&sock, call),
        None => call(),
    }
}

/// Many descriptors are about to be closed. The caller keeps the result until they are.
pub fn closing_many() -> Changing {
    reserved::begin()
}

/// Descriptors `first..=last` are about to be closed: releases the sockets and sets among them. Returns the ranges to close, which leave
/// out the library's own descriptors; `None`: the range as it is.
pub fn closing_range(first: u32, last: u32) -> Option<Vec<(u32, u32)>> {
    let _deferred = Deferred::begin();
    visibility::forget_all();
    let (socks, sets) = (SOCKS.all(), SETS.all());
    let ours = socks.iter().map(|(fd, _)| *fd).chain(sets.iter().map(|(fd, _)| *fd)).chain(rings::watched());
    for fd in ours {
        if (first..=last).contains(&(fd as u32)) && !is_borrowed() {
            let _ = closing(fd);
        }
    }
    let kept = reserved::within(first, last);
    if kept.is_empty() {
        return None;
    }
    let mut ranges = Vec::new();
    let mut from = first;
    for fd in kept {
        if from < fd {
            ranges.push((from, fd - 1));
        }
        from = fd + 1;
    }
    if from <= last {
        ranges.push((from, last));
    }
    Some(ranges)
}

/// `listen` on the socket behind `fd`.
pub fn listen(fd: RawFd, backlog: i32) -> Handled<()> {
    let _deferred = SOCKS.is_taken(fd).then(Deferred::begin);
    let _controlling = cycle_account::enter(Section::Control);
    let sock = match disconnect::begin_anew(fd)? {
        Ok(sock) => sock,
        Err(e) => return Some(Err(e)),
    };
    if sock.stream().is_some() {
        return Some(Err(Errno::INVAL));
    }
    Some(listen::listen(&sock, fd, backlog).and_then(|listened| match listened {
        Listened::Ours => Ok(()),
        Listened::Kernel(why) => fall_back(fd, &sock, &why, format_args!("listen")).inspect_err(|_| {
            // The kernel's socket listens already, because `listen::listen` asks the kernel first: make it stop.
            let _ = rustix::net::shutdown(sys::borrow(fd), rustix::net::Shutdown::Read);
        }),
    }))
}

/// How a `connect` goes on.
#[derive(Debug)]
pub enum Connect {
    /// The library has made the call, with this result.
    Made(Result<(), Errno>),
    /// The kernel is to make the call.
    Kernel,
    /// As `Kernel`, but perhaps nothing listens there: report the kernel's result to [`fallback::connected`].
    KernelPerhaps,
}

/// `connect` of the socket behind `fd` to the C address `name`.
pub fn connect(fd: RawFd, name: &[u8]) -> Connect {
    let _controlling = cycle_account::enter(Section::Control);
    let Some(mut sock) = SOCKS.pin(fd).map(|sock| sock.share()) else { return Connect::Kernel };
    let _deferred = Deferred::begin();
    if let Err(e) = placeholder::own(&sock, fd) {
        return Connect::Made(Err(e));
    }
    if sock.take_refusal() {
        return Connect::Kernel;
    }
    if sock.is_unconnected() && connect::fits(&sock, name) {
        sock = match disconnect::begin_anew(fd) {
            Some(Ok(fresh)) => fresh,
            Some(Err(e)) => return Connect::Made(Err(e)),
            None => return Connect::Kernel,
        };
    }
    let why = match connect::connect(&sock, fd, name) {
        Ok(Connected::Now) => return Connect::Made(Ok(())),
        Ok(Connected::Nowhere) => return Connect::Kernel,
        Ok(Connected::Kernel(why)) => why,
        Err(e) => return Connect::Made(Err(e)),
    };
    let Ok(to) = address::parse(name) else { return Connect::Kernel };
    if why.reason == KernelReason::NoListener && !config::is_required() {
        return Connect::KernelPerhaps;
    }
    fall_back(fd, &sock, &why, format_args!("connect to {to}"))
        .map_or_else(|e| Connect::Made(Err(e)), |()| Connect::Kernel)
}

/// True for family `AF_UNSPEC` with address 0, which Linux's `bind` takes for `INADDR_ANY`.
fn is_anywhere(sock: &Sock, name: &[u8]) -> bool {
    let (family, address) = (name.get(..2), name.get(4..8));
    let is_long = name.len() >= size_of::<libc::sockaddr_in>();
    sock.family() == libc::AF_INET && is_long && family == Some(&[0; 2]) && address == Some(&[0; 4])
}

/// `bind`: lets the kernel's socket take an address that only the service has. For any address that may be the service's this registers the
/// process, even at its first call.
pub fn bind(fd: RawFd, name: &[u8]) -> Handled<()> {
    let mut sock = SOCKS.pin(fd)?.share();
    let _deferred = Deferred::begin();
    if let Err(e) = placeholder::own(&sock, fd) {
        return Some(Err(e));
    }
    sock.note_named();
    if sock.is_unconnected() && !sock.is_bound() && connect::fits(&sock, name) {
        sock = match disconnect::begin_anew(fd)? {
            Ok(fresh) => fresh,
            Err(e) => return Some(Err(e)),
        };
    }
    if sock.stream().is_some_and(Endpoint::is_passive)
        && (connect::fits(&sock, name) || is_anywhere(&sock, name))
    {
        // The kernel would bind it: the placeholder of an accepted connection has no address yet.
        return Some(Err(Errno::INVAL));
    }
    if sock.stream().is_some_and(|link| !link.is_unconnected()) && connect::fits(&sock, name) {
        return Some(Err(connect::why_not_bound(&sock, name)));
    }
    let ip = address::plain(address::parse(name).ok()?).ip();
    if ip.is_loopback() || ip.is_unspecified() || sock.kernel_only().is_some() {
        return None;
    }
    let client = session::current()?;
    if session::connect::is_own(&client, ip) {
        let (level, name) = match sock.family() {
            libc::AF_INET6 => (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND),
            _ => (libc::IPPROTO_IP, libc::IP_FREEBIND),
        };
        let _ = sys::setsockopt(fd, level, name, &1i32.to_ne_bytes());
    }
    None
}

/// The kernel has refused `bind` with EADDRINUSE. True: the service has held the port for connections that are over, and no longer does.
pub fn is_port_back(fd: RawFd, name: &[u8]) -> bool {
    SOCKS.pin(fd).is_some() && connect::is_port_back(name)
}

/// True when no connection waits in the kernel's accept queue.
fn is_idle(fd: RawFd) -> bool {
    let mut entry = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    sys::poll(&mut entry, Some(Duration::ZERO), None) == Ok(0)
}

/// `accept4`. The accepted connection's descriptor is in `SOCKS` already.
pub fn accept(fd: RawFd, flags: i32) -> Handled<Accepted> {
    let _controlling = cycle_account::enter(Section::Control);
    let sock = SOCKS.pin(fd)?;
    let _deferred = Deferred::begin();
    if sock.role().is_none() && sock.is_put_off() && !sock.is_nonblocking() && is_idle(fd) {
        io_uring::wanted(&sock.share(), fd);
    }
    // Not a listener: the kernel refuses, with EMFILE first where no descriptor is free.
    sock.listener()?;
    // Drop the table pin before blocking, so that close() and reuse of this descriptor are not delayed.
    let shared = sock.share();
    drop(sock);
    let accepted = listen::accept(&shared, fd, flags).transpose();
    if let Some(Ok(Accepted { fd, sock: Some(new), .. })) = &accepted
        && !put(&SOCKS, *fd, new.clone())
    {
        // Without a table entry no later call would replace the common placeholder: do it now.
        let _ = placeholder::own(new, *fd);
    }
    accepted
}

/// `shutdown` of a connection or listener.
pub fn shutdown(fd: RawFd, how: i32) -> Handled<()> {
    let _deferred = SOCKS.is_taken(fd).then(Deferred::begin);
    let sock = fd_passing::settled(fd)?;
    if sock.has_moved() {
        drop(sock);
        return match fd_passing::reclaim(fd) {
            Ok(()) => shutdown(fd, how),
            Err(e) => Some(Err(e)),
        };
    }
    match sock.role()? {
        Role::Stream(link) if (0..=2).contains(&how) && sock.is_connecting() => {
            // As on Linux the attempt to connect ends, whatever `how` says.
            Some(disconnect::give_up(&sock, link))
        }
        Role::Stream(link) => Some(link.shutdown(how)).inspect(|_| sock.pass_on()),
        Role::Listener(listener) => {
            // As on Linux the socket no longer listens.
            let direction = match how {
                libc::SHUT_RD => rustix::net::Shutdown::Read,
                libc::SHUT_RDWR => rustix::net::Shutdown::Both,
                _ => return None,
            };
            Some(listen::stop_after_kernel(listener, || rustix::net::shutdown(sys::borrow(fd), direction)))
        }
    }
}

/// `getsockname`: a connection's local address, and the socket's family.
pub fn local_name(fd: RawFd) -> Option<(SocketAddr, i32)> {
    let sock = SOCKS.pin(fd)?;
    // For a socket that is unconnected again the placeholder knows the address that the program has bound.
    let link = sock.stream().filter(|link| !(link.is_unconnected() && sock.is_bound()))?;
    Some((session::addresses::both(link).0, sock.family()))
}

/// `getpeername`: the peer's address, and the socket's family.
pub fn peer_name(fd: RawFd) -> Handled<(SocketAddr, i32)> {
    let sock = SOCKS.pin(fd)?;
    let link = sock.stream()?;
    let _ = link.peer_flags();
    if link.is_over() || !link.is_open() || link.is_closed() {
        return Some(Err(Errno::NOTCONN));
    }
    Some(Ok((session::addresses::both(link).1, sock.family())))
}

/// `setsockopt`. `is_good` says whether the value's first bytes can be read; it is called where the kernel is not asked.
pub fn set_option(
    fd: RawFd,
    level: i32,
    name: i32,
    value: &[u8],
    is_good: impl FnOnce() -> bool,
) -> Handled<()> {
    let sock = SOCKS.pin(fd)?;
    if pending_sockopts::set(&sock, fd, Name { level, name }, value, is_good) {
        return Some(Ok(()));
    }
    let _deferred = Deferred::begin();
    Some(options::set(&sock, fd, level, name, value))
}

/// `getsockopt`. Returns the number of bytes written to `out`.
pub fn option(fd: RawFd, level: i32, name: i32, out: &mut [u8]) -> Handled<usize> {
    let sock = SOCKS.pin(fd)?;
    let is_error = (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR);
    if is_error && sock.link().is_some() {
        return Some(Ok(option_values::put(out, &sock.take_error().to_ne_bytes())));
    }
    let _deferred = Deferred::begin();
    if let Some(answer) = options::get(&sock, level, name, out) {
        return Some(answer);
    }
    if is_error && let Some(error) = sock.take_late_error() {
        return Some(Ok(option_values::put(out, &error.raw_os_error().to_ne_bytes())));
    }
    pending_sockopts::tell(&sock, fd)
        .map_or_else(|e| Some(Err(e)), |()| reported::get(&sock, fd, Name { level, name }, out))
}

/// Whether the kernel must be told of a change of `O_NONBLOCK`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nonblocking {
    /// Tell the kernel as well.
    Kernels,
    /// Do not tell the kernel: a listener's kernel socket stays non-blocking.
    Stays,
    /// Do not tell the kernel: many connections share the placeholder.
    Ours,
}

/// `fcntl(F_SETFL)` and `ioctl(FIONBIO)`: notes the program's `O_NONBLOCK`.
pub fn set_nonblocking(fd: RawFd, on: bool) -> Nonblocking {
    let Some(sock) = SOCKS.pin(fd) else { return Nonblocking::Kernels };
    // First: for a socket that came from another program this fetches its state, `O_NONBLOCK` included.
    let is_listener = sock.listener().is_some();
    sock.set_nonblocking(on);
    let whose = match is_listener {
        true => Nonblocking::Stays,
        false if placeholder::is_common(&sock) => Nonblocking::Ours,
        false => Nonblocking::Kernels,
    };
    if !on || HAS_SETS.load(Ordering::Relaxed) || sock.decided().is_none() {
        return whose;
    }
    // Without an epoll set of ours, the program may be about to add the socket to a set that it made by its own system calls.
    let shared = sock.share();
    drop(sock);
    if visibility::notice(&shared, fd).is_none() || config::is_required() {
        return whose;
    }
    // Such a program looks at the kernel's flag, too, so the placeholder must be the socket's own.
    match placeholder::own(&shared, fd) {
        Err(_) if whose == Nonblocking::Ours => whose,
        _ => Nonblocking::Kernels,
    }
}

/// `fcntl(F_GETFL)`: the kernel's flags, as `ask` returns them, with `O_NONBLOCK` as the program set it.
pub fn open_flags(fd: RawFd, ask: impl FnOnce() -> i32) -> i32 {
    // Look first whether the placeholder is shared: that may change once the kernel was asked.
    let is_ours =
        SOCKS.pin(fd).is_some_and(|sock| sock.listener().is_some() || placeholder::is_common(&sock));
    match (ask(), SOCKS.pin(fd).filter(|_| is_ours)) {
        (flags @ 0.., Some(sock)) if sock.is_nonblocking() => flags | libc::O_NONBLOCK,
        (flags @ 0.., Some(_)) => flags & !libc::O_NONBLOCK,
        (flags, _) => flags,
    }
}

/// Takes the pending error of the connection behind `fd`.
pub fn pending(fd: RawFd) -> Option<Errno> {
    Some(SOCKS.pin(fd)?.take_error()).filter(|e| *e != 0).map(Errno::from_raw_os_error)
}

/// True when an accelerated connection is behind `fd`.
#[inline]
pub fn is_stream(fd: RawFd) -> bool {
    SOCKS.pin(fd).is_some_and(|sock| sock.stream().is_some())
}

/// `epoll_ctl` for `fd` in the set `epfd`.
pub fn epoll_control(epfd: RawFd, op: i32, fd: RawFd, event: Option<libc::epoll_event>) -> Handled<()> {
    let Some(set) = SETS.pin(epfd) else { return single_out(fd).err().map(Err) };
    // Programs change what they want of a connection for each request, by `EPOLL_CTL_MOD` or by DEL and ADD: no signals are put off there.
    let is_connection = || SOCKS.pin(fd).is_some_and(|sock| sock.link().is_some());
    let _deferred = (op != libc::EPOLL_CTL_MOD && !is_connection()).then(Deferred::begin);
    io_uring::settle_connect(fd);
    match SOCKS.pin(fd) {
        Some(sock) => {
            if op == libc::EPOLL_CTL_ADD && sock.is_put_off() {
                io_uring::wanted(&sock.share(), fd);
            }
            listen::await_by_call(&sock);
            Some(set.control(op, fd, &sock, || sock.share(), event))
        }
        None => match SETS.pin(fd) {
            Some(inner) => {
                let (set, inner) = (set.share(), inner.share());
                Some(set.control_set(op, fd, &inner, event))
            }
            None => {
                set.has_kernel();
                None
            }
        },
    }
}

/// The epoll set behind `epfd`, to be waited on.
pub fn set(epfd: RawFd) -> Option<Arc<Set>> {
    Some(SETS.pin(epfd)?.share())
}
