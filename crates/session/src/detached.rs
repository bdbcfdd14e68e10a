//! The process asks the service for nothing more, because a seccomp filter forbids it calls that this library needs. The library does
//! without them: new sockets are the kernel's, and its connections go on in the memory that is there. It still wakes others by eventfds.
//! For its own news it sleeps in short slices and looks. What the filter says is judged elsewhere (`socket`).

use libc::c_long;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Calls that others replace, or that are left out, where they are forbidden: one bit each in a set of forbidden calls.
pub const OPTIONAL: [c_long; 25] = [
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
    libc::SYS_ioctl,
    libc::SYS_nanosleep,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_faccessat,
    libc::SYS_newfstatat,
    libc::SYS_waitid,
    libc::SYS_futex,
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

/// The bit of call `number` in a set of forbidden calls; 0: the library does not do without it.
pub fn bit(number: c_long) -> u32 {
    OPTIONAL.iter().position(|n| *n == number).map_or(0, |i| 1 << i)
}

/// How long to sleep before the next look, after a wait of `waited`.
pub fn slice(waited: Duration) -> Duration {
    (waited / 8).clamp(SLICE_MIN, SLICE_MAX)
}

/// What restricted the process before a change.
#[derive(Clone, Copy, Debug)]
pub struct Restricted {
    is_locked: bool,
    forbidden: u32,
    had_line: bool,
}

/// From now on calls of [`OPTIONAL`] whose bits are in `forbidden` are left out; with `cut_off` the process does without the service.
pub fn restrict(cut_off: bool, forbidden: u32) -> Restricted {
    let is_locked = is_locked();
    let before = FORBIDDEN.fetch_or(forbidden, Ordering::Relaxed);
    let had_line = HAS_LINE.fetch_and(!cut_off, Ordering::Relaxed);
    LOCKED.store(is_locked || cut_off, Ordering::Relaxed);
    Restricted { is_locked, forbidden: before, had_line }
}

/// Takes a change back.
pub fn undo(before: Restricted) {
    LOCKED.store(before.is_locked, Ordering::Relaxed);
    FORBIDDEN.store(before.forbidden, Ordering::Relaxed);
    HAS_LINE.store(before.had_line, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_is_looked_at_less_often() {
        assert_eq!(slice(Duration::ZERO), SLICE_MIN);
        assert_eq!(slice(Duration::from_millis(4)), Duration::from_micros(500));
        assert_eq!(slice(Duration::from_secs(9)), SLICE_MAX);
    }
}
