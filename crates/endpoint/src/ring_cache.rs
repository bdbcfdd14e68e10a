//! A cache of one ring in front of the pool: the ring given back last. Requests and replies lend the same ring again and again.
//!
//! ```text
//!   word:  generation of the process (24 bits) | packed ring (40 bits)          0: none
//! ```
//! The thread that clears the word by compare-and-swap owns the ring. In a forked child the parent's word has another generation: no ring.

use crate::host::Host;
use queue::Ring;
use queue::pages::class_of;
use shm::alone::{AtomicU64, Ordering, SingleThreaded, exchange};

const GENERATION_SHIFT: u32 = 40;
/// Largest size class that is kept: a longer ring would be missing elsewhere, as in the pool.
const CLASS_MAX: usize = 4;

/// The cached ring: the word drawn in the module's documentation.
#[derive(Debug)]
pub struct Warm(AtomicU64);

impl Default for Warm {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

/// The word for a ring of this process.
fn word(generation: u32, ring: Ring) -> u64 {
    ring.packed() | u64::from(generation) << GENERATION_SHIFT
}

/// The ring in a word, if it was stored by this process and not by its parent.
fn ring(generation: u32, word: u64) -> Option<Ring> {
    let packed = word & ((1 << GENERATION_SHIFT) - 1);
    let ours = u64::from(generation) << GENERATION_SHIFT;
    (packed != 0 && word - packed == ours).then(|| Ring::unpacked(packed))
}

impl Warm {
    /// Takes the ring, if it is of size class `class`.
    #[inline]
    pub fn take(&self, host: &Host, class: usize) -> Option<Ring> {
        let seen = self.0.load(Ordering::Relaxed);
        let ring = ring(host.generation(), seen).filter(|ring| class_of(ring.size() as usize) == class)?;
        // Acquire: pairs with the Release in `keep`, so that the last use of the bytes comes before the next.
        exchange(&host.threads, &self.0, seen, 0, Ordering::Acquire).ok().map(|_| ring)
    }

    /// Keeps `own`, in a process of that generation. False: a ring is kept already, or `own` is too long.
    #[inline]
    pub fn keep(&self, generation: u32, threads: &SingleThreaded, own: Ring) -> bool {
        let seen = self.0.load(Ordering::Relaxed);
        let is_taken = ring(generation, seen).is_some() || class_of(own.size() as usize) > CLASS_MAX;
        !is_taken && exchange(threads, &self.0, seen, word(generation, own), Ordering::Release).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Solitary;

    static HOST: Host = Host::new(&Solitary);

    #[test]
    fn one_ring_is_kept_and_taken_by_who_asks_for_its_class() {
        let warm = Warm::default();
        let (short, long) = (Ring::new(8192, 12), Ring::new(1 << 20, 17));
        assert!(warm.take(&HOST, 0).is_none() && !warm.keep(0, &HOST.threads, long));
        assert!(warm.keep(0, &HOST.threads, short) && !warm.keep(0, &HOST.threads, Ring::new(4096, 12)));
        assert_eq!(
            (warm.take(&HOST, 1), warm.take(&HOST, 0), warm.take(&HOST, 0)),
            (None, Some(short), None)
        );
    }

    #[test]
    fn a_parents_ring_is_none_of_its_childs() {
        let ring = Ring::new(8192, 12);
        let warm = Warm(AtomicU64::new(word(0, ring).wrapping_add(1 << GENERATION_SHIFT)));
        assert!(warm.take(&HOST, 0).is_none());
        assert!(warm.keep(0, &HOST.threads, ring));
        assert_eq!(warm.take(&HOST, 0), Some(ring));
    }
}
