//! The submissions of a watched ring, before the kernel gets them.

use super::queue::Entry;
use super::rings::{CHANGES_SETS, WATCHED, is_watched};
use super::{hand_over, settle_connect};
use crate::connect::fallback;
use crate::fd::tables::{self, SETS, SOCKS};
use crate::file;
use control::KernelReason;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::RawFd;
use rustix::io::Errno;
use rustix::io_uring::IoringOp;
use session::config;
use session::log::{Level, log};
use session::reserved::Internal;
use session::sys;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, mem};

/// The program hands `count` entries of a ring to the kernel. `event` reads an `epoll_event` at an address, if it is readable. The caller
/// keeps the result until the kernel has the entries: changes of the descriptors that they close.
pub fn entering(
    ring: RawFd,
    count: u32,
    event: impl Fn(u64) -> Option<libc::epoll_event>,
) -> Vec<file::Closing> {
    let mut closing = Vec::new();
    if count == 0 || !is_watched(ring) || tables::is_borrowed() {
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
                fallback::surrender(&tables::all_of(&sock), &sock, KernelReason::IoUring);
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
