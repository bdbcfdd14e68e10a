//! How many words of a long row are full from its beginning, so that a search for a gap need not begin at the first word. Other threads set
//! and clear bits meanwhile, and no thread waits for another.
//!
//! ```text
//!   word:  changes (32 bits) | words at the beginning without a gap (32 bits)
//! ```
//! A thread that clears a bit says so afterwards. A thread that has found a gap notes how far it was, unless a bit was cleared since its
//! search began.

use crate::fd::atomic::{AtomicU64, Ordering};

const CHANGE: u64 = 1 << 32;

/// A hint where the first gap is: see the module.
#[derive(Debug)]
pub struct Filled(AtomicU64);

/// The hint when a search began.
#[derive(Debug, Clone, Copy)]
pub struct Walk(u64);

impl Walk {
    /// The first word to look at.
    pub const fn begin(self) -> usize {
        (self.0 % CHANGE) as usize
    }
}

impl Filled {
    /// No word is full.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Begins to look for a gap. Read the words after this.
    pub fn walk(&self) -> Walk {
        // Acquire: pairs with the Release in `opened`, so that bits cleared before are seen.
        Walk(self.0.load(Ordering::Acquire))
    }

    /// The search `walk` has found its first gap in word `i`.
    pub fn gap(&self, walk: Walk, i: usize) {
        if i > walk.begin() {
            let more = walk.0 & !(CHANGE - 1) | i as u64;
            // This fails if a bit was cleared meanwhile: that thread's hint stands.
            let _ = self.0.compare_exchange(walk.0, more, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// A bit of word `i` was cleared.
    pub fn opened(&self, i: usize) {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let filled = (seen % CHANGE).min(i as u64);
            let less = (seen & !(CHANGE - 1)).wrapping_add(CHANGE) | filled;
            // Release: pairs with the Acquire in `walk`.
            match self.0.compare_exchange_weak(seen, less, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_walk_begins_where_the_last_one_found_a_gap_or_before_what_was_cleared() {
        let filled = Filled::new();
        filled.gap(filled.walk(), 7);
        assert_eq!(filled.walk().begin(), 7);
        let walk = filled.walk();
        filled.opened(3);
        filled.gap(walk, 9);
        assert_eq!(filled.walk().begin(), 3);
        filled.opened(5);
        assert_eq!(filled.walk().begin(), 3);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Two words, of one bit each, both filled: a walk finds its gap behind them. Meanwhile one bit is cleared.
    #[test]
    fn loom_a_cleared_bit_is_never_walked_past() {
        loom::model(|| {
            let all = Arc::new((Filled(AtomicU64::new(0)), [AtomicU64::new(1), AtomicU64::new(1)]));
            let others = all.clone();
            let clearing = thread::spawn(move || {
                let (filled, words) = &*others;
                words[0].store(0, Ordering::Relaxed);
                filled.opened(0);
            });
            let (filled, words) = &*all;
            let look = || {
                let walk = filled.walk();
                let gap = (walk.begin()..2).find(|i| words[*i].load(Ordering::Relaxed) == 0).unwrap_or(2);
                filled.gap(walk, gap);
            };
            look();
            look();
            clearing.join().unwrap();
            assert_eq!(filled.walk().begin(), 0);
        });
    }
}
