//! Signals that this library sends in the kernel's name.

use super::{MASK_LEN, SIGCANCEL, answer, call, fcntl, pid, poll, tid};
use crate::locked::may;
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

/// `asm-generic/fcntl.h`; `libc` does not name them.
const F_GETOWN_EX: i32 = 16;
/// See above: the signal instead of `SIGIO`.
pub const F_GETSIG: i32 = 11;
const OWNER_THREAD: i32 = 0;
const OWNER_PROCESS: i32 = 1;
/// `si_code` of a queued `SIGIO` (`asm-generic/siginfo.h`). POLL_IN and its like are the kernel's alone to say.
const SI_SIGIO: i32 = -5;

/// `siginfo_t` as far as we fill it.
#[repr(C)]
#[derive(Debug)]
struct Info {
    signal: i32,
    error: i32,
    code: i32,
    band: i64,
    fd: i32,
    rest: [u32; 25],
}

const _: () = assert!(size_of::<Info>() >= size_of::<libc::siginfo_t>());

/// Who is told of a descriptor: `struct f_owner_ex`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    kind: i32,
    id: i32,
}

impl Owner {
    /// Of `fd`, if the program has named one.
    pub fn of(fd: RawFd) -> Option<Self> {
        let mut owner = Self { kind: 0, id: 0 };
        fcntl(fd, F_GETOWN_EX, &raw mut owner as usize).ok()?;
        (owner.id > 0).then_some(owner)
    }

    /// Sends it a signal; in what goes with it, a descriptor and its events where there are any.
    pub fn tell(self, signal: i32, about: Option<(RawFd, u32)>) {
        let (fd, events) = about.unwrap_or_default();
        let info =
            Info { signal, error: 0, code: SI_SIGIO, band: i64::from(events & 0xffff), fd, rest: [0; 25] };
        let (id, number, at) = (self.id as usize, signal as usize, &raw const info as usize);
        let (process, group) = (pid().unwrap_or(0) as usize, -(self.id as isize) as usize);
        // SAFETY: numbers, and a structure that the kernel reads; whom it may not reach it refuses.
        let _ = answer(unsafe {
            match (self.kind, about) {
                (OWNER_THREAD, Some(_)) => call(libc::SYS_rt_tgsigqueueinfo, [process, id, number, at, 0, 0]),
                (OWNER_THREAD, None) => call(libc::SYS_tgkill, [process, id, number, 0, 0, 0]),
                (OWNER_PROCESS, Some(_)) => call(libc::SYS_rt_sigqueueinfo, [id, number, at, 0, 0, 0]),
                (OWNER_PROCESS, None) => call(libc::SYS_kill, [id, number, 0, 0, 0, 0]),
                _ => call(libc::SYS_kill, [group, number, 0, 0, 0, 0]),
            }
        });
    }
}

/// `siginfo_t` of a signal that somebody sends.
#[repr(C)]
#[derive(Debug)]
struct FromSomebody {
    signal: i32,
    error: i32,
    code: i32,
    /// What follows is aligned as a pointer.
    gap: u32,
    pid: i32,
    uid: u32,
    rest: [u32; 26],
}

const _: () = assert!(size_of::<FromSomebody>() >= size_of::<libc::siginfo_t>());

/// Sends this thread the signal a write to a closed stream sends: as the kernel has it, from the program itself.
pub fn raise_pipe() {
    let (signal, tid) = (libc::SIGPIPE, tid() as usize);
    let Some(pid) = pid().filter(|_| may(libc::SYS_tgkill)) else { return };
    if !(may(libc::SYS_rt_tgsigqueueinfo) && may(libc::SYS_getuid)) {
        // SAFETY: three numbers; the signal goes to this very thread.
        let _ = unsafe { call(libc::SYS_tgkill, [pid as usize, tid, signal as usize, 0, 0, 0]) };
        return;
    }
    let uid = rustix::process::getuid().as_raw();
    let info = FromSomebody { signal, error: 0, code: libc::SI_USER, gap: 0, pid, uid, rest: [0; 26] };
    let at = &raw const info as usize;
    // SAFETY: numbers, and a structure that the kernel reads; the signal goes to this very thread.
    let _ = unsafe { call(libc::SYS_rt_tgsigqueueinfo, [pid as usize, tid, signal as usize, at, 0, 0]) };
}

/// Calls `start` with every signal blocked: a thread that it starts gets none of the program's.
pub fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    let before = change_mask(libc::SIG_SETMASK, !KEPT);
    let result = start();
    change_mask(libc::SIG_SETMASK, before);
    result
}

/// What the C library keeps for itself is never put off.
const KEPT: u64 = mask_of(&[SIGCANCEL as i32, SIGCANCEL as i32 + 1]);
/// Nor, while a call copies, is what a program's own instructions raise.
const AT_ONCE: u64 =
    KEPT | mask_of(&[libc::SIGILL, libc::SIGTRAP, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV, libc::SIGSYS]);
/// A signal waits at most so long for a call that finds no reason to sleep.
const DEFERRED_MAX: Duration = Duration::from_millis(1);

/// The kernel's form of a set of signals.
const fn mask_of(signals: &[i32]) -> u64 {
    let (mut mask, mut i) = (0, 0);
    while i < signals.len() {
        mask |= 1 << (signals[i] - 1);
        i += 1;
    }
    mask
}

/// This thread's signals, put off while a call copies that has been waiting and may wait again: what comes meanwhile ends that next wait.
/// The kernel's calls find such a signal before they sleep; ours would not know that its handler has run.
#[derive(Debug)]
pub struct Deferred {
    before: u64,
    looked: Cell<Instant>,
}

impl Deferred {
    /// `None` where a filter forbids it.
    pub fn begin() -> Option<Self> {
        may(libc::SYS_rt_sigprocmask).then(|| {
            let before = change_mask(libc::SIG_BLOCK, !AT_ONCE);
            Self { before, looked: Cell::new(Instant::now()) }
        })
    }

    /// What to wait with: the program's own mask.
    pub fn mask(&self) -> u64 {
        self.before
    }

    /// Lets in what came meanwhile, if the last time is long ago.
    ///
    /// # Errors
    /// EINTR when something came.
    pub fn look(&self) -> Result<(), Errno> {
        let now = Instant::now();
        if now.duration_since(self.looked.get()) < DEFERRED_MAX {
            return Ok(());
        }
        self.looked.set(now);
        poll(&mut [], Some(Duration::ZERO), Some(self.before)).map(|_| ())
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        change_mask(libc::SIG_SETMASK, self.before);
    }
}

/// Returns the mask before.
fn change_mask(how: i32, mask: u64) -> u64 {
    let mut before = 0u64;
    let (new, old) = (&raw const mask as usize, &raw mut before as usize);
    // SAFETY: both masks are this thread's own, as long as said, and outlive the call, which cannot fail with them.
    unsafe { call(libc::SYS_rt_sigprocmask, [how as usize, new, old, MASK_LEN, 0, 0]) };
    before
}

/// What was published at `place`: it lives for ever.
pub fn published<T>(place: &AtomicPtr<T>) -> Option<&'static T> {
    // SAFETY: only `publish` stores there, and what it stores is never freed.
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

/// Puts `fresh` in the place of `before`, unless somebody was quicker.
pub fn publish<T>(place: &AtomicPtr<T>, before: *mut T, fresh: Box<T>) -> Option<&'static T> {
    let fresh = Box::into_raw(fresh);
    let done = place.compare_exchange(before, fresh, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    // SAFETY: from here on it is everybody's to read, or was never shown.
    unsafe {
        if done {
            return Some(&*fresh);
        }
        drop(Box::from_raw(fresh));
    }
    None
}
