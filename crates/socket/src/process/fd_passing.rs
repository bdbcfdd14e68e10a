//! Connections that leave this process with a descriptor, by `exec` or `SCM_RIGHTS`, and those that come in with one. Before a
//! descriptor leaves, this process hands the connection to the service. A process that uses a descriptor that came in asks the service
//! for the connection, and so does the first process if it goes on using its own: the process that used it last has the connection.

use crate::connect::listen;
use crate::fd::table::Pinned;
use crate::fd::tables;
use crate::process::io_uring;
use crate::socket::{Role, Sock, options, pending_sockopts, placeholder};
use control::{Reply, Request, tcp_state};
use endpoint::flags;
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::fork_locks::Held;
use session::log::{Level, log};
use session::presented::{self, Presented};
use session::reserved;
use session::sys;
use session::sys::signal::Deferred;
use session::{self, Client, config, detached};
use shm::TRUST;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn word<const N: usize>(fd: RawFd, level: i32, name: i32) -> Option<[u8; N]> {
    let mut value = [0; N];
    let n = sys::getsockopt(fd, level, name, &mut value).ok()?;
    (n >= N).then_some(value)
}

fn number(fd: RawFd, name: i32) -> Option<i32> {
    word(fd, libc::SOL_SOCKET, name).map(i32::from_ne_bytes)
}

/// True for a TCP socket of the kernel that is not connected: a listener, a placeholder, or a socket not used yet.
fn is_idle(fd: RawFd) -> bool {
    !reserved::is_internal(fd)
        && number(fd, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
        && matches!(state_in_kernel(fd), Some(tcp_state::CLOSE | tcp_state::LISTEN))
}

fn state_in_kernel(fd: RawFd) -> Option<u8> {
    // `tcpi_state` comes first.
    word(fd, libc::IPPROTO_TCP, libc::TCP_INFO).map(|[state]| state)
}

/// True when the kernel's TCP has no connection behind the descriptor and is not making one.
pub fn is_unconnected_in_kernel(fd: RawFd) -> bool {
    state_in_kernel(fd) == Some(tcp_state::CLOSE)
}

/// All descriptors of this process for which [`is_idle`] is true.
fn idle() -> Vec<RawFd> {
    let Ok(all) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let number = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    all.filter_map(number).filter(|fd| is_idle(*fd)).collect()
}

/// At the start of a program: registers the sockets that it has inherited.
pub fn inherit() {
    if !config::is_disabled() {
        idle().into_iter().for_each(found);
    }
}

/// Registers the descriptor `fd`, which has come into this process: a connection may come with it.
pub fn found(fd: RawFd) {
    if config::is_disabled() || detached::is_locked() || tables::is_ours(fd) || !is_idle(fd) {
        return;
    }
    let (Some(cookie), Some(family)) = (sys::cookie(fd), number(fd, libc::SO_DOMAIN)) else { return };
    match tables::SOCKS.all().into_iter().find(|(number, sock)| is_behind(sock, *number, cookie)) {
        // A `vfork` child's numbers are not its parent's: by this cookie the parent's socket is found again.
        Some((_, known)) if tables::is_borrowed() => known.set(|settings| settings.cookie = cookie),
        Some((_, known)) => {
            let _deferred = Deferred::begin();
            tables::share(&known, fd);
        }
        None => {
            let flags = sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0);
            let nonblock = flags & libc::O_NONBLOCK as usize != 0;
            tables::put_inherited(fd, Sock::inherited(family, nonblock, cookie));
        }
    }
}

/// True if `sock` is the socket with cookie `name`. A listener that this process made has no cookie noted yet; then `fd` is asked.
fn is_behind(sock: &Sock, fd: RawFd, name: u64) -> bool {
    let is_unnamed_listener = || sock.cookie() == 0 && matches!(sock.decided(), Some(Role::Listener(_)));
    sock.cookie() == name || is_unnamed_listener() && sys::cookie(fd) == Some(name)
}

/// How often a socket's connection is asked for at its first use, each time for 20 ms, while the process that has it is in a call.
const TAKES: usize = 10;

/// First use of a socket that came into this process: asks the service for its connection or accept queue.
#[cold]
pub fn take_over(sock: &Sock) {
    let mine = tables::SOCKS.all().into_iter().find(|(_, other)| std::ptr::eq(&raw const **other, sock));
    match mine {
        Some((fd, sock)) if state_in_kernel(fd) == Some(tcp_state::LISTEN) => match io_uring::look(&sock) {
            Ok(()) => listen::join(&sock, fd),
            Err(_) => io_uring::put_off(&sock, fd),
        },
        Some((fd, _)) => {
            // If all tries fail the call finds a socket without a connection.
            let _ = (0..TAKES).any(|_| take(sock, fd) != Err(Errno::AGAIN));
        }
        None => {}
    }
}

/// Makes the connection behind `fd` the one of `sock`.
///
/// # Errors
/// As [`presented::take`]'s.
fn take(sock: &Sock, fd: RawFd) -> Result<(), Errno> {
    let client = session::current().ok_or(Errno::NOTCONN)?;
    let is_nonblocking = sock.is_nonblocking();
    let link = presented::take(
        &client,
        Presented { fd, family: sock.family(), is_nonblocking, waits: true, keeps: false },
    )?;
    options::take_over(sock, fd);
    options::advise_all(sock, &link);
    if sock.decide(link) { Ok(()) } else { Err(Errno::NOTCONN) }
}

/// Held while a connection is taken back: one at a time.
static RECLAIM: Mutex<()> = Mutex::new(());

/// Locks `RECLAIM` before a fork, as the first lock.
pub fn hold_reclaim(held: &mut Held) {
    held.take_static(&RECLAIM);
}

/// A call on `fd` has found that another process now has its connection: takes it back, for all descriptors of this process that refer
/// to it. The caller tries its call again.
///
/// # Errors
/// What the caller's call fails with: ENOTCONN, or EBUSY when a ring keeps the connection.
#[cold]
pub fn reclaim(fd: RawFd) -> Result<(), Errno> {
    if tables::is_borrowed() || detached::is_locked() {
        return Err(Errno::NOTCONN);
    }
    let _deferred = Deferred::begin();
    let Ok(_one) = RECLAIM.try_lock() else {
        // Another thread takes one back; or this thread does, and a signal handler interrupted it.
        std::thread::sleep(Duration::from_millis(1));
        return Ok(());
    };
    let old = tables::SOCKS.pin(fd).map(|sock| sock.share()).ok_or(Errno::NOTCONN)?;
    let (Some(Role::Stream(before)), Some(cookie)) = (old.decided(), sys::cookie(fd)) else {
        return Err(Errno::NOTCONN);
    };
    if before.is_unconnected() {
        return Err(Errno::NOTCONN);
    }
    if !before.has_moved() {
        // Another thread was quicker.
        return Ok(());
    }
    let fresh = Arc::new(Sock::new(old.family(), old.is_nonblocking()));
    pending_sockopts::keep(&old);
    fresh.share_settings(old.settings());
    fresh.set(|settings| settings.cookie = cookie);
    fresh.tell_as(&old);
    match take(&fresh, fd) {
        Ok(()) => {}
        // The process that has it is in a call, which waits for memory or a processor: the caller's call waits for that, too.
        Err(Errno::AGAIN) => return Ok(()),
        Err(Errno::BUSY) => return Err(Errno::BUSY),
        Err(_) => return Err(Errno::NOTCONN),
    }
    if let Some(link) = fresh.link() {
        link.buffer.store(before.buffer.load(Ordering::Relaxed), Ordering::Relaxed);
        link.lowat.store(before.lowat.load(Ordering::Relaxed), Ordering::Relaxed);
        let inline = before.block().flags.load(Ordering::Relaxed) & flags::INLINE;
        link.block().flags.fetch_or(inline, Ordering::Relaxed);
    }
    tables::exchange(&old, &fresh);
    Ok(())
}

/// The socket behind `fd`, for a call that needs its connection from the beginning; takes the connection back if it has moved.
pub fn settled(fd: RawFd) -> Option<Pinned<'static, Sock>> {
    let sock = tables::SOCKS.pin(fd)?;
    if !sock.has_moved() {
        return Some(sock);
    }
    drop(sock);
    // If that fails, the call finds that the connection has moved.
    let _ = reclaim(fd);
    tables::SOCKS.pin(fd)
}

/// Prepares the descriptor `fd` for leaving this process.
pub fn leaving(fd: RawFd) {
    // The process that receives it may bind it.
    tables::SOCKS.pin(fd).iter().for_each(|sock| sock.note_named());
    let Some(sock) = tables::SOCKS.pin(fd).map(|sock| sock.share()).filter(|_| !detached::is_locked()) else {
        return;
    };
    if tables::is_borrowed() {
        return;
    }
    let _deferred = Deferred::begin();
    io_uring::settle_connect(fd);
    // A socket that many descriptors share must not leave, even if the rest fails.
    let _ = placeholder::own(&sock, fd);
    if let Some(client) = session::present() {
        leave(&client, &sock, fd);
    }
}

/// Before an `exec`, here or in a `vfork` child: hands over the connections of descriptors that are not close-on-exec. True: the new
/// program gets some socket that only this library can use.
pub fn before_exec() -> bool {
    // A `vfork` child must not finish the registration that its parent has only announced.
    if !tables::has_any() || detached::is_locked() || (tables::is_borrowed() && session::is_announced()) {
        return false;
    }
    let _deferred = Deferred::begin();
    io_uring::connect_each();
    let stays =
        |fd: &RawFd| sys::fcntl(*fd, libc::F_GETFD, 0).is_ok_and(|f| f & libc::FD_CLOEXEC as usize == 0);
    let mut gets_sockets = false;
    for fd in idle().into_iter().filter(stays) {
        let Some(sock) = behind(fd) else { continue };
        match sock.decided() {
            // The new program asks for an accept queue of its own: the service need not be told now.
            Some(Role::Listener(_)) => gets_sockets = true,
            Some(Role::Stream(_)) => {
                gets_sockets = true;
                if let Some(client) = session::present() {
                    leave(&client, &sock, fd);
                }
            }
            // A socket from another program, not used here yet.
            None => gets_sockets |= sock.cookie() != 0,
        }
    }
    // Asked last: it completes the registration of a forked child.
    if gets_sockets
        && tables::is_borrowed()
        && let Some(client) = session::present()
    {
        client.wait_until_heard();
    }
    gets_sockets
}

/// As [`before_exec`], of one file. Nothing is handed over if there is no such file: a search through PATH tries many. `is_missing` asks
/// by `faccessat`, and is not called where a filter may forbid that.
pub fn before_exec_of_file(is_missing: impl FnOnce() -> bool) -> bool {
    let may_ask = tables::has_any() && detached::may(libc::SYS_faccessat);
    !(may_ask && is_missing()) && before_exec()
}

/// The service cannot be reached from a new root directory: a process that has sockets, its own or inherited ones, registers before.
pub fn before_chroot() {
    if tables::has_any() && !tables::is_borrowed() {
        drop(session::current());
    }
}

/// The socket behind `fd`, found by its cookie: a `vfork` child's descriptors may differ from its parent's.
fn behind(fd: RawFd) -> Option<Arc<Sock>> {
    let cookie = sys::cookie(fd)?;
    let known = tables::SOCKS.all().into_iter().find(|(_, sock)| sock.cookie() == cookie);
    let by_number = || tables::SOCKS.pin(fd).filter(|sock| sock.cookie() == 0).map(|s| s.share());
    known.map(|(_, sock)| sock).or_else(by_number)
}

/// Before a fork of a child that gets no holder bit: hands over all connections, which the child then asks for by their descriptors.
pub fn leave_all(client: &Client) {
    for (fd, sock) in tables::SOCKS.all() {
        if sock.link().is_some_and(|link| link.block().holders.load(Ordering::Relaxed) & TRUST == 0) {
            leave(client, &sock, fd);
        }
    }
}

/// In a forked child without a holder bit: turns the parent's connections into sockets as if they had come from another process.
pub fn inherit_from_parent() {
    for (_, sock) in tables::SOCKS.all() {
        if let (Some(Role::Stream(_)), cookie @ 1..) = (sock.decided(), sock.cookie()) {
            let fresh = Arc::new(Sock::inherited(sock.family(), sock.is_nonblocking(), cookie));
            fresh.share_settings(sock.settings());
            // The replaced object belongs to the parent, which closes it.
            tables::exchange(&sock, &fresh);
        }
    }
}

fn leave(client: &Client, sock: &Sock, fd: RawFd) {
    let link = match sock.decided() {
        Some(Role::Stream(link)) => link,
        // The receiving process gets an accept queue of its own. The cookie tells it is the same listener if it comes back here.
        Some(Role::Listener(_)) => {
            return sock.set(|settings| settings.cookie = sys::cookie(fd).unwrap_or(0));
        }
        None => return,
    };
    let _ = link.peer_flags();
    if let Err(e) = pending_sockopts::tell(sock, fd) {
        return log(Level::Info, format_args!("fd {fd} does not take its connection along: {e}"));
    }
    // If the connection has moved, the service has it already.
    let (Some(cookie), false) = (sys::cookie(fd), link.is_over() || link.has_moved()) else { return };
    sock.set(|settings| settings.cookie = cookie);
    let left = link.leave();
    if tables::is_borrowed() {
        // A `vfork` child uses its parent's control line and memory, but not its descriptors: an answer would come to the wrong table.
        client.hint(Request::Leave(left), fd);
        return;
    }
    match client.ask_with(Request::Leave(left), Some(fd)) {
        Ok((Reply::Done, _)) => {}
        other => log(Level::Info, format_args!("fd {fd} does not take its connection along: {other:?}")),
    }
}
