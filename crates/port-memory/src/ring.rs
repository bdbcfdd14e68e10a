//! A lock-free ring for one producer and one consumer; the only file of this crate with unsafe code.
//!
//! Items are made once and stay in their slots; each side gets exclusive references to its own slots.
//!
//! ```text
//!            head                 tail            next
//!   ---------|--------------------|---------------|-----------------> positions, wrapping
//!     free   |  published, unread | written, held | free
//!            consumer's           producer's until publish
//! ```
//!
//! Each position is written by one side only. The consumer owns `[head, tail)`, the producer `[tail, head + len)`.

use sync::{Arc, AtomicU32, AtomicUsize, Cell, Ordering, fence};

#[cfg(loom)]
mod sync {
    pub(super) use loom::cell::UnsafeCell as Cell;
    pub(super) use loom::sync::Arc;
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};
}

#[cfg(not(loom))]
mod sync {
    pub(super) use std::sync::Arc;
    pub(super) use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

    /// The standard cell with the model checker's interface.
    pub(super) struct Cell<T>(std::cell::UnsafeCell<T>);

    impl<T> Cell<T> {
        pub(super) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }
        #[inline]
        pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

/// Bit: the consumer sleeps until items come.
const CONSUMER_SLEEPS: u32 = 1;
/// Bit: the producer sleeps until there is room.
const PRODUCER_SLEEPS: u32 = 2;
/// Bit: the consumer has been dropped, so there will be no more room.
const CONSUMER_GONE: u32 = 4;

/// A value on a cache line of its own, so that the two sides do not take each other's line without need.
#[repr(align(64))]
struct Line<T>(T);

struct Shared<T> {
    slots: Box<[Cell<T>]>,
    mask: usize,
    /// Position of the oldest unread item; written by the consumer.
    head: Line<AtomicUsize>,
    /// Position behind the last published item; written by the producer.
    tail: Line<AtomicUsize>,
    /// Bits of the sleeping sides and `CONSUMER_GONE`; written only around sleeps.
    sleepers: Line<AtomicU32>,
}

// SAFETY: a slot is accessed only through the one `Producer` or the one `Consumer` (neither is `Clone`, both take `&mut self`),
// which own disjoint ranges of positions; ownership of a slot passes with a Release store and an Acquire load of `tail` or
// `head`. So two threads never access one item at the same time, and `T: Send` allows the item to change threads.
unsafe impl<T: Send> Sync for Shared<T> {}

// SAFETY: the shared part contains only items and integers; `T: Send` allows either thread to drop the items.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    /// Sets the given sleep bit. Returns false, with the bit cleared, when `is_over` is already true.
    fn prepare_sleep(&self, who: u32, is_over: impl FnOnce(&Self) -> bool) -> bool {
        let before = self.sleepers.0.fetch_or(who, Ordering::Relaxed);
        // Pairs with the fence in `must_wake`: either the other side sees the bit, or this side sees the other's new position.
        fence(Ordering::SeqCst);
        let is_gone = who == PRODUCER_SLEEPS && before & CONSUMER_GONE != 0;
        let sleeps = !is_gone && !is_over(self);
        if !sleeps {
            self.cancel_sleep(who);
        }
        sleeps
    }

    fn cancel_sleep(&self, who: u32) {
        self.sleepers.0.fetch_and(!who, Ordering::Relaxed);
    }

    /// True, once per sleep, when the side with the given sleep bit must be woken for the position just stored.
    fn must_wake(&self, who: u32) -> bool {
        fence(Ordering::SeqCst);
        self.sleepers.0.load(Ordering::Relaxed) & who != 0
            && self.sleepers.0.fetch_and(!who, Ordering::Relaxed) & who != 0
    }
}

/// The writing side of a ring.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    next: usize,
    published: usize,
    head_seen: usize,
}

/// The reading side of a ring.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    next: usize,
    released: usize,
    tail_seen: usize,
}

/// A ring of `slots` items, each made by `make`.
///
/// # Panics
/// When `slots` is not a power of two.
pub fn ring<T: Send>(slots: usize, make: impl FnMut() -> T) -> (Producer<T>, Consumer<T>) {
    assert!(slots.is_power_of_two(), "positions wrap, so the number of slots must divide their range");
    let mut make = make;
    let shared = Arc::new(Shared {
        slots: (0..slots).map(|_| Cell::new(make())).collect(),
        mask: slots - 1,
        head: Line(AtomicUsize::new(0)),
        tail: Line(AtomicUsize::new(0)),
        sleepers: Line(AtomicU32::new(0)),
    });
    let producer = Producer { shared: shared.clone(), next: 0, published: 0, head_seen: 0 };
    (producer, Consumer { shared, next: 0, released: 0, tail_seen: 0 })
}

impl<T> Producer<T> {
    /// True when a slot is free.
    #[inline(always)]
    pub fn has_room(&mut self) -> bool {
        if self.next.wrapping_sub(self.head_seen) == self.shared.slots.len() {
            // Acquire pairs with the Release in `release`: the consumer has finished with the slot.
            self.head_seen = self.shared.head.0.load(Ordering::Acquire);
        }
        self.next.wrapping_sub(self.head_seen) != self.shared.slots.len()
    }

    /// The next free slot, with the content of an earlier round; `None` when the ring is full.
    #[inline(always)]
    pub fn slot(&mut self) -> Option<&mut T> {
        if !self.has_room() {
            return None;
        }
        let slot = &self.shared.slots[self.next & self.shared.mask];
        // SAFETY: `next` is in [tail, head + len), the producer's range, until `publish`, which needs `&mut self` and so the end
        // of this borrow; the pointer comes from a live cell of the ring, which `self` keeps alive.
        Some(slot.with_mut(|item| unsafe { &mut *item }))
    }

    /// The free slot `n` positions after the next one; `None` if it is not known to be free.
    #[inline(always)]
    pub fn ahead(&self, n: usize) -> Option<&T> {
        let (at, shared) = (self.next.wrapping_add(n), &*self.shared);
        if at.wrapping_sub(self.head_seen) >= shared.slots.len() {
            return None;
        }
        // SAFETY: as in `slot`: it is in the producer's range, and stays in it while `self` is borrowed.
        Some(shared.slots[at & shared.mask].with_mut(|item| unsafe { &*item }))
    }

    /// Marks the slot that [`slot`](Self::slot) gave as written; the consumer sees it after [`publish`](Self::publish).
    ///
    /// # Panics
    /// When no slot was free: a bug of the caller.
    #[inline]
    pub fn commit(&mut self) {
        assert!(self.next.wrapping_sub(self.head_seen) < self.shared.slots.len(), "no slot was given");
        self.next = self.next.wrapping_add(1);
    }

    /// Makes the committed slots visible to the consumer. True when there were any.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let has_news = self.next != self.published;
        if has_news {
            self.published = self.next;
            // Release pairs with the Acquire in `Consumer::slot` and `Consumer::prepare_sleep`.
            self.shared.tail.0.store(self.next, Ordering::Release);
        }
        has_news
    }

    /// After [`publish`](Self::publish): true, once, when the consumer has announced its sleep and must be woken.
    #[must_use]
    pub fn must_wake(&self) -> bool {
        self.shared.must_wake(CONSUMER_SLEEPS)
    }

    /// Announces that the producer sleeps until there is room. Returns false when there is room already.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        let (next, len) = (self.next, self.shared.slots.len());
        self.shared.prepare_sleep(PRODUCER_SLEEPS, |shared| {
            next.wrapping_sub(shared.head.0.load(Ordering::Acquire)) < len
        })
    }

    /// Clears the announcement of the producer's sleep.
    pub fn cancel_sleep(&mut self) {
        self.shared.cancel_sleep(PRODUCER_SLEEPS);
    }

    /// True when the consumer has been dropped.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.shared.sleepers.0.load(Ordering::Relaxed) & CONSUMER_GONE != 0
    }
}

impl<T> Consumer<T> {
    /// Number of items not yet taken.
    pub fn waiting(&self) -> usize {
        // Relaxed: only the number is used.
        self.shared.tail.0.load(Ordering::Relaxed).wrapping_sub(self.next)
    }

    /// The oldest item not yet taken; `None` when there is none.
    #[inline]
    pub fn slot(&mut self) -> Option<&mut T> {
        if self.next == self.tail_seen {
            // Acquire pairs with the Release in `publish`: the item is complete.
            self.tail_seen = self.shared.tail.0.load(Ordering::Acquire);
        }
        if self.next == self.tail_seen {
            return None;
        }
        let slot = &self.shared.slots[self.next & self.shared.mask];
        // SAFETY: `next` is in [head, tail), the consumer's range, until `release`, which needs `&mut self` and so the end of
        // this borrow; the pointer comes from a live cell of the ring, which `self` keeps alive.
        Some(slot.with_mut(|item| unsafe { &mut *item }))
    }

    /// The item `n` positions after the next one; `None` when there is none.
    pub fn peek(&mut self, n: usize) -> Option<&mut T> {
        let at = self.next.wrapping_add(n);
        if n >= self.tail_seen.wrapping_sub(self.next) {
            // Acquire: as in `slot`.
            self.tail_seen = self.shared.tail.0.load(Ordering::Acquire);
        }
        if n >= self.tail_seen.wrapping_sub(self.next) {
            return None;
        }
        let slot = &self.shared.slots[at & self.shared.mask];
        // SAFETY: as in `slot`: the position is in [head, tail), the consumer's range, and stays in it while `self` is borrowed.
        Some(slot.with_mut(|item| unsafe { &mut *item }))
    }

    /// Marks the item that [`slot`](Self::slot) gave as taken; the producer gets the slot back after [`release`](Self::release).
    ///
    /// # Panics
    /// When there was no item: a bug of the caller.
    #[inline]
    pub fn take(&mut self) {
        assert!(self.next != self.tail_seen, "no item was given");
        self.next = self.next.wrapping_add(1);
    }

    /// Gives the taken slots back to the producer. True when there were any.
    #[inline]
    pub fn release(&mut self) -> bool {
        let has_news = self.next != self.released;
        if has_news {
            self.released = self.next;
            // Release pairs with the Acquire in `Producer::slot` and `Producer::prepare_sleep`.
            self.shared.head.0.store(self.next, Ordering::Release);
        }
        has_news
    }

    /// After [`release`](Self::release): true, once, when the producer has announced its sleep and must be woken.
    #[must_use]
    pub fn must_wake(&self) -> bool {
        self.shared.must_wake(PRODUCER_SLEEPS)
    }

    /// Announces that the consumer sleeps until items come. Returns false when there are items already.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        let next = self.next;
        self.shared.prepare_sleep(CONSUMER_SLEEPS, |shared| shared.tail.0.load(Ordering::Acquire) != next)
    }

    /// Clears the announcement of the consumer's sleep.
    pub fn cancel_sleep(&mut self) {
        self.shared.cancel_sleep(CONSUMER_SLEEPS);
    }

    /// Announces that the consumer takes no more items. True when the producer has announced its sleep and must be woken: this and
    /// `prepare_sleep` change the same word, so the later call sees the earlier one.
    #[must_use]
    pub fn abandon(&mut self) -> bool {
        let before = self.shared.sleepers.0.fetch_or(CONSUMER_GONE, Ordering::Relaxed);
        before & PRODUCER_SLEEPS != 0
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.shared.sleepers.0.fetch_or(CONSUMER_GONE, Ordering::Relaxed);
    }
}

/// Asks the processor to fetch `lines` cache lines from `address` on for writing.
#[inline]
pub fn prefetch_written(address: *const u8, lines: usize) {
    for line in 0..lines {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch has no architectural effect and does not fault on any address. A processor without PREFETCHW treats it as a
        // NOP. Written as assembly, because without the target feature the compiler turns `_MM_HINT_ET0` into PREFETCHT0, which fetches the
        // line as shared.
        unsafe {
            let at = address.wrapping_add(64 * line);
            core::arch::asm!("prefetchw [{}]", in(reg) at, options(readonly, nostack, preserves_flags));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (address, line);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models;
