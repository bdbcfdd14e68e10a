//! A ring: a power-of-two part of a data area, indexed by absolute stream position.

use base::limits::{RING_MAX, RING_MIN};

/// A value of the other side that breaks the rules. That side is detached; the text is the reason in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A ring descriptor lies outside the data area or has a forbidden size.
    Ring(u64),
    /// A position moved by more than the ring holds, or went backwards.
    Position {
        /// The position last known to be good.
        known: u64,
        /// The position that was found.
        found: u64,
    },
    /// No ring covers this position although bytes are published there.
    NoRing(u64),
}

impl core::fmt::Display for Violation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Ring(v) => write!(f, "ring descriptor {v:#x} is outside its data area"),
            Self::Position { known, found } => write!(f, "position {found} is impossible after {known}"),
            Self::NoRing(p) => write!(f, "bytes announced at {p} lie in no ring"),
        }
    }
}

/// A ring of `1 << log2` bytes at `offset` of its owner's data area.
///
/// ```text
/// packed u64:  0..32 offset / 4096 | 32..40 log2(size) | rest 0         0 = no ring
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ring {
    offset: u64,
    log2: u8,
}

/// Two consecutive pieces of a data area, `(offset, length)`; the second is empty unless the range wraps.
pub type Spans = [(usize, usize); 2];

impl Ring {
    /// A ring of our own; `offset` a multiple of 4096, size a power of two within the limits.
    #[must_use]
    pub const fn new(offset: u64, log2: u8) -> Self {
        assert!(offset.is_multiple_of(RING_MIN as u64) && offset / RING_MIN as u64 <= u32::MAX as u64);
        assert!(log2 >= RING_MIN.trailing_zeros() as u8 && log2 <= RING_MAX.trailing_zeros() as u8);
        Self { offset, log2 }
    }

    /// Checks a descriptor that came from the other side against its data area of `data_len` bytes.
    #[inline]
    pub const fn parse(packed: u64, data_len: u64) -> Result<Self, Violation> {
        let log2 = (packed >> 32) as u8;
        let offset = (packed as u32 as u64) * RING_MIN as u64;
        let size_ok = log2 >= RING_MIN.trailing_zeros() as u8 && log2 <= RING_MAX.trailing_zeros() as u8;
        if !(packed >> 40 == 0 && size_ok) {
            return Err(Violation::Ring(packed));
        }
        let size = 1u64 << log2;
        if offset <= data_len && size <= data_len - offset {
            Ok(Self { offset, log2 })
        } else {
            Err(Violation::Ring(packed))
        }
    }

    /// The inverse of [`packed`](Self::packed), unchecked: only for a word that this process has packed and kept in its own memory.
    #[must_use]
    #[inline]
    pub const fn unpacked(word: u64) -> Self {
        Self { offset: (word as u32 as u64) * RING_MIN as u64, log2: (word >> 32) as u8 }
    }

    /// Offset of the byte at `position` if `packed` is a ring of an area of `data_len` bytes. Only for prefetching: nothing is checked
    /// except that the offset lies inside the area.
    #[must_use]
    #[inline]
    pub const fn hint(packed: u64, position: u64, data_len: u64) -> Option<usize> {
        let ring = Self::unpacked(packed);
        let at = ring.offset + (position & (ring.size() - 1));
        if at < data_len { Some(at as usize) } else { None }
    }

    /// The ring as one word; never 0.
    #[must_use]
    #[inline]
    pub const fn packed(self) -> u64 {
        (self.offset / RING_MIN as u64) | ((self.log2 as u64) << 32)
    }

    /// Size of the ring in bytes.
    #[must_use]
    #[inline]
    pub const fn size(self) -> u64 {
        1u64.wrapping_shl(self.log2 as u32)
    }

    /// Offset of the ring in the data area, bytes.
    #[must_use]
    #[inline]
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// Number of pages that it covers.
    #[must_use]
    pub const fn pages(self) -> usize {
        (self.size() / RING_MIN as u64) as usize
    }

    /// The pieces of the `len` bytes from `position` on. `len` must not exceed the size.
    #[must_use]
    #[inline]
    pub fn spans(self, position: u64, len: usize) -> Spans {
        debug_assert!(len as u64 <= self.size());
        let at = (position & (self.size() - 1)) as usize;
        let first = len.min(self.size() as usize - at);
        [(self.offset as usize + at, first), (self.offset as usize, len - first)]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_word_parses_to_a_ring_inside_the_area_or_not_at_all(word: u64, mib in 1u64..64) {
            let len = mib << 20;
            let position = word.rotate_left(29);
            prop_assert!(Ring::hint(word, position, len).is_none_or(|at| (at as u64) < len));
            if let Ok(r) = Ring::parse(word, len) {
                prop_assert!(r.offset() + r.size() <= len);
                prop_assert_eq!(r.packed(), word);
                for (o, n) in r.spans(word.rotate_left(17), 4096) {
                    prop_assert!((o + n) as u64 <= len);
                }
                prop_assert_eq!(Ring::hint(word, position, len), Some(r.spans(position, 1)[0].0));
            }
        }
    }

    #[test]
    fn spans_wrap_at_the_end() {
        let r = Ring::new(8192, 12);
        assert_eq!(r.spans(4090, 10), [(8192 + 4090, 6), (8192, 4)]);
        assert_eq!(r.spans(4096, 10), [(8192, 10), (8192, 0)]);
    }
}
