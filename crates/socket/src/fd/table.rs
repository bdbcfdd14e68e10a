//! From descriptor to object, without locks.
//!
//! ```text
//!   word:  pointer (48 bits) | closing (1) | pins (15)          0: empty
//! ```
//! `pin` adds 1 to the pins of a word that holds a pointer and is not closing; the object lives while pinned. `remove`
//! sets closing; the call that takes the last pin away empties the word and drops the table's reference. No call waits for
//! another, so a signal handler may interrupt any of these and call them again. `insert` into a word that is still
//! closing (the last thread that pinned it has been preempted) hands the object back.

use crate::fd::atomic::{AtomicU64, Ordering, exchange};
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

const CLOSING: u64 = 1 << 15;
const PINS: u64 = CLOSING - 1;
const POINTER_SHIFT: u32 = 16;

const fn pointer<T>(word: u64) -> *const T {
    (word >> POINTER_SHIFT) as usize as *const T
}

/// One place of the table: the object of one descriptor, if there is one.
#[derive(Debug)]
pub struct Cell<T> {
    word: AtomicU64,
    holds: PhantomData<Arc<T>>,
}

impl<T> Default for Cell<T> {
    fn default() -> Self {
        Self { word: AtomicU64::new(0), holds: PhantomData }
    }
}

/// A pinned object: it lives at least as long as this value. Holds no lock.
#[derive(Debug)]
pub struct Pinned<'a, T> {
    cell: &'a Cell<T>,
    object: *const T,
}

impl<T> Deref for Pinned<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the pin in the cell's word keeps the table's reference, hence the object, alive.
        unsafe { &*self.object }
    }
}

impl<T> Pinned<'_, T> {
    /// A counted reference, for use beyond a call that does not sleep.
    pub fn share(&self) -> Arc<T> {
        // SAFETY: the pointer came from `Arc::into_raw` and the object is alive.
        unsafe {
            Arc::increment_strong_count(self.object);
            Arc::from_raw(self.object)
        }
    }
}

impl<T> Drop for Pinned<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.cell.unpin();
    }
}

/// True when the word holds an object that is not being removed.
#[inline]
const fn is_taken(word: u64) -> bool {
    word != 0 && word & CLOSING == 0
}

impl<T> Cell<T> {
    /// Puts an object there, or hands it back when the place is not empty.
    pub fn insert(&self, object: Arc<T>) -> Result<(), Arc<T>> {
        let raw = Arc::into_raw(object);
        let word = (raw as usize as u64) << POINTER_SHIFT;
        if pointer::<T>(word) == raw {
            // Release: the object's contents before its pointer (pairs with Acquire in `pin`).
            let done = self.word.compare_exchange(0, word, Ordering::Release, Ordering::Relaxed);
            if done.is_ok() {
                return Ok(());
            }
        }
        // SAFETY: `raw` was not stored, so the reference is still ours.
        Err(unsafe { Arc::from_raw(raw) })
    }

    /// Pins the object, if there is one: it lives at least as long as the result.
    #[inline]
    pub fn pin(&self) -> Option<Pinned<'_, T>> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if !is_taken(word) || word & PINS == PINS {
                return None;
            }
            match exchange(&self.word, word, word + 1, Ordering::Acquire) {
                Ok(_) => return Some(Pinned { cell: self, object: pointer(word) }),
                Err(now) => word = now,
            }
        }
    }

    /// True when `pin` would find an object. Pins nothing, so it never delays the next `insert`.
    #[cfg(not(loom))]
    #[inline]
    pub fn is_taken(&self) -> bool {
        is_taken(self.word.load(Ordering::Acquire))
    }

    /// True when `pin` would find `object`. Pins nothing.
    #[cfg(not(loom))]
    fn holds(&self, object: *const T) -> bool {
        let word = self.word.load(Ordering::Acquire);
        is_taken(word) && std::ptr::eq(pointer::<T>(word), object)
    }

    /// Shows the object, if there is one, without a pin: no other thread exists that could remove it.
    #[cfg(not(loom))]
    fn peek<R>(&self, _: &session::sys::only_thread::Alone, look: impl FnOnce(&T) -> R) -> Option<R> {
        let word = self.word.load(Ordering::Acquire);
        let object = pointer::<T>(word);
        // SAFETY: a word that is not 0 holds a reference, which only this thread, the only one, could take out.
        is_taken(word).then(|| look(unsafe { &*object }))
    }

    /// Takes the object out: later calls of `pin` do not find it. Of several callers exactly one gets it.
    pub fn remove(&self) -> Option<Arc<T>> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if !is_taken(word) || word & PINS == PINS {
                return None;
            }
            let wanted = (word + 1) | CLOSING;
            match self.word.compare_exchange_weak(word, wanted, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    let pinned = Pinned { cell: self, object: pointer(word) };
                    return Some(pinned.share());
                }
                Err(now) => word = now,
            }
        }
    }

    /// Replaces `old` by `fresh` in one step, so that `pin` always finds one of them. False: another object is there. If `old` is pinned at
    /// that moment it is never freed: the last `unpin` cannot tell which of the two it had.
    pub fn exchange(&self, old: &Arc<T>, fresh: Arc<T>) -> bool {
        let raw = Arc::into_raw(fresh);
        let new = (raw as usize as u64) << POINTER_SHIFT;
        let mut word = self.word.load(Ordering::Relaxed);
        while pointer::<T>(word) == Arc::as_ptr(old) && word & CLOSING == 0 && pointer::<T>(new) == raw {
            let wanted = new | word & PINS;
            // Release: as in `insert`. Acquire: all threads' use of `old` comes before its end, as in `unpin`.
            match self.word.compare_exchange_weak(word, wanted, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if word & PINS != 0 => return true,
                Ok(_) => {
                    // SAFETY: the reference that `insert` stored, taken out exactly once, by the exchange above.
                    drop(unsafe { Arc::from_raw(pointer::<T>(word)) });
                    return true;
                }
                Err(now) => word = now,
            }
        }
        // SAFETY: `raw` was not stored, so the reference is still ours.
        drop(unsafe { Arc::from_raw(raw) });
        false
    }

    #[inline]
    fn unpin(&self) {
        let mut word = self.word.load(Ordering::Relaxed);
        // No pins are left if `forget_pins` came first.
        while word & PINS != 0 {
            // AcqRel: our use of the object comes before its end, and all other threads' use before our drop of it.
            match exchange(&self.word, word, word - 1, Ordering::AcqRel) {
                Ok(_) if word & (CLOSING | PINS) == CLOSING | 1 => return self.empty(word - 1),
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// In a forked child: drops the pins, which belong to threads of the parent. An object that was being removed is never freed.
    #[cfg(not(loom))]
    fn forget_pins(&self) {
        let word = self.word.load(Ordering::Relaxed);
        if word & PINS != 0 {
            self.word.store(if word & CLOSING != 0 { 0 } else { word & !PINS }, Ordering::Relaxed);
        }
    }

    #[cold]
    fn empty(&self, word: u64) {
        // No pin can be added to a closing word, so we are alone; the word becomes free for `insert` here.
        let done = self.word.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
        if done.is_ok() {
            // SAFETY: the reference that `insert` stored, taken out exactly once, by the exchange above.
            drop(unsafe { Arc::from_raw(pointer::<T>(word)) });
        }
    }
}

#[cfg(not(loom))]
pub use whole::Table;

#[cfg(not(loom))]
mod whole {
    use super::{Cell, Pinned};
    use rustix::fd::RawFd;
    use session::sys::signal::Deferred;
    use std::sync::{Arc, OnceLock};

    const CHUNK: usize = 1024;
    const CHUNKS: usize = 1024;

    /// A place per descriptor, made in chunks when first used; descriptors from 1,048,576 on have none.
    #[derive(Debug)]
    pub struct Table<T> {
        chunks: [OnceLock<Box<[Cell<T>]>>; CHUNKS],
    }

    impl<T> Default for Table<T> {
        fn default() -> Self {
            Self::new()
        }
    }

    impl<T> Table<T> {
        /// A table without objects.
        #[must_use]
        pub const fn new() -> Self {
            Self { chunks: [const { OnceLock::new() }; CHUNKS] }
        }

        #[inline]
        fn cell(&self, fd: RawFd) -> Option<&Cell<T>> {
            let i = fd as u32 as usize;
            self.chunks.get(i / CHUNK)?.get()?.get(i % CHUNK)
        }

        /// Makes a chunk of places. Signals are blocked: a handler that makes the same chunk would wait for the call that it interrupted.
        #[cold]
        fn make(chunk: &OnceLock<Box<[Cell<T>]>>) -> &[Cell<T>] {
            let _deferred = Deferred::begin();
            chunk.get_or_init(|| (0..CHUNK).map(|_| Cell::default()).collect())
        }

        /// Puts an object at descriptor `fd`, as [`Cell::insert`]; hands it back if `fd` is beyond the table.
        pub fn insert(&self, fd: RawFd, object: Arc<T>) -> Result<(), Arc<T>> {
            let i = fd as u32 as usize;
            match self.chunks.get(i / CHUNK) {
                Some(chunk) => {
                    let cells = chunk.get().map_or_else(|| Self::make(chunk), |cells| &cells[..]);
                    cells[i % CHUNK].insert(object)
                }
                None => Err(object),
            }
        }

        /// Pins the object of descriptor `fd`, as [`Cell::pin`].
        #[inline]
        pub fn pin(&self, fd: RawFd) -> Option<Pinned<'_, T>> {
            self.cell(fd)?.pin()
        }

        /// True when descriptor `fd` has an object, as [`Cell::is_taken`].
        #[inline]
        pub fn is_taken(&self, fd: RawFd) -> bool {
            self.cell(fd).is_some_and(Cell::is_taken)
        }

        /// True when `object` is the one of descriptor `fd`, as [`Cell::holds`].
        pub fn holds(&self, fd: RawFd, object: &T) -> bool {
            self.cell(fd).is_some_and(|cell| cell.holds(object))
        }

        /// Takes out the object of descriptor `fd`, as [`Cell::remove`].
        pub fn remove(&self, fd: RawFd) -> Option<Arc<T>> {
            self.cell(fd)?.remove()
        }

        /// Replaces `old` by `fresh` at descriptor `fd`, as [`Cell::exchange`].
        pub fn exchange(&self, fd: RawFd, old: &Arc<T>, fresh: Arc<T>) -> bool {
            self.cell(fd).is_some_and(|cell| cell.exchange(old, fresh))
        }

        /// All places in chunks that were made, with their descriptors.
        fn cells(&self) -> impl Iterator<Item = (RawFd, &Cell<T>)> {
            let made = self.chunks.iter().enumerate().filter_map(|(c, chunk)| Some((c, chunk.get()?)));
            made.flat_map(|(c, cells)| {
                cells.iter().enumerate().map(move |(i, cell)| ((c * CHUNK + i) as RawFd, cell))
            })
        }

        /// Calls `look` with every descriptor and its object.
        pub fn each(&self, mut look: impl FnMut(RawFd, &Pinned<'_, T>)) {
            for (fd, cell) in self.cells() {
                if let Some(pinned) = cell.pin() {
                    look(fd, &pinned);
                }
            }
        }

        /// [`Self::each`] without pins: `alone` proves that there is no other thread.
        pub fn each_alone(&self, alone: &session::sys::only_thread::Alone, mut look: impl FnMut(RawFd, &T)) {
            for (fd, cell) in self.cells() {
                cell.peek(alone, |object| look(fd, object));
            }
        }

        /// In a forked child of a parent with other threads: drops all pins, for those threads do not exist here.
        pub fn forget_pins(&self) {
            self.cells().for_each(|(_, cell)| cell.forget_pins());
        }

        /// Every descriptor with a counted reference to its object.
        pub fn all(&self) -> Vec<(RawFd, Arc<T>)> {
            let mut all = Vec::new();
            self.each(|fd, pinned| all.push((fd, pinned.share())));
            all
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn what_is_inserted_is_found_until_removed() {
            let table = Table::new();
            assert!(table.pin(3).is_none() && table.remove(3).is_none());
            table.insert(3, Arc::new(7)).unwrap();
            table.insert(5000, Arc::new(8)).unwrap();
            assert_eq!(table.insert(3, Arc::new(9)), Err(Arc::new(9)));
            assert_eq!((*table.pin(3).unwrap(), *table.pin(5000).unwrap()), (7, 8));
            assert_eq!(table.all().len(), 2);
            let held = table.pin(3).unwrap();
            assert_eq!(table.remove(3), Some(Arc::new(7)));
            assert!(!table.is_taken(3) && table.is_taken(5000));
            assert!(table.pin(3).is_none() && table.insert(3, Arc::new(1)).is_err());
            assert_eq!(*held, 7);
            drop(held);
            table.insert(3, Arc::new(1)).unwrap();
            assert!(table.insert(1 << 20, Arc::new(1)).is_err() && table.pin(-1).is_none());
        }

        #[test]
        fn what_threads_of_the_parent_had_pinned_is_nobodys_in_the_child() {
            let table = Table::new();
            table.insert(3, Arc::new(7)).unwrap();
            table.insert(4, Arc::new(8)).unwrap();
            let held = [table.pin(3).unwrap(), table.pin(4).unwrap()];
            assert_eq!(table.remove(3), Some(Arc::new(7)));
            assert!(table.insert(3, Arc::new(9)).is_err());
            table.forget_pins();
            table.insert(3, Arc::new(9)).unwrap();
            assert_eq!(table.remove(4), Some(Arc::new(8)));
            table.insert(4, Arc::new(10)).unwrap();
            // In a child these pins are never dropped; if they are, it does no harm.
            drop(held);
            assert_eq!((*table.pin(3).unwrap(), *table.pin(4).unwrap()), (9, 10));
        }

        #[test]
        fn what_is_exchanged_is_found_at_once_and_lives_while_it_is_pinned() {
            let table = Table::new();
            let (first, second, third) = (Arc::new(1), Arc::new(2), Arc::new(3));
            assert!(!table.exchange(3, &first, second.clone()), "nothing is there");
            table.insert(3, first.clone()).unwrap();
            assert!(!table.exchange(3, &second, third.clone()), "another one is there");
            assert!(table.exchange(3, &first, second.clone()));
            assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (1, 2));
            let held = table.pin(3).unwrap();
            assert!(table.exchange(3, &second, third.clone()));
            assert_eq!((*held, *table.pin(3).unwrap()), (2, 3));
            drop(held);
            assert_eq!(table.remove(3), Some(third.clone()));
            assert!(
                table.pin(3).is_none() && table.insert(3, first).is_ok(),
                "nobody has it pinned any more"
            );
            assert_eq!(Arc::strong_count(&third), 1);
        }
    }
}

#[cfg(all(test, loom))]
#[path = "table_models.rs"]
mod models;
