//! io_uring. What a ring does with sockets the kernel does, with placeholders, and nobody here hears of it.
//!
//! A ring that a program makes by the C library's `syscall` beside an epoll set is *watched*: what the program submits is looked at first.
//! Where it only changes epoll sets (libuv does that by a ring) its sockets are accelerated. Of any other ring (`liburing` makes its system
//! calls itself), and once a watched one is used on sockets, nothing is known: while there is such a ring connections are the kernel's, and
//! so are listeners until the program waits for them by a call that we see; most programs with such rings use them for files.

mod queue;

use crate::client::{self, Client, lock};
use crate::connect::Why;
use crate::fds::{self, SETS, SOCKS};
use crate::hold::Held;
use crate::log::{Level, log};
use crate::sock::{Role, Sock, flag};
use crate::{config, fallback, fork, listener, sys};
use control::profile::Rings;
use queue::{Entry, Queue};
use rustix::fd::RawFd;
use rustix::io::Errno;
use rustix::io_uring::{IoringOp, IoringRegisterOp};
pub use rustix::io_uring::{IoringSetupFlags, io_uring_params};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Why the sockets of a process with a ring are the kernel's.
pub const IO_URING: &str = "io_uring";
/// What `/proc/self/fd` says of one.
const NAME: &[u8] = b"anon_inode:[io_uring]";

/// There is a ring of which nothing is known.
static BLIND: AtomicBool = AtomicBool::new(false);
static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());
/// How many are watched.
static COUNT: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug)]
struct Watched {
    ring: RawFd,
    queue: Arc<Queue>,
}

/// Before a fork.
pub fn hold(held: &mut Held) {
    held.take_static(&WATCHED);
}

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

/// The program wants a ring, with these flags where they are known.
///
/// # Errors
/// EPERM, as where the administrator has disabled rings, when the user wants it so, or when no socket may be the kernel's.
pub fn admit(flags: Option<IoringSetupFlags>) -> Result<(), Errno> {
    if config::rings() == Rings::Deny {
        return Err(Errno::PERM);
    }
    if config::is_required() && !flags.is_some_and(is_watchable) {
        fallback::refuse(
            format_args!("io_uring_setup"),
            "what a ring does with sockets is done by the kernel",
        );
        return Err(Errno::PERM);
    }
    Ok(())
}

/// The program has made one, by a call that we saw.
pub fn made(ring: RawFd, params: &io_uring_params) {
    let queue = if is_watchable(params.flags) { Queue::of(ring, params) } else { None };
    let Some(queue) = queue else { return be_blind() };
    let mut all = lock(&WATCHED);
    all.retain(|watched| watched.ring != ring);
    all.push(Watched { ring, queue: Arc::new(queue) });
    COUNT.store(all.len(), Ordering::Release);
}

/// Descriptors `first..=last` are about to be closed. Where a signal handler closes in the middle of a call of this module, the ring's memory
/// stays until its number is a ring's again.
#[inline]
pub fn forget(first: RawFd, last: RawFd) {
    if COUNT.load(Ordering::Acquire) > 0
        && let Ok(mut all) = WATCHED.try_lock()
    {
        all.retain(|watched| !(first..=last).contains(&watched.ring));
        COUNT.store(all.len(), Ordering::Release);
    }
}

fn watched(ring: RawFd) -> Option<Arc<Queue>> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    lock(&WATCHED).iter().find(|watched| watched.ring == ring).map(|watched| watched.queue.clone())
}

/// True when the program has a ring behind `fd` that is not watched.
pub fn is_strange(fd: RawFd) -> bool {
    if BLIND.load(Ordering::Relaxed) || config::is_required() {
        // Then it does not matter.
        return false;
    }
    let is_typeless = |mode| rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Unknown;
    rustix::fs::fstat(sys::borrow(fd)).is_ok_and(|stat| is_typeless(stat.st_mode))
        && rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new())
            .is_ok_and(|name| name.as_bytes() == NAME)
        && watched(fd).is_none()
}

/// There is a ring of which nothing is known. Listeners that nobody has waited for through us are the kernel's again, until somebody does.
pub fn be_blind() {
    if config::is_required() || BLIND.swap(true, Ordering::SeqCst) {
        return;
    }
    let Some(client) = client::present() else { return };
    for sock in fork::each_once(SOCKS.all()) {
        if let Some(Role::Listener(_)) = sock.decided()
            && !sock.is_in_set()
            && !sock.is_waited_for()
        {
            let_go(&client, &sock);
        }
    }
}

/// The kernel's again, which has it as well.
fn let_go(client: &Client, sock: &Arc<Sock>) {
    let Some(fd) = fds::all_of(sock).first().copied() else { return };
    listener::leave(client, sock);
    let _ = listener::wait_as_wanted(sock, fd);
    let fresh = Arc::new(Sock::after(sock));
    fds::exchange(sock, &fresh);
    put_off(&fresh, fd);
}

/// A socket of the kernel's listens that may be ours later.
pub fn put_off(sock: &Sock, fd: RawFd) {
    sock.put_off();
    fallback::count(IO_URING, Some(fd));
}

impl Sock {
    /// It listens in the kernel for now.
    fn put_off(&self) {
        self.mark(flag::PUT_OFF, true);
    }

    /// See [`Self::put_off`].
    #[inline]
    pub fn is_put_off(&self) -> bool {
        self.has(flag::PUT_OFF)
    }

    /// The program waits for it by a call that we see. True when it was put off until then.
    pub fn wait_for(&self) -> bool {
        self.mark(flag::WAITED_FOR, true);
        self.mark(flag::PUT_OFF, false)
    }

    /// See [`Self::wait_for`].
    #[inline]
    pub fn is_waited_for(&self) -> bool {
        self.has(flag::WAITED_FOR)
    }
}

/// Says why a socket that is about to be decided is the kernel's, because of a ring.
///
/// # Errors
/// That.
pub fn look(sock: &Sock) -> Result<(), Why> {
    if BLIND.load(Ordering::Relaxed) && !sock.is_in_set() { Err(Why::asked(IO_URING)) } else { Ok(()) }
}

/// To be kept until the first entries are the kernel's.
#[derive(Debug)]
pub struct Entering {
    /// So many may be handed over; what the others do depends on what becomes of these.
    pub count: u32,
    /// The kernel's set that holds something of ours meanwhile.
    lent: Option<RawFd>,
}

impl Drop for Entering {
    fn drop(&mut self) {
        if let (Some(set), Some(client)) = (self.lent, client::present()) {
            let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, client.control(), None);
        }
    }
}

/// The program enters a ring, to hand over `count` entries. `event`: reads an event, where that can be read; `close`: as the C library's.
pub fn entering(
    ring: RawFd,
    count: u32,
    event: impl Fn(u64) -> Option<libc::epoll_event>,
    close: impl Fn(RawFd) -> bool,
) -> Entering {
    let Some(queue) = watched(ring) else { return Entering { count, lent: None } };
    for (entry, seen) in queue.waiting(count).zip(1..) {
        let Some(fd) = entry.descriptor() else { continue };
        match entry.operation() {
            EPOLL_CTL => {
                if let Err(lent) = control(&entry, fd, &event) {
                    return Entering { count: seen, lent };
                }
            }
            CLOSE if entry.second() == 0 && fds::is_ours(fd) => {
                let is_closed = close(fd);
                if is_closed {
                    entry.finish();
                }
            }
            SPLICE | TEE => [fd, entry.second()].into_iter().for_each(used),
            operation if USES.contains(&operation) => used(fd),
            _ => {}
        }
    }
    Entering { count, lent: None }
}

const EPOLL_CTL: u8 = IoringOp::EpollCtl as u8;
const CLOSE: u8 = IoringOp::Close as u8;
const SPLICE: u8 = IoringOp::Splice as u8;
const TEE: u8 = IoringOp::Tee as u8;
/// What may be done with a socket, or with an epoll set, by its descriptor. The last have come since Linux 6.0:
/// `IORING_OP_URING_CMD`, `SEND_ZC`, `SENDMSG_ZC`, `READ_MULTISHOT`, `BIND`, `LISTEN`, `RECV_ZC`, `EPOLL_WAIT`, `READV_FIXED`, `WRITEV_FIXED`.
const USES: [u8; 26] = [
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
    62,
    63,
];

/// An epoll set is changed by a ring.
///
/// # Errors
/// The kernel is to find what is wrong. The set that holds something of ours until it has.
fn control(
    entry: &Entry<'_>,
    set: RawFd,
    event: impl Fn(u64) -> Option<libc::epoll_event>,
) -> Result<(), Option<RawFd>> {
    let (operation, fd) = (entry.length() as i32, entry.offset() as RawFd);
    let wanted = if operation == libc::EPOLL_CTL_DEL { None } else { event(entry.address()) };
    if wanted.is_none() && operation != libc::EPOLL_CTL_DEL {
        return Err(None);
    }
    match fds::epoll_control(set, operation, fd, wanted) {
        Some(Ok(())) => entry.finish(),
        Some(Err(Errno::EXIST)) => {
            // A connection's placeholder the kernel's set does not hold: it finds there what we have just put there.
            let Some(client) = client::present() else { return Err(None) };
            let nothing = libc::epoll_event { events: 0, u64: 0 };
            let added = sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, client.control(), Some(&nothing));
            entry.set_offset(client.control() as u64);
            return Err(added.is_ok().then_some(set));
        }
        Some(Err(_)) => return Err(None),
        // It is all the kernel's.
        None => {}
    }
    Ok(())
}

/// A ring does something with `fd` itself.
#[cold]
fn used(fd: RawFd) {
    let sock = SOCKS.pin(fd).map(|sock| sock.share());
    if sock.is_none() && !SETS.is_taken(fd) {
        return;
    }
    be_blind();
    match sock.as_ref().map(|sock| sock.decided()) {
        Some(Some(Role::Listener(_))) => {
            if let (Some(client), Some(sock)) = (client::present(), &sock) {
                let_go(&client, sock);
            }
        }
        Some(None) if sock.as_ref().is_some_and(|sock| !sock.is_put_off()) => {
            if let Some(sock) = &sock {
                fallback::surrender(&fds::all_of(sock), sock, IO_URING);
            }
        }
        Some(None) => {}
        _ => deaf(fd),
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

/// Files are registered with a ring, or something else is that cannot be seen through.
pub fn registering(ring: RawFd, operation: u32) {
    if operation != IoringRegisterOp::RegisterProbe as u32 && watched(ring).is_some() {
        forget(ring, ring);
        be_blind();
    }
}
