//! The ring that was given back last, before the pool: requests and replies lend the same one again and again, one at a time.
//!
//! ```text
//!   word:  generation of the process (24 bits) | packed ring (40 bits)          0: none
//! ```
//! Whoever takes the word away has the ring. A forked child finds its parent's word, which is of another generation: none.

use crate::atomic::{AtomicU64, Ordering, exchange};
use crate::fork;
use queue::Ring;
use queue::pages::class_of;

const GENERATION_SHIFT: u32 = 40;
/// Longer rings would be missed elsewhere, as in the pool.
const CLASS_MAX: usize = 4;

/// See the module.
#[derive(Debug)]
pub struct Warm(AtomicU64);

impl Default for Warm {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

/// A ring of this process's.
fn word(ring: Ring) -> u64 {
    ring.packed() | u64::from(fork::generation()) << GENERATION_SHIFT
}

/// The ring, if it is this process's.
fn ring(word: u64) -> Option<Ring> {
    let packed = word & ((1 << GENERATION_SHIFT) - 1);
    let ours = u64::from(fork::generation()) << GENERATION_SHIFT;
    (packed != 0 && word - packed == ours).then(|| Ring::unpacked(packed))
}

impl Warm {
    /// Takes it, if it is of `class`.
    #[inline]
    pub fn take(&self, class: usize) -> Option<Ring> {
        let seen = self.0.load(Ordering::Relaxed);
        let ring = ring(seen).filter(|ring| class_of(ring.size() as usize) == class)?;
        // Acquire: pairs with the Release in `keep`: the last use of the bytes before the next.
        exchange(&self.0, seen, 0, Ordering::Acquire).ok().map(|_| ring)
    }

    /// Keeps `own`. False: there is one already, or it is too long.
    #[inline]
    pub fn keep(&self, own: Ring) -> bool {
        let seen = self.0.load(Ordering::Relaxed);
        let is_taken = ring(seen).is_some() || class_of(own.size() as usize) > CLASS_MAX;
        !is_taken && exchange(&self.0, seen, word(own), Ordering::Release).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_ring_is_kept_and_taken_by_who_asks_for_its_class() {
        let warm = Warm::default();
        let (short, long) = (Ring::new(8192, 12), Ring::new(1 << 20, 17));
        assert!(warm.take(0).is_none() && !warm.keep(long));
        assert!(warm.keep(short) && !warm.keep(Ring::new(4096, 12)));
        assert_eq!((warm.take(1), warm.take(0), warm.take(0)), (None, Some(short), None));
    }

    #[test]
    fn a_parents_ring_is_none_of_its_childs() {
        let ring = Ring::new(8192, 12);
        let warm = Warm(AtomicU64::new(word(ring).wrapping_add(1 << GENERATION_SHIFT)));
        assert!(warm.take(0).is_none());
        assert!(warm.keep(ring));
        assert_eq!(warm.take(0), Some(ring));
    }
}
