//! io_uring. What a ring does with sockets the kernel does, with placeholders, and nobody here hears of it.
//!
//! A ring that a program makes by the C library's `syscall` beside an epoll set is *watched*: what the program submits is looked at first.
//! Once such a ring has changed an epoll set, which is what libuv has one for, sockets are accelerated as without one; before, and from the
//! moment on in which one is used on a socket, they are the kernel's. Beside any other ring that the C library has made they are the
//! kernel's, too. A ring that a program has made by system calls of its own (`liburing` does) is found by its descriptor. Most such
//! programs use it for files: connections are the kernel's then, and so are listeners until the program waits for them by a call that we see.

mod queue;

use crate::connect::{self, Connected, Why};
use crate::fds::{self, SETS, SOCKS};
use crate::internal::Internal;
use crate::log::{Level, log};
use crate::sock::{LATER, Sock, flag};
use crate::sys::signal::Deferred;
use crate::table::Table;
use crate::{address, client, config, fallback, listener, placeholder, sys, unseen};
use control::profile::Rings;
use queue::{Entry, Queue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::RawFd;
use rustix::io::Errno;
pub use rustix::io_uring::{IoringEnterFlags, IoringSetupFlags, io_uring_params};
use rustix::io_uring::{IoringOp, IoringRegisterOp};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::{fmt, mem};

/// Why the sockets of a process with a ring are the kernel's.
pub const IO_URING: &str = "io_uring";

/// So many descriptors at most of the processes that may accept are looked at for one: each takes some 10 µs.
const LOOKED_AT: usize = 128;

/// Watched rings.
static WATCHED: Table<Queue> = Table::new();
/// This process has made one, of which it is not known, unless it changes sets, what it is for.
static IS_QUIET: AtomicBool = AtomicBool::new(false);
/// A watched ring has changed an epoll set.
static CHANGES_SETS: AtomicBool = AtomicBool::new(false);
/// A connect was ever put off.
static ANY_LATER: AtomicBool = AtomicBool::new(false);
/// The program has a ring that it made past us.
static IS_STRANGE: AtomicBool = AtomicBool::new(false);

/// True when what a ring made with these flags is given to do can be seen before the kernel sees it. A program that waits by an epoll set
/// is the one that may use its ring for that set alone.
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

/// The program makes a ring by `make`, with these flags as far as they can be read; `params`: what the kernel has made of them.
///
/// # Errors
/// EPERM, as where the administrator has disabled rings, when the user wants it so, or when no socket may be the kernel's. As `make`'s.
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
    let _changing = unseen::begin();
    placeholder::own_each();
    let ring = make()?;
    if fds::is_borrowed() {
        // What a `vfork` child does with it is not this process's.
        return Ok(ring);
    }
    let queue = if is_watchable { Queue::of(ring, &params()) } else { None };
    if queue.is_some_and(|queue| fds::put(&WATCHED, ring, Arc::new(queue))) {
        IS_QUIET.store(true, Ordering::SeqCst);
    } else if config::is_required() {
        sys::close(ring)?;
        return Err(Errno::PERM);
    } else {
        abandon();
    }
    Ok(ring)
}

/// In a forked child, where what this thread had pinned is not.
pub fn forget_pins() {
    WATCHED.forget_pins();
}

/// In a forked child: what its own rings are for is to be seen.
pub fn forked() {
    if CHANGES_SETS.swap(false, Ordering::SeqCst) {
        IS_QUIET.store(false, Ordering::SeqCst);
    }
}

/// Sockets are the kernel's from now on, where they may be, and listeners, which the kernel has as well.
fn abandon() {
    if fallback::bypass(IO_URING)
        && let Some(client) = client::present()
    {
        unseen::leave_all(&client, IO_URING, |_| true);
    }
}

/// The program does `what`. Sockets are the kernel's because of that.
///
/// # Errors
/// EINVAL when none may be.
fn hand_over(what: fmt::Arguments<'_>, why: &str) -> Result<(), Errno> {
    if config::is_required() {
        fallback::refuse(what, why);
        return Err(Errno::INVAL);
    }
    abandon();
    Ok(())
}

/// True for a watched ring.
#[inline]
pub fn is_watched(fd: RawFd) -> bool {
    WATCHED.is_taken(fd)
}

/// `fd` is about to be closed.
#[inline]
pub fn forget(fd: RawFd) {
    drop(WATCHED.remove(fd));
}

/// The watched rings' descriptors.
pub fn watched() -> Vec<RawFd> {
    WATCHED.all().into_iter().map(|(fd, _)| fd).collect()
}

/// `new` stands for the same as `old` from now on.
pub fn duplicated(old: RawFd, new: RawFd) {
    let queue = WATCHED.pin(old).map(|queue| queue.share());
    if queue.is_some_and(|queue| !fds::put(&WATCHED, new, queue)) {
        abandon();
    }
}

/// True when the program has a ring behind `fd` that is not watched.
pub fn is_strange(fd: RawFd) -> bool {
    let is_typeless = |mode| rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Unknown;
    !is_watched(fd)
        && rustix::fs::fstat(sys::borrow(fd)).is_ok_and(|stat| is_typeless(stat.st_mode))
        && rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new())
            .is_ok_and(|name| name.as_bytes() == Rings::LINK.as_bytes())
}

/// Why a connection to these processes, which have not waited for any by a call that a library sees, is the kernel's: one has a ring,
/// by which it may accept, or this process may not see whether one has. `None` when none has. `asker`: this process's number, where
/// theirs mean something here.
pub fn reason_for_kernel(asker: i32, acceptors: &[i32]) -> Option<&'static str> {
    const HAS_RING: &str = "its listener has an io_uring, and waits by no call that is seen";
    const UNKNOWN: &str =
        "its listener has not waited yet, and this program may not see whether it has an io_uring";
    let is_known = rustix::process::getpid().as_raw_nonzero().get() == asker;
    let mut left = LOOKED_AT;
    let look = |pid: &i32| match has_ring(*pid, &mut left) {
        Ok(true) => Some(HAS_RING),
        Ok(false) => None,
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Some(UNKNOWN),
        // It has ended, or this process has no descriptor left to look with.
        Err(_) => None,
    };
    if is_known { acceptors.iter().find_map(look) } else { Some(UNKNOWN) }
}

/// Whether a ring is among the first `left` descriptors of `pid`, which are counted down.
fn has_ring(pid: i32, left: &mut usize) -> std::io::Result<bool> {
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        if *left == 0 {
            break;
        }
        *left -= 1;
        match std::fs::read_link(entry?.path()) {
            Ok(name) if name.as_os_str() == Rings::LINK => return Ok(true),
            // Closed meanwhile.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(false)
}

/// True when it is to be known whether there is one.
pub fn may_be_strange() -> bool {
    !(IS_STRANGE.load(Ordering::Relaxed) || config::is_required())
}

/// There is one.
pub fn note_strange() {
    IS_STRANGE.store(true, Ordering::SeqCst);
    placeholder::own_each();
}

/// The process has a ring, made before the last fork or since, that was seen.
pub fn are_any() -> bool {
    IS_QUIET.load(Ordering::Relaxed) || are_for_sets() || IS_STRANGE.load(Ordering::Relaxed)
}

/// No ring has yet been seen at what it is for.
fn is_unknown() -> bool {
    IS_QUIET.load(Ordering::Relaxed) && !are_for_sets()
}

/// Watched rings are for epoll sets: the program waits by those.
pub fn are_for_sets() -> bool {
    CHANGES_SETS.load(Ordering::Relaxed)
}

/// Says why a socket that is about to be decided is the kernel's for now, because of a ring.
///
/// # Errors
/// That.
pub fn look(sock: &Sock) -> Result<(), Why> {
    let is_beside = || IS_STRANGE.load(Ordering::Relaxed) && !sock.is_in_set();
    if (is_unknown() || is_beside()) && !config::is_required() {
        return Err(Why::asked(IO_URING));
    }
    Ok(())
}

impl Sock {
    /// What became of a connect that was put off, for `SO_ERROR`: once.
    pub fn take_late_error(&self) -> Option<Errno> {
        let error = self.settings()?.error?;
        self.set(|settings| settings.error = None);
        Some(error)
    }

    /// True for a socket of the kernel's that listens, and may be ours when the program waits for it.
    #[inline]
    pub fn is_put_off(&self) -> bool {
        self.has(flag::PUT_OFF)
    }
}

/// See [`Sock::is_put_off`].
pub fn put_off(sock: &Sock, fd: RawFd) {
    if !sock.mark(flag::PUT_OFF, true) {
        fallback::count(IO_URING, Some(fd));
    }
}

/// A non-blocking connect waits until the program uses the socket, where it is not known yet what the ring is for: a program of libuv
/// connects before its ring changes a set for the first time. False: that may not be.
pub fn put_off_connect(sock: &Sock, name: &[u8]) -> bool {
    let begin = || sock.deciding.compare_exchange(0, LATER, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let is_late = is_unknown() && sock.is_nonblocking() && begin();
    if is_late {
        ANY_LATER.store(true, Ordering::Relaxed);
        sock.set(|settings| settings.later = Some(name.into()));
    }
    is_late
}

/// A thread uses a socket after its connect was put off, and so decides.
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
        Ok(()) | Err(Errno::INPROGRESS) if why.reason != control::NO_LISTENER => {
            fallback::surrender(&fds::all_of(&sock), &sock, &why.reason);
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

/// A connect that was put off is made before its socket is looked at as it is: it may be the kernel's after that.
#[inline]
pub fn settle_connect(fd: RawFd) {
    let is_late = |sock: &Sock| sock.deciding.load(Ordering::Relaxed) == LATER;
    if ANY_LATER.load(Ordering::Relaxed)
        && let Some(sock) = SOCKS.pin(fd).filter(|sock| is_late(sock)).map(|sock| sock.share())
    {
        let _ = sock.role();
    }
}

/// Connects that were put off are made, before other processes or programs get the sockets.
pub fn connect_each() {
    if ANY_LATER.load(Ordering::Relaxed) {
        SOCKS.all().into_iter().for_each(|(fd, _)| settle_connect(fd));
    }
}

/// The program waits for a socket that is put off, by a call that we see: it is accelerated now, unless a ring may be used on what comes.
#[cold]
pub fn wanted(sock: &Arc<Sock>, fd: RawFd) {
    if is_unknown() {
        // It is left to the kernel, for that is where this thread will wait.
        sock.mark(flag::LEFT, true);
    }
    if sock.has(flag::LEFT) || fallback::reason().is_some() || fds::is_borrowed() {
        return;
    }
    // Another thread that wants it waits until this one has decided.
    let deciding = sock.begin_deciding();
    if deciding.is_ours() && sock.mark(flag::PUT_OFF, false) {
        listener::join(sock, fd);
    }
}

/// The program hands `count` entries of a ring to the kernel. `event`: reads an event, where that can be read. To be kept until it has them:
/// what they close.
pub fn entering(
    ring: RawFd,
    count: u32,
    event: impl Fn(u64) -> Option<libc::epoll_event>,
) -> Vec<fds::Changing> {
    let mut closing = Vec::new();
    if count == 0 || !is_watched(ring) || fds::is_borrowed() {
        return closing;
    }
    let Some(queue) = WATCHED.pin(ring).map(|queue| queue.share()) else { return closing };
    let mut is_chained = false;
    for entry in queue.waiting(count) {
        // What comes of it depends on others, or others on it: that only the kernel knows.
        let is_bound = mem::replace(&mut is_chained, entry.is_followed()) || is_chained;
        let Some(fd) = entry.descriptor() else { continue };
        match entry.operation() {
            EPOLL_CTL if is_bound => {
                used(&entry, fd);
                used(&entry, entry.offset() as RawFd);
                SETS.pin(fd).inspect(|set| set.has_kernel());
            }
            EPOLL_CTL => control(&entry, fd, &event),
            CLOSE if is_bound => used(&entry, fd),
            CLOSE if entry.is_plain_close() => match fds::closing(fd) {
                Ok(changing) => closing.extend(changing),
                Err(_) => entry.set_descriptor(-1),
            },
            SPLICE | TEE => [fd, entry.second()].into_iter().for_each(|fd| used(&entry, fd)),
            SOCKET => uses(&entry, format_args!("the making of a socket")),
            operation if USES.contains(&operation) => used(&entry, fd),
            _ => {}
        }
    }
    closing
}

const EPOLL_CTL: u8 = IoringOp::EpollCtl as u8;
const CLOSE: u8 = IoringOp::Close as u8;
const SPLICE: u8 = IoringOp::Splice as u8;
const TEE: u8 = IoringOp::Tee as u8;
const SOCKET: u8 = IoringOp::Socket as u8;
/// What may be done with a socket, or with an epoll set, by its descriptor. The numbers are `IORING_OP_READ_MULTISHOT`, `BIND`, `LISTEN`,
/// `RECV_ZC`, `EPOLL_WAIT`, `READV_FIXED` and `WRITEV_FIXED`, which have come since Linux 6.7.
const USES: [u8; 24] = [
    IoringOp::Readv as u8,
    IoringOp::Writev as u8,
    IoringOp::ReadFixed as u8,
    IoringOp::WriteFixed as u8,
    IoringOp::PollAdd as u8,
    IoringOp::Sendmsg as u8,
    IoringOp::Recvmsg as u8,
    IoringOp::Accept as u8,
    IoringOp::Connect as u8,
    IoringOp::Read as u8,
    IoringOp::Write as u8,
    IoringOp::Send as u8,
    IoringOp::Recv as u8,
    IoringOp::Shutdown as u8,
    IoringOp::SendZc as u8,
    IoringOp::SendmsgZc as u8,
    IoringOp::UringCmd as u8,
    49,
    56,
    57,
    58,
    59,
    60,
    61,
];

/// An epoll set is changed by a ring.
fn control(entry: &Entry<'_>, set: RawFd, event: impl Fn(u64) -> Option<libc::epoll_event>) {
    CHANGES_SETS.store(true, Ordering::Relaxed);
    let (operation, fd) = (entry.length() as i32, entry.offset() as RawFd);
    let wanted = if operation == libc::EPOLL_CTL_DEL { None } else { event(entry.address()) };
    if wanted.is_none() && operation != libc::EPOLL_CTL_DEL {
        // The kernel says EFAULT.
        return;
    }
    match fds::epoll_control(set, operation, fd, wanted) {
        Some(Ok(())) => entry.finish(),
        // What the kernel's set holds is another matter, and entries after this one may change it before the kernel looks.
        Some(Err(error @ (Errno::EXIST | Errno::NOENT))) => match own_set() {
            Some([set, member]) => entry.lead_to(set, if error == Errno::EXIST { member } else { fd }),
            None => entry.spoil(),
        },
        Some(Err(Errno::INVAL | Errno::NOMEM | Errno::NOSPC | Errno::MFILE)) => entry.spoil(),
        // The kernel finds the same; or it is all the kernel's.
        Some(Err(_)) | None => {}
    }
}

/// An epoll set of our own and the one thing that is in it: by these the kernel finds what is there already and what is not.
fn own_set() -> Option<[RawFd; 2]> {
    static SET: OnceLock<Option<[Internal; 2]>> = OnceLock::new();
    let make = || {
        let set = Internal::epoll()?;
        let member = Internal::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let nothing = libc::epoll_event { events: 0, u64: 0 };
        sys::epoll_ctl(set.number(), libc::EPOLL_CTL_ADD, member.number(), Some(&nothing))?;
        Ok::<_, Errno>([set, member])
    };
    let both = SET.get_or_init(|| make().ok()).as_ref()?;
    Some(both.each_ref().map(Internal::number))
}

/// A ring does something with `fd` itself.
#[cold]
fn used(entry: &Entry<'_>, fd: RawFd) {
    // The kernel's, where the ring waits for it.
    settle_connect(fd);
    let sock = SOCKS.pin(fd).map(|sock| sock.share());
    if sock.is_none() && !SETS.is_taken(fd) {
        return;
    }
    uses(entry, format_args!("an operation of a ring on fd {fd}"));
    match sock {
        _ if config::is_required() => {}
        Some(sock) if sock.decided().is_none() => {
            if !sock.is_put_off() {
                fallback::surrender(&fds::all_of(&sock), &sock, IO_URING);
            }
        }
        // It was left to the kernel.
        Some(sock) if sock.listener().is_some() => {}
        _ => deaf(fd),
    }
}

/// A ring does something with sockets that only the kernel can do.
fn uses(entry: &Entry<'_>, what: fmt::Arguments<'_>) {
    if hand_over(what, "the kernel would do it").is_err() {
        entry.spoil();
    }
}

/// A connection of ours, or a set that may hold some, is used by a ring: said once.
fn deaf(fd: RawFd) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        let text = format_args!(
            "this program uses fd {fd} by io_uring, and hears nothing there of connections that were accelerated before; new ones are \
             the kernel's. `towpath run --io-uring deny` keeps it from using rings"
        );
        log(Level::Error, text);
    }
}

/// Something is registered with a ring. With files or rings among it what is submitted cannot be seen through any more.
///
/// # Errors
/// EINVAL, as where the kernel does not know the operation: for new memory, and for those when no socket may be the kernel's.
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
