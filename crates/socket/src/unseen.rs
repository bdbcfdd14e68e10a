//! Epoll sets that the program makes and waits on by system calls of its own, past the C library (Rust's `rustix` does so): they
//! hold placeholders, and hear nothing of connections in shared memory. So before a socket is decided, descriptors that nobody
//! knows are asked whether they are such a set; with one, sockets that no set of ours holds are the kernel's. Of a wait by `poll`
//! that a program makes itself there is nothing to find. Rings that the program has made by such calls are found in passing.

use crate::client::{self, Client};
use crate::connect::Why;
use crate::fds::{self, SETS, SOCKS};
use crate::filled::Filled;
use crate::internal::{self, MOST};
use crate::log::{Level, log};
use crate::sock::{Role, Sock};
use crate::{config, fallback, fork, listener, locked, rings, sys};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Why the sockets of a program with such a set are the kernel's.
pub const EPOLL: &str = "epoll by system calls of the program's own";

const WORDS: usize = MOST / 64;
/// Numbers that need not be asked again, one bit each: sockets and sets of ours, and what is no set.
static KNOWN: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// Words of these, together with `internal`'s, from the beginning.
static FILLED: Filled = Filled::new();
/// The second in which everything was forgotten last: the C library closes descriptors inside itself, too.
static SECOND: AtomicU64 = AtomicU64::new(0);
/// The kernel gives the lowest free number, so a set is not behind more free ones than this, as a rule.
const FREE_MAX: u32 = 16;

/// Between the first two looks at what seems to be a set of the program's own; twice as long after each: 102 ms in all.
const PAUSE: Duration = Duration::from_micros(100);

/// How often a set of ours was about to come or go, and how often that was done.
static BEGUN: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);

/// A set of ours comes or goes: the kernel and our table disagree about a number. Ends when it is dropped.
#[derive(Debug)]
pub struct Changing(());

impl Drop for Changing {
    fn drop(&mut self) {
        DONE.fetch_add(1, Ordering::SeqCst);
    }
}

/// See [`Changing`].
pub fn begin() -> Changing {
    BEGUN.fetch_add(1, Ordering::SeqCst);
    Changing(())
}

/// In a forked child, which has none of the threads that were at it.
pub fn settle() {
    DONE.store(BEGUN.load(Ordering::SeqCst), Ordering::SeqCst);
}

/// What stands behind a number that is none of ours.
enum Stranger {
    Nothing,
    Set,
    Other,
}

/// Asks to take out of it what no program can have put there: refused for one reason by sets, for others by what is none.
fn meet(client: &Client, fd: RawFd) -> Stranger {
    match sys::epoll_ctl(fd, libc::EPOLL_CTL_DEL, client.control(), None) {
        Err(Errno::NOENT) => Stranger::Set,
        Err(Errno::BADF) => Stranger::Nothing,
        _ => Stranger::Other,
    }
}

/// True when there is a set behind `fd` that is none of ours, and no thread is about to say otherwise. Looked at several times: it is
/// for good that sockets are the kernel's then, and a set of ours never stands there for long unknown. What the service sends to wake us
/// by is a set, too (`service`'s shells): nobody knows it between the call that receives it and the claim, and the thread may lose its
/// processor there.
#[cold]
fn is_strange(client: &Client, fd: RawFd) -> bool {
    is_settled(|| {
        matches!(meet(client, fd), Stranger::Set) && !(fds::is_ours(fd) || internal::is_internal(fd))
    })
}

/// True when `is_strange` says so several times, and no thread is about to change it.
fn is_settled(is_strange: impl Fn() -> bool) -> bool {
    const TRIES: u32 = 1_000;
    const LOOKS: u32 = 11;
    let mut seen = 0;
    for _ in 0..TRIES {
        let begun = BEGUN.load(Ordering::SeqCst);
        if DONE.load(Ordering::SeqCst) == begun {
            let is_strange = is_strange();
            if BEGUN.load(Ordering::SeqCst) == begun {
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

/// `fd` is about to be closed: its number may be anything's.
#[inline]
pub fn forget(fd: RawFd) {
    let i = fd as u32 as usize;
    if i < MOST && KNOWN[i / 64].load(Ordering::Relaxed) & (1 << (i % 64)) != 0 {
        KNOWN[i / 64].fetch_and(!(1 << (i % 64)), Ordering::Relaxed);
        FILLED.opened(i / 64);
    }
}

/// `fd` is none of our own descriptors any more.
pub fn disown(fd: RawFd) {
    FILLED.opened(fd as u32 as usize / 64);
}

/// Everything may be anything.
pub fn forget_all() {
    for word in KNOWN.iter().filter(|word| word.load(Ordering::Relaxed) != 0) {
        word.store(0, Ordering::Relaxed);
    }
    FILLED.opened(0);
}

fn forget_now_and_then() {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    let second = BEGIN.get_or_init(Instant::now).elapsed().as_secs();
    if SECOND.swap(second, Ordering::Relaxed) != second {
        forget_all();
    }
}

/// A set of the program's own, looked for among the numbers up to `near`, and as far above as there is something.
fn find(client: &Client, near: RawFd) -> bool {
    forget_now_and_then();
    let mut free = 0;
    let mut is_filled = true;
    let walk = FILLED.walk();
    for (i, known) in KNOWN.iter().enumerate().skip(walk.begin()) {
        let mut unknown = !(known.load(Ordering::Relaxed) | internal::word(i));
        if is_filled && unknown != 0 {
            is_filled = false;
            FILLED.gap(walk, i);
        }
        while unknown != 0 {
            let bit = unknown & unknown.wrapping_neg();
            unknown ^= bit;
            let fd = (i * 64) as RawFd + bit.trailing_zeros() as RawFd;
            if !fds::is_ours(fd) {
                match meet(client, fd) {
                    Stranger::Set if is_strange(client, fd) => return true,
                    Stranger::Set => continue,
                    Stranger::Nothing if fd > near || free == FREE_MAX => return false,
                    Stranger::Nothing => {
                        free += 1;
                        continue;
                    }
                    Stranger::Other if rings::may_be_strange() && is_settled(|| rings::is_strange(fd)) => {
                        rings::note_strange();
                    }
                    Stranger::Other => {}
                }
            }
            known.fetch_or(bit, Ordering::Relaxed);
        }
    }
    false
}

/// `sock` is about to be decided. A reason: it is to be the kernel's, for nobody would hear of its news.
///
/// # Errors
/// That reason.
pub fn look(client: &Client, sock: &Sock, fd: RawFd) -> Result<(), Why> {
    if sock.is_in_set() || !find(client, fd) {
        return Ok(());
    }
    found(client);
    Err(Why::asked(EPOLL))
}

/// From now on new sockets are the kernel's, where they may be; and listeners, which the kernel has as well, that nobody waits on
/// through us. Connections cannot go there.
fn found(client: &Client) {
    if config::is_required() || !fallback::bypass(EPOLL) {
        return;
    }
    leave_all(client, EPOLL, |sock| !sock.is_in_set());
    let is_deaf = |sock: &Arc<Sock>| sock.stream().is_some() && sock.is_nonblocking() && !sock.is_in_set();
    let deaf = fork::each_once(SOCKS.all()).into_iter().filter(is_deaf).count();
    if deaf > 0 {
        let text = format_args!(
            "this program waits by epoll past the C library, and hears nothing there of {deaf} connections that were \
             accelerated before; new ones are the kernel's"
        );
        log(Level::Error, text);
    }
}

/// Listeners for which `is_left` says so are the kernel's alone from now on.
pub fn leave_all(client: &Client, reason: &str, is_left: impl Fn(&Sock) -> bool) {
    for sock in fork::each_once(SOCKS.all()) {
        if matches!(sock.decided(), Some(Role::Listener(_))) && is_left(&sock) {
            leave(client, &sock, reason);
        }
    }
}

/// The listener is the kernel's alone from now on.
fn leave(client: &Client, sock: &Arc<Sock>, reason: &str) {
    let all = fds::all_of(sock);
    let Some(fd) = all.first() else { return };
    listener::leave(client, sock);
    // One that the program has made non-blocking past us looks like ours, which always is; so does one of the program's set.
    if !is_held(*fd) {
        let _ = listener::wait_as_wanted(sock, *fd);
    }
    fallback::surrender(&all, sock, reason);
}

/// True when some set of the program's own holds `fd`.
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

/// A listener or connection is made non-blocking, or has nothing to accept: is it waited for where nobody hears of it? Then, if it
/// is a listener, it is the kernel's from now on, unless none may be.
pub fn notice(sock: &Arc<Sock>, fd: RawFd) -> Option<Why> {
    if sock.is_in_set() || locked::is_locked() || fds::is_borrowed() {
        return None;
    }
    let client = client::present()?;
    let why = look(&client, sock, fd).err()?;
    if sock.listener().is_some() && !config::is_required() {
        // Found before this one was decided by another thread.
        leave(&client, sock, EPOLL);
    }
    Some(why)
}
