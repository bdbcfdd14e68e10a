//! A shared value that is replaced now and then and can be read at any instant without waiting: by a signal handler that has interrupted a
//! reader or the thread that replaces it, and in a child that was forked at such an instant. It says nothing about what the value is.
//!
//! ```text
//!   newest ──► place 2        a reader takes the newest place's value and looks whether that place is still the newest
//!   places: [ - | - | v | - ] a change fills a place without readers, makes it the newest, then empties the others
//! ```
//! A reader that stands still holds up its place only: the next change uses another one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock, TryLockError};

/// Number of places. A place is lost to a forked child for good if another thread of its parent was reading at the instant of the fork, so
/// this is how many such forks may follow one another, less two.
const PLACES: usize = 8;

/// The newest of several values.
#[derive(Debug)]
pub struct Latest<T> {
    newest: AtomicUsize,
    places: [RwLock<Option<Arc<T>>>; PLACES],
}

impl<T> Latest<T> {
    /// A holder without a value yet.
    pub const fn new() -> Self {
        Self { newest: AtomicUsize::new(0), places: [const { RwLock::new(None) }; PLACES] }
    }

    /// The newest value, without waiting; `None`: there is none.
    pub fn load(&self) -> Option<Arc<T>> {
        loop {
            // Acquire: pairs with the Release in `replace`; the place was filled before.
            let at = self.newest.load(Ordering::Acquire);
            // A newest place is written by no thread: if the lock fails, another has become the newest.
            let found = match self.places[at].try_read() {
                Ok(value) => value.clone(),
                Err(TryLockError::Poisoned(value)) => value.into_inner().clone(),
                Err(TryLockError::WouldBlock) => continue,
            };
            if self.newest.load(Ordering::Acquire) == at {
                return found;
            }
        }
    }

    /// Makes `value` the newest one. The caller sees to it that one thread at a time does so, and that no signal handler does meanwhile.
    pub fn replace(&self, value: Option<Arc<T>>) {
        let newest = self.newest.load(Ordering::Relaxed);
        let fill = |at: &usize| {
            let place = (*at != newest).then(|| self.places[*at].try_write().ok()).flatten();
            place.map(|mut place| place.clone_from(&value)).is_some()
        };
        let at = loop {
            match (0..PLACES).find(fill) {
                Some(at) => break at,
                // Each place has a reader at this very moment.
                None => std::hint::spin_loop(),
            }
        };
        self.newest.store(at, Ordering::Release);
        // A place with a reader keeps its value until the next change.
        let others = self.places.iter().enumerate().filter(|(other, _)| *other != at);
        let old: Vec<_> = others.filter_map(|(_, place)| place.try_write().ok()?.take()).collect();
        // Dropped without a lock: what ends with a value may load the newest one.
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_stands_still_holds_up_no_change() {
        let latest = Latest::new();
        assert_eq!(latest.load(), None);
        latest.replace(Some(Arc::new(0)));
        // Each stands for a reader with a signal handler that has forked: in the child that reader never goes on.
        let still: Vec<_> = (1..PLACES - 1)
            .map(|value| {
                let place = &latest.places[latest.newest.load(Ordering::Relaxed)];
                let reader = place.read().unwrap();
                latest.replace(Some(Arc::new(value)));
                assert_eq!(latest.load(), Some(Arc::new(value)));
                reader
            })
            .collect();
        let old: Vec<_> = still.iter().map(|reader| **reader.as_ref().unwrap()).collect();
        assert_eq!(old, (0..PLACES - 2).collect::<Vec<_>>());
        drop(still);
        latest.replace(None);
        assert_eq!(latest.load(), None);
        assert!(latest.places.iter().all(|place| place.read().unwrap().is_none()), "old values are let go");
    }

    #[test]
    fn readers_see_values_in_order_while_another_thread_replaces_them() {
        let latest = Latest::new();
        latest.replace(Some(Arc::new(0u32)));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut before = 0;
                    while before < 2_000 {
                        let now = *latest.load().expect("there is always a value");
                        assert!(before <= now);
                        before = now;
                    }
                });
            }
            (1..=2_000).for_each(|value| latest.replace(Some(Arc::new(value))));
        });
    }
}
