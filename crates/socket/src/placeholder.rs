//! What the kernel has behind the descriptor of an accepted connection. A socket of its own would take microseconds to make and to close,
//! and kilobytes; so it is at first a duplicate of one idle socket, the *common* one, which all of them share and nobody changes. Before
//! anybody can tell, a socket of its own takes its place under the same number: when the kernel is asked or told something about it,
//! when it is duplicated, and when it leaves the process, by `fork`, by `exec` or in a message.
//!
//! Its `O_NONBLOCK` is the block's alone until then.

use crate::hold::Held;
use crate::internal;
use crate::link::{Link, state};
use crate::sock::{Sock, flag};
use crate::sys::Alone;
use crate::sys::signal::Deferred;
use crate::{fds, locked, moving, rings, sys, unseen};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

const NONE: RawFd = -1;
/// The common sockets of IPv4 and IPv6, from the first listener on; they stay.
static COMMON: [AtomicI32; 2] = [const { AtomicI32::new(NONE) }; 2];
/// The kernel's names for them.
static NAMES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// How often a socket is asked for while there is no number.
const TRIES: u32 = 100;
/// A thread is at it.
const BUSY: RawFd = -2;
/// For each family a socket of its own for whoever needs one when the program has no number left to make it with.
static RESERVES: [AtomicI32; 2] = [const { AtomicI32::new(NONE) }; 2];
static MAKING: Mutex<()> = Mutex::new(());
/// Forks under way: what is accepted meanwhile is for two processes.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// The program has forbidden itself calls that are needed to put things right later.
static IS_OVER: AtomicBool = AtomicBool::new(false);

fn index(family: i32) -> usize {
    usize::from(family == libc::AF_INET6)
}

fn of_family(family: i32) -> RawFd {
    COMMON[index(family)].load(Ordering::Acquire)
}

/// There is a listener of that family: its connections can begin with a common socket.
pub fn prepare(family: i32) {
    let _one = crate::client::lock(&MAKING);
    if of_family(family) != NONE {
        return;
    }
    let _changing = unseen::begin();
    let Ok(made) = idle(family) else { return };
    let Some(name) = moving::cookie(made) else {
        let _ = sys::close(made);
        return;
    };
    if let Some(common) = set_aside(made) {
        NAMES[index(family)].store(name, Ordering::Relaxed);
        COMMON[index(family)].store(common, Ordering::Release);
    }
}

/// True when there is a reserve, which is made if need be.
fn has_reserve(family: i32) -> bool {
    let reserve = &RESERVES[index(family)];
    if reserve.load(Ordering::Relaxed) != NONE {
        return true;
    }
    let _changing = unseen::begin();
    let Ok(made) = idle(family) else { return false };
    let Some(kept) = set_aside(made) else { return false };
    if reserve.compare_exchange(NONE, kept, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        internal::close(kept);
    }
    true
}

/// Gives what is behind `made` a number out of the program's way instead, if there is one.
fn set_aside(made: RawFd) -> Option<RawFd> {
    let away = internal::claim_away(made);
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

/// What is behind `fd` is the reserve from now on; where there is a number for it there is another.
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
    internal::close(kept);
    let _changing = unseen::begin();
    let again = idle(family).ok().and_then(|made| {
        if made == kept {
            internal::note(made);
            return Some(made);
        }
        set_aside(made)
    });
    reserve.store(again.unwrap_or(NONE), Ordering::Release);
    result
}

/// The program may have fewer numbers from now on: a reserve beyond them would leave none behind when it is spent.
pub fn fit() {
    let limit = internal::limit();
    for (family, reserve) in [libc::AF_INET, libc::AF_INET6].into_iter().zip(&RESERVES) {
        let kept = reserve.load(Ordering::Acquire);
        if kept >= 0
            && kept as u64 >= limit
            && reserve.compare_exchange(kept, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            internal::close(kept);
            has_reserve(family);
        }
    }
}

/// Before a fork.
pub fn hold(held: &mut Held) {
    held.take_static(&MAKING);
}

/// True when what is accepted from this listener may begin with a common socket: the program waits for it by calls that we see, and so, as
/// a rule, for its connections. A set of the kernel's would hold a closed one for ever.
fn may_share(sock: &Sock, listener: &Link) -> bool {
    (listener.state() & state::AWAITED != 0 || !sock.is_nonblocking())
        && FORKS.load(Ordering::SeqCst) == 0
        && !IS_OVER.load(Ordering::Relaxed)
        && !locked::is_locked()
        && !rings::are_any()
        && !fds::is_borrowed()
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
    /// The lowest free number, with the flags of `accept4`, for what is accepted from a listener.
    ///
    /// # Errors
    /// As `socket`'s.
    pub fn new(listener: &Sock, link: &Link, flags: i32) -> Result<Self, Errno> {
        let (family, may_share) = (listener.family(), may_share(listener, link));
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

    /// See `accept4`.
    pub fn is_nonblocking(&self) -> bool {
        self.flags & libc::SOCK_NONBLOCK != 0
    }

    /// True when what is behind it is common.
    pub fn is_common(&self) -> bool {
        self.is_common
    }

    /// Does `work` while its number is free.
    ///
    /// # Errors
    /// As `socket`'s.
    #[cold]
    pub fn without<R>(&mut self, work: impl FnOnce() -> R) -> Result<R, Errno> {
        self.give_back()?;
        let result = work();
        self.take()?;
        Ok(result)
    }

    /// It is a connection's from now on.
    pub fn leave(&mut self) -> Option<RawFd> {
        self.fd.take()
    }

    /// Nothing was accepted.
    ///
    /// # Errors
    /// As `close`'s.
    pub fn give_back(&mut self) -> Result<(), Errno> {
        self.fd.take().map_or(Ok(()), sys::close)
    }
}

/// True while a common socket is behind its descriptor; where a thread is about to put another there it is waited for.
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

/// From here on a socket of its own is behind `fd`, which stands for `sock`.
///
/// # Errors
/// As the kernel's where there is none to be had.
#[inline]
pub fn own(sock: &Sock, fd: RawFd) -> Result<(), Errno> {
    if sock.has(flag::COMMON) { part(sock, fd) } else { Ok(()) }
}

/// For every socket of the process.
fn own_all(alone: Option<&Alone>) {
    let part_with = |fd: RawFd, sock: &Sock| {
        // Where the kernel has none, things are as for a program whose descriptors nobody looks at.
        let _ = own(sock, fd);
    };
    match alone {
        Some(alone) => fds::SOCKS.each_alone(alone, part_with),
        None => fds::SOCKS.each(|fd, sock| part_with(fd, sock)),
    }
}

/// Before a child that has descriptors of its own and this process's memory (`vfork`), before the program may have fewer descriptors than
/// it has, and before it may give some to a ring.
pub fn own_each() {
    if fds::has_any() && !fds::is_borrowed() {
        let _deferred = Deferred::begin();
        own_all(None);
    }
}

/// The program is about to forbid itself calls.
pub fn end() {
    IS_OVER.store(true, Ordering::Relaxed);
    own_each();
}

/// A fork begins: nothing common goes to the child.
pub fn before_fork(alone: Option<&Alone>) {
    FORKS.fetch_add(1, Ordering::SeqCst);
    own_all(alone);
}

/// It has ended, in the parent.
pub fn after_fork() {
    FORKS.fetch_sub(1, Ordering::SeqCst);
}

/// It has ended, in the child, where nobody else forks. Reserves are the parent's.
pub fn in_child() {
    FORKS.store(0, Ordering::SeqCst);
    for reserve in &RESERVES {
        let kept = reserve.swap(NONE, Ordering::AcqRel);
        if kept >= 0 {
            internal::close(kept);
        }
    }
}

/// In the child: no other thread is at it.
pub fn forget_threads(sock: &Sock) {
    sock.mark(flag::PARTING, false);
}

#[cold]
fn part(sock: &Sock, fd: RawFd) -> Result<(), Errno> {
    if fds::is_borrowed() {
        // A `vfork` child: its parent has seen to it before, but for what has come since.
        return Err(Errno::AGAIN);
    }
    // A handler that wants the same would wait for what it has interrupted.
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
    let is_still_there = moving::cookie(fd)
        .is_some_and(|name| NAMES.iter().any(|common| common.load(Ordering::Relaxed) == name));
    if !is_still_there {
        // The C library has closed the number inside itself: it is a file's.
        return Ok(());
    }
    let (family, nonblock) = (sock.family(), sock.is_nonblocking());
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | if nonblock { libc::SOCK_NONBLOCK } else { 0 };
    let mut tries = 0;
    loop {
        tries += 1;
        match sys::socket(family, kind, 0) {
            // Another thread may have the one number that is left, for a moment.
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

/// What is behind `from` is behind `fd` from now on, which stays close-on-exec, or not.
///
/// # Errors
/// As `dup3`'s.
pub fn put(from: RawFd, fd: RawFd) -> Result<(), Errno> {
    let stays = sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize == 0);
    sys::dup3(from, fd, if stays { 0 } else { libc::O_CLOEXEC })
}

/// Makes a call that changes the descriptor alone, while nobody puts another socket behind it.
pub fn steady<R>(sock: &Sock, call: impl FnOnce() -> R) -> R {
    if !sock.has(flag::COMMON) || fds::is_borrowed() {
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
    /// Until [`flag::PARTING`] is taken away nobody else changes what is behind the descriptor, or closes it. False: it is not common.
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

    /// Its descriptor, which it has no more, is about to be closed or replaced by the program: whoever is at it ends before.
    pub fn close_common(&self) {
        if self.begin_parting() {
            self.mark(flag::COMMON, false);
            self.mark(flag::PARTING, false);
        }
    }
}
