//! Lending rings from one side's data area.
//!
//! A bitmap of pages in shared memory, changed by compare-and-swap, decides which pages are lent. So a process and its forked
//! children lend from the same area, and any of them may die at any instant (its rings stay lent until its family gives
//! them back, or the region goes). In addition each process keeps the rings given back last, last in first out: they are in the cache.

use crate::Ordering::{AcqRel, Acquire, Relaxed};
use crate::Ring;
use base::limits::{RING_MAX, RING_MIN};
#[cfg(not(loom))]
use core::sync::atomic::AtomicU64;
#[cfg(loom)]
use loom::sync::atomic::AtomicU64;

/// Ring sizes: 4 KiB, 8 KiB, ... 256 MiB.
pub const CLASSES: usize = (RING_MAX.trailing_zeros() - RING_MIN.trailing_zeros()) as usize + 1;
const FIRST: u32 = RING_MIN.trailing_zeros();
/// Number of classes of less than 64 pages: their pages are searched within one word of the bitmap.
const SMALL: usize = 6;
/// Most rings of one class that are kept warm; more are returned to the bitmap.
const WARM: usize = 32;

/// The size class that holds `bytes`, clamped to the largest.
#[must_use]
#[inline]
pub fn class_of(bytes: usize) -> usize {
    let log2 = bytes.clamp(RING_MIN as usize, RING_MAX as usize).next_power_of_two().trailing_zeros();
    (log2 - FIRST) as usize
}

/// A process's cache of rings given back to one data area.
#[derive(Debug)]
pub struct Pool {
    warm: [[u64; WARM]; CLASSES],
    count: [u8; CLASSES],
    /// For each class smaller than a word: the word where its next search starts. Pages given back are lent before pages never used, so
    /// that few of the area's pages become present.
    hands: [usize; SMALL],
    /// Free pages at the last count, less and plus what this process has lent and given up since.
    free: usize,
    /// Number of pages that the area had at the last count.
    counted: usize,
    /// Number of answers that [`free`](Self::free) alone may still give, before the pages are counted again.
    answers: u8,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            warm: [[0; WARM]; CLASSES],
            count: [0; CLASSES],
            hands: [0; SMALL],
            free: 0,
            counted: 0,
            answers: 0,
        }
    }
}

/// Attempts at one word of the bitmap that others change meanwhile.
const TRIES: usize = 64;
/// Rings that are refused by one count of the free pages. What other processes give back is seen that late; a count of 1 GiB takes microseconds,
/// and where thousands of connections want longer rings than there are, each send would take one.
const ANSWERS: u8 = 64;

impl Pool {
    /// Lends a ring of `class`. `word(i)` is word `i` of the page bitmap; only pages below `pages` are lent.
    pub fn lend<'a>(
        &mut self,
        class: usize,
        pages: usize,
        word: impl Fn(usize) -> &'a AtomicU64,
    ) -> Option<Ring> {
        self.lend_leaving(class, pages, 0, word)
    }

    /// As [`lend`](Self::lend), unless fewer than `leave` pages would stay free. A warm ring is lent in any case: it takes no free page.
    pub fn lend_leaving<'a>(
        &mut self,
        class: usize,
        pages: usize,
        leave: usize,
        word: impl Fn(usize) -> &'a AtomicU64,
    ) -> Option<Ring> {
        if let Some(n) = self.count[class].checked_sub(1) {
            self.count[class] = n;
            return Some(Ring::new(
                self.warm[class][usize::from(n)] * u64::from(RING_MIN),
                (FIRST as usize + class) as u8,
            ));
        }
        let n = 1usize << class;
        if leave > 0 && !self.has_free(leave + n, pages, &word) {
            return None;
        }
        let first = if class < SMALL {
            self.search_within(class, pages, &word)
        } else {
            Self::search_words(n, pages, &word)
        }?;
        self.free = self.free.saturating_sub(n);
        Some(Ring::new(first as u64 * u64::from(RING_MIN), (FIRST as usize + class) as u8))
    }

    /// True if at least `wanted` pages are free. False may be an answer of the last count.
    fn has_free<'a>(&mut self, wanted: usize, pages: usize, word: &impl Fn(usize) -> &'a AtomicU64) -> bool {
        if self.answers > 0 && self.counted == pages && self.free < wanted {
            self.answers -= 1;
            return false;
        }
        let free = |i| (word(i).load(Relaxed) | beyond(i, pages)).count_zeros() as usize;
        self.free = (0..pages.div_ceil(64)).map(free).sum();
        (self.counted, self.answers) = (pages, ANSWERS);
        self.free >= wanted
    }

    /// The warm ring of the smallest class that will be lent after `n` others.
    #[must_use]
    #[inline]
    pub fn ahead(&self, n: usize) -> Option<Ring> {
        let i = usize::from(self.count[0]).checked_sub(n + 1)?;
        Some(Ring::new(self.warm[0][i] * u64::from(RING_MIN), FIRST as u8))
    }

    /// Takes a ring back, and keeps it warm if it is small.
    #[inline]
    pub fn give_back<'a>(&mut self, ring: Ring, word: impl Fn(usize) -> &'a AtomicU64) {
        let class = class_of(ring.size() as usize);
        let n = usize::from(self.count[class]);
        // Large rings go straight back to the bitmap: a cache holds little of them, and other flows need the pages.
        if n < WARM && class < 5 {
            self.warm[class][n] = ring.offset() / u64::from(RING_MIN);
            self.count[class] += 1;
        } else {
            self.give_up(ring, word);
        }
    }

    /// Takes a ring back and returns it to the bitmap.
    pub fn give_up<'a>(&mut self, ring: Ring, word: impl Fn(usize) -> &'a AtomicU64) {
        let word_of_it = (ring.offset() / u64::from(RING_MIN)) as usize / 64;
        let fit = class_of(ring.size() as usize).saturating_add(1).min(SMALL);
        self.hands[..fit].iter_mut().for_each(|hand| *hand = word_of_it.min(*hand));
        self.free = self.free.saturating_add(ring.pages());
        Self::release(ring, word);
    }

    /// Returns every warm ring to the bitmap.
    pub fn flush<'a>(&mut self, word: impl Fn(usize) -> &'a AtomicU64) {
        for class in 0..CLASSES {
            for i in 0..usize::from(self.count[class]) {
                let ring =
                    Ring::new(self.warm[class][i] * u64::from(RING_MIN), (FIRST as usize + class) as u8);
                Self::release(ring, &word);
            }
        }
        self.count = [0; CLASSES];
        self.answers = 0;
    }

    /// Marks a ring's pages as free in the bitmap.
    pub fn release<'a>(ring: Ring, word: impl Fn(usize) -> &'a AtomicU64) {
        let page = (ring.offset() / u64::from(RING_MIN)) as usize;
        let n = ring.pages();
        if n < 64 {
            // AcqRel: the last use of the bytes precedes the next lender's first.
            word(page / 64).fetch_and(!(mask(n) << (page % 64)), AcqRel);
        } else {
            for w in page / 64..page / 64 + n / 64 {
                word(w).fetch_and(0, AcqRel);
            }
        }
    }

    /// Lends aligned pages inside one word; returns the first page.
    fn search_within<'a>(
        &mut self,
        class: usize,
        pages: usize,
        word: &impl Fn(usize) -> &'a AtomicU64,
    ) -> Option<usize> {
        let n = 1 << class;
        let words = pages.div_ceil(64);
        for step in 0..words {
            let w = (self.hands[class] + step) % words;
            let beyond = beyond(w, pages);
            let mut seen = word(w).load(Relaxed);
            // Bounded: the other side may change the word without end.
            for _ in 0..TRIES {
                let free = (0..64).step_by(n).find(|s| (seen | beyond) & (mask(n) << s) == 0);
                let Some(shift) = free else { break };
                let wanted = seen | (mask(n) << shift);
                match word(w).compare_exchange(seen, wanted, AcqRel, Acquire) {
                    Ok(_) => {
                        self.hands[class] = w;
                        return Some(w * 64 + shift);
                    }
                    Err(now) => seen = now,
                }
            }
        }
        None
    }

    /// Lends `n` pages that are whole words; returns the first page.
    fn search_words<'a>(n: usize, pages: usize, word: &impl Fn(usize) -> &'a AtomicU64) -> Option<usize> {
        let (words, need) = (pages / 64, n / 64);
        let mut w = 0;
        while w + need <= words {
            // Loaded first: a failed exchange takes the line from its other users, too.
            let take = |i| {
                let word = word(w + i);
                word.load(Relaxed) == 0 && word.compare_exchange(0, u64::MAX, AcqRel, Relaxed).is_ok()
            };
            let got = (0..need).take_while(|i| take(*i)).count();
            if got == need {
                return Some(w * 64);
            }
            for i in 0..got {
                word(w + i).fetch_and(0, AcqRel);
            }
            w += got + 1;
        }
        None
    }
}

const fn mask(n: usize) -> u64 {
    (1 << n) - 1
}

/// The bits of word `w` beyond the first `pages` pages.
const fn beyond(w: usize, pages: usize) -> u64 {
    if w == pages / 64 { !mask(pages % 64) } else { 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Oracle: lent rings never overlap and everything given back can be lent again.
        #[test]
        fn rings_never_overlap(ops in proptest::collection::vec((0usize..CLASSES, any::<bool>(), 0usize..64), 1..300)) {
            let words: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
            let (mut pool, mut lent) = (Pool::default(), BTreeMap::new());
            for (class, lend, pick) in ops {
                if lend {
                    if let Some(r) = pool.lend(class, 64 * 64, |i| &words[i]) {
                        prop_assert!(r.offset() + r.size() <= 64 * 64 * 4096);
                        for (&o, x) in &lent {
                            let x: &Ring = x;
                            prop_assert!(r.offset() + r.size() <= o || o + x.size() <= r.offset());
                        }
                        lent.insert(r.offset(), r);
                    }
                } else if let Some(&o) = lent.keys().nth(pick % lent.len().max(1)) {
                    pool.give_back(lent.remove(&o).unwrap(), |i| &words[i]);
                }
            }
            for (_, r) in lent {
                pool.give_back(r, |i| &words[i]);
            }
            pool.flush(|i| &words[i]);
            prop_assert!(words.iter().all(|w| w.load(Relaxed) == 0));
        }
    }

    #[test]
    fn what_is_to_be_left_for_others_is_left() {
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        let mut pool = Pool::default();
        let mut lend = |class, leave| pool.lend_leaving(class, 128, leave, |i| &words[i]);
        assert!(lend(6, 65).is_none());
        assert!(lend(6, 64).is_some());
        assert_eq!((0..).take_while(|_| lend(3, 32).is_some()).count(), 4);
        assert_eq!((0..).take_while(|_| lend(3, 0).is_some()).count(), 4);
    }

    #[test]
    fn one_count_refuses_many_rings_until_this_process_gives_back_or_the_answers_are_used_up() {
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        let mut pool = Pool::default();
        let long = |pool: &mut Pool| pool.lend_leaving(6, 128, 32, |i| &words[i]);
        let other = Pool::default().lend(6, 128, |i| &words[i]).expect("half of the pages");
        assert_eq!(long(&mut pool), None);
        // Another process has given back: this one sees it after so many refusals.
        Pool::release(other, |i| &words[i]);
        assert!((0..ANSWERS).all(|_| long(&mut pool).is_none()));
        let own = long(&mut pool).expect("the pages are counted again");
        assert_eq!(long(&mut pool), None);
        pool.give_up(own, |i| &words[i]);
        assert!(long(&mut pool).is_some(), "what this process has given back is known at once");
    }

    #[test]
    fn a_part_of_a_word_is_lent_too() {
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        let mut pool = Pool::default();
        let mut lend = |class, pages, leave| pool.lend_leaving(class, pages, leave, |i| &words[i]);
        assert!(lend(4, 16, 1).is_none() && lend(5, 16, 0).is_none() && lend(6, 80, 0).is_some());
        assert_eq!(lend(4, 80, 0).map(Ring::offset), Some(64 * 4096));
        assert!(lend(0, 80, 0).is_none());
        assert_eq!(lend(0, 96, 15).map(Ring::offset), Some(80 * 4096));
    }

    #[test]
    fn last_in_first_out() {
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        let mut pool = Pool::default();
        let a = pool.lend(0, 128, |i| &words[i]).unwrap();
        let b = pool.lend(0, 128, |i| &words[i]).unwrap();
        pool.give_back(a, |i| &words[i]);
        pool.give_back(b, |i| &words[i]);
        assert_eq!(pool.lend(0, 128, |i| &words[i]), Some(b));
    }
}
