//! Threads that are cancelled (`pthread_cancel`) while they sleep in a call of ours.
//!
//! The C library ends a thread inside its own calls only. Whoever sleeps with us is woken by the signal that it uses for that, the call
//! comes to nothing ([`RESTART`]), and the preloaded library has the C library look: where no lock of ours is held and nothing of ours is
//! left on the stack to be undone. For a process that cancels nobody that is a flag raised and lowered around each sleep.

use crate::client::lock;
use crate::hold::Held;
use crate::sys::signal::Deferred;
use crate::{fork, locked, sys};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The call is to be made again, unless its thread ends here: the kernel's ERESTARTSYS, which no program is told of.
pub const RESTART: Errno = Errno::from_raw_os_error(512);

/// How often, and how long after one another, a sleeping thread is sent the signal: one that comes just before the sleep ends nothing.
const SIGNALS_MAX: u32 = 2000;
const PAUSE: Duration = Duration::from_micros(50);

/// A thread that has slept with us.
#[derive(Debug, Default)]
struct Sleeper {
    tid: AtomicU32,
    /// Of the process: a forked child's threads are others.
    generation: u32,
    asleep: AtomicBool,
    /// Somebody cancels it, and it has not looked since.
    asked: AtomicBool,
}

impl Sleeper {
    fn is_here(&self) -> bool {
        self.generation == fork::generation()
    }

    /// True once for each time that somebody cancels the thread, unless it has forbidden that.
    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst) && self.asked.swap(false, Ordering::SeqCst) && sys::is_cancelable()
    }
}

/// Some thread was cancelled, or may end at any instant.
static IN_USE: AtomicBool = AtomicBool::new(false);
/// By what `pthread_self` says.
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

/// `None` at the thread's very end, and for a new thread where a filter forbids to ask for its number: it sleeps for a moment only.
fn mine() -> Option<Arc<Sleeper>> {
    let known = MINE.try_with(|mine| mine.try_borrow().ok()?.0.clone()).ok()?.filter(|me| me.is_here());
    if known.is_some() || locked::is_locked() {
        return known;
    }
    let _deferred = Deferred::begin();
    let (tid, generation) = (AtomicU32::new(sys::tid()), fork::generation());
    let new = Arc::new(Sleeper { tid, generation, ..Sleeper::default() });
    MINE.try_with(|mine| mine.try_borrow_mut().ok().map(|mut mine| mine.0 = Some(new.clone()))).ok()??;
    lock(&SLEEPERS).insert(sys::thread(), new.clone());
    // Who cancelled it before it could be found here.
    new.asked.store(is_in_use(), Ordering::SeqCst);
    Some(new)
}

/// True once threads are cancelled in this process: calls look before they begin.
#[inline]
#[must_use]
pub fn is_in_use() -> bool {
    IN_USE.load(Ordering::Relaxed)
}

/// From now on calls look.
pub fn begin() {
    IN_USE.store(true, Ordering::SeqCst);
}

/// Makes a call of the kernel's that may sleep.
///
/// # Errors
/// The call's; [`RESTART`] when the thread may have been cancelled.
pub fn sleep(call: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
    let Some(me) = mine() else { return call() };
    // Then `asked`; `wake` the other way round: one of both sees what the other has stored.
    me.asleep.store(true, Ordering::SeqCst);
    let result = if me.is_asked() { Err(RESTART) } else { call() };
    me.asleep.store(false, Ordering::Release);
    match result {
        // The signal is no news for a thread that may not be cancelled.
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

fn ask(thread: usize) -> Option<Arc<Sleeper>> {
    let _deferred = Deferred::begin();
    let sleeper = lock(&SLEEPERS).get(&thread).filter(|sleeper| sleeper.is_here()).cloned()?;
    sleeper.asked.store(true, Ordering::SeqCst);
    Some(sleeper)
}

/// Just before `thread` is cancelled: should the C library wake it, it is to know what for.
pub fn prepare(thread: usize) {
    begin();
    ask(thread);
}

/// `thread` is cancelled: it is woken if it sleeps.
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

/// Before a fork.
pub fn hold(held: &mut Held) {
    held.take_static(&SLEEPERS);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_asked_looks_once_before_the_next_sleep() {
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
