//! A process that locks itself in with seccomp is killed for calls that its filter does not foresee. If these include calls of this
//! library, the library does without them: it asks the service for nothing more, so new sockets are the kernel's, and its connections go on
//! in the memory that is there. It still wakes others by eventfds. For its own news it sleeps in short slices and looks; peers of this host
//! are told to do the same if it may lack their eventfds.

use crate::connect::listen;
use crate::fd::reserved;
use crate::process::bpf::{self, Call};
use crate::process::fork;
use crate::session::{self, config};
use crate::socket::{Role, pending_sockopts, placeholder};
use crate::{epoll, file};
use endpoint::Endpoint;
use libc::c_long;
use queue::stream::raise;
use rustix::io::Errno;
use shm::half_flags::MUTE;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

pub use crate::process::bpf::Instruction;

/// What restricts this thread's calls from now on.
#[derive(Debug)]
pub enum Lock {
    /// `SECCOMP_MODE_STRICT`: `read`, `write`, `exit` and `sigreturn`.
    Strict,
    /// The program of a filter.
    Filter(Vec<Instruction>),
}

const fn call(number: c_long) -> Call {
    Call { number: number as u32, first: None }
}

/// Calls without which the library cannot talk to the service, sleep on eventfds, or make a descriptor for a connection.
const NEEDED: [Call; 13] = [
    call(libc::SYS_sendmsg),
    call(libc::SYS_recvmsg),
    call(libc::SYS_fcntl),
    call(libc::SYS_eventfd2),
    call(libc::SYS_epoll_create1),
    call(libc::SYS_epoll_ctl),
    call(libc::SYS_epoll_pwait),
    call(libc::SYS_ppoll),
    call(libc::SYS_madvise),
    call(libc::SYS_gettid),
    call(libc::SYS_setsockopt),
    call(libc::SYS_getsockname),
    Call { number: libc::SYS_socket as u32, first: Some(libc::AF_INET as u64) },
];

/// Calls that others replace, or that are left out, where they are forbidden: one bit each in [`FORBIDDEN`].
const OPTIONAL: [c_long; 20] = [
    libc::SYS_sched_yield,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_tgkill,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_getuid,
    libc::SYS_kill,
    libc::SYS_getpid,
    libc::SYS_unshare,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ppoll,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_accept4,
    libc::SYS_fcntl,
    libc::SYS_nanosleep,
    libc::SYS_lseek,
    libc::SYS_pread64,
    OLD_POLL,
];

#[cfg(target_arch = "x86_64")]
const OLD_POLL: c_long = libc::SYS_poll;
#[cfg(not(target_arch = "x86_64"))]
const OLD_POLL: c_long = libc::SYS_ppoll;

/// Time before the first look at what is waited for; later looks come after an eighth of the whole wait.
const SLICE_MIN: Duration = Duration::from_micros(50);
/// Longest time between two looks.
const SLICE_MAX: Duration = Duration::from_millis(1);

/// Least limit of descriptors for a registration, which takes some: a program with a lower limit means to have no more.
const DESCRIPTORS: u64 = 256;

static LOCKED: AtomicBool = AtomicBool::new(false);
/// The service can still be asked for wakers: see [`has_line`].
static HAS_LINE: AtomicBool = AtomicBool::new(false);
static FORBIDDEN: AtomicU32 = AtomicU32::new(0);

/// True when this library does without the service and without being woken.
#[inline]
pub fn is_locked() -> bool {
    LOCKED.load(Ordering::Relaxed)
}

/// False when a filter forbids, or may forbid, call `number`, one of `OPTIONAL`.
#[inline]
pub fn may(number: c_long) -> bool {
    let forbidden = FORBIDDEN.load(Ordering::Relaxed);
    forbidden == 0 || forbidden & bit(number) == 0
}

fn bit(number: c_long) -> u32 {
    OPTIONAL.iter().position(|n| *n == number).map_or(0, |i| 1 << i)
}

/// How long to sleep before the next look, after a wait of `waited`.
pub fn slice(waited: Duration) -> Duration {
    (waited / 8).clamp(SLICE_MIN, SLICE_MAX)
}

impl Lock {
    fn allows(&self, call: Call) -> bool {
        match self {
            Self::Strict => false,
            Self::Filter(program) => bpf::allows(program, call),
        }
    }

    /// True when a call is forbidden that this library needs; and the bits of the optional calls that are forbidden.
    fn judge(&self) -> (bool, u32) {
        let cut_off = NEEDED.iter().any(|needed| !self.allows(*needed));
        let forbidden = OPTIONAL
            .iter()
            .filter(|number| !self.allows(call(**number)))
            .fold(0, |all, number| all | bit(*number));
        (cut_off, forbidden)
    }
}

/// The calling thread is about to lock itself in, by `install`: fetches what is needed before. A thread's lock counts for all threads here:
/// they share locks and memory.
///
/// # Errors
/// As `install`'s. Then what was given up stays so, and everything else goes on as before.
pub fn enter<T>(lock: &Lock, install: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    if config::is_disabled() {
        return install();
    }
    // Later the filter may forbid the calls for it.
    placeholder::end();
    let (cut_off, forbidden) = lock.judge();
    let first = cut_off && has_line();
    if first {
        prepare();
    }
    // Preparing may have cut us off.
    let before = (is_locked(), FORBIDDEN.load(Ordering::Relaxed));
    FORBIDDEN.fetch_or(forbidden, Ordering::Relaxed);
    let had_line = HAS_LINE.fetch_and(!cut_off, Ordering::Relaxed);
    LOCKED.store(before.0 || cut_off, Ordering::Relaxed);
    let result = install();
    if result.is_err() {
        LOCKED.store(before.0, Ordering::Relaxed);
        FORBIDDEN.store(before.1, Ordering::Relaxed);
        HAS_LINE.store(had_line, Ordering::Relaxed);
    } else if first {
        session::settle_for_parents();
    }
    result
}

/// Prepares for a time when the service cannot be asked.
fn prepare() {
    let _ = endpoint::lock::thread_number();
    let _ = epoll::mark(0);
    file::SOCKS.each(|fd, sock| {
        let _ = pending_sockopts::tell(sock, fd);
    });
    // A forked child does not begin a registration that it cannot complete: it goes on with its parent's.
    let is_too_late = session::is_announced() && reserved::limit() < DESCRIPTORS;
    let client = if is_too_late { None } else { session::present() };
    // Later the region cannot get more memory.
    client.iter().for_each(|client| client.grow(&client.home));
    for sock in fork::each_once(file::SOCKS.all()) {
        if let Some(link) = sock.stream() {
            // Later the service could not be told that the connection has its first bytes.
            link.announce();
        }
        match (&client, if client.is_some() { sock.role() } else { sock.decided() }) {
            // New connections can come only by the kernel's queue.
            (Some(client), Some(Role::Listener(listener))) => listen::give_up(listener, client),
            (client, Some(Role::Stream(link))) if link.mapped.pair && !link.has_moved() => {
                fall_silent(link, client.is_some());
            }
            _ => {}
        }
    }
}

/// A forked child has no descriptors or address space for a registration of its own: it uses its parent's.
#[cold]
pub fn cut_off() {
    HAS_LINE.store(true, Ordering::Relaxed);
    LOCKED.store(true, Ordering::Relaxed);
}

/// True when the service can be asked to wake other processes.
pub fn has_line() -> bool {
    !is_locked() || HAS_LINE.load(Ordering::Relaxed)
}

/// Tells the peer to look for news itself. `may_ask`: the service can be asked for the peer's eventfd.
fn fall_silent(link: &Endpoint, may_ask: bool) {
    if may_ask {
        link.raise(MUTE);
    } else {
        raise(link.halves().0, MUTE);
        let _ = link.mapped.tell(link.slot());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(action: u32) -> Lock {
        Lock::Filter(vec![Instruction { code: 0x06, jt: 0, jf: 0, k: action }])
    }

    #[test]
    fn a_filter_that_allows_everything_changes_nothing() {
        assert_eq!(filter(0x7fff_0000).judge(), (false, 0));
    }

    #[test]
    fn one_that_allows_nothing_forbids_every_call_that_can_be_done_without() {
        for lock in [Lock::Strict, filter(0x0005_0001), filter(0)] {
            let (cut_off, forbidden) = lock.judge();
            assert!(cut_off && OPTIONAL.iter().all(|number| forbidden & bit(*number) != 0));
        }
        assert_eq!(bit(libc::SYS_read), 0, "nobody does without reading");
    }

    #[test]
    fn a_long_wait_is_looked_at_less_often() {
        assert_eq!(slice(Duration::ZERO), SLICE_MIN);
        assert_eq!(slice(Duration::from_millis(4)), Duration::from_micros(500));
        assert_eq!(slice(Duration::from_secs(9)), SLICE_MAX);
    }
}
