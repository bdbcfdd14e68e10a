//! A lock-free ring for one producer and one consumer; the only file of this crate with unsafe code.
//!
//! Items are made once and stay in their slots; both sides get exclusive references to the slots that are theirs.
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

/// The consumer sleeps until items come.
const CONSUMER_SLEEPS: u32 = 1;
/// The producer sleeps until there is room.
const PRODUCER_SLEEPS: u32 = 2;
/// The consumer is gone: there never will be room again.
const CONSUMER_GONE: u32 = 4;

/// Alone on its cache line, so that the two sides do not fetch each other's line in vain.
#[repr(align(64))]
struct Line<T>(T);

struct Shared<T> {
    slots: Box<[Cell<T>]>,
    mask: usize,
    /// Written by the consumer.
    head: Line<AtomicUsize>,
    /// Written by the producer.
    tail: Line<AtomicUsize>,
    /// Who sleeps, and whether the consumer is gone; written only around sleeps.
    sleepers: Line<AtomicU32>,
}

// SAFETY: a slot is reached only through the one `Producer` or the one `Consumer` (neither is `Clone`, both take `&mut self`),
// which own disjoint ranges of positions; ownership of a slot passes with a Release store and an Acquire load of `tail` or
// `head`. So no two threads reach one item at a time, and `T: Send` lets the item change threads.
unsafe impl<T: Send> Sync for Shared<T> {}

// SAFETY: the shared part holds items and integers only; `T: Send` lets the items be dropped by either thread.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    /// Announces a sleeper; false, and not announced, when `is_over` is true already.
    fn prepare_sleep(&self, who: u32, is_over: impl FnOnce(&Self) -> bool) -> bool {
        let before = self.sleepers.0.fetch_or(who, Ordering::Relaxed);
        // Pairs with the fence in `must_wake`: either the other side sees the sleeper, or we see its new position.
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

    /// True, once per sleep, when the position just stored is news to the sleeper `who`.
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
    /// True when there is a free slot.
    #[inline(always)]
    pub fn has_room(&mut self) -> bool {
        if self.next.wrapping_sub(self.head_seen) == self.shared.slots.len() {
            // Acquire pairs with the Release in `release`: what the consumer did to the slot is done.
            self.head_seen = self.shared.head.0.load(Ordering::Acquire);
        }
        self.next.wrapping_sub(self.head_seen) != self.shared.slots.len()
    }

    /// The next free slot, with whatever an earlier round left in it; none when the ring is full.
    #[inline(always)]
    pub fn slot(&mut self) -> Option<&mut T> {
        if !self.has_room() {
            return None;
        }
        let slot = &self.shared.slots[self.next & self.shared.mask];
        // SAFETY: `next` is in [tail, head + len), the producer's range, until `publish`, which needs `&mut self` and so the end
        // of this borrow; the pointer comes from a live cell of the ring that `self` keeps alive.
        Some(slot.with_mut(|item| unsafe { &mut *item }))
    }

    /// The free slot `n` after the next one, if it is known to be free.
    #[inline(always)]
    pub fn ahead(&self, n: usize) -> Option<&T> {
        let (at, shared) = (self.next.wrapping_add(n), &*self.shared);
        if at.wrapping_sub(self.head_seen) >= shared.slots.len() {
            return None;
        }
        // SAFETY: as in `slot`: it is in the producer's range, and stays there while `self` is borrowed.
        Some(shared.slots[at & shared.mask].with_mut(|item| unsafe { &*item }))
    }

    /// The slot that [`slot`](Self::slot) gave is written; the consumer sees it after [`publish`](Self::publish).
    ///
    /// # Panics
    /// When no slot was free: a bug of the caller.
    #[inline]
    pub fn commit(&mut self) {
        assert!(self.next.wrapping_sub(self.head_seen) < self.shared.slots.len(), "no slot was given");
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the committed slots to the consumer. True when there were any.
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

    /// After [`publish`](Self::publish): true, once, when the consumer announced its sleep and must be woken.
    #[must_use]
    pub fn must_wake(&self) -> bool {
        self.shared.must_wake(CONSUMER_SLEEPS)
    }

    /// Announces that the producer sleeps until there is room. False when there is.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        let (next, len) = (self.next, self.shared.slots.len());
        self.shared.prepare_sleep(PRODUCER_SLEEPS, |shared| {
            next.wrapping_sub(shared.head.0.load(Ordering::Acquire)) < len
        })
    }

    /// The producer does not sleep (any more).
    pub fn cancel_sleep(&mut self) {
        self.shared.cancel_sleep(PRODUCER_SLEEPS);
    }

    /// True when the consumer is gone.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.shared.sleepers.0.load(Ordering::Relaxed) & CONSUMER_GONE != 0
    }
}

impl<T> Consumer<T> {
    /// The oldest item not yet taken.
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
        // this borrow; the pointer comes from a live cell of the ring that `self` keeps alive.
        Some(slot.with_mut(|item| unsafe { &mut *item }))
    }

    /// Done with the item that [`slot`](Self::slot) gave; the producer gets the slot back after [`release`](Self::release).
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

    /// After [`release`](Self::release): true, once, when the producer announced its sleep and must be woken.
    #[must_use]
    pub fn must_wake(&self) -> bool {
        self.shared.must_wake(PRODUCER_SLEEPS)
    }

    /// Announces that the consumer sleeps until items come. False when there are some.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        let next = self.next;
        self.shared.prepare_sleep(CONSUMER_SLEEPS, |shared| shared.tail.0.load(Ordering::Acquire) != next)
    }

    /// The consumer does not sleep (any more).
    pub fn cancel_sleep(&mut self) {
        self.shared.cancel_sleep(CONSUMER_SLEEPS);
    }

    /// The consumer takes nothing any more. True when the producer announced its sleep and must be woken: this and
    /// `prepare_sleep` change one word, so the later of them sees the earlier.
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

/// Hints the processor to fetch the lines from `address` on, which are written soon.
#[inline]
pub fn prefetch_written(address: *const u8, lines: usize) {
    for line in 0..lines {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: prefetching has no architectural effect and faults on no address. Where PREFETCHW is not known it is a NOP. Spelled
        // out, because without the target feature the compiler makes PREFETCHT0 of `_MM_HINT_ET0`, and the line comes shared.
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
