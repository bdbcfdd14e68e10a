//! Wakes threads that sleep on a set when the descriptors to sleep on have changed.

use super::Set;
use super::kernel_set::{BELL, event, mark};
use endpoint::stream::ready;
use rustix::event::{EventfdFlags, eventfd};
use session::reserved::Internal;
use session::sys;
use session::sys::small_vec::Few;
use session::{detached, lock};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Longest time that such a change waits for the sleeping threads to return.
const PATIENCE: Duration = Duration::from_millis(100);

/// Counts a thread that sleeps on a set, until dropped.
#[derive(Debug)]
pub(super) struct Stay<'a>(&'a AtomicU32);

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Set {
    /// The caller keeps the result while its thread sleeps. `None`: the thread must not sleep, but look again.
    pub(super) fn stay(&self) -> Option<Stay<'_>> {
        self.family.staying.fetch_add(1, Ordering::SeqCst);
        let stay = Stay(&self.family.staying);
        // Pairs with `rouse`: this thread sees `rousing`, or `rouse` sees `staying`.
        if self.family.rousing.load(Ordering::SeqCst) == 0 {
            return Some(stay);
        }
        sys::give_way();
        None
    }

    /// Wakes the threads that sleep here: the descriptors to sleep on have changed.
    pub(super) fn rouse(&self) {
        self.family.rousing.fetch_add(1, Ordering::SeqCst);
        if self.family.staying.load(Ordering::SeqCst) > 0 && !detached::is_locked() {
            self.call();
        }
        self.family.rousing.fetch_sub(1, Ordering::SeqCst);
    }

    /// Adds an eventfd that is always ready wherever threads sleep here, until none does.
    #[cold]
    fn call(&self) {
        let Ok(bell) = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else { return };
        let bell = Internal::new(bell);
        // `try_lock`: see `before_fork`.
        let context = self.context.try_lock().ok().and_then(|context| context.clone());
        let places = [Some(self.epfd), context.as_ref().map(|context| context.epfd())];
        let event = event(ready::IN, mark(BELL));
        for place in places.into_iter().flatten() {
            let _ = sys::epoll_ctl(place, libc::EPOLL_CTL_ADD, bell.number(), Some(&event));
        }
        let end = Instant::now() + PATIENCE;
        while self.family.staying.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            sys::give_way();
        }
        for place in places.into_iter().flatten() {
            let _ = sys::epoll_ctl(place, libc::EPOLL_CTL_DEL, bell.number(), None);
        }
    }

    /// As [`Self::rouse`], here and in the sets that hold this one.
    pub(super) fn rouse_all(&self, depth: u32) {
        self.rouse();
        if depth > 0 {
            let outer: Few<Arc<Self>, 4> =
                lock(&self.family.outer).iter().filter_map(Weak::upgrade).collect();
            outer.iter().for_each(|outer| outer.rouse_all(depth - 1));
        }
    }
}
