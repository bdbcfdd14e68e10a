//! Locks held over a fork: a child has only the thread that forked, so a lock that another thread holds at that moment
//! would never be free again there, and what it protects might be half changed.
//!
//! Order, as everywhere in this crate: connections taken back, registration attempt, sets' contexts, sockets' watchers, sets'
//! interests, shared accept queues, the control line, regions, contexts, free contexts; then those under which no other is
//! taken.

use std::any::Any;
use std::fmt::{self, Debug, Formatter};
use std::mem::transmute;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

/// Longest wait of a fork for all locks together. A lock stays taken when its holder waits for a service that hangs, or is the very call
/// that a signal handler interrupted to fork.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same after a fork that has waited in vain: a handler of a timer that forks may run again at once, and then the call that it interrupts,
/// which holds the lock, goes on only when the fork is shorter than the timer.
const PATIENCE_AFTER: Duration = Duration::from_millis(5);

/// The last fork has waited in vain for some lock.
static IN_VAIN: AtomicBool = AtomicBool::new(false);

/// Locks, held until dropped.
pub struct Held {
    // Dropped before the owners, by the order of the fields.
    guards: Vec<Box<dyn Any>>,
    owners: Vec<Arc<dyn Any + Send + Sync>>,
    end: Instant,
}

impl Debug for Held {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("locks", &self.guards.len()).finish_non_exhaustive()
    }
}

impl Default for Held {
    fn default() -> Self {
        Self::new()
    }
}

impl Held {
    /// Holds no lock yet; the time limit begins.
    #[must_use]
    pub fn new() -> Self {
        let patience = if IN_VAIN.swap(false, Ordering::Relaxed) { PATIENCE_AFTER } else { PATIENCE };
        Self { guards: Vec::new(), owners: Vec::new(), end: Instant::now() + patience }
    }

    /// True in a forked child when no thread of its parent had that lock then, or when [`Self::take`] had it for the fork. Otherwise it is never
    /// free again.
    pub fn is_free<T>(lock: &Mutex<T>) -> bool {
        !matches!(lock.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Takes a mutex that is part of `owner`.
    pub fn take<O: Any + Send + Sync, T: 'static>(&mut self, owner: &Arc<O>, of: impl Fn(&O) -> &Mutex<T>) {
        let guard = self.wait(|| match of(owner).try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        });
        let Some(guard) = guard else { return };
        // SAFETY: the guard lends from `owner` alone (`of` has nothing else to lend from, or something 'static); the
        // reference kept below outlives the guard, see the order of the fields, and what an `Arc` holds is never moved.
        let guard: MutexGuard<'static, T> = unsafe { transmute(guard) };
        self.guards.push(Box::new(guard));
        self.owners.push(owner.clone());
    }

    /// Takes a static mutex of the library.
    pub fn take_static<T: 'static>(&mut self, lock: &'static Mutex<T>) {
        if let Some(guard) = self.wait(|| lock.try_lock().ok()) {
            self.guards.push(Box::new(guard));
        }
    }

    /// Takes an `RwLock` that is part of `owner`, for writing.
    pub fn take_whole<O: Any + Send + Sync, T: 'static>(
        &mut self,
        owner: &Arc<O>,
        of: impl Fn(&O) -> &RwLock<T>,
    ) {
        let Some(guard) = self.wait(|| of(owner).try_write().ok()) else { return };
        // SAFETY: as in `take`.
        let guard: RwLockWriteGuard<'static, T> = unsafe { transmute(guard) };
        self.guards.push(Box::new(guard));
        self.owners.push(owner.clone());
    }

    fn wait<G>(&self, mut attempt: impl FnMut() -> Option<G>) -> Option<G> {
        loop {
            if let Some(guard) = attempt() {
                return Some(guard);
            }
            if Instant::now() >= self.end {
                IN_VAIN.store(true, Ordering::Relaxed);
                return None;
            }
            crate::sys::give_way();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// One test at a time: forks share `IN_VAIN`.
    static ONE: Mutex<()> = Mutex::new(());

    #[test]
    fn what_is_held_is_free_again_afterwards_and_a_lock_that_stays_taken_is_left_out() {
        let _one = ONE.lock();
        let owner = Arc::new(Mutex::new(1));
        let other = Arc::new(RwLock::new(1));
        let mut held = Held::new();
        held.take(&owner, |o| o);
        held.take_whole(&other, |o| o);
        assert!(owner.try_lock().is_err() && other.try_read().is_err());
        let (weak, weak_other) = (Arc::downgrade(&owner), Arc::downgrade(&other));
        drop((owner, other));
        assert!(weak.upgrade().is_some_and(|o| o.try_lock().is_err()));
        assert!(!Held::is_free(&weak.upgrade().unwrap()));
        drop(held);
        assert!(weak.upgrade().is_none() && weak_other.upgrade().is_none());

        let busy = Arc::new(Mutex::new(1));
        let guard = busy.lock();
        let mut held = Held { end: Instant::now(), ..Held::new() };
        held.take(&busy, |o| o);
        assert!(held.guards.is_empty() && !Held::is_free(&busy));
        // The next fork waits for a short time only, the one after it again for long.
        let [short, long] = [Held::new(), Held::new()].map(|held| held.end);
        assert!(short + PATIENCE / 2 < long);
        drop(guard);
        assert!(Held::is_free(&busy));
    }

    #[test]
    fn a_lock_that_another_thread_holds_is_waited_for() {
        let _one = ONE.lock();
        let owner = Arc::new(Mutex::new(1));
        let (ready, go) = channel();
        let thread = {
            let owner = owner.clone();
            std::thread::spawn(move || {
                let guard = owner.lock();
                ready.send(()).unwrap();
                std::thread::yield_now();
                drop(guard);
            })
        };
        go.recv().unwrap();
        let mut held = Held::new();
        held.take(&owner, |o| o);
        assert_eq!(held.guards.len(), 1);
        thread.join().unwrap();
    }
}
