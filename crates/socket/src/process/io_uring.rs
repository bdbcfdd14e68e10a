//! io_uring. The kernel carries out what a ring does with sockets, on placeholders, and this library hears nothing of it.
//!
//! A ring that a program makes by the C library's `syscall` beside an epoll set is *watched*: its submissions are looked at before the
//! kernel gets them. Once such a ring has changed an epoll set (libuv uses one for that alone), sockets are accelerated as without a ring.
//! Before that, and as soon as a ring is used on a socket, they stay with the kernel; so they do beside any other ring made through the C
//! library. A ring made by direct system calls (`liburing` does that) is found by its descriptor. Most such programs use it for files:
//! connections stay with the kernel then, and listeners do until the program waits for them by a call that this library sees.

mod queue;

use crate::connect::{self, Connected, Why, fallback, listen};
use crate::fd::table::Table;
use crate::file::{self, SETS, SOCKS};
use crate::process::visibility;
use crate::socket::{LATER, Sock, flag, placeholder};
use control::KernelReason;
use control::profile::Rings;
use queue::{Entry, Queue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::RawFd;
use rustix::io::Errno;
pub use rustix::io_uring::{IoringEnterFlags, IoringSetupFlags, io_uring_params};
use rustix::io_uring::{IoringOp, IoringRegisterOp};
use session::log::{Level, log};
use session::reserved::{self, Internal};
use session::sys::signal::Deferred;
use session::sys::{self, address};
use session::{self, config};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::{fmt, mem};

/// The submission queues of watched rings, by the ring's descriptor.
static WATCHED: Table<Queue> = Table::new();
/// This process has made a watched ring. Unless [`CHANGES_SETS`] is set, it is not known what the ring is for.
static IS_QUIET: AtomicBool = AtomicBool::new(false);
/// A watched ring has changed an epoll set.
static CHANGES_SETS: AtomicBool = AtomicBool::new(false);
/// A connect was put off at least once.
static ANY_LATER: AtomicBool = AtomicBool::new(false);
/// The program has a ring that it made by direct system calls.
static IS_STRANGE: AtomicBool = AtomicBool::new(false);

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
    if file::is_borrowed() {
        // A `vfork` child's ring does not belong to this process.
        return Ok(ring);
    }
    let queue = if is_watchable { Queue::of(ring, &params()) } else { None };
    if queue.is_some_and(|queue| file::put(&WATCHED, ring, Arc::new(queue))) {
        IS_QUIET.store(true, Ordering::SeqCst);
    } else if config::is_required() {
        sys::close(ring)?;
        return Err(Errno::PERM);
    } else {
        abandon();
    }
    Ok(ring)
}

/// In a forked child: drops the pins of the parent's threads.
pub fn forget_pins() {
    WATCHED.forget_pins();
}

/// In a forked child: the purpose of rings that it makes is unknown again.
pub fn forked() {
    if CHANGES_SETS.swap(false, Ordering::SeqCst) {
        IS_QUIET.store(false, Ordering::SeqCst);
    }
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

/// True when `fd` is a watched ring.
#[inline]
pub fn is_watched(fd: RawFd) -> bool {
    WATCHED.is_taken(fd)
}

/// `fd` is about to be closed: it is no longer watched.
#[inline]
pub fn forget(fd: RawFd) {
    drop(WATCHED.remove(fd));
}

/// The descriptors of all watched rings.
pub fn watched() -> Vec<RawFd> {
    WATCHED.all().into_iter().map(|(fd, _)| fd).collect()
}

/// `new` is a duplicate of `old`: it is watched as well.
pub fn duplicated(old: RawFd, new: RawFd) {
    let queue = WATCHED.pin(old).map(|queue| queue.share());
    if queue.is_some_and(|queue| !file::put(&WATCHED, new, queue)) {
        abandon();
    }
}

/// True when `fd` is a ring that is not watched.
pub fn is_strange(fd: RawFd) -> bool {
    let is_typeless = |mode| rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Unknown;
    !is_watched(fd)
        && rustix::fs::fstat(sys::borrow(fd)).is_ok_and(|stat| is_typeless(stat.st_mode))
        && rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new())
            .is_ok_and(|name| name.as_bytes() == Rings::LINK.as_bytes())
}

/// True when it is of interest, and not yet known, whether the program has an unwatched ring.
pub fn may_be_strange() -> bool {
    !(IS_STRANGE.load(Ordering::Relaxed) || config::is_required())
}

/// Notes that the program has a ring made by direct system calls.
pub fn note_strange() {
    IS_STRANGE.store(true, Ordering::SeqCst);
    placeholder::own_each();
}

/// True when the process has, or inherited, a ring that was seen.
pub fn are_any() -> bool {
    IS_QUIET.load(Ordering::Relaxed) || are_for_sets() || IS_STRANGE.load(Ordering::Relaxed)
}

/// True when there is a watched ring and its purpose is not known yet.
fn is_unknown() -> bool {
    IS_QUIET.load(Ordering::Relaxed) && !are_for_sets()
}

/// True when watched rings only change epoll sets: the program waits in those sets.
pub fn are_for_sets() -> bool {
    CHANGES_SETS.load(Ordering::Relaxed)
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
            fallback::surrender(&file::all_of(&sock), &sock, why.reason);
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
    if sock.has(flag::LEFT) || fallback::reason().is_some() || file::is_borrowed() {
        return;
    }
    // Another thread in the same call waits until this one has decided.
    let deciding = sock.begin_deciding();
    if deciding.is_ours() && sock.mark(flag::PUT_OFF, false) {
        listen::join(sock, fd);
    }
}

/// The program hands `count` entries of a ring to the kernel. `event` reads an `epoll_event` at an address, if it is readable. The caller
/// keeps the result until the kernel has the entries: changes of the descriptors that they close.
pub fn entering(
    ring: RawFd,
    count: u32,
    event: impl Fn(u64) -> Option<libc::epoll_event>,
) -> Vec<file::Closing> {
    let mut closing = Vec::new();
    if count == 0 || !is_watched(ring) || file::is_borrowed() {
        return closing;
    }
    let Some(queue) = WATCHED.pin(ring).map(|queue| queue.share()) else { return closing };
    let mut is_chained = false;
    for entry in queue.waiting(count) {
        // Only the kernel knows the outcome of an entry that depends on others, or that others depend on.
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
            CLOSE if entry.is_plain_close() => match file::closing(fd) {
                Ok(changing) => closing.push(changing),
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
/// Operations on a socket or an epoll set by its descriptor. The numbers are `IORING_OP_READ_MULTISHOT`, `BIND`, `LISTEN`,
/// `RECV_ZC`, `EPOLL_WAIT`, `READV_FIXED` and `WRITEV_FIXED`, added after Linux 6.7.
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

/// A ring changes the epoll set `set`.
fn control(entry: &Entry<'_>, set: RawFd, event: impl Fn(u64) -> Option<libc::epoll_event>) {
    CHANGES_SETS.store(true, Ordering::Relaxed);
    let (operation, fd) = (entry.length() as i32, entry.offset() as RawFd);
    let wanted = if operation == libc::EPOLL_CTL_DEL { None } else { event(entry.address()) };
    if wanted.is_none() && operation != libc::EPOLL_CTL_DEL {
        // The event cannot be read: the kernel answers EFAULT.
        return;
    }
    match file::epoll_control(set, operation, fd, wanted) {
        Some(Ok(())) => entry.finish(),
        // The kernel must return the same error, but its own set may differ: the entry is directed to `own_set`, where it gets that error.
        Some(Err(error @ (Errno::EXIST | Errno::NOENT))) => match own_set() {
            Some([set, member]) => entry.lead_to(set, if error == Errno::EXIST { member } else { fd }),
            None => entry.spoil(),
        },
        Some(Err(Errno::INVAL | Errno::NOMEM | Errno::NOSPC | Errno::MFILE)) => entry.spoil(),
        // The kernel finds the same error; or the set and the descriptor are the kernel's alone.
        Some(Err(_)) | None => {}
    }
}

/// An epoll set of the library's own and its one member: an operation on them makes the kernel answer EEXIST or ENOENT as needed.
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

/// A ring uses `fd` for something else than a change of a set.
#[cold]
fn used(entry: &Entry<'_>, fd: RawFd) {
    // Make a connect that was put off: the ring waits for it in the kernel.
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
                fallback::surrender(&file::all_of(&sock), &sock, KernelReason::IoUring);
            }
        }
        // `uses` has left the listener to the kernel.
        Some(sock) if sock.listener().is_some() => {}
        _ => deaf(fd),
    }
}

/// A ring does something with sockets that only the kernel can do: leaves sockets to the kernel, or makes the entry fail.
fn uses(entry: &Entry<'_>, what: fmt::Arguments<'_>) {
    if hand_over(what, "the kernel would do it").is_err() {
        entry.spoil();
    }
}

/// Logs, once, that a ring uses an accelerated connection, or a set that may hold some: the program gets no news there.
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
