//! Probabilities as exact numbers.

use base::Seed;

/// Parts of the probability 1.
const WHOLE: u32 = 1_000_000_000;

/// A probability in parts per billion: fine enough for the bit error rates of links, and exact in its text form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Probability(u32);

impl Probability {
    /// The probability 0: never.
    pub const NEVER: Self = Self(0);
    /// The probability 1: always.
    pub const ALWAYS: Self = Self(WHOLE);

    /// The probability `parts / 1,000,000,000`, at most 1.
    #[must_use]
    pub const fn per_billion(parts: u32) -> Self {
        Self(if parts < WHOLE { parts } else { WHOLE })
    }

    /// The probability `parts / 1,000,000`, at most 1.
    #[must_use]
    pub const fn per_million(parts: u32) -> Self {
        Self::per_billion(parts.saturating_mul(1_000))
    }

    /// The probability `percent / 100`, at most 1.
    #[must_use]
    pub const fn percent(percent: u32) -> Self {
        Self::per_billion(percent.saturating_mul(WHOLE / 100))
    }

    /// The probability in parts per billion.
    #[must_use]
    pub const fn parts(self) -> u32 {
        self.0
    }

    /// True if the probability is 0.
    #[must_use]
    #[inline]
    pub const fn is_never(self) -> bool {
        self.0 == 0
    }

    /// Draws whether the event happens this time. A probability of 0 takes no number from the sequence.
    #[inline]
    pub(crate) const fn strikes(self, seed: &mut Seed) -> bool {
        self.0 > 0 && seed.below(WHOLE as u64) < self.0 as u64
    }
}
