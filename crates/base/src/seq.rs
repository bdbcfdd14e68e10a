//! TCP sequence numbers: arithmetic modulo 2^32 (RFC 9293 section 3.4).
//!
//! There is no `Ord` (a circle has none) and no panicking `-`.

/// A 32-bit TCP sequence or acknowledgement number.
///
/// ```text
///        a.is_before(b)  <=>  0 < b - a (mod 2^32) < 2^31
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[repr(transparent)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// `self + n` modulo 2^32.
    #[must_use]
    #[inline]
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }

    /// `self - n` modulo 2^32.
    #[must_use]
    #[inline]
    pub const fn minus(self, n: u32) -> Self {
        Self(self.0.wrapping_sub(n))
    }

    /// How far `self` lies after `earlier`, modulo 2^32. Meaningful when `earlier` is not after `self`.
    #[must_use]
    #[inline]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// True when `self` is strictly before `other` on the circle.
    #[must_use]
    #[inline]
    pub const fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// True when `self` is `other` or before it.
    #[must_use]
    #[inline]
    pub const fn is_at_or_before(self, other: Self) -> bool {
        !other.is_before(self)
    }

    /// True when `self` lies in the half-open window `[start, start + len)`.
    #[must_use]
    #[inline]
    pub const fn is_within(self, start: Self, len: u32) -> bool {
        self.0.wrapping_sub(start.0) < len
    }

    /// The later of two numbers less than 2^31 apart.
    #[must_use]
    #[inline]
    pub const fn later_of(self, other: Self) -> Self {
        if self.is_before(other) { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::SeqNumber as S;

    #[test]
    fn comparison_wraps_around_zero() {
        let before = S(u32::MAX - 1);
        let after = S(3);
        assert!(before.is_before(after));
        assert!(!after.is_before(before));
        assert_eq!(after.since(before), 5);
        assert!(after.is_within(before, 6));
        assert!(!after.is_within(before, 5));
        assert_eq!(before.later_of(after), after);
        assert!(before.is_at_or_before(before));
    }
}
