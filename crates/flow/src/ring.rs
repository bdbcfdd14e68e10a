//! A bounded ring from one thread to another whose items may carry a copy of a frame. Made once, never allocates again.
//!
//! ```text
//!            head (consumer)         tail (producer)
//!   ---------|------ unread ---------|------ free ------> positions, wrapping
//! ```

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::Arc;

/// Bytes of a frame that travel with an item: headers and data of any packet, and of the super-frame that carries a first
/// flight of ten segments (RFC 6928) right behind a handshake. Cut off, it would cost the peer a retransmission timeout.
pub const FRAME_COPY_MAX: usize = 16 << 10;

struct Slot<T> {
    item: Option<T>,
    len: usize,
    /// Zeroed by the kernel page by page: memory is used only where frames were copied.
    frame: Box<[u8]>,
}

#[repr(align(64))]
struct Line<T>(T);

struct Shared<T> {
    slots: Box<[UnsafeCell<Slot<T>>]>,
    /// Written by the consumer.
    head: Line<AtomicUsize>,
    /// Written by the producer.
    tail: Line<AtomicUsize>,
    /// 1 while the consumer sleeps or is about to.
    sleeping: Line<AtomicU32>,
}

// SAFETY: there is one producer and one consumer (neither is `Clone`, both take `&mut self`); the producer touches slots in
// `[tail, head + len)`, the consumer those in `[head, tail)`, and a slot changes hands by a Release store of `tail` or `head`
// that the other side loads with Acquire. `T: Send` lets items change threads.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: slots own their items, which are `Send`.
unsafe impl<T: Send> Send for Shared<T> {}

/// The writing end.
pub struct Producer<T>(Arc<Shared<T>>);
/// The reading end.
pub struct Consumer<T>(Arc<Shared<T>>);

/// A ring of `slots` items.
///
/// # Panics
/// When `slots` is not a power of two.
// SETUP: called once per core.
pub fn ring<T: Send>(slots: usize) -> (Producer<T>, Consumer<T>) {
    assert!(slots.is_power_of_two(), "positions wrap, so the number of slots must divide their range");
    let frame = || vec![0; FRAME_COPY_MAX].into_boxed_slice();
    let slot = || UnsafeCell::new(Slot { item: None, len: 0, frame: frame() });
    let shared = Arc::new(Shared {
        slots: (0..slots).map(|_| slot()).collect(),
        head: Line(AtomicUsize::new(0)),
        tail: Line(AtomicUsize::new(0)),
        sleeping: Line(AtomicU32::new(0)),
    });
    (Producer(shared.clone()), Consumer(shared))
}

impl<T> Producer<T> {
    /// Slots free now.
    pub fn room(&self) -> usize {
        // Acquire: pairs with the Release in `pop`.
        let used = self.0.tail.0.load(Ordering::Relaxed).wrapping_sub(self.0.head.0.load(Ordering::Acquire));
        self.0.slots.len() - used
    }

    /// Slots in all.
    pub fn capacity(&self) -> usize {
        self.0.slots.len()
    }

    /// Hands over `item` with a copy of `frame`, or gives `item` back when the ring is full or the frame too long.
    pub fn push(&mut self, item: T, frame: &[u8]) -> Result<(), T> {
        if self.room() == 0 || frame.len() > FRAME_COPY_MAX {
            return Err(item);
        }
        let tail = self.0.tail.0.load(Ordering::Relaxed);
        // SAFETY: `room` says that slot `tail` is free, and only this producer touches free slots.
        let slot = unsafe { &mut *self.0.slots[tail & (self.0.slots.len() - 1)].get() };
        slot.item = Some(item);
        slot.len = frame.len();
        slot.frame[..frame.len()].copy_from_slice(frame);
        self.0.tail.0.store(tail.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// After pushing: true, once, when the consumer announced its sleep and must be woken. Not for nothing: two sides that ask
    /// this whenever they are woken would wake each other for ever.
    pub fn must_wake(&self) -> bool {
        // Asked first: most rounds push nothing, and a barrier waits for all that they have written to lines of other cores.
        if !self.has_items() {
            return false;
        }
        // Pairs with the fence in `prepare_sleep`: either we see the sleeper or it sees the item.
        fence(Ordering::SeqCst);
        let sleeping = &self.0.sleeping.0;
        sleeping.load(Ordering::Relaxed) != 0 && sleeping.swap(0, Ordering::Relaxed) != 0
    }

    /// Some are not taken yet. They may be by now, never the reverse.
    fn has_items(&self) -> bool {
        self.0.tail.0.load(Ordering::Relaxed) != self.0.head.0.load(Ordering::Relaxed)
    }
}

impl<T> Consumer<T> {
    /// Takes the oldest item and hands it with its frame to `take`.
    pub fn pop<R>(&mut self, take: impl FnOnce(T, &[u8]) -> R) -> Option<R> {
        let head = self.0.head.0.load(Ordering::Relaxed);
        // Acquire: pairs with the Release in `push`.
        if head == self.0.tail.0.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: slot `head` is published and not yet taken; only this consumer touches such slots.
        let slot = unsafe { &mut *self.0.slots[head & (self.0.slots.len() - 1)].get() };
        let result = slot.item.take().map(|item| take(item, &slot.frame[..slot.len]));
        self.0.head.0.store(head.wrapping_add(1), Ordering::Release);
        result
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.0.head.0.load(Ordering::Relaxed) == self.0.tail.0.load(Ordering::Acquire)
    }

    /// Announces sleep. True: nothing waits, and every later `push` is followed by a wake-up. False: stay awake.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        self.0.sleeping.0.store(1, Ordering::Relaxed);
        // Pairs with the fence in `must_wake`.
        fence(Ordering::SeqCst);
        let sleeps = self.is_empty();
        if !sleeps {
            self.awake();
        }
        sleeps
    }

    /// Awake again.
    pub fn awake(&mut self) {
        self.0.sleeping.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_and_frames_come_out_in_order_across_threads_and_a_full_ring_gives_back() {
        let (mut tx, mut rx) = ring::<u32>(8);
        let sender = std::thread::spawn(move || {
            for i in 0..20_000u32 {
                let mut item = i;
                while let Err(back) = tx.push(item, &i.to_le_bytes()) {
                    item = back;
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0u32;
        while next < 20_000 {
            let got = rx.pop(|item, frame| {
                assert_eq!(frame, item.to_le_bytes());
                item
            });
            match got {
                Some(item) => {
                    assert_eq!(item, next);
                    next += 1;
                }
                None => std::thread::yield_now(),
            }
        }
        sender.join().expect("the sender does not panic");
    }

    #[test]
    fn a_sleeper_is_woken_once_and_a_long_frame_is_refused() {
        let (mut tx, mut rx) = ring::<u8>(2);
        assert!(rx.prepare_sleep());
        assert_eq!(tx.push(1, &[0; FRAME_COPY_MAX + 1]), Err(1));
        assert!(!tx.must_wake(), "nothing to be woken for");
        assert_eq!(tx.push(1, &[]), Ok(()));
        assert!(tx.must_wake() && !tx.must_wake());
        assert!(!rx.prepare_sleep());
        assert_eq!((tx.push(2, &[]), tx.push(3, &[])), (Ok(()), Err(3)));
        assert_eq!(rx.pop(|i, _| i), Some(1));
    }
}
