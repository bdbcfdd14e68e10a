//! io_uring. The kernel carries out what a ring does with sockets, on placeholders, and this library hears nothing of it.
//!
//! A ring that a program makes by the C library's `syscall` beside an epoll set is *watched*: its submissions are looked at before the
//! kernel gets them. Once such a ring has changed an epoll set (libuv uses one for that alone), sockets are accelerated as without a ring.
//! Before that, and as soon as a ring is used on a socket, they stay with the kernel; so they do beside any other ring made through the C
//! library. A ring made by direct system calls (`liburing` does that) is found by its descriptor. Most such programs use it for files:
//! connections stay with the kernel then, and listeners do until the program waits for them by a call that this library sees.

mod queue;
pub mod rings;
pub mod submissions;

use self::rings::{IS_QUIET, IS_STRANGE, WATCHED, is_unknown, is_watched};
use crate::connect::{self, Connected, Why, fallback, listen};
use crate::fd::tables::{self, SETS, SOCKS};
use crate::process::visibility;
use crate::socket::{LATER, Sock, flag, placeholder};
use control::KernelReason;
use control::profile::Rings;
use queue::Queue;
use rustix::fd::RawFd;
use rustix::io::Errno;
use rustix::io_uring::IoringRegisterOp;
pub use rustix::io_uring::{IoringEnterFlags, IoringSetupFlags, io_uring_params};
use session::reserved;
use session::sys::signal::Deferred;
use session::sys::{self, address};
use session::{self, config};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A connect was put off at least once.
static ANY_LATER: AtomicBool = AtomicBool::new(false);

/// True when the submissions of a ring with these flags can be seen before the kernel sees them, and the program has an epoll set (then it
/// may use the ring for that set alone).
fn is_watchable(flags: IoringSetupFlags) -> bool {
    let plain = IoringSetupFlags::CQSIZE
        | IoringSetupFlags::CLAMP
        | IoringSetupFlags::ATTACH_WQ
        | IoringSetupFlags::SUBMIT_ALL
        | IoringSetupFlags::COOP_TASKRUN
        | IoringSetupFlags::TASKRUN_FLAG
        | IoringSetupFlags::SINGLE_ISSUER
        | IoringSetupFlags::DEFER_TASKRUN
        | IoringSetupFlags::NO_SQARRAY;
    plain.contains(flags) && !SETS.all().is_empty()
}

/// The program makes a ring: `make` does it, with `flags` if they could be read; `params` returns the parameters that the kernel wrote.
///
/// # Errors
/// EPERM, as where the administrator has disabled rings: the user denies rings, or no socket may stay with the kernel. Those of `make`.
pub fn set_up(
    flags: Option<IoringSetupFlags>,
    make: impl FnOnce() -> Result<RawFd, Errno>,
    params: impl FnOnce() -> io_uring_params,
) -> Result<RawFd, Errno> {
    let is_watchable = flags.is_some_and(is_watchable);
    if config::rings() == Rings::Deny || config::is_required() && !is_watchable {
        if config::is_required() {
            fallback::refuse(
                format_args!("io_uring_setup"),
                "what a ring does with sockets is done by the kernel",
            );
        }
        return Err(Errno::PERM);
    }
    let _changing = reserved::begin();
    placeholder::own_each();
    let ring = make()?;
    if tables::is_borrowed() {
        // A `vfork` child's ring does not belong to this process.
        return Ok(ring);
    }
    let queue = if is_watchable { Queue::of(ring, &params()) } else { None };
    if queue.is_some_and(|queue| tables::put(&WATCHED, ring, Arc::new(queue))) {
        IS_QUIET.store(true, Ordering::SeqCst);
    } else if config::is_required() {
        sys::close(ring)?;
        return Err(Errno::PERM);
    } else {
        abandon();
    }
    Ok(ring)
}

/// Leaves new sockets to the kernel, where that is allowed, and the listeners, which the kernel has as well.
fn abandon() {
    if fallback::bypass(KernelReason::IoUring) && session::present().is_some() {
        visibility::leave_all(KernelReason::IoUring, |_| true);
    }
}

/// The program does `what` with a ring, so sockets are left to the kernel.
///
/// # Errors
/// EINVAL when no socket may stay with the kernel.
fn hand_over(what: fmt::Arguments<'_>, why: &str) -> Result<(), Errno> {
    if config::is_required() {
        fallback::refuse(what, why);
        return Err(Errno::INVAL);
    }
    abandon();
    Ok(())
}

/// `new` is a duplicate of `old`: it is watched as well.
pub fn duplicated(old: RawFd, new: RawFd) {
    let queue = WATCHED.pin(old).map(|queue| queue.share());
    if queue.is_some_and(|queue| !tables::put(&WATCHED, new, queue)) {
        abandon();
    }
}

/// Notes that the program has a ring made by direct system calls.
pub fn note_strange() {
    IS_STRANGE.store(true, Ordering::SeqCst);
    placeholder::own_each();
}

/// Before `sock` is decided: fails if it has to stay with the kernel for now because of a ring.
///
/// # Errors
/// Why the socket stays with the kernel.
pub fn look(sock: &Sock) -> Result<(), Why> {
    let is_beside = || IS_STRANGE.load(Ordering::Relaxed) && !sock.is_in_set();
    if (is_unknown() || is_beside()) && !config::is_required() {
        return Err(Why::asked(KernelReason::IoUring));
    }
    Ok(())
}

impl Sock {
    /// The error of a connect that was put off, for `SO_ERROR`; returned once.
    pub fn take_late_error(&self) -> Option<Errno> {
        let error = self.settings()?.error?;
        self.set(|settings| settings.error = None);
        Some(error)
    }

    /// True for a socket that listens in the kernel and is accelerated when the program waits for it.
    #[inline]
    pub fn is_put_off(&self) -> bool {
        self.has(flag::PUT_OFF)
    }
}

/// Leaves a listener to the kernel until the program waits for it (see [`Sock::is_put_off`]).
pub fn put_off(sock: &Sock, fd: RawFd) {
    if !sock.mark(flag::PUT_OFF, true) {
        fallback::count(KernelReason::IoUring, Some(fd));
    }
}

/// Puts a non-blocking connect off until the program uses the socket, while the purpose of its ring is unknown: a libuv program connects
/// before its ring changes a set for the first time. False: the connect cannot be put off.
pub fn put_off_connect(sock: &Sock, name: &[u8]) -> bool {
    let begin = || sock.deciding.compare_exchange(0, LATER, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let is_late = is_unknown() && sock.is_nonblocking() && begin();
    if is_late {
        ANY_LATER.store(true, Ordering::Relaxed);
        sock.set(|settings| settings.later = Some(name.into()));
    }
    is_late
}

/// Makes the connect that was put off: a thread uses the socket now.
#[cold]
pub fn connect_now(sock: &Sock) {
    let _deferred = Deferred::begin();
    let mut name = None;
    sock.set(|settings| name = settings.later.take());
    let found = SOCKS.all().into_iter().find(|(_, other)| std::ptr::eq(Arc::as_ptr(other), sock));
    let (Some(name), Some((fd, sock))) = (name, found) else { return };
    let why = match connect::connect(&sock, fd, &name) {
        Ok(Connected::Kernel(why)) => why,
        Err(error) if sock.decided().is_none() => return sock.set(|settings| settings.error = Some(error)),
        _ => return,
    };
    let made =
        address::parse(&name).map_or(Err(Errno::INVAL), |to| rustix::net::connect(sys::borrow(fd), &to));
    match made {
        Ok(()) | Err(Errno::INPROGRESS) if why.reason != KernelReason::NoListener => {
            fallback::surrender(&tables::all_of(&sock), &sock, why.reason);
        }
        Err(error) if error != Errno::INPROGRESS => {
            sock.set(|settings| settings.error = Some(error));
            if error == Errno::CONNREFUSED {
                fallback::connected(fd, made);
            }
        }
        made => fallback::connected(fd, made),
    }
}

/// Makes a connect that was put off, before a caller examines the socket behind `fd`: it may be left to the kernel by that.
#[inline]
pub fn settle_connect(fd: RawFd) {
    let is_late = |sock: &Sock| sock.deciding.load(Ordering::Relaxed) == LATER;
    if ANY_LATER.load(Ordering::Relaxed)
        && let Some(sock) = SOCKS.pin(fd).filter(|sock| is_late(sock)).map(|sock| sock.share())
    {
        let _ = sock.role();
    }
}

/// Makes all connects that were put off, before other processes or programs get the sockets.
pub fn connect_each() {
    if ANY_LATER.load(Ordering::Relaxed) {
        SOCKS.all().into_iter().for_each(|(fd, _)| settle_connect(fd));
    }
}

/// The program waits, by a call that this library sees, for a listener that was put off: accelerates it unless a ring may be used on it.
#[cold]
pub fn wanted(sock: &Arc<Sock>, fd: RawFd) {
    if is_unknown() {
        // The listener stays with the kernel, because this thread is about to wait there.
        sock.mark(flag::LEFT, true);
    }
    if sock.has(flag::LEFT) || fallback::reason().is_some() || tables::is_borrowed() {
        return;
    }
    // Another thread in the same call waits until this one has decided.
    let deciding = sock.begin_deciding();
    if deciding.is_ours() && sock.mark(flag::PUT_OFF, false) {
        listen::join(sock, fd);
    }
}

/// The program registers something with a ring. Registered files or rings hide what later entries do, so sockets go to the kernel.
///
/// # Errors
/// EINVAL, as where the kernel does not know the operation: for resizing a watched ring, and for hiding when no kernel socket is allowed.
pub fn registering(ring: RawFd, operation: u32) -> Result<(), Errno> {
    const RESIZE: u32 = IoringRegisterOp::RegisterResizeRings as u32;
    const HIDING: [u32; 5] = [
        IoringRegisterOp::RegisterFiles as u32,
        IoringRegisterOp::RegisterFilesUpdate as u32,
        IoringRegisterOp::RegisterFiles2 as u32,
        IoringRegisterOp::RegisterFilesUpdate2 as u32,
        IoringRegisterOp::RegisterRingFds as u32,
    ];
    match operation {
        RESIZE if is_watched(ring) => return Err(Errno::INVAL),
        hiding if HIDING.contains(&hiding) && is_watched(ring) => {}
        _ => return Ok(()),
    }
    hand_over(format_args!("io_uring_register of fd {ring}"), "what the ring does could not be seen")
}
