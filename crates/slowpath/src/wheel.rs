//! A hierarchical timing wheel: setting, cancelling and taking a timer takes constant time, without a search.
//!
//! ```text
//! level 0: 64 slots of 1 ms | level 1: 64 slots of 64 ms | level 2: 64 slots of 4 s | ... 8 levels
//! ```
//! A timer lies on the level of the highest six-bit group in which its tick differs from the wheel's, so everything on a
//! lower level comes before everything on a higher one, and a slot's start is reached before any of its timers.

use base::{Duration, Instant};

const LEVELS: usize = 8;
const SLOTS: usize = 64;
const NIL: u32 = u32::MAX;
const TICK_NS: u64 = 1_000_000;
/// Ticks of 48 bits: 8,900 years.
const TICK_MAX: u64 = (1 << (6 * LEVELS)) - 1;

/// Identifies a timer; invalid once the timer has expired or was cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimerId {
    index: u32,
    generation: u32,
}

#[derive(Debug)]
struct Node<T> {
    tick: u64,
    previous: u32,
    next: u32,
    generation: u32,
    /// `level * SLOTS + slot`, so that cancelling finds the list's head.
    list: u16,
    payload: Option<T>,
}

/// A set of timers, each with a value of type `T`.
#[derive(Debug)]
pub struct Wheel<T> {
    nodes: Vec<Node<T>>,
    free: u32,
    heads: Box<[u32; LEVELS * SLOTS]>,
    occupied: [u64; LEVELS],
    tick: u64,
    len: usize,
}

impl<T> Wheel<T> {
    /// An empty wheel at `now` with room for `capacity` timers before it allocates.
    #[must_use]
    pub fn new(now: Instant, capacity: usize) -> Self {
        Self {
            nodes: Vec::with_capacity(capacity),
            free: NIL,
            heads: Box::new([NIL; LEVELS * SLOTS]),
            occupied: [0; LEVELS],
            tick: now.as_ns() / TICK_NS,
            len: 0,
        }
    }

    /// Number of timers that are set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when no timer is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets a timer: it expires at `deadline` or up to a millisecond later, never earlier.
    pub fn set(&mut self, deadline: Instant, payload: T) -> TimerId {
        let tick = deadline.as_ns().div_ceil(TICK_NS).clamp(self.tick, TICK_MAX);
        let index = self.take_node(tick, payload);
        self.link(index);
        self.len += 1;
        TimerId { index, generation: self.nodes[index as usize].generation }
    }

    /// Cancels a timer and returns its value; `None` when it has expired or was cancelled before.
    pub fn cancel(&mut self, id: TimerId) -> Option<T> {
        let node = self.nodes.get(id.index as usize)?;
        if node.generation != id.generation || node.payload.is_none() {
            return None;
        }
        self.unlink(id.index);
        self.release(id.index)
    }

    /// The value of the next timer that is due at `now`. Call until `None`.
    pub fn pop_due(&mut self, now: Instant) -> Option<T> {
        let now_tick = now.as_ns() / TICK_NS;
        loop {
            let Some((level, slot, start)) = self.next_slot() else {
                self.tick = self.tick.max(now_tick);
                return None;
            };
            if start > now_tick {
                // All timers are later than `now`. Do not move the wheel's tick past the next slot: levels are relative to the tick, so
                // they would have to be computed again.
                return None;
            }
            self.tick = self.tick.max(start);
            let index = self.heads[level * SLOTS + slot];
            if level == 0 {
                self.unlink(index);
                return self.release(index);
            }
            self.cascade(level, slot);
        }
    }

    /// The timer that will be popped next with the same tick as the last, if there is one; prefetches the timer behind it.
    #[must_use]
    pub fn next_at_once(&self) -> Option<&T> {
        let index = self.heads[self.tick as usize % SLOTS];
        let node = self.nodes.get(index as usize).filter(|node| node.tick == self.tick)?;
        self.nodes.get(node.next as usize).inspect(|node| flow::prefetch(*node));
        node.payload.as_ref()
    }

    /// When to call [`pop_due`](Self::pop_due) next: at the time of the first timer, or earlier.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        match self.next_slot() {
            Some((_, _, start)) => Instant::ZERO.plus(Duration::from_ns(start.saturating_mul(TICK_NS))),
            None => Instant::NEVER,
        }
    }

    /// Level, slot and start tick of the first occupied slot.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        let level = self.occupied.iter().position(|&bits| bits != 0)?;
        let slot = self.occupied[level].trailing_zeros() as usize;
        let shift = 6 * level;
        let start = (self.tick >> (shift + 6) << (shift + 6)) | (slot as u64) << shift;
        Some((level, slot, start))
    }

    fn cascade(&mut self, level: usize, slot: usize) {
        let mut index = std::mem::replace(&mut self.heads[level * SLOTS + slot], NIL);
        self.occupied[level] &= !(1 << slot);
        while index != NIL {
            let next = self.nodes[index as usize].next;
            self.link(index);
            index = next;
        }
    }

    fn link(&mut self, index: u32) {
        let tick = self.nodes[index as usize].tick;
        let differing = 64 - ((tick ^ self.tick) | 1).leading_zeros() as usize;
        let level = (differing - 1) / 6;
        let slot = (tick >> (6 * level)) as usize % SLOTS;
        let list = level * SLOTS + slot;
        let head = self.heads[list];
        if head != NIL {
            self.nodes[head as usize].previous = index;
        }
        let node = &mut self.nodes[index as usize];
        (node.previous, node.next, node.list) = (NIL, head, list as u16);
        self.heads[list] = index;
        self.occupied[level] |= 1 << slot;
    }

    fn unlink(&mut self, index: u32) {
        let Node { previous, next, list, .. } = self.nodes[index as usize];
        let list = usize::from(list);
        if previous == NIL {
            self.heads[list] = next;
            if next == NIL {
                self.occupied[list / SLOTS] &= !(1 << (list % SLOTS));
            }
        } else {
            self.nodes[previous as usize].next = next;
        }
        if next != NIL {
            self.nodes[next as usize].previous = previous;
        }
    }

    fn take_node(&mut self, tick: u64, payload: T) -> u32 {
        if self.free == NIL {
            let node =
                Node { tick, previous: NIL, next: NIL, generation: 0, list: 0, payload: Some(payload) };
            self.nodes.push(node);
            return (self.nodes.len() - 1) as u32;
        }
        let index = self.free;
        let node = &mut self.nodes[index as usize];
        self.free = node.next;
        (node.tick, node.payload) = (tick, Some(payload));
        index
    }

    fn release(&mut self, index: u32) -> Option<T> {
        let node = &mut self.nodes[index as usize];
        node.generation = node.generation.wrapping_add(1);
        node.next = self.free;
        self.free = index;
        self.len -= 1;
        node.payload.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * TICK_NS)
    }

    #[test]
    fn goes_off_once_and_never_early() {
        let mut wheel = Wheel::new(at(5), 4);
        wheel.set(Instant::from_ns(7 * TICK_NS + 1), 'a');
        assert_eq!(wheel.next_deadline(), at(8));
        assert_eq!(wheel.pop_due(at(7)), None);
        assert_eq!(wheel.pop_due(at(8)), Some('a'));
        assert_eq!(wheel.pop_due(at(9)), None);
        assert!(wheel.is_empty() && wheel.next_deadline() == Instant::NEVER);
    }

    #[test]
    fn a_stale_name_cancels_nothing() {
        let mut wheel = Wheel::new(at(0), 4);
        let first = wheel.set(at(3), 1);
        assert_eq!(wheel.cancel(first), Some(1));
        let second = wheel.set(at(3), 2);
        assert_eq!(wheel.cancel(first), None);
        assert_eq!(wheel.cancel(second), Some(2));
    }

    #[test]
    fn never_is_later_than_everything() {
        let mut wheel = Wheel::new(at(0), 4);
        wheel.set(Instant::NEVER, 'n');
        wheel.set(at(1 << 40), 'y');
        assert_eq!(wheel.pop_due(at(1 << 41)), Some('y'));
        assert_eq!(wheel.pop_due(at(1 << 42)), None);
    }

    proptest! {
        /// Oracle: a sorted list.
        #[test]
        fn agrees_with_a_sorted_list(
            start in 0u64..10_000_000,
            steps in proptest::collection::vec((0u8..4, 0u64..30_000_000, 0usize..64), 1..200),
        ) {
            let mut wheel = Wheel::new(at(start), 0);
            let (mut now, mut set, mut number) = (start, Vec::new(), 0u32);
            for (kind, amount, pick) in steps {
                match kind {
                    0 | 1 => {
                        let deadline = now + amount % [70, 5_000, 400_000, 30_000_000][pick % 4];
                        set.push((deadline, number, wheel.set(at(deadline), number)));
                        number += 1;
                    }
                    2 if !set.is_empty() => {
                        let (_, payload, id) = set.swap_remove(pick % set.len());
                        prop_assert_eq!(wheel.cancel(id), Some(payload));
                    }
                    _ => {
                        now += amount % [3, 100, 9_000, 1_000_000][pick % 4];
                        let mut announced = None;
                        let mut due: Vec<u32> = std::iter::from_fn(|| {
                            let popped = wheel.pop_due(at(now));
                            assert!(announced.is_none() || announced == popped);
                            announced = popped.and(wheel.next_at_once().copied());
                            popped
                        })
                        .collect();
                        let mut expected: Vec<u32> =
                            set.iter().filter(|t| t.0 <= now).map(|t| t.1).collect();
                        set.retain(|t| t.0 > now);
                        due.sort_unstable();
                        expected.sort_unstable();
                        prop_assert_eq!(due, expected);
                    }
                }
                prop_assert_eq!(wheel.len(), set.len());
                let first = set.iter().map(|t| at(t.0)).min().unwrap_or(Instant::NEVER);
                prop_assert!(wheel.next_deadline() <= first);
            }
        }
    }
}
