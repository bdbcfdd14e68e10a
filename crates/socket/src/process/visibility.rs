//! Epoll sets that the program makes and waits on by direct system calls, past the C library (Rust's `rustix` does so): they
//! hold placeholders, and get no news of connections in shared memory. So before a socket is decided, descriptors that this library
//! did not make are checked for being such a set; if there is one, sockets that are in no set of ours stay with the kernel. A direct
//! `poll` leaves no trace that could be found. io_urings that the program has made by direct calls are found by the same search.

use crate::connect::{Why, fallback, listen};
use crate::fd::tables::{self, SETS, SOCKS};
use crate::process::io_uring;
use crate::process::io_uring::rings;
use crate::socket::{Role, Sock};
use control::KernelReason;
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::log::{Level, log};
use session::reserved::{self, MOST};
use session::sys;
use session::{self, Client, config, detached};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const WORDS: usize = MOST / 64;
/// Descriptors that need no further check, one bit each: sockets and sets of ours, and files that are no epoll set.
static KNOWN: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// The second in which [`KNOWN`] was last cleared: needed because the C library closes descriptors by internal calls, too.
static SECOND: AtomicU64 = AtomicU64::new(0);
/// The search ends after this many free numbers: the kernel gives the lowest free one, so a set rarely lies behind more.
const FREE_MAX: u32 = 16;

/// Time between the first two checks of what seems to be a set of the program's; doubled after each: 102 ms in all.
const PAUSE: Duration = Duration::from_micros(100);

/// What is behind a descriptor that this library does not know.
enum Stranger {
    Nothing,
    Set,
    Other,
}

/// Finds out with one call: removing our control socket, which cannot be in the set, fails with ENOENT on an epoll set only.
fn meet(client: &Client, fd: RawFd) -> Stranger {
    match sys::epoll_ctl(fd, libc::EPOLL_CTL_DEL, client.control(), None) {
        Err(Errno::NOENT) => Stranger::Set,
        Err(Errno::BADF) => Stranger::Nothing,
        _ => Stranger::Other,
    }
}

/// True when an epoll set that is not ours is behind `fd`, and no thread is changing that. It is checked several times, because leaving
/// sockets to the kernel is final, and a set of ours is unknown only for a moment. A set that the service sends to wake us
/// (in an eventfd's place) is such a one: it is unknown from the call that receives it until it is claimed, and the thread may be preempted in between.
#[cold]
fn is_strange(client: &Client, fd: RawFd) -> bool {
    is_settled(|| {
        matches!(meet(client, fd), Stranger::Set) && !(tables::is_ours(fd) || reserved::is_internal(fd))
    })
}

/// True when `is_strange` says so several times in a row, while no set of ours is being made or closed.
fn is_settled(is_strange: impl Fn() -> bool) -> bool {
    const TRIES: u32 = 1_000;
    const LOOKS: u32 = 11;
    let mut seen = 0;
    for _ in 0..TRIES {
        let (begun, done) = reserved::changes();
        if done == begun {
            let is_strange = is_strange();
            if reserved::changes().0 == begun {
                seen += 1;
                if !is_strange || seen == LOOKS {
                    return is_strange;
                }
                std::thread::sleep(PAUSE * (1 << (seen - 1)));
            }
        }
        sys::give_way();
    }
    false
}

/// `fd` is about to be closed: its number may then stand for any file, so it has to be checked again.
#[inline]
pub fn forget(fd: RawFd) {
    let i = fd as u32 as usize;
    if i < MOST && KNOWN[i / 64].load(Ordering::Relaxed) & (1 << (i % 64)) != 0 {
        KNOWN[i / 64].fetch_and(!(1 << (i % 64)), Ordering::Relaxed);
    }
}

/// Makes all descriptors be checked again.
pub fn forget_all() {
    for word in KNOWN.iter().filter(|word| word.load(Ordering::Relaxed) != 0) {
        word.store(0, Ordering::Relaxed);
    }
}

fn forget_now_and_then() {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    let second = BEGIN.get_or_init(Instant::now).elapsed().as_secs();
    if SECOND.swap(second, Ordering::Relaxed) != second {
        forget_all();
    }
}

/// Looks for an epoll set of the program's at all numbers up to `near`, and above until there is a gap.
fn find(client: &Client, near: RawFd) -> bool {
    forget_now_and_then();
    let mut free = 0;
    for (i, known) in KNOWN.iter().enumerate() {
        let mut unknown = !(known.load(Ordering::Relaxed) | reserved::word(i));
        while unknown != 0 {
            let bit = unknown & unknown.wrapping_neg();
            unknown ^= bit;
            let fd = (i * 64) as RawFd + bit.trailing_zeros() as RawFd;
            if !tables::is_ours(fd) {
                match meet(client, fd) {
                    Stranger::Set if is_strange(client, fd) => return true,
                    Stranger::Set => continue,
                    Stranger::Nothing if fd > near || free == FREE_MAX => return false,
                    Stranger::Nothing => {
                        free += 1;
                        continue;
                    }
                    Stranger::Other if rings::may_be_strange() && is_settled(|| rings::is_strange(fd)) => {
                        io_uring::note_strange();
                    }
                    Stranger::Other => {}
                }
            }
            known.fetch_or(bit, Ordering::Relaxed);
        }
    }
    false
}

/// Before `sock` is decided: fails if the program has an epoll set of its own, where news of the socket would not arrive.
///
/// # Errors
/// Why the socket stays with the kernel.
pub fn look(client: &Client, sock: &Sock, fd: RawFd) -> Result<(), Why> {
    if sock.is_in_set() || !find(client, fd) {
        return Ok(());
    }
    found();
    Err(Why::asked(KernelReason::Epoll))
}

/// After a set was found: leaves new sockets to the kernel if allowed, and so listeners that are in no set of ours (the kernel has them,
/// too). Existing connections cannot be moved to the kernel.
fn found() {
    if config::is_required() || !fallback::bypass(KernelReason::Epoll) {
        return;
    }
    leave_all(KernelReason::Epoll, |sock| !sock.is_in_set());
    let is_deaf = |sock: &Arc<Sock>| sock.stream().is_some() && sock.is_nonblocking() && !sock.is_in_set();
    let deaf = tables::each_once(SOCKS.all()).into_iter().filter(is_deaf).count();
    if deaf > 0 {
        let text = format_args!(
            "this program waits by epoll past the C library, and hears nothing there of {deaf} connections that were \
             accelerated before; new ones are the kernel's"
        );
        log(Level::Error, text);
    }
}

/// Leaves the listeners for which `is_left` is true to the kernel alone.
pub fn leave_all(reason: KernelReason, is_left: impl Fn(&Sock) -> bool) {
    for sock in tables::each_once(SOCKS.all()) {
        if matches!(sock.decided(), Some(Role::Listener(_))) && is_left(&sock) {
            leave(&sock, reason);
        }
    }
}

/// Leaves a listener to the kernel alone.
fn leave(sock: &Arc<Sock>, reason: KernelReason) {
    let all = tables::all_of(sock);
    let Some(fd) = all.first() else { return };
    if let Some(listener) = sock.listener() {
        // A thread that waits by system calls of its own hears nothing of any queue.
        listen::stop(listener);
    }
    // A listener made non-blocking by a direct call cannot be told from ours, which always are; neither can one in the program's set.
    if !is_held(*fd) {
        let _ = listen::wait_as_wanted(sock, *fd);
    }
    fallback::surrender(&all, sock, reason);
}

/// True when some epoll set of the program's own holds `fd`.
fn is_held(fd: RawFd) -> bool {
    let wanted = fd.to_string();
    let Ok(all) = std::fs::read_dir("/proc/self/fdinfo") else { return false };
    all.flatten().any(|entry| {
        let is_stranger =
            entry.file_name().to_str().and_then(|n| n.parse().ok()).is_some_and(|n| !SETS.is_taken(n));
        let holds = |line: &str| {
            line.strip_prefix("tfd:").is_some_and(|rest| rest.split_whitespace().next() == Some(&wanted))
        };
        is_stranger && std::fs::read_to_string(entry.path()).is_ok_and(|text| text.lines().any(holds))
    })
}

/// A listener or connection was made non-blocking, or a listener had nothing to accept: checks whether the program waits in an epoll set
/// of its own. If so, returns why, and leaves a listener to the kernel unless the user forbids that.
pub fn notice(sock: &Arc<Sock>, fd: RawFd) -> Option<Why> {
    if sock.is_in_set() || detached::is_locked() || tables::is_borrowed() {
        return None;
    }
    let client = session::present()?;
    let why = look(&client, sock, fd).err()?;
    if sock.listener().is_some() && !config::is_required() {
        // Another thread found the set before this listener was decided.
        leave(sock, KernelReason::Epoll);
    }
    Some(why)
}
