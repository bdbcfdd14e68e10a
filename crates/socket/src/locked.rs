//! A process that locks itself in with seccomp, and is killed for what its filter does not foresee. Where that is some call of
//! this library's own, the library does without: it asks the service for nothing more, so that new sockets are the kernel's,
//! and its connections go on in the memory that is there. Others are woken as ever, by writing to eventfds; but as for news
//! of its own, it sleeps in short slices and looks, and peers of this host whose eventfds it might lack are told to do the same.

use crate::filter::{self, Call};
use crate::link::Link;
use crate::sock::Role;
use crate::{client, config, epoll, fds, fork, internal, link, listener, placeholder, untold};
use libc::c_long;
use queue::stream::raise;
use rustix::io::Errno;
use shm::half_flags::MUTE;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

pub use crate::filter::Instruction;

/// What is to decide about this thread's calls from now on.
#[derive(Debug)]
pub enum Lock {
    /// `SECCOMP_MODE_STRICT`: `read`, `write`, `exit` and `sigreturn`.
    Strict,
    /// A filter.
    Filter(Vec<Instruction>),
}

const fn call(number: c_long) -> Call {
    Call { number: number as u32, first: None }
}

/// Without these there is no talking to the service, no sleeping on what it and others ring, and no descriptor for a
/// connection.
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

/// Calls that others stand in for, or that are left out, where they are forbidden: one bit each in [`FORBIDDEN`].
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

/// The first look at what is waited for comes after so long, the next ones after an eighth of the whole wait.
const SLICE_MIN: Duration = Duration::from_micros(50);
/// And at last every so often.
const SLICE_MAX: Duration = Duration::from_millis(1);

/// A registration takes some descriptors; with a limit below this a program has seen to it that there are no more.
const DESCRIPTORS: u64 = 256;

static LOCKED: AtomicBool = AtomicBool::new(false);
/// See [`has_line`].
static HAS_LINE: AtomicBool = AtomicBool::new(false);
static FORBIDDEN: AtomicU32 = AtomicU32::new(0);

/// True when this library does without the service and without being woken.
#[inline]
pub fn is_locked() -> bool {
    LOCKED.load(Ordering::Relaxed)
}

/// False when call `number`, one of those that can be done without, is not allowed for certain.
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
            Self::Filter(program) => filter::allows(program, call),
        }
    }

    /// True when what this library needs is not allowed, and which of the other calls are not.
    fn judge(&self) -> (bool, u32) {
        let cut_off = NEEDED.iter().any(|needed| !self.allows(*needed));
        let forbidden = OPTIONAL
            .iter()
            .filter(|number| !self.allows(call(**number)))
            .fold(0, |all, number| all | bit(*number));
        (cut_off, forbidden)
    }
}

/// The calling thread is about to lock itself in, by `install`: whatever must be had is fetched before. What holds for one
/// thread holds here for all: they share locks and memory.
///
/// # Errors
/// As `install`'s. Then what was given up stays so, and everything else goes on as before.
pub fn enter<T>(lock: &Lock, install: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    if config::is_disabled() {
        return install();
    }
    // Later there may be no way to.
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
        client::settle_for_parents();
    }
    result
}

/// The last time that the service can be asked.
fn prepare() {
    let _ = link::thread_number();
    let _ = epoll::mark(0);
    fds::SOCKS.each(|fd, sock| {
        let _ = untold::tell(sock, fd);
    });
    // A forked child does not begin a registration that it cannot finish: it goes on with its parent's.
    let is_too_late = client::is_announced() && internal::limit() < DESCRIPTORS;
    let client = if is_too_late { None } else { client::present() };
    // Later it can have no more.
    client.iter().for_each(|client| client.grow(&client.home));
    for sock in fork::each_once(fds::SOCKS.all()) {
        if let Some(link) = sock.stream() {
            // Later nobody could say that it has begun to talk.
            link.announce();
        }
        match (&client, if client.is_some() { sock.role() } else { sock.decided() }) {
            // New connections can come by the kernel's queue alone.
            (Some(client), Some(Role::Listener(link))) => listener::give_up(&sock, link, client),
            (client, Some(Role::Stream(link))) if link.mapped.pair && !link.has_moved() => {
                fall_silent(link, client.is_some());
            }
            _ => {}
        }
    }
}

/// A forked child has no descriptors, or no address space, left for a registration of its own: it does with its parent's.
#[cold]
pub fn cut_off() {
    HAS_LINE.store(true, Ordering::Relaxed);
    LOCKED.store(true, Ordering::Relaxed);
}

/// True when the service can be asked to wake others.
pub fn has_line() -> bool {
    !is_locked() || HAS_LINE.load(Ordering::Relaxed)
}

/// The other side is to look for news itself. It is told so as long as anybody can be asked for an eventfd of its.
fn fall_silent(link: &Link, may_ask: bool) {
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
