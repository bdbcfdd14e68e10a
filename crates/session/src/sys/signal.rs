//! Signals: those that this library sends in the kernel's name, and those of the program that it puts off.

use super::{MASK_LEN, SIGCANCEL, answer, call, fcntl, pid, poll, tid};
use crate::detached::may;
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

/// From `asm-generic/fcntl.h`; `libc` does not have it: reads the owner of a descriptor.
const F_GETOWN_EX: i32 = 16;
/// From the same header: reads the number of the signal that is sent instead of `SIGIO`; 0: `SIGIO`.
pub const F_GETSIG: i32 = 11;
const OWNER_THREAD: i32 = 0;
const OWNER_PROCESS: i32 = 1;
/// `si_code` of a queued `SIGIO` (`asm-generic/siginfo.h`). Only the kernel may send POLL_IN and its like.
const SI_SIGIO: i32 = -5;

/// `siginfo_t` of `SIGIO`, up to the fields that are filled here.
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

/// The thread, process or group that gets signals for a descriptor: `struct f_owner_ex`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    kind: i32,
    id: i32,
}

impl Owner {
    /// The owner of `fd`, if the program has set one.
    pub fn of(fd: RawFd) -> Option<Self> {
        let mut owner = Self { kind: 0, id: 0 };
        fcntl(fd, F_GETOWN_EX, &raw mut owner as usize).ok()?;
        (owner.id > 0).then_some(owner)
    }

    /// Sends the owner a signal; `about`: the descriptor and its events, sent along in the `siginfo_t`.
    pub fn tell(self, signal: i32, about: Option<(RawFd, u32)>) {
        let (fd, events) = about.unwrap_or_default();
        let info =
            Info { signal, error: 0, code: SI_SIGIO, band: i64::from(events & 0xffff), fd, rest: [0; 25] };
        let (id, number, at) = (self.id as usize, signal as usize, &raw const info as usize);
        let (process, group) = (pid().unwrap_or(0) as usize, -(self.id as isize) as usize);
        // SAFETY: numbers, and a structure that the kernel reads; it refuses to signal a process that this one may not reach.
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

/// `siginfo_t` of a signal that a process sends.
#[repr(C)]
#[derive(Debug)]
struct FromSomebody {
    signal: i32,
    error: i32,
    code: i32,
    /// Padding: the next field is aligned as a pointer.
    gap: u32,
    pid: i32,
    uid: u32,
    rest: [u32; 26],
}

const _: () = assert!(size_of::<FromSomebody>() >= size_of::<libc::siginfo_t>());

/// Sends `SIGPIPE` to this thread, as for a write to a closed stream: as from the kernel, the sender is the process itself.
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

/// Signals that the C library uses itself: never blocked.
const KEPT: u64 = mask_of(&[SIGCANCEL as i32, SIGCANCEL as i32 + 1]);
/// Signals that [`Deferred`] does not block: [`KEPT`], and those that the program's own instructions raise.
const AT_ONCE: u64 =
    KEPT | mask_of(&[libc::SIGILL, libc::SIGTRAP, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV, libc::SIGSYS]);
/// Longest delay of a signal during a call that never sleeps.
const DEFERRED_MAX: Duration = Duration::from_millis(1);

/// A signal mask in the kernel's form: bit n - 1 for signal n.
const fn mask_of(signals: &[i32]) -> u64 {
    let (mut mask, mut i) = (0, 0);
    while i < signals.len() {
        mask |= 1 << (signals[i] - 1);
        i += 1;
    }
    mask
}

thread_local! {
    /// The program's own signal mask, while this thread's signals are put off.
    static PUT_OFF: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Puts this thread's signals off: until this is dropped no handler runs, except inside a wait that lets signals in.
///
/// - While a call holds a lock of the library on the control path: a handler may make any of these calls (POSIX lets it make, connect and
///   close sockets, and fork), and would wait for the call that it has interrupted.
/// - While a call copies between two waits: a signal that comes meanwhile must end the next wait. The kernel's calls find such
///   a signal before they sleep; ours would not know that its handler has run.
///
/// One inside another changes nothing and makes no system call.
#[derive(Debug)]
pub struct Deferred {
    /// The program's own signal mask.
    before: u64,
    /// True when this object changed the mask, so it restores it.
    is_outermost: bool,
    looked: Cell<Option<Instant>>,
}

impl Deferred {
    /// Puts signals off; `None` where a seccomp filter forbids that.
    pub fn begin() -> Option<Self> {
        if let Some(before) = PUT_OFF.get() {
            return Some(Self { before, is_outermost: false, looked: Cell::new(None) });
        }
        may(libc::SYS_rt_sigprocmask).then(|| {
            let before = change_mask(libc::SIG_BLOCK, !AT_ONCE);
            PUT_OFF.set(Some(before));
            Self { before, is_outermost: true, looked: Cell::new(None) }
        })
    }

    /// Runs `wait` with the program's own mask as argument: a wait that sleeps with that mask. The caller must hold no lock.
    pub fn let_in<R>(&self, wait: impl FnOnce(u64) -> R) -> R {
        // A handler that runs inside has to put signals off for itself.
        PUT_OFF.set(None);
        let result = wait(self.before);
        PUT_OFF.set(Some(self.before));
        result
    }

    /// Lets pending signals in, if the last time was `DEFERRED_MAX` ago.
    ///
    /// # Errors
    /// EINTR when a signal came.
    pub fn look(&self) -> Result<(), Errno> {
        let now = Instant::now();
        let Some(looked) = self.looked.get() else {
            self.looked.set(Some(now));
            return Ok(());
        };
        if now.duration_since(looked) < DEFERRED_MAX {
            return Ok(());
        }
        self.looked.set(Some(now));
        self.let_in(|mask| poll(&mut [], Some(Duration::ZERO), Some(mask))).map(|_| ())
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        if self.is_outermost {
            PUT_OFF.set(None);
            change_mask(libc::SIG_SETMASK, self.before);
        }
    }
}

/// Runs `sleep`, which lets signals in, with the program's own mask if this thread's signals are put off, else `None`.
pub fn letting_in<R>(sleep: impl FnOnce(Option<u64>) -> R) -> R {
    let before = PUT_OFF.take();
    let result = sleep(before);
    PUT_OFF.set(before);
    result
}

/// Changes this thread's signal mask; returns the mask before.
fn change_mask(how: i32, mask: u64) -> u64 {
    let mut before = 0u64;
    let (new, old) = (&raw const mask as usize, &raw mut before as usize);
    // SAFETY: both masks are this thread's own, as long as said, and outlive the call, which cannot fail with them.
    unsafe { call(libc::SYS_rt_sigprocmask, [how as usize, new, old, MASK_LEN, 0, 0]) };
    before
}

/// The object that was published at `place`, if any; it is never freed.
pub fn published<T>(place: &AtomicPtr<T>) -> Option<&'static T> {
    // SAFETY: only `publish` stores there, and what it stores is never freed.
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

/// Publishes `fresh` at `place` instead of `before`. `None`: another thread has replaced `before` first.
pub fn publish<T>(place: &AtomicPtr<T>, before: *mut T, fresh: Box<T>) -> Option<&'static T> {
    let fresh = Box::into_raw(fresh);
    let done = place.compare_exchange(before, fresh, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    // SAFETY: either the object is published, and only read from here on, or no other thread has seen it.
    unsafe {
        if done {
            return Some(&*fresh);
        }
        drop(Box::from_raw(fresh));
    }
    None
}
