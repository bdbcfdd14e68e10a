//! The word by which counting is turned on and off for threads of any process that can read it.

use crate::clock::Ticks;

/// What the word says.
///
/// ```text
///   0 off, else   window 0..16 | generation 16..31 | 31: nanoseconds instead of cycles
/// ```
/// A generation begins at zero. A window is a span in which is counted: between two of the same generation it is off, and what is
/// counted is added up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Switch(u32);

const NANOSECONDS: u32 = 1 << 31;
const GENERATION: u32 = 0x7FFF;

impl Switch {
    /// Nothing is counted.
    pub const OFF: Self = Self(0);

    /// Counting in `window` of `generation`, which is never 0.
    #[must_use]
    pub const fn on(generation: u16, window: u16, ticks: Ticks) -> Self {
        let unit = if matches!(ticks, Ticks::Tsc) { 0 } else { NANOSECONDS };
        Self(unit | (Self::next(generation.wrapping_sub(1)) as u32) << 16 | window as u32)
    }

    /// The generation after that one.
    #[must_use]
    pub const fn next(generation: u16) -> u16 {
        if generation as u32 >= GENERATION { 1 } else { generation + 1 }
    }

    /// Any word will do.
    #[must_use]
    #[inline]
    pub const fn from_word(word: u32) -> Self {
        Self(word)
    }

    /// As stored.
    #[must_use]
    #[inline]
    pub const fn word(self) -> u32 {
        self.0
    }

    /// Is anything counted?
    #[must_use]
    #[inline]
    pub const fn is_on(self) -> bool {
        self.0 != 0
    }

    /// Counts of another generation are void.
    #[must_use]
    #[inline]
    pub const fn generation(self) -> u32 {
        self.0 >> 16 & GENERATION
    }

    /// With what is counted.
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
