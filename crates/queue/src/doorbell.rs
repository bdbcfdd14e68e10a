//! Doorbells: which slots have news for a context, and whether its consumer sleeps.
//!
//! A context's doorbell is a table of bits, one per slot, and a flag that says that its consumer sleeps. Any number of
//! producers (threads, forked processes, hostile peers) may ring at once, any of them may be killed at any instant, and
//! no amount of ringing overflows anything: this is why it is a bit table and not a queue of events. One bit stands for
//! any number of changes of one slot: one event per flow and batch by construction.
//!
//! ```text
//!   producer                              consumer
//!   publish tx_head                       sleeping := 1          (prepare_sleep)
//!   word |= bit        (RMW)              top != 0 ?  -> sleeping := 0, drain
//!   top  |= group bit  (RMW if clear)     else block on the eventfd
//!   sleeping == 1 ? -> swap 0, write the eventfd
//! ```

use crate::Ordering::{Relaxed, SeqCst};
use crate::fence;
use shm::ContextBlock;
#[cfg(not(loom))]
use shm::{Region, Side};

/// A full barrier beside a read-modify-write. On x86 the locked instruction is a full barrier already.
#[inline]
pub(crate) fn barrier_beside_rmw() {
    if cfg!(any(loom, not(target_arch = "x86_64"))) {
        fence(SeqCst);
    }
}

/// Whether the ringer must write the consumer's eventfd.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// The consumer was asleep: the ringer must write its eventfd, exactly once.
    Needed,
    /// The consumer is awake, or another ringer wakes it.
    NotNeeded,
}

/// A context's bits and sleep flag.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell<'a> {
    block: &'a ContextBlock,
    words_per_group: usize,
}

impl<'a> Doorbell<'a> {
    /// `words_per_group` is `Layout::words_per_group` of the region that `block` lies in.
    #[must_use]
    #[inline]
    pub const fn new(block: &'a ContextBlock, words_per_group: usize) -> Self {
        Self { block, words_per_group }
    }

    /// The doorbell of context `context` on `side` of `region`. `None`: a region has no context of that number.
    #[cfg(not(loom))]
    #[must_use]
    #[inline]
    pub fn of(region: &'a Region, side: Side, context: u32) -> Option<Self> {
        Some(Self::new(region.context(side, context)?, region.layout().words_per_group))
    }

    /// Producer: slot `slot` has news. `slot` must be less than the region's slots.
    #[inline]
    pub fn ring(self, slot: u32) -> Wake {
        self.ring_many(slot as usize / 64, 1 << (slot % 64))
    }

    /// Producer: as [`ring`](Self::ring) for the slots of `bits`, of which the first is `64 * word`.
    #[inline]
    pub fn ring_many(self, word: usize, bits: u64) -> Wake {
        self.ring_noting(word, bits, || ())
    }

    /// Producer: as [`ring_many`](Self::ring_many). `note` is called before a bit is set, but not if all bits are still set; the consumer
    /// that takes the bits sees what it has stored.
    #[inline]
    pub fn ring_noting(self, word: usize, bits: u64, note: impl FnOnce()) -> Wake {
        // Word before top, top before the load of `sleeping`. The barrier pairs with the fence in `prepare_sleep`: either
        // this ringer sees `sleeping` or the consumer sees the top. A bit already set is not set again: the consumer has yet to take it
        // (top first, words second) and looks at the slot afterwards; the fence in `Sender::publish` keeps the loads
        // here behind the publication.
        if self.block.words[word].load(SeqCst) & bits != bits {
            note();
            self.block.words[word].fetch_or(bits, SeqCst);
        }
        let group = 1u64 << (word / self.words_per_group);
        if self.block.top.load(SeqCst) & group == 0 {
            self.block.top.fetch_or(group, SeqCst);
            barrier_beside_rmw();
        }
        self.wake()
    }

    /// Producer: true when all slots of `bits` have news that the consumer has not taken: it will look at them after this.
    #[must_use]
    #[inline]
    pub fn is_pending(self, word: usize, bits: u64) -> bool {
        self.block.words[word].load(SeqCst) & bits == bits
    }

    /// Producer: wakes the consumer if it sleeps, without news of a slot.
    #[inline]
    pub fn wake(self) -> Wake {
        if self.block.sleeping.load(SeqCst) != 0 && self.block.sleeping.swap(0, SeqCst) != 0 {
            Wake::Needed
        } else {
            Wake::NotNeeded
        }
    }

    /// Consumer: true when some slot may have news. One relaxed load: cheap enough to poll.
    #[must_use]
    #[inline]
    pub fn has_news(self) -> bool {
        self.block.top.load(Relaxed) != 0
    }

    /// Consumer: takes all bits and calls `f` with each slot. Slots at or past `slots` (a hostile producer's) are dropped.
    /// Returns how many were taken.
    #[inline]
    pub fn drain(self, slots: u32, mut f: impl FnMut(u32)) -> usize {
        if !self.has_news() {
            return 0;
        }
        let mut taken = 0;
        let mut top = self.block.top.swap(0, SeqCst);
        while top != 0 {
            let group = top.trailing_zeros() as usize;
            top &= top - 1;
            let first = group * self.words_per_group;
            let words = self.block.words.iter().enumerate().skip(first).take(self.words_per_group);
            for (index, word) in words {
                if word.load(SeqCst) == 0 {
                    continue;
                }
                let mut bits = word.swap(0, SeqCst);
                while bits != 0 {
                    let slot = (index * 64) as u32 + bits.trailing_zeros();
                    bits &= bits - 1;
                    if slot < slots {
                        taken += 1;
                        f(slot);
                    }
                }
            }
        }
        taken
    }

    /// Consumer: takes at most `most` bits, the first ones, and calls `f` with each slot. The others stay set. Slots at or past `slots` (a
    /// hostile producer's) are taken and dropped. Returns how many bits were taken.
    pub fn drain_some(self, slots: u32, most: usize, mut f: impl FnMut(u32)) -> usize {
        let mut taken = 0;
        let mut top = self.block.top.load(SeqCst);
        while top != 0 && taken < most {
            let group = top.trailing_zeros() as usize;
            top &= top - 1;
            // Top first, words second: a bit that is set from now on sets the top again.
            self.block.top.fetch_and(!(1 << group), SeqCst);
            let first = group * self.words_per_group;
            let words = self.block.words.iter().enumerate().skip(first).take(self.words_per_group);
            let mut is_left = false;
            for (index, word) in words {
                let mut bits = 0;
                let mut set = word.load(SeqCst);
                while set != 0 && taken < most {
                    let bit = set & set.wrapping_neg();
                    (bits, set, taken) = (bits | bit, set ^ bit, taken + 1);
                }
                is_left |= set != 0;
                let mut bits = if bits == 0 { 0 } else { word.fetch_and(!bits, SeqCst) & bits };
                while bits != 0 {
                    let slot = (index * 64) as u32 + bits.trailing_zeros();
                    bits &= bits - 1;
                    if slot < slots {
                        f(slot);
                    }
                }
            }
            if is_left {
                self.block.top.fetch_or(1 << group, SeqCst);
            }
        }
        taken
    }

    /// Consumer: announces sleep. True: no bit is set, so block on the eventfd now (every later ring writes it).
    /// False: there is news; the announcement is withdrawn.
    #[must_use]
    #[inline]
    pub fn prepare_sleep(self) -> bool {
        self.block.sleeping.store(1, Relaxed);
        // Pairs with the barrier in `ring`.
        fence(SeqCst);
        if self.block.top.load(SeqCst) == 0 {
            return true;
        }
        self.block.sleeping.store(0, SeqCst);
        false
    }

    /// Consumer: withdraws the announcement of sleep, whatever has woken it.
    #[inline]
    pub fn awake(self) {
        if self.block.sleeping.load(Relaxed) != 0 {
            self.block.sleeping.store(0, Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use shm::{Kind, Params, Region};

    #[test]
    fn a_bounded_look_takes_the_first_bits_and_leaves_the_others_set() {
        const SLOTS: u32 = 8192;
        let params = Params { kind: Kind::Application, id: 1, slots: SLOTS, data_len: 1 << 20 };
        let (region, _fd) = Region::create(params).unwrap();
        let bell = Doorbell::of(&region, Side::Zero, 0).unwrap();
        let rung: Vec<u32> = (0..SLOTS).filter(|slot| slot % 3 == 0).collect();
        for slot in &rung {
            let _ = bell.ring(*slot);
        }
        let mut seen = Vec::new();
        loop {
            let before = seen.len();
            let taken = bell.drain_some(SLOTS, 100, |slot| seen.push(slot));
            assert_eq!((seen.len() - before, taken <= 100), (taken, true));
            assert_eq!(bell.prepare_sleep(), seen.len() == rung.len(), "what is left is news");
            if taken == 0 {
                break;
            }
        }
        assert_eq!(seen, rung);
        for slot in [5, 70] {
            let _ = bell.ring(slot);
        }
        assert_eq!(
            (bell.drain_some(64, 1, |_| ()), bell.drain_some(64, 9, |_| panic!("past the end"))),
            (1, 1)
        );
    }
}
