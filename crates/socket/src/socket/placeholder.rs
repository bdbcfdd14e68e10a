//! What the kernel has behind the descriptor of an accepted connection. A socket of its own would take microseconds to make and to close,
//! and kilobytes; so it is at first a duplicate of one idle socket, the *common* socket, which all connections share and which is never
//! changed. A socket of its own replaces it under the same descriptor number before any difference could be seen: when the kernel is asked
//! or told something about it, when it is duplicated, and when it leaves the process, by `fork`, by `exec` or in a message.
//!
//! While the common socket is there, `O_NONBLOCK` of the connection is kept in its socket block only.

use crate::fd::tables;
use crate::process::io_uring::rings;
use crate::socket::{Sock, flag};
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::accept_queue::Queue;
use session::fork_locks::Held;
use session::reserved;
use session::sys;
use session::sys::only_thread::Alone;
use session::sys::signal::Deferred;
use session::{self, detached};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

const NONE: RawFd = -1;
/// The common sockets of IPv4 and IPv6, made with the first listener of the family; never closed. [`NONE`]: not made.
static COMMON: [AtomicI32; 2] = [const { AtomicI32::new(NONE) }; 2];
/// The cookies (`SO_COOKIE`) of the common sockets; 0: not made.
static NAMES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// How often making a socket is tried while the process has no free descriptor number.
const TRIES: u32 = 100;
/// In [`RESERVES`]: a thread is exchanging the reserve.
const BUSY: RawFd = -2;
/// One spare socket for each family, used when a socket of its own is needed and the program has no free descriptor number.
static RESERVES: [AtomicI32; 2] = [const { AtomicI32::new(NONE) }; 2];
static MAKING: Mutex<()> = Mutex::new(());
/// Number of forks in progress: no common socket may be used meanwhile, for the child would share it.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// The program has forbidden itself system calls that replacing a common socket needs: no new ones are used.
static IS_OVER: AtomicBool = AtomicBool::new(false);

fn index(family: i32) -> usize {
    usize::from(family == libc::AF_INET6)
}

fn of_family(family: i32) -> RawFd {
    COMMON[index(family)].load(Ordering::Acquire)
}

/// Makes the common socket of `family`, for the connections of its listeners.
pub fn prepare(family: i32) {
    let _one = session::lock(&MAKING);
    if of_family(family) != NONE {
        return;
    }
    let _changing = reserved::begin();
    let Ok(made) = idle(family) else { return };
    let Some(name) = sys::cookie(made) else {
        let _ = sys::close(made);
        return;
    };
    if let Some(common) = set_aside(made) {
        NAMES[index(family)].store(name, Ordering::Relaxed);
        COMMON[index(family)].store(common, Ordering::Release);
    }
}

/// True when the family has a reserve; makes one if needed.
fn has_reserve(family: i32) -> bool {
    let reserve = &RESERVES[index(family)];
    if reserve.load(Ordering::Relaxed) != NONE {
        return true;
    }
    let _changing = reserved::begin();
    let Ok(made) = idle(family) else { return false };
    let Some(kept) = set_aside(made) else { return false };
    if reserve.compare_exchange(NONE, kept, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        reserved::close(kept);
    }
    true
}

/// Moves the socket `made` to a high descriptor number, out of the program's way; closes `made`. `None`: no number is free.
fn set_aside(made: RawFd) -> Option<RawFd> {
    let away = reserved::claim_away(made);
    let _ = sys::close(made);
    away
}

/// Makes a socket that is not connected, as placeholders are.
///
/// # Errors
/// As `socket`'s.
pub fn idle(family: i32) -> Result<RawFd, Errno> {
    sys::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)
}

/// Puts the reserve behind `fd`, and then makes a new reserve if a descriptor number is free for it.
fn spend_reserve(family: i32, fd: RawFd, nonblock: bool) -> Result<(), Errno> {
    let reserve = &RESERVES[index(family)];
    let kept = loop {
        match reserve.swap(BUSY, Ordering::AcqRel) {
            BUSY => sys::give_way(),
            NONE => {
                reserve.store(NONE, Ordering::Release);
                return Err(Errno::MFILE);
            }
            kept => break kept,
        }
    };
    if nonblock {
        let _ = sys::fcntl(kept, libc::F_SETFL, libc::O_NONBLOCK as usize);
    }
    let result = put(kept, fd);
    reserved::close(kept);
    let _changing = reserved::begin();
    let again = idle(family).ok().and_then(|made| {
        if made == kept {
            reserved::note(made);
            return Some(made);
        }
        set_aside(made)
    });
    reserve.store(again.unwrap_or(NONE), Ordering::Release);
    result
}

/// After the limit of descriptors may have become lower: replaces reserves with numbers at or above it, which could not be made anew.
pub fn fit() {
    let limit = reserved::limit();
    for (family, reserve) in [libc::AF_INET, libc::AF_INET6].into_iter().zip(&RESERVES) {
        let kept = reserve.load(Ordering::Acquire);
        if kept >= 0
            && kept as u64 >= limit
            && reserve.compare_exchange(kept, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            reserved::close(kept);
            has_reserve(family);
        }
    }
}

/// Takes the lock of this module before a fork.
pub fn hold(held: &mut Held) {
    held.take_static(&MAKING);
}

/// True when connections accepted from this listener may begin with the common socket: the program waits for the listener by calls that
/// this library sees, so it most likely does so for the connections. A kernel epoll set would keep the common socket for ever.
fn may_share(sock: &Sock, listener: &Queue) -> bool {
    (listener.is_awaited() || !sock.is_nonblocking())
        && FORKS.load(Ordering::SeqCst) == 0
        && !IS_OVER.load(Ordering::Relaxed)
        && !detached::is_locked()
        && !rings::are_any()
        && !tables::is_borrowed()
        && has_reserve(sock.family())
}

/// The descriptor that the next accepted connection gets.
#[derive(Debug)]
pub struct Place {
    fd: Option<RawFd>,
    is_common: bool,
    may_share: bool,
    family: i32,
    flags: i32,
}

impl Place {
    /// Takes the lowest free descriptor number for a connection accepted from `listener`; `flags` are those of `accept4`.
    ///
    /// # Errors
    /// As `socket`'s.
    pub fn new(listener: &Sock, queue: &Queue, flags: i32) -> Result<Self, Errno> {
        let (family, may_share) = (listener.family(), may_share(listener, queue));
        let mut place = Self { fd: None, is_common: false, may_share, family, flags };
        place.take()?;
        Ok(place)
    }

    fn take(&mut self) -> Result<(), Errno> {
        let flags = self.flags & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let common = if self.may_share { of_family(self.family) } else { NONE };
        let command = if flags & libc::SOCK_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        let shared = if common == NONE { Err(Errno::BADF) } else { sys::fcntl(common, command, 0) };
        self.is_common = shared.is_ok();
        self.fd = Some(match shared {
            Ok(fd) => fd as RawFd,
            Err(_) => sys::socket(self.family, libc::SOCK_STREAM | flags, 0)?,
        });
        Ok(())
    }

    /// True when `accept4` was called with `SOCK_NONBLOCK`.
    pub fn is_nonblocking(&self) -> bool {
        self.flags & libc::SOCK_NONBLOCK != 0
    }

    /// True when the common socket is behind the descriptor.
    pub fn is_common(&self) -> bool {
        self.is_common
    }

    /// Frees the descriptor number while `work` runs, and takes the lowest free number again.
    ///
    /// # Errors
    /// As `socket`'s.
    #[cold]
    pub fn without<R>(&mut self, work: impl FnOnce() -> R) -> Result<R, Errno> {
        self.give_back()?;
        let result = work();
        if let Err(e) = self.take() {
            // The library keeps a number for what the service sends; the program's connection comes first.
            session::present().ok_or(e)?.give_room();
            self.take()?;
        }
        Ok(result)
    }

    /// Hands the descriptor over to an accepted connection.
    pub fn leave(&mut self) -> Option<RawFd> {
        self.fd.take()
    }

    /// Closes the descriptor again: nothing was accepted.
    ///
    /// # Errors
    /// As `close`'s.
    pub fn give_back(&mut self) -> Result<(), Errno> {
        self.fd.take().map_or(Ok(()), sys::close)
    }
}

/// True while the common socket is behind the descriptor of `sock`; first waits for a thread that is replacing it.
#[inline]
pub fn is_common(sock: &Sock) -> bool {
    while sock.has(flag::COMMON) {
        if !sock.has(flag::PARTING) {
            return true;
        }
        sys::give_way();
    }
    false
}

/// Puts a socket of its own behind `fd`, the descriptor of `sock`, if the common socket is there.
///
/// # Errors
/// The kernel's error where no socket can be made.
#[inline]
pub fn own(sock: &Sock, fd: RawFd) -> Result<(), Errno> {
    if sock.has(flag::COMMON) { part(sock, fd) } else { Ok(()) }
}

/// Does [`own`] for every socket of the process.
fn own_all(alone: Option<&Alone>) {
    let part_with = |fd: RawFd, sock: &Sock| {
        // On failure the descriptor keeps the common socket: that is seen only if a program inspects its descriptors.
        let _ = own(sock, fd);
    };
    match alone {
        Some(alone) => tables::SOCKS.each_alone(alone, part_with),
        None => tables::SOCKS.each(|fd, sock| part_with(fd, sock)),
    }
}

/// Gives every socket its own kernel socket: before `vfork` (a child with its own descriptors and this process's memory), before the limit
/// of descriptors may fall below those in use, and before the program may give some to an io_uring.
pub fn own_each() {
    if tables::has_any() && !tables::is_borrowed() {
        let _deferred = Deferred::begin();
        own_all(None);
    }
}

/// Before the program forbids itself system calls: stops using common sockets.
pub fn end() {
    IS_OVER.store(true, Ordering::Relaxed);
    own_each();
}

/// Before a fork: no common socket may reach the child.
pub fn before_fork(alone: Option<&Alone>) {
    FORKS.fetch_add(1, Ordering::SeqCst);
    own_all(alone);
}

/// After a fork, in the parent.
pub fn after_fork() {
    FORKS.fetch_sub(1, Ordering::SeqCst);
}

/// After a fork, in the child, where no other thread forks. The reserves are the parent's: the child closes its copies.
pub fn in_child() {
    FORKS.store(0, Ordering::SeqCst);
    for reserve in &RESERVES {
        let kept = reserve.swap(NONE, Ordering::AcqRel);
        if kept >= 0 {
            reserved::close(kept);
        }
    }
}

/// In a forked child: no other thread is replacing the common socket.
pub fn forget_threads(sock: &Sock) {
    sock.mark(flag::PARTING, false);
}

#[cold]
fn part(sock: &Sock, fd: RawFd) -> Result<(), Errno> {
    if tables::is_borrowed() {
        // A `vfork` child: its parent has done this before; only connections accepted since still have the common socket.
        return Err(Errno::AGAIN);
    }
    // A signal handler that did the same would wait for the code that it interrupted.
    let _deferred = Deferred::begin();
    if !sock.begin_parting() {
        return Ok(());
    }
    let result = replace(sock, fd);
    sock.mark(flag::COMMON, result.is_err());
    sock.mark(flag::PARTING, false);
    result
}

fn replace(sock: &Sock, fd: RawFd) -> Result<(), Errno> {
    let is_still_there =
        sys::cookie(fd).is_some_and(|name| NAMES.iter().any(|common| common.load(Ordering::Relaxed) == name));
    if !is_still_there {
        // The C library closed the descriptor by an internal call: the number now belongs to another file.
        return Ok(());
    }
    let (family, nonblock) = (sock.family(), sock.is_nonblocking());
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | if nonblock { libc::SOCK_NONBLOCK } else { 0 };
    let mut tries = 0;
    loop {
        tries += 1;
        match sys::socket(family, kind, 0) {
            // Another thread may hold the last free number for a moment.
            Err(Errno::MFILE) => match spend_reserve(family, fd, nonblock) {
                Err(Errno::MFILE) if tries < TRIES => sys::give_way(),
                result => return result,
            },
            made => {
                let made = made?;
                let result = put(made, fd);
                let _ = sys::close(made);
                has_reserve(family);
                return result;
            }
        }
    }
}

/// Puts what is behind `from` behind `fd` also; `fd` keeps its close-on-exec flag.
///
/// # Errors
/// As `dup3`'s.
pub fn put(from: RawFd, fd: RawFd) -> Result<(), Errno> {
    let stays = sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize == 0);
    sys::dup3(from, fd, if stays { 0 } else { libc::O_CLOEXEC })
}

/// Makes a call that changes the descriptor itself, while no other thread replaces the socket behind it.
pub fn steady<R>(sock: &Sock, call: impl FnOnce() -> R) -> R {
    if !sock.has(flag::COMMON) || tables::is_borrowed() {
        return call();
    }
    let _deferred = Deferred::begin();
    let is_ours = sock.begin_parting();
    let result = call();
    if is_ours {
        sock.mark(flag::PARTING, false);
    }
    result
}

impl Sock {
    /// Sets [`flag::PARTING`]: until it is cleared no other thread replaces or closes what is behind the descriptor. False: not common.
    fn begin_parting(&self) -> bool {
        while self.has(flag::COMMON) {
            if !self.mark(flag::PARTING, true) {
                if self.has(flag::COMMON) {
                    return true;
                }
                self.mark(flag::PARTING, false);
                break;
            }
            sys::give_way();
        }
        false
    }

    /// Before the program closes or replaces the descriptor: waits for a thread that is replacing the common socket, and forgets it.
    pub fn close_common(&self) {
        if self.begin_parting() {
            self.mark(flag::COMMON, false);
            self.mark(flag::PARTING, false);
        }
    }
}
