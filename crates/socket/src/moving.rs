//! Connections that leave this process with a descriptor, by `exec` or `SCM_RIGHTS`, and those that come in with one. Who
//! lets a descriptor out leaves the connection with the service; who first uses a descriptor that came in asks for it.

use crate::client::{self, Client};
use crate::connect::{addresses, store_addresses};
use crate::link::{Link, state};
use crate::log::{Level, log};
use crate::sock::{Role, Sock};
use crate::{config, fds, internal, locked, options, sys};
use control::{Left, Reply, Request};
use queue::stream::raise;
use rustix::fd::RawFd;
use rustix::io::Errno;
use shm::TRUST;
use shm::half_flags::FIN;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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

/// True for a TCP socket of the kernel's that is not connected: a placeholder, or not in use yet.
fn is_idle(fd: RawFd) -> bool {
    const CLOSE: u8 = 7;
    let mut info = [0; 8];
    !internal::is_internal(fd)
        && number(fd, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
        && sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).is_ok()
        && info[0] == CLOSE
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
    match fds::SOCKS.all().into_iter().find(|(_, sock)| sock.cookie() == cookie) {
        Some((known, _)) => fds::duplicated(known, fd),
        None => {
            let flags = sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0);
            let nonblock = flags & libc::O_NONBLOCK as usize != 0;
            fds::put_inherited(fd, Sock::inherited(family, nonblock, cookie));
        }
    }
}

/// The service is asked for the connection behind a socket that came into this process, which is used for the first time.
#[cold]
pub fn take_over(sock: &Sock) {
    let mine = fds::SOCKS.all().into_iter().find(|(_, other)| std::ptr::eq(&raw const **other, sock));
    let (Some((fd, _)), Some(client)) = (mine, client::current()) else { return };
    let Some(index) = client.take_block() else { return };
    let link = ask(&client, fd).and_then(|reply| adopt(sock, &client, index, &reply));
    match link {
        Some(link) => {
            options::take_over(sock, fd);
            let _ = sock.decide(link);
        }
        None => {
            if let Some(block) = client.home.region.sock(index) {
                block.holders.store(0, Ordering::Release);
            }
        }
    }
}

fn ask(client: &Client, fd: RawFd) -> Option<Reply> {
    let mut tries = 0;
    while tries < TRIES.0 {
        match client.ask_with(Request::Present, Some(fd)).ok()?.0 {
            Reply::Refused { errno, reason } => match Errno::from_raw_os_error(errno) {
                // The handshake ends, one way or the other.
                Errno::INPROGRESS => {}
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
    if shut_write {
        raise(link.halves().0, FIN);
    }
    Some(link)
}

/// This process's descriptor `fd` is about to turn up elsewhere.
pub fn leaving(fd: RawFd) {
    let Some(sock) = fds::SOCKS.pin(fd).map(|sock| sock.share()).filter(|_| !locked::is_locked()) else {
        return;
    };
    if let (Some(client), false) = (client::present(), fds::is_borrowed()) {
        leave(&client, &sock, fd);
    }
}

/// The program is about to be replaced by another one, here or in a `vfork` child: what is not close-on-exec goes along.
pub fn before_exec() {
    // What the service has to tell its parent is not for a `vfork` child.
    if !fds::has_any() || locked::is_locked() || (fds::is_borrowed() && client::is_announced()) {
        return;
    }
    let stays =
        |fd: &RawFd| sys::fcntl(*fd, libc::F_GETFD, 0).is_ok_and(|f| f & libc::FD_CLOEXEC as usize == 0);
    for fd in idle().into_iter().filter(stays) {
        if let (Some(sock), Some(client)) = (behind(fd), client::present()) {
            leave(&client, &sock, fd);
        }
    }
}

/// The socket behind `fd`. A `vfork` child's numbers are not its parent's.
fn behind(fd: RawFd) -> Option<Arc<Sock>> {
    let cookie = cookie(fd)?;
    let known = fds::SOCKS.all().into_iter().find(|(_, sock)| sock.cookie() == cookie);
    let by_number = || fds::SOCKS.pin(fd).filter(|sock| sock.cookie() == 0).map(|s| s.share());
    known.map(|(_, sock)| sock).or_else(by_number)
}

fn leave(client: &Client, sock: &Sock, fd: RawFd) {
    let Some(Role::Stream(link)) = sock.decided() else { return };
    let _ = link.peer_flags();
    let (Some(cookie), false) = (cookie(fd), link.is_over()) else { return };
    sock.set(|settings| settings.cookie = cookie);
    link.block().holders.fetch_or(TRUST, Ordering::AcqRel);
    let (local, peer) = addresses(link);
    let left = Left {
        region: link.mapped.id,
        slot: link.slot(),
        side: link.mapped.side as u8,
        home: link.home.id,
        sock: link.index(),
        local,
        peer,
        shut_read: link.state() & state::SHUT_RD != 0,
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
