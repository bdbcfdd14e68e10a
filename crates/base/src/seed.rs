//! Reproducible pseudo-random numbers: the same seed gives the same sequence on every machine.

/// A small deterministic generator (splitmix64, Steele, Lea and Flood 2014).
///
/// For tests, fault injection and jitter. Secrets (hash keys, initial sequence numbers) come from the kernel.
#[derive(Clone, Debug)]
pub struct Seed(u64);

impl Seed {
    /// The generator of the sequence for `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits of the sequence.
    #[inline]
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// The next 32 bits of the sequence.
    #[inline]
    pub const fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// A number in `[0, bound)`; 0 when `bound` is 0.
    #[inline]
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }

    /// True with probability `per_million / 1_000_000`.
    #[inline]
    pub const fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < per_million as u64
    }
}

#[cfg(test)]
mod tests {
    use super::Seed;

    #[test]
    fn same_seed_same_sequence() {
        let (mut a, mut b) = (Seed::new(7), Seed::new(7));
        for _ in 0..100 {
            assert_eq!(a.next_u64(), b.next_u64());
        }
    }

    #[test]
    fn below_stays_below() {
        let mut s = Seed::new(1);
        assert!((0..10_000).all(|_| s.below(10) < 10));
        assert_eq!(s.below(0), 0);
    }
}
