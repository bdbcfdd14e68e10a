//! Connections that leave this process with a descriptor, by `exec` or `SCM_RIGHTS`, and those that come in with one. Who
//! lets a descriptor out leaves the connection with the service; who uses a descriptor that came in asks for it, and so does
//! whoever has let one out and uses its own all the same: of several processes the last that used it has the connection.

use crate::client::{self, Client};
use crate::connect::store_addresses;
use crate::hold::Held;
use crate::link::{Link, flags, state, thread_number};
use crate::log::{Level, log};
use crate::sock::{Role, Sock};
use crate::sys::signal::Deferred;
use crate::table::Pinned;
use crate::{config, fds, internal, listener, locked, options, placeholder, rings, sys, untold};
use control::{Left, Reply, Request, tcp_state};
use queue::stream::{Sender, raise};
use rustix::fd::RawFd;
use rustix::io::Errno;
use shm::TRUST;
use shm::half_flags::{FIN, READ_CLOSED};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often and after which pause it is asked again: whoever left the connection may be in the middle of a call, or its
/// word may still be on the way.
const TRIES: (usize, Duration) = (5, Duration::from_millis(4));

fn word<const N: usize>(fd: RawFd, level: i32, name: i32) -> Option<[u8; N]> {
    let mut value = [0; N];
    let n = sys::getsockopt(fd, level, name, &mut value).ok()?;
    (n >= N).then_some(value)
}

fn number(fd: RawFd, name: i32) -> Option<i32> {
    word(fd, libc::SOL_SOCKET, name).map(i32::from_ne_bytes)
}

/// The kernel's name for what is behind a descriptor, in whatever process.
pub fn cookie(fd: RawFd) -> Option<u64> {
    word(fd, libc::SOL_SOCKET, libc::SO_COOKIE).map(u64::from_ne_bytes)
}

/// The kernel's name for the network namespace of a socket; 0 before Linux 5.14.
pub fn namespace(fd: RawFd) -> u64 {
    word(fd, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE).map_or(0, u64::from_ne_bytes)
}

/// True for a TCP socket of the kernel's that is not connected: it listens, is a placeholder, or not in use yet.
fn is_idle(fd: RawFd) -> bool {
    !internal::is_internal(fd)
        && number(fd, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
        && matches!(state_in_kernel(fd), Some(tcp_state::CLOSE | tcp_state::LISTEN))
}

fn state_in_kernel(fd: RawFd) -> Option<u8> {
    // `tcpi_state` comes first.
    word(fd, libc::IPPROTO_TCP, libc::TCP_INFO).map(|[state]| state)
}

/// True when the kernel's TCP has no connection behind the descriptor, and makes none.
pub fn is_unconnected_in_kernel(fd: RawFd) -> bool {
    state_in_kernel(fd) == Some(tcp_state::CLOSE)
}

/// Idle sockets among all descriptors.
fn idle() -> Vec<RawFd> {
    let Ok(all) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let number = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    all.filter_map(number).filter(|fd| is_idle(*fd)).collect()
}

/// At the start of a program: what it has inherited.
pub fn inherit() {
    if !config::is_disabled() {
        idle().into_iter().for_each(found);
    }
}

/// A descriptor has come into this process: a connection may come with it.
pub fn found(fd: RawFd) {
    if config::is_disabled() || locked::is_locked() || fds::is_ours(fd) || !is_idle(fd) {
        return;
    }
    let (Some(cookie), Some(family)) = (cookie(fd), number(fd, libc::SO_DOMAIN)) else { return };
    match fds::SOCKS.all().into_iter().find(|(number, sock)| is_behind(sock, *number, cookie)) {
        Some((known, _)) => fds::duplicated(known, fd),
        None => {
            let flags = sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0);
            let nonblock = flags & libc::O_NONBLOCK as usize != 0;
            fds::put_inherited(fd, Sock::inherited(family, nonblock, cookie));
        }
    }
}

/// True for the socket of that name; of a listener that a program has inherited from this one nobody has asked for it yet.
fn is_behind(sock: &Sock, fd: RawFd, name: u64) -> bool {
    let is_unnamed_listener = || sock.cookie() == 0 && matches!(sock.decided(), Some(Role::Listener(_)));
    sock.cookie() == name || is_unnamed_listener() && cookie(fd) == Some(name)
}

/// The service is asked for the connection behind a socket that came into this process, which is used for the first time.
#[cold]
pub fn take_over(sock: &Sock) {
    let mine = fds::SOCKS.all().into_iter().find(|(_, other)| std::ptr::eq(&raw const **other, sock));
    match mine {
        Some((fd, sock)) if state_in_kernel(fd) == Some(tcp_state::LISTEN) => match rings::look(&sock) {
            Ok(()) => listener::join(&sock, fd),
            Err(_) => rings::put_off(&sock, fd),
        },
        Some((fd, _)) => drop(take(sock, fd)),
        None => {}
    }
}

/// The connection behind `fd` is `sock`'s from now on. False: there is none to be had.
fn take(sock: &Sock, fd: RawFd) -> bool {
    let Some(client) = client::current() else { return false };
    let Some(index) = client.take_block() else { return false };
    let Some(block) = client.home.region.sock(index) else { return false };
    // Whoever asks for it next finds us in the middle of a call, until we have it as a whole.
    Sender::default().keep(block);
    block.rx_tail.store(0, Ordering::Relaxed);
    for word in [&block.tx_lock, &block.rx_lock] {
        word.store(thread_number(), Ordering::Release);
    }
    match ask(&client, fd, index).and_then(|reply| adopt(sock, &client, index, &reply)) {
        Some(link) => {
            options::take_over(sock, fd);
            options::advise_all(sock, &link);
            sock.decide(link)
        }
        None => {
            block.holders.store(0, Ordering::Release);
            false
        }
    }
}

/// One connection at a time is taken back.
static RECLAIM: Mutex<()> = Mutex::new(());

/// Before a fork, first.
pub fn hold_reclaim(held: &mut Held) {
    held.take_static(&RECLAIM);
}

/// A call on `fd` has found that its connection is another process's by now: it is taken back, for all descriptors of this process
/// that stand for it. True: the call is to be made again.
#[cold]
pub fn reclaim(fd: RawFd) -> bool {
    if fds::is_borrowed() || locked::is_locked() {
        return false;
    }
    let _deferred = Deferred::begin();
    let Ok(_one) = RECLAIM.try_lock() else {
        // Another thread is at it; or this one, in whose middle a signal handler calls.
        std::thread::sleep(Duration::from_millis(1));
        return true;
    };
    let Some(old) = fds::SOCKS.pin(fd).map(|sock| sock.share()) else { return false };
    let (Some(Role::Stream(before)), Some(cookie)) = (old.decided(), cookie(fd)) else { return false };
    if before.is_unconnected() {
        return false;
    }
    if !before.has_moved() {
        // Another thread was quicker.
        return true;
    }
    let fresh = Arc::new(Sock::new(old.family(), old.is_nonblocking()));
    untold::keep(&old);
    fresh.share_settings(old.settings());
    fresh.set(|settings| settings.cookie = cookie);
    fresh.tell_as(&old);
    if !take(&fresh, fd) {
        return false;
    }
    if let Some(link) = fresh.link() {
        link.buffer.store(before.buffer.load(Ordering::Relaxed), Ordering::Relaxed);
        link.lowat.store(before.lowat.load(Ordering::Relaxed), Ordering::Relaxed);
        let inline = before.block().flags.load(Ordering::Relaxed) & flags::INLINE;
        link.block().flags.fetch_or(inline, Ordering::Relaxed);
    }
    fds::exchange(&old, &fresh);
    true
}

/// The socket behind `fd`, for a call that needs its connection from the beginning: what has moved is taken back.
pub fn settled(fd: RawFd) -> Option<Pinned<'static, Sock>> {
    let sock = fds::SOCKS.pin(fd)?;
    if !sock.has_moved() {
        return Some(sock);
    }
    drop(sock);
    reclaim(fd);
    fds::SOCKS.pin(fd)
}

fn ask(client: &Client, fd: RawFd, sock: u32) -> Option<Reply> {
    let mut tries = 0;
    while tries < TRIES.0 {
        match client.ask_with(Request::Present { sock }, Some(fd)).ok()?.0 {
            Reply::Refused { errno, reason } => match Errno::from_raw_os_error(errno) {
                // The handshake ends, one way or the other.
                Errno::INPROGRESS => {
                    // That may take long.
                    sys::pause(TRIES.1);
                    continue;
                }
                Errno::AGAIN => tries += 1,
                _ => {
                    log(Level::Info, format_args!("fd {fd} has no connection here: {reason}"));
                    return None;
                }
            },
            Reply::Kernel { .. } => tries += 1,
            reply => return Some(reply),
        }
        std::thread::sleep(TRIES.1);
    }
    None
}

fn adopt(sock: &Sock, client: &Arc<Client>, index: u32, reply: &Reply) -> Option<Link> {
    let Reply::Moved { slot, local, peer, shut_read, shut_write } = *reply else { return None };
    if !client.home.has(slot) {
        return None;
    }
    let link = Link::new(client.home.clone(), slot, client.home.clone(), index);
    link.begin(sock.is_nonblocking(), true);
    store_addresses(&link, local, peer, sock.family());
    let shut = [(shut_read, state::SHUT_RD), (shut_write, state::SHUT_WR)];
    link.note(shut.iter().filter(|(is, _)| *is).fold(state::OPEN | state::TOLD, |all, (_, bit)| all | bit));
    let ended = [(shut_read, READ_CLOSED), (shut_write, FIN)];
    raise(link.halves().0, ended.iter().filter(|(is, _)| *is).fold(0, |all, (_, bit)| all | bit));
    Some(link)
}

/// This process's descriptor `fd` is about to turn up elsewhere.
pub fn leaving(fd: RawFd) {
    // Whoever gets it may bind it.
    fds::SOCKS.pin(fd).iter().for_each(|sock| sock.note_named());
    let Some(sock) = fds::SOCKS.pin(fd).map(|sock| sock.share()).filter(|_| !locked::is_locked()) else {
        return;
    };
    if fds::is_borrowed() {
        return;
    }
    let _deferred = Deferred::begin();
    rings::settle_connect(fd);
    // Whatever comes of the rest: nobody else gets what is common.
    let _ = placeholder::own(&sock, fd);
    if let Some(client) = client::present() {
        leave(&client, &sock, fd);
    }
}

/// The program is about to be replaced by another one, here or in a `vfork` child: what is not close-on-exec goes along. True: there is
/// some socket that only this library can use.
pub fn before_exec() -> bool {
    // What the service has to tell its parent is not for a `vfork` child.
    if !fds::has_any() || locked::is_locked() || (fds::is_borrowed() && client::is_announced()) {
        return false;
    }
    let _deferred = Deferred::begin();
    rings::connect_each();
    let stays =
        |fd: &RawFd| sys::fcntl(*fd, libc::F_GETFD, 0).is_ok_and(|f| f & libc::FD_CLOEXEC as usize == 0);
    let mut gets_sockets = false;
    for fd in idle().into_iter().filter(stays) {
        let Some(sock) = behind(fd) else { continue };
        match sock.decided() {
            // Whoever shows it has a queue of its own: the service need not be told.
            Some(Role::Listener(_)) => gets_sockets = true,
            Some(Role::Stream(_)) => {
                gets_sockets = true;
                if let Some(client) = client::present() {
                    leave(&client, &sock, fd);
                }
            }
            // It came from another program, and nobody has asked yet what it is.
            None => gets_sockets |= sock.cookie() != 0,
        }
    }
    gets_sockets
}

/// The service is not found from where this process goes: who has sockets, of its own or from another program, registers before.
pub fn before_chroot() {
    if fds::has_any() && !fds::is_borrowed() {
        drop(client::current());
    }
}

/// The socket behind `fd`. A `vfork` child's numbers are not its parent's.
fn behind(fd: RawFd) -> Option<Arc<Sock>> {
    let cookie = cookie(fd)?;
    let known = fds::SOCKS.all().into_iter().find(|(_, sock)| sock.cookie() == cookie);
    let by_number = || fds::SOCKS.pin(fd).filter(|sock| sock.cookie() == 0).map(|s| s.share());
    known.map(|(_, sock)| sock).or_else(by_number)
}

/// Before a fork whose child gets no holder bit: it gets what connections it uses by their descriptors.
pub fn leave_all(client: &Client) {
    for (fd, sock) in fds::SOCKS.all() {
        if sock.link().is_some_and(|link| link.block().holders.load(Ordering::Relaxed) & TRUST == 0) {
            leave(client, &sock, fd);
        }
    }
}

/// In such a child: its sockets are like those that came in from elsewhere.
pub fn inherit_from_parent() {
    for (_, sock) in fds::SOCKS.all() {
        if let (Some(Role::Stream(_)), cookie @ 1..) = (sock.decided(), sock.cookie()) {
            let fresh = Arc::new(Sock::inherited(sock.family(), sock.is_nonblocking(), cookie));
            fresh.share_settings(sock.settings());
            // What it replaces is the parent's to close.
            fds::exchange(&sock, &fresh);
        }
    }
}

fn leave(client: &Client, sock: &Sock, fd: RawFd) {
    let link = match sock.decided() {
        Some(Role::Stream(link)) => link,
        // Whoever gets it has a queue of its own. Where it comes back, the name tells.
        Some(Role::Listener(_)) => return sock.set(|settings| settings.cookie = cookie(fd).unwrap_or(0)),
        None => return,
    };
    let _ = link.peer_flags();
    if let Err(e) = untold::tell(sock, fd) {
        return log(Level::Info, format_args!("fd {fd} does not take its connection along: {e}"));
    }
    // What has moved the service has already.
    let (Some(cookie), false) = (cookie(fd), link.is_over() || link.has_moved()) else { return };
    sock.set(|settings| settings.cookie = cookie);
    link.block().holders.fetch_or(TRUST, Ordering::AcqRel);
    let left = Left {
        region: link.mapped.id,
        slot: link.slot(),
        side: link.mapped.side as u8,
        home: link.home.id,
        sock: link.index(),
    };
    if fds::is_borrowed() {
        // The parent's line and memory, but not its descriptors: an answer would come to the wrong table.
        client.hint(Request::Leave(left), fd);
        return;
    }
    match client.ask_with(Request::Leave(left), Some(fd)) {
        Ok((Reply::Done, _)) => {}
        other => log(Level::Info, format_args!("fd {fd} does not take its connection along: {other:?}")),
    }
}
