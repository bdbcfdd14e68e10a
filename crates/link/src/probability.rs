//! How often something happens.

use base::Seed;

/// The whole of a probability.
const WHOLE: u32 = 1_000_000_000;

/// A probability in parts per billion: fine enough for the bit error rates of links, and exact in its text form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Probability(u32);

impl Probability {
    /// Never.
    pub const NEVER: Self = Self(0);
    /// Always.
    pub const ALWAYS: Self = Self(WHOLE);

    /// `parts / 1,000,000,000`; more than all is all.
    #[must_use]
    pub const fn per_billion(parts: u32) -> Self {
        Self(if parts < WHOLE { parts } else { WHOLE })
    }

    /// `parts / 1,000,000`; more than all is all.
    #[must_use]
    pub const fn per_million(parts: u32) -> Self {
        Self::per_billion(parts.saturating_mul(1_000))
    }

    /// `percent / 100`; more than all is all.
    #[must_use]
    pub const fn percent(percent: u32) -> Self {
        Self::per_billion(percent.saturating_mul(WHOLE / 100))
    }

    /// In parts per billion.
    #[must_use]
    pub const fn parts(self) -> u32 {
        self.0
    }

    /// True when it cannot happen.
    #[must_use]
    #[inline]
    pub const fn is_never(self) -> bool {
        self.0 == 0
    }

    /// Whether it happens this time. A probability of zero draws nothing from the sequence.
    #[inline]
    pub(crate) const fn strikes(self, seed: &mut Seed) -> bool {
        self.0 > 0 && seed.below(WHOLE as u64) < self.0 as u64
    }
}
