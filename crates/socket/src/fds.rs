//! The calls of the sockets API by descriptor. `None` from any of them: not ours, the kernel does it.

use crate::address;
use crate::connect::{self, Connected};
use crate::epoll::Set;
use crate::fallback::{self, fall_back, surrender};
use crate::link::{Link, state};
use crate::listener::{self, Accepted, Listened};
use crate::log::{Level, log};
use crate::sock::{Role, Sock};
use crate::stream::ready;
use crate::table::Table;
use crate::{client, config, internal, moving, options, sys};
use control::Request;
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// An answer, or none when the kernel is to give it.
pub type Handled<T> = Option<Result<T, Errno>>;

/// Sockets that are, or may become, accelerated.
pub static SOCKS: Table<Sock> = Table::new();
/// Epoll sets.
pub static SETS: Table<Set> = Table::new();

/// Anything ever stood in one of them.
static USED: AtomicBool = AtomicBool::new(false);
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Remembers which process this is; again in a forked child.
pub fn settle() {
    PROCESS.store(rustix::process::getpid().as_raw_nonzero().get(), Ordering::Relaxed);
}

/// True in a `vfork` child, which shares our memory and must not change it.
pub fn is_borrowed() -> bool {
    let known = PROCESS.load(Ordering::Relaxed);
    // Who may not ask has not become another process since it could.
    known != 0 && sys::pid().is_some_and(|pid| pid != known)
}

/// True when `fd` stands in one of our tables.
#[inline]
pub fn is_ours(fd: RawFd) -> bool {
    SOCKS.pin(fd).is_some() || SETS.pin(fd).is_some()
}

/// False in a process that never had a socket or an epoll set: nothing of any call is ours.
#[inline]
pub fn has_any() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Puts an object behind a descriptor that is new. A call on the number's last owner may still be ending.
fn put<T>(table: &Table<T>, fd: RawFd, mut object: Arc<T>) -> bool {
    USED.store(true, Ordering::Relaxed);
    for _ in 0..100_000 {
        match table.insert(fd, object) {
            Ok(()) => return true,
            Err(back) => object = back,
        }
        if fd as usize >= 1 << 20 {
            return false;
        }
        sys::give_way();
    }
    log(Level::Error, format_args!("descriptor {fd} stays with the kernel: its last owner is still busy"));
    false
}

/// The kernel made a socket.
pub fn opened(fd: RawFd, domain: i32, kind: i32, protocol: i32) {
    let tcp = matches!(protocol, 0 | libc::IPPROTO_TCP | libc::IPPROTO_MPTCP);
    let stream = kind & 0xf == libc::SOCK_STREAM && tcp;
    let inet = domain == libc::AF_INET || domain == libc::AF_INET6;
    if !(stream && inet) || config::is_disabled() || is_borrowed() {
        return;
    }
    if fallback::is_bypassed() {
        return fallback::count(fallback::IO_URING, Some(fd));
    }
    if PROCESS.load(Ordering::Relaxed) == 0 {
        settle();
    }
    let sock = Sock::new(domain, kind & libc::SOCK_NONBLOCK != 0);
    if protocol == libc::IPPROTO_MPTCP {
        sock.keep_in_kernel("MPTCP");
    }
    put(&SOCKS, fd, Arc::new(sock));
}

/// A socket of another process's came in.
pub fn put_inherited(fd: RawFd, sock: Sock) {
    if !is_borrowed() {
        put(&SOCKS, fd, Arc::new(sock));
    }
}

/// The kernel made an epoll set.
pub fn epoll_opened(fd: RawFd) {
    if !(config::is_disabled() || is_borrowed()) {
        put(&SETS, fd, Set::new(fd));
    }
}

/// `fd` is about to be closed or replaced.
///
/// # Errors
/// EBADF for our own descriptors.
pub fn closing(fd: RawFd) -> Result<(), Errno> {
    if internal::is_internal(fd) {
        // Nor may a `vfork` child close them: it has yet to say what it takes along to its program.
        return Err(Errno::BADF);
    }
    if !is_ours(fd) || is_borrowed() {
        return Ok(());
    }
    if let Some(sock) = SOCKS.remove(fd) {
        sock.drop_descriptor();
    }
    if let Some(set) = SETS.remove(fd) {
        set.drop_descriptor();
    }
    Ok(())
}

/// `new` stands for the same as `old` from now on.
pub fn duplicated(old: RawFd, new: RawFd) {
    if old == new {
        return;
    }
    if is_borrowed() {
        // The child's numbers are its own: by this the parent's socket is known again.
        if let (Some(sock), Some(cookie)) = (SOCKS.pin(old), crate::moving::cookie(new)) {
            sock.set(|settings| settings.cookie = cookie);
        }
        return;
    }
    if let Some(sock) = SOCKS.pin(old).map(|s| s.share()) {
        sock.add_descriptor();
        if !put(&SOCKS, new, sock.clone()) {
            sock.drop_descriptor();
        }
    } else if let Some(set) = SETS.pin(old).map(|s| s.share()) {
        set.add_descriptor();
        if !put(&SETS, new, set.clone()) {
            set.drop_descriptor();
        }
    }
}

/// Descriptors `first..=last` are about to be closed: ours are let go. Returns the ranges to close, without our own
/// descriptors; `None`: the range as it is.
pub fn closing_range(first: u32, last: u32) -> Option<Vec<(u32, u32)>> {
    for (fd, _) in
        SOCKS.all().iter().map(|(fd, _)| (*fd, ())).chain(SETS.all().iter().map(|(fd, _)| (*fd, ())))
    {
        if (first..=last).contains(&(fd as u32)) && !is_borrowed() {
            let _ = closing(fd);
        }
    }
    let kept = internal::within(first, last);
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

/// `fresh`, for which one descriptor is counted, stands from now on for what `old` stood for. How many descriptors those are.
pub fn exchange(old: &Arc<Sock>, fresh: &Arc<Sock>) -> usize {
    let all = SOCKS.all().into_iter().filter(|(_, sock)| Arc::ptr_eq(sock, old));
    let done = all.filter(|(fd, _)| {
        fresh.add_descriptor();
        let done = SOCKS.exchange(*fd, old, fresh.clone());
        if !done {
            fresh.drop_descriptor();
        }
        done
    });
    let n = done.count();
    for (set, fd) in old.sets() {
        set.exchange(fd, old, fresh);
    }
    fresh.drop_descriptor();
    n
}

/// `listen`.
pub fn listen(fd: RawFd, backlog: i32) -> Handled<()> {
    let sock = SOCKS.pin(fd)?.share();
    if sock.stream().is_some() {
        return Some(Err(Errno::INVAL));
    }
    Some(listener::listen(&sock, fd, backlog).and_then(|listened| match listened {
        Listened::Accelerated => Ok(()),
        Listened::Kernel(why) => fall_back(fd, &sock, &why, format_args!("listen")).inspect_err(|_| {
            // The kernel was asked first; its socket listens no more.
            let _ = rustix::net::shutdown(sys::borrow(fd), rustix::net::Shutdown::Read);
        }),
    }))
}

/// `connect` to `AF_UNSPEC` on a connection: behind its descriptors there is from now on an unconnected socket of the
/// kernel's, with the options as set.
fn dissolve(sock: &Arc<Sock>) -> Result<(), Errno> {
    let fresh = sys::socket(sock.family(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?;
    options::repeat(sock, fresh);
    let nonblock = if sock.is_nonblocking() { libc::O_NONBLOCK } else { 0 };
    let mut result = sys::fcntl(fresh, libc::F_SETFL, nonblock as usize).map(|_| ());
    let all = SOCKS.all().into_iter();
    let fds: Vec<_> = all.filter(|(_, other)| Arc::ptr_eq(sock, other)).map(|(fd, _)| fd).collect();
    for &fd in &fds {
        let close_on_exec =
            sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|f| f & libc::FD_CLOEXEC as usize != 0);
        let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
        result = result.and(sys::dup3(fresh, fd, flags));
    }
    surrender(&fds, sock, "connect to AF_UNSPEC");
    fds.iter().for_each(|_| sock.drop_descriptor());
    result.and(sys::close(fresh))
}

/// `connect`.
pub fn connect(fd: RawFd, name: &[u8]) -> Handled<()> {
    let sock = SOCKS.pin(fd)?.share();
    match connect::connect(&sock, fd, name) {
        Ok(Connected::Now) => Some(Ok(())),
        Ok(Connected::Dissolved) => Some(dissolve(&sock)),
        Ok(Connected::Nowhere) => None,
        Ok(Connected::Kernel(why)) => match address::parse(name) {
            Ok(to) => fall_back(fd, &sock, &why, format_args!("connect to {to}")).err().map(Err),
            Err(_) => None,
        },
        Err(e) => Some(Err(e)),
    }
}

/// `bind`: the service's own addresses are not the kernel's. For any address that may be one the service is asked, even
/// when this is the process's first call.
pub fn bind(fd: RawFd, name: &[u8]) -> Handled<()> {
    let sock = SOCKS.pin(fd)?;
    if sock.stream().is_some_and(Link::is_passive) && connect::fits(&sock, name) {
        // The placeholder of an accepted connection has no address yet.
        return Some(Err(Errno::INVAL));
    }
    let ip = address::plain(address::parse(name).ok()?).ip();
    if ip.is_loopback() || ip.is_unspecified() || sock.kernel_only().is_some() {
        return None;
    }
    let client = client::current()?;
    if connect::is_own(&client, ip) {
        let (level, name) = match sock.family() {
            libc::AF_INET6 => (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND),
            _ => (libc::IPPROTO_IP, libc::IP_FREEBIND),
        };
        let _ = sys::setsockopt(fd, level, name, &1i32.to_ne_bytes());
    }
    None
}

/// `accept4`. The descriptor is new and already behind our table.
pub fn accept(fd: RawFd, flags: i32) -> Handled<Accepted> {
    let sock = SOCKS.pin(fd)?;
    if sock.stream().is_some() {
        return Some(Err(Errno::INVAL));
    }
    sock.listener()?;
    let sock = sock.share();
    Some(listener::accept(&sock, fd, flags).inspect(|accepted| {
        if let Some(new) = &accepted.sock {
            put(&SOCKS, accepted.fd, new.clone());
        }
    }))
}

/// `shutdown`.
pub fn shutdown(fd: RawFd, how: i32) -> Handled<()> {
    let sock = moving::settled(fd)?;
    match sock.role()? {
        Role::Stream(link) => Some(match how {
            libc::SHUT_RD => link.shut(true, false),
            libc::SHUT_WR => link.shut(false, true),
            libc::SHUT_RDWR => link.shut(true, true),
            _ => Err(Errno::INVAL),
        })
        .inspect(|_| sock.pass_on()),
        Role::Listener(link) => {
            // Linux stops listening; so do both queues.
            if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
                link.note(state::SHUT_RD);
                if let Some(client) = client::present() {
                    client.say(Request::Unlisten { slot: link.slot() });
                }
            }
            None
        }
    }
}

/// `getsockname`.
pub fn local_name(fd: RawFd) -> Option<(SocketAddr, i32)> {
    let sock = SOCKS.pin(fd)?;
    let link = sock.stream()?;
    Some((connect::addresses(link).0, sock.family()))
}

/// `getpeername`.
pub fn peer_name(fd: RawFd) -> Handled<(SocketAddr, i32)> {
    let sock = SOCKS.pin(fd)?;
    let link = sock.stream()?;
    let _ = link.peer_flags();
    if link.is_over() || !link.is_open() || link.is_closed() {
        return Some(Err(Errno::NOTCONN));
    }
    Some(Ok((connect::addresses(link).1, sock.family())))
}

/// `setsockopt`.
pub fn set_option(fd: RawFd, level: i32, name: i32, value: &[u8]) -> Handled<()> {
    let sock = SOCKS.pin(fd)?;
    Some(options::set(&sock, fd, level, name, value))
}

/// `getsockopt`; the length written.
pub fn option(fd: RawFd, level: i32, name: i32, out: &mut [u8]) -> Handled<usize> {
    let sock = SOCKS.pin(fd)?;
    options::get(&sock, level, name, out)
}

/// `fcntl(F_SETFL)` and `ioctl(FIONBIO)`: takes note. True: a listener, whose kernel socket stays non-blocking.
pub fn set_nonblocking(fd: RawFd, on: bool) -> bool {
    match SOCKS.pin(fd) {
        Some(sock) => {
            sock.set_nonblocking(on);
            sock.listener().is_some()
        }
        None => false,
    }
}

/// `fcntl(F_GETFL)`: the kernel's flags as the program set them.
pub fn open_flags(fd: RawFd, flags: i32) -> i32 {
    match SOCKS.pin(fd) {
        Some(sock) if sock.listener().is_some() && !sock.is_nonblocking() => flags & !libc::O_NONBLOCK,
        _ => flags,
    }
}

/// `ioctl(FIONREAD)`.
pub fn unread(fd: RawFd) -> Option<usize> {
    SOCKS.pin(fd)?.stream().map(Link::unread_to_mark)
}

/// `ioctl(SIOCATMARK)` and `sockatmark`.
pub fn is_at_mark(fd: RawFd) -> Option<bool> {
    SOCKS.pin(fd)?.stream().map(Link::is_at_mark)
}

/// What `TCP_INQ` has a `recvmsg` tell; `None` where it is off.
pub fn left(fd: RawFd) -> Option<usize> {
    let sock = SOCKS.pin(fd)?;
    if !sock.tells_unread() {
        return None;
    }
    sock.stream().map(Link::left)
}

/// `ioctl(SIOCOUTQ)`.
pub fn unsent(fd: RawFd) -> Option<usize> {
    SOCKS.pin(fd)?.stream().map(Link::unsent)
}

/// Takes a connection's pending error.
pub fn pending(fd: RawFd) -> Option<Errno> {
    Some(SOCKS.pin(fd)?.take_error()).filter(|e| *e != 0).map(Errno::from_raw_os_error)
}

/// True for an accelerated connection.
#[inline]
pub fn is_stream(fd: RawFd) -> bool {
    SOCKS.pin(fd).is_some_and(|sock| sock.stream().is_some())
}

/// `epoll_ctl`.
pub fn epoll_control(epfd: RawFd, op: i32, fd: RawFd, event: Option<libc::epoll_event>) -> Handled<()> {
    let set = SETS.pin(epfd)?;
    match SOCKS.pin(fd) {
        Some(sock) => {
            let (set, sock) = (set.share(), sock.share());
            Some(set.control(op, fd, &sock, event))
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

/// True when an accelerated connection takes bytes now.
pub fn has_space(fd: RawFd) -> Option<bool> {
    let sock = SOCKS.pin(fd)?;
    sock.stream()?;
    Some(sock.readiness() & ready::OUT != 0)
}
