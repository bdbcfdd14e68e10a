//! A bounded ring from one thread to another; an item may carry a copy of a frame. Made once, never allocates again.
//!
//! ```text
//!            head (consumer)         tail (producer)
//!   ---------|------ unread ---------|------ free ------> positions of slots, wrapping
//!            read                    written
//!   ---------|-- frames of unread ---|------ free ------> positions of bytes, wrapping
//! ```
//! Frames lie one behind the other in an area of their own, each in one piece: a frame that does not fit before the area's end begins at
//! its start. So the same memory holds many short frames, or a few long ones.

use sync::{Arc, AtomicU32, AtomicUsize, Cell, Ordering, fence};

#[cfg(loom)]
mod sync {
    pub(super) use loom::cell::UnsafeCell as Cell;
    pub(super) use loom::sync::Arc;
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

    /// An area of so many bytes.
    pub(super) fn area(bytes: usize) -> Box<[Cell<u8>]> {
        (0..bytes).map(|_| Cell::new(0)).collect()
    }

    /// Copies a frame into the area, byte by byte: the model checker watches each of them.
    ///
    /// # Safety
    /// No other thread touches `into`, which is as long as `frame`.
    pub(super) unsafe fn copy_in(into: &[Cell<u8>], frame: &[u8]) {
        // SAFETY: by the contract of this function.
        into.iter().zip(frame).for_each(|(cell, byte)| cell.with_mut(|at| unsafe { *at = *byte }));
    }

    /// Shows `see` the bytes of a frame.
    ///
    /// # Safety
    /// No thread writes to `from` meanwhile.
    pub(super) unsafe fn show<R>(from: &[Cell<u8>], see: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: by the contract of this function.
        let frame: Vec<u8> = from.iter().map(|cell| cell.with(|at| unsafe { *at })).collect();
        see(&frame)
    }
}

#[cfg(not(loom))]
mod sync {
    pub(super) use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};
    pub(super) use std::sync::Arc;

    /// The standard cell with the model checker's interface.
    #[repr(transparent)]
    pub(super) struct Cell<T>(core::cell::UnsafeCell<T>);

    impl<T> Cell<T> {
        pub(super) const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        #[inline]
        pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }

    /// An area of so many bytes, zeroed by the kernel.
    // SETUP: called with `ring`.
    pub(super) fn area(bytes: usize) -> Box<[Cell<u8>]> {
        let area = vec![0u8; bytes].into_boxed_slice();
        // SAFETY: `Cell<u8>` has the layout of `u8`, and the box is owned.
        unsafe { Box::from_raw(Box::into_raw(area) as *mut [Cell<u8>]) }
    }

    /// Copies a frame into the area.
    ///
    /// # Safety
    /// No other thread touches `into`, which is as long as `frame`.
    #[inline]
    pub(super) unsafe fn copy_in(into: &[Cell<u8>], frame: &[u8]) {
        debug_assert_eq!(into.len(), frame.len());
        // SAFETY: `Cell<u8>` has the layout of `u8` and allows writing through a shared reference; lengths are equal, and no other
        // thread touches the bytes, by the contract of this function. `frame` is a box of the program's, no part of the area.
        unsafe { core::ptr::copy_nonoverlapping(frame.as_ptr(), into.as_ptr() as *mut u8, frame.len()) };
    }

    /// Shows `see` the bytes of a frame.
    ///
    /// # Safety
    /// No thread writes to `from` meanwhile.
    #[inline]
    pub(super) unsafe fn show<R>(from: &[Cell<u8>], see: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: `Cell<u8>` has the layout of `u8`, and no thread writes meanwhile, by the contract of this function.
        see(unsafe { core::slice::from_raw_parts(from.as_ptr().cast::<u8>(), from.len()) })
    }
}

/// Bytes of a frame that travel with an item: headers and data of any packet, and of the super-frame that carries a first
/// flight of ten segments (RFC 6928) right behind a handshake. Cut off, it would cost the peer a retransmission timeout.
#[cfg(not(loom))]
pub const FRAME_COPY_MAX: usize = 16 << 10;

struct Slot<T> {
    item: Option<T>,
    /// Position of the frame's first byte.
    start: usize,
    /// Bytes of the frame.
    len: usize,
}

#[repr(align(64))]
struct Line<T>(T);

struct Shared<T> {
    slots: Box<[Cell<Slot<T>>]>,
    /// Area for frames. Zeroed by the kernel page by page: memory is used only where frames were copied.
    bytes: Box<[Cell<u8>]>,
    /// Written by the consumer: the position of the oldest unread slot, and the byte position up to which frames were taken.
    head: Line<[AtomicUsize; 2]>,
    /// Written by the producer: the position of the next free slot.
    tail: Line<AtomicUsize>,
    /// 1 while the consumer sleeps or is about to.
    sleeping: Line<AtomicU32>,
}

// SAFETY: there is one producer and one consumer (neither is `Clone`, both take `&mut self`); the producer touches slots in
// `[tail, head + len)`, the consumer those in `[head, tail)`, and a slot changes hands by a Release store of `tail` or `head`
// that the other side loads with Acquire. The bytes of a slot's frame change hands with it. `T: Send` lets items change threads.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: slots own their items, which are `Send`.
unsafe impl<T: Send> Send for Shared<T> {}

/// The writing end of a ring.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// Bytes of the longest frame.
    longest: usize,
    /// Byte position after the last frame.
    written: usize,
}
/// The reading end of a ring.
pub struct Consumer<T>(Arc<Shared<T>>);

/// Makes a ring of `slots` items with `bytes` for their frames, which may have up to `longest` bytes each.
///
/// # Panics
/// When `slots` or `bytes` is not a power of two.
// SETUP: called once per core.
#[must_use]
pub fn ring<T: Send>(slots: usize, bytes: usize, longest: usize) -> (Producer<T>, Consumer<T>) {
    // The longest frame fits wherever the last one ended.
    let bytes = bytes.max((2 * longest).next_power_of_two());
    let is_good = slots.is_power_of_two() && bytes.is_power_of_two();
    assert!(is_good, "positions wrap, so what they count must divide their range");
    let slot = || Cell::new(Slot { item: None, start: 0, len: 0 });
    let shared = Arc::new(Shared {
        slots: (0..slots).map(|_| slot()).collect(),
        bytes: sync::area(bytes),
        head: Line([AtomicUsize::new(0), AtomicUsize::new(0)]),
        tail: Line(AtomicUsize::new(0)),
        sleeping: Line(AtomicU32::new(0)),
    });
    (Producer { shared: shared.clone(), longest, written: 0 }, Consumer(shared))
}

impl<T> Shared<T> {
    fn slot(&self, position: usize) -> &Cell<Slot<T>> {
        &self.slots[position & (self.slots.len() - 1)]
    }

    /// The `len` bytes of the area from `position` on; the caller has checked that they do not wrap.
    fn span(&self, position: usize, len: usize) -> &[Cell<u8>] {
        let at = position & (self.bytes.len() - 1);
        &self.bytes[at..at + len]
    }
}

impl<T> Producer<T> {
    /// Number of free slots.
    #[must_use]
    pub fn room(&self) -> usize {
        // Acquire: pairs with the Release in `pop`.
        let head = self.shared.head.0[0].load(Ordering::Acquire);
        self.shared.slots.len() - self.shared.tail.0.load(Ordering::Relaxed).wrapping_sub(head)
    }

    /// Number of slots in all.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.slots.len()
    }

    /// Number of bytes for frames in all.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shared.bytes.len()
    }

    /// True when at most one part in `share` of the slots, or of the bytes, is free.
    #[must_use]
    pub fn is_crowded(&self, share: usize) -> bool {
        // After `room`: its Acquire makes the byte position that belongs to the head visible.
        let slots_left = self.room();
        let used = self.written.wrapping_sub(self.shared.head.0[1].load(Ordering::Relaxed));
        let bytes = self.shared.bytes.len();
        slots_left <= self.capacity() / share || bytes - used <= bytes / share
    }

    /// Position for a frame of `len` bytes: after the last frame, or at the area's start. `None` when there is no room.
    fn place(&self, len: usize) -> Option<usize> {
        let size = self.shared.bytes.len();
        let at = self.written & (size - 1);
        let start = if at + len <= size { self.written } else { self.written.wrapping_add(size - at) };
        // Relaxed: `room` has loaded the head with Acquire, and the consumer stores this before the head.
        let read = self.shared.head.0[1].load(Ordering::Relaxed);
        (start.wrapping_add(len).wrapping_sub(read) <= size).then_some(start)
    }

    /// Hands over `item` with a copy of `frame`.
    ///
    /// # Errors
    /// The item, when the ring is full or the frame too long.
    pub fn push(&mut self, item: T, frame: &[u8]) -> Result<(), T> {
        if self.room() == 0 || frame.len() > self.longest {
            return Err(item);
        }
        let Some(start) = self.place(frame.len()) else { return Err(item) };
        let tail = self.shared.tail.0.load(Ordering::Relaxed);
        let into = self.shared.span(start, frame.len());
        let slot = Slot { item: Some(item), start, len: frame.len() };
        // SAFETY: `room` says that slot `tail` is free, and only this producer touches free slots.
        self.shared.slot(tail).with_mut(|at| unsafe { *at = slot });
        // SAFETY: `place` says that no unread frame lies in `into`, and only this producer touches such bytes.
        unsafe { sync::copy_in(into, frame) };
        self.written = start.wrapping_add(frame.len());
        self.shared.tail.0.store(tail.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// After pushing: true, once, when the consumer has announced sleep and must be woken. Only if there are items: two sides that call
    /// this whenever they are woken would otherwise wake each other for ever.
    #[must_use]
    pub fn must_wake(&self) -> bool {
        // Checked first: most rounds push nothing, and the fence waits for all that they have written to lines of other cores.
        if !self.has_items() {
            return false;
        }
        // Pairs with the fence in `prepare_sleep`: either the producer sees `sleeping`, or the consumer sees the item.
        fence(Ordering::SeqCst);
        let sleeping = &self.shared.sleeping.0;
        sleeping.load(Ordering::Relaxed) != 0 && sleeping.swap(0, Ordering::Relaxed) != 0
    }

    /// True when some items are not taken yet. The consumer may have taken them by now, but false is never wrong.
    fn has_items(&self) -> bool {
        self.shared.tail.0.load(Ordering::Relaxed) != self.shared.head.0[0].load(Ordering::Relaxed)
    }
}

impl<T> Consumer<T> {
    /// Takes the oldest item and hands it with its frame to `take`.
    pub fn pop<R>(&mut self, take: impl FnOnce(T, &[u8]) -> R) -> Option<R> {
        let shared = &*self.0;
        let head = shared.head.0[0].load(Ordering::Relaxed);
        // Acquire: pairs with the Release in `push`.
        if head == shared.tail.0.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: slot `head` is published and not yet taken; only this consumer touches such slots.
        let (item, start, len) =
            shared.slot(head).with_mut(|at| unsafe { ((*at).item.take(), (*at).start, (*at).len) });
        let end = start.wrapping_add(len);
        let from = shared.span(start, len);
        // SAFETY: the producer touches a frame's bytes again only when the head has passed its slot, below.
        let result = item.map(|item| unsafe { sync::show(from, |frame| take(item, frame)) });
        // Stored before the head, so that the Release of the head makes it visible to the producer.
        shared.head.0[1].store(end, Ordering::Relaxed);
        shared.head.0[0].store(head.wrapping_add(1), Ordering::Release);
        result
    }

    /// Number of items that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.tail.0.load(Ordering::Acquire).wrapping_sub(self.0.head.0[0].load(Ordering::Relaxed))
    }

    /// True when no item waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.head.0[0].load(Ordering::Relaxed) == self.0.tail.0.load(Ordering::Acquire)
    }

    /// Announces sleep. True: no item waits, and every later `push` is followed by a wake-up. False: stay awake.
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

    /// Withdraws the announcement of sleep.
    pub fn awake(&mut self) {
        self.0.sleeping.0.store(0, Ordering::Relaxed);
    }
}

impl<T> core::fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Producer").field("room", &self.room()).finish_non_exhaustive()
    }
}

impl<T> core::fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Consumer").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn items_and_frames_come_out_in_order_across_threads_and_a_full_ring_gives_back() {
        // Frames of all lengths, so that some end where the area ends and some begin at its start.
        let frame_of = |i: u32| vec![i as u8; (i as usize).wrapping_mul(977) % (FRAME_COPY_MAX + 1)];
        let (mut tx, mut rx) = ring::<u32>(8, 1, FRAME_COPY_MAX);
        let sender = std::thread::spawn(move || {
            for i in 0..1_000u32 {
                let (mut item, frame) = (i, frame_of(i));
                while let Err(back) = tx.push(item, &frame) {
                    item = back;
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0u32;
        while next < 1_000 {
            let got = rx.pop(|item, frame| {
                assert!(frame == frame_of(item), "{item}");
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
    fn short_frames_fill_the_slots_and_long_ones_the_bytes() {
        let (mut tx, mut rx) = ring::<u8>(256, 1 << 15, FRAME_COPY_MAX);
        let long = [7; FRAME_COPY_MAX];
        assert_eq!((tx.push(1, &long), tx.push(2, &long)), (Ok(()), Ok(())));
        assert_eq!(tx.push(3, &[1]), Err(3), "no byte is left");
        assert!(tx.is_crowded(2) && tx.is_crowded(8) && tx.push(3, &[]).is_ok());
        assert_eq!(rx.pop(|i, frame| (i, frame == long)), Some((1, true)));
        assert!(!tx.is_crowded(8) && tx.push(4, &[4]).is_ok());
        assert_eq!(rx.pop(|i, _| i).zip(rx.pop(|i, _| i)), Some((2, 3)));
        assert_eq!(rx.pop(|i, frame| (i, frame.to_vec())), Some((4, vec![4])));
        (0..255).for_each(|i| assert_eq!(tx.push(i, &[0; 100]), Ok(())));
        assert!(tx.is_crowded(8));
        assert_eq!((tx.push(255, &[]), tx.push(0, &[])), (Ok(()), Err(0)));
    }

    #[test]
    fn a_sleeper_is_woken_once_and_a_long_frame_is_refused() {
        let (mut tx, mut rx) = ring::<u8>(2, 1, FRAME_COPY_MAX);
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
