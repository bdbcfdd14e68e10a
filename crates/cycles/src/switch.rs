//! The switch word that turns counting on and off for the threads of all processes that can read it.

use crate::clock::Ticks;

/// The switch's value.
///
/// ```text
///   0 off, else   window 0..16 | generation 16..31 | 31: nanoseconds instead of cycles
/// ```
/// A new generation starts counting from zero. A window is a time span in which counting is on. Between two windows of the same
/// generation counting is off, and the counts of its windows add up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Switch(u32);

const NANOSECONDS: u32 = 1 << 31;
const GENERATION: u32 = 0x7FFF;

impl Switch {
    /// The value with which nothing is counted.
    pub const OFF: Self = Self(0);

    /// Counting is on, in `window` of `generation`; the generation is never 0.
    #[must_use]
    pub const fn on(generation: u16, window: u16, ticks: Ticks) -> Self {
        let unit = if matches!(ticks, Ticks::Tsc) { 0 } else { NANOSECONDS };
        Self(unit | (Self::next(generation.wrapping_sub(1)) as u32) << 16 | window as u32)
    }

    /// The generation after `generation`; 0 is skipped.
    #[must_use]
    pub const fn next(generation: u16) -> u16 {
        if generation as u32 >= GENERATION { 1 } else { generation + 1 }
    }

    /// The switch of a stored word; every word is valid.
    #[must_use]
    #[inline]
    pub const fn from_word(word: u32) -> Self {
        Self(word)
    }

    /// The word to store.
    #[must_use]
    #[inline]
    pub const fn word(self) -> u32 {
        self.0
    }

    /// True when counting is on.
    #[must_use]
    #[inline]
    pub const fn is_on(self) -> bool {
        self.0 != 0
    }

    /// Generation of the counting; counts of another generation are void.
    #[must_use]
    #[inline]
    pub const fn generation(self) -> u32 {
        self.0 >> 16 & GENERATION
    }

    /// The unit in which time is counted.
    #[must_use]
    #[inline]
    pub const fn ticks(self) -> Ticks {
        if self.0 & NANOSECONDS == 0 { Ticks::Tsc } else { Ticks::Nanoseconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_was_put_in_and_is_never_off() {
        for generation in [1, 2, 0x7FFF] {
            for window in [0, 1, u16::MAX] {
                for ticks in [Ticks::Tsc, Ticks::Nanoseconds] {
                    let switch = Switch::from_word(Switch::on(generation, window, ticks).word());
                    assert!(switch.is_on());
                    assert_eq!((switch.generation(), switch.ticks()), (u32::from(generation), ticks));
                }
            }
        }
        assert!(!Switch::OFF.is_on());
        assert_eq!([Switch::next(0), Switch::next(1), Switch::next(0x7FFF)], [1, 2, 1]);
    }
}
