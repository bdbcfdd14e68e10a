//! Threads that are cancelled (`pthread_cancel`) while they sleep in a call of ours.
//!
//! The C library ends a thread inside its own calls only. A thread that sleeps in a call of ours is woken by the C library's signal for
//! that. The call returns [`RESTART`], and the preloaded library has the C library look: at a point where the thread holds no lock of ours
//! and nothing of ours is left on the stack to be undone. Where no thread is cancelled that costs a flag raised and lowered around each
//! sleep.

use crate::fork_locks::Held;
use crate::host;
use crate::sys;
use crate::sys::cycle_account;
use crate::sys::signal::Deferred;
use crate::{detached, lock};
use cycles::Section;
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The call is to be made again, unless its thread ends here: the kernel's ERESTARTSYS, which no program sees.
pub const RESTART: Errno = Errno::from_raw_os_error(512);

/// How often, and with which pause, a sleeping thread is sent the signal: one that comes just before the sleep ends nothing.
const SIGNALS_MAX: u32 = 2000;
const PAUSE: Duration = Duration::from_micros(50);

/// A thread that has slept in a call of ours.
#[derive(Debug, Default)]
struct Sleeper {
    tid: AtomicU32,
    /// Fork generation of its process: a forked child has other threads.
    generation: u32,
    asleep: AtomicBool,
    /// The thread was cancelled, and has not looked since.
    asked: AtomicBool,
}

impl Sleeper {
    fn is_here(&self) -> bool {
        self.generation == host::generation()
    }

    /// True once for each cancellation of the thread, unless the thread has forbidden that.
    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst) && self.asked.swap(false, Ordering::SeqCst) && sys::is_cancelable()
    }
}

/// Some thread was cancelled, or may be at any instant (`PTHREAD_CANCEL_ASYNCHRONOUS`).
static IN_USE: AtomicBool = AtomicBool::new(false);
/// Threads that have slept, by `pthread_self`.
static SLEEPERS: Mutex<BTreeMap<usize, Arc<Sleeper>>> = Mutex::new(BTreeMap::new());

/// The thread's own entry, which ends with it.
struct Mine(Option<Arc<Sleeper>>);

impl Drop for Mine {
    fn drop(&mut self) {
        if self.0.take().is_some() {
            let _deferred = Deferred::begin();
            lock(&SLEEPERS).remove(&sys::thread());
        }
    }
}

thread_local! {
    static MINE: RefCell<Mine> = const { RefCell::new(Mine(None)) };
}

/// `None` at the thread's very end, and for a new thread where a filter forbids `gettid`: it sleeps for a moment only.
fn mine() -> Option<Arc<Sleeper>> {
    let known = MINE.try_with(|mine| mine.try_borrow().ok()?.0.clone()).ok()?.filter(|me| me.is_here());
    if known.is_some() || detached::is_locked() {
        return known;
    }
    let _deferred = Deferred::begin();
    let (tid, generation) = (AtomicU32::new(sys::tid()), host::generation());
    let new = Arc::new(Sleeper { tid, generation, ..Sleeper::default() });
    MINE.try_with(|mine| mine.try_borrow_mut().ok().map(|mut mine| mine.0 = Some(new.clone()))).ok()??;
    lock(&SLEEPERS).insert(sys::thread(), new.clone());
    // A cancellation before this could not find the thread here.
    new.asked.store(is_in_use(), Ordering::SeqCst);
    Some(new)
}

/// True once threads of this process may be cancelled: calls look before they begin.
#[inline]
#[must_use]
pub fn is_in_use() -> bool {
    IN_USE.load(Ordering::Relaxed)
}

/// From now on calls look for a cancellation.
pub fn begin() {
    IN_USE.store(true, Ordering::SeqCst);
}

/// Makes a system call that may sleep.
///
/// # Errors
/// The call's; [`RESTART`] when the thread may have been cancelled.
pub fn sleep(call: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
    let Some(me) = mine() else { return call() };
    // Store `asleep`, then read `asked`; `wake` does both in the other order: one of the two sees the other's store.
    me.asleep.store(true, Ordering::SeqCst);
    let result = if me.is_asked() { Err(RESTART) } else { call() };
    me.asleep.store(false, Ordering::Release);
    match result {
        // For a thread that may not be cancelled the signal means nothing.
        Err(Errno::INTR) if me.asked.load(Ordering::SeqCst) => {
            if me.is_asked() {
                Err(RESTART)
            } else {
                Ok(0)
            }
        }
        other => other,
    }
}

/// [`sys::epoll_wait`]; a wait ends when the thread is cancelled.
///
/// # Errors
/// The kernel's; [`RESTART`] when the thread may have been cancelled.
pub fn epoll_wait(
    epfd: RawFd,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
    mask: Option<u64>,
) -> Result<usize, Errno> {
    if timeout.is_some_and(|t| t.is_zero()) {
        return sys::epoll_wait(epfd, events, timeout, mask);
    }
    let _asleep = cycle_account::enter(Section::Asleep);
    sleep(|| sys::epoll_wait(epfd, events, timeout, mask))
}

/// [`sys::poll`]; a wait ends when the thread is cancelled.
///
/// # Errors
/// The kernel's; EPERM when a filter forbids the call; [`RESTART`] when the thread may have been cancelled.
pub fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>, mask: Option<u64>) -> Result<usize, Errno> {
    if timeout.is_some_and(|t| t.is_zero()) {
        return sys::poll(fds, timeout, mask);
    }
    let _asleep = cycle_account::enter(Section::Asleep);
    sleep(|| sys::poll(fds, timeout, mask))
}

/// [`sys::futex_wait`]; a wait ends when the thread is cancelled.
///
/// # Errors
/// The kernel's; [`RESTART`] when the thread may have been cancelled.
pub fn futex_wait(word: &AtomicU32, seen: u32, limit: Duration) -> Result<usize, Errno> {
    let _asleep = cycle_account::enter(Section::Asleep);
    sleep(|| sys::futex_wait(word, seen, limit))
}

fn ask(thread: usize) -> Option<Arc<Sleeper>> {
    let _deferred = Deferred::begin();
    let sleeper = lock(&SLEEPERS).get(&thread).filter(|sleeper| sleeper.is_here()).cloned()?;
    sleeper.asked.store(true, Ordering::SeqCst);
    Some(sleeper)
}

/// `thread` is about to be cancelled: sets `asked`, so that a sleep that the C library's signal ends knows why.
pub fn prepare(thread: usize) {
    begin();
    ask(thread);
}

/// `thread` is cancelled: wakes it if it sleeps.
pub fn wake(thread: usize) {
    let Some(sleeper) = ask(thread) else { return };
    for _ in 0..SIGNALS_MAX {
        let waits = sleeper.asleep.load(Ordering::SeqCst) && sleeper.asked.load(Ordering::SeqCst);
        if !waits || sys::interrupt(sleeper.tid.load(Ordering::Relaxed)).is_err() {
            return;
        }
        sys::pause(PAUSE);
    }
}

/// Takes this module's lock before a fork.
pub fn hold(held: &mut Held) {
    held.take_static(&SLEEPERS);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_asked_looks_once_before_the_next_sleep() {
        let thread = std::thread::spawn(|| {
            assert_eq!(sleep(|| Ok(7)), Ok(7));
            wake(sys::thread());
            assert_eq!(sleep(|| unreachable!("it has to look")), Err(RESTART));
            assert_eq!(sleep(|| Ok(7)), Ok(7));
            assert_eq!(sleep(|| Err(Errno::INTR)), Err(Errno::INTR));
            sys::thread()
        });
        let name = thread.join().unwrap();
        assert!(!lock(&SLEEPERS).contains_key(&name), "the thread is gone, and its entry with it");
    }
}
