//! Bytes of one stream that have arrived ahead of the next one: sorted intervals that do not touch, at most [`INTERVALS_MAX`].

use crate::limits::INTERVALS_MAX;

/// Positions `[start, end)`, not empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Interval {
    start: u64,
    end: u64,
}

/// The set; its memory is kept when it is emptied, so that a stream allocates only while the number of its intervals rises to a new height.
#[derive(Clone, Debug, Default)]
pub struct Intervals {
    list: Vec<Interval>,
}

impl Intervals {
    /// Adds `[start, end)`. False: the set would have too many intervals, and stays as it was.
    #[must_use]
    pub fn insert(&mut self, start: u64, end: u64) -> bool {
        debug_assert!(start < end);
        // All that touch the new interval lie between these two places.
        let first = self.list.partition_point(|known| known.end < start);
        let last = self.list.partition_point(|known| known.start <= end);
        if first == last {
            if self.list.len() == INTERVALS_MAX {
                return false;
            }
            self.list.insert(first, Interval { start, end });
            return true;
        }
        let merged =
            Interval { start: start.min(self.list[first].start), end: end.max(self.list[last - 1].end) };
        self.list[first] = merged;
        self.list.drain(first + 1..last);
        true
    }

    /// Removes what lies before `next` or continues it. Returns the next position that has not arrived.
    #[must_use]
    pub fn advance(&mut self, next: u64) -> u64 {
        let over = self.list.partition_point(|known| known.start <= next);
        let end = self.list[..over].last().map_or(next, |known| known.end.max(next));
        self.list.drain(..over);
        end
    }

    /// One after the last byte that has arrived; `None` when the set is empty.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.list.last().map(|known| known.end)
    }

    /// Number of intervals, at most [`INTERVALS_MAX`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// True when nothing has arrived ahead.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Forgets all intervals and keeps their memory.
    pub fn clear(&mut self) {
        self.list.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_set_is_that_of_its_bytes(steps in proptest::collection::vec((0u64..200, 1u64..30, any::<bool>()), 0..120)) {
            let (mut set, mut bytes, mut next) = (Intervals::default(), [false; 240], 0);
            for (start, len, is_advance) in steps {
                if is_advance {
                    next = set.advance(next);
                    prop_assert!(bytes[..next as usize].iter().all(|has| *has));
                    prop_assert!(!bytes[next as usize]);
                } else if start > next && set.insert(start, start + len) {
                    bytes[start as usize..(start + len) as usize].fill(true);
                } else if start == next {
                    bytes[start as usize..(start + len) as usize].fill(true);
                    next = set.advance(start + len);
                }
                let edges = (next as usize..239).filter(|at| !bytes[*at] && bytes[at + 1]).count();
                prop_assert_eq!(set.len(), edges, "as many intervals as beginnings beyond {}", next);
            }
        }
    }

    #[test]
    fn beyond_the_bound_only_what_joins_is_taken() {
        let mut set = Intervals::default();
        assert!((0..INTERVALS_MAX as u64).all(|i| set.insert(10 * i + 10, 10 * i + 15)));
        assert!(!set.insert(5_000, 5_001));
        assert_eq!((set.len(), set.end()), (INTERVALS_MAX, Some(645)));
        assert!(set.insert(15, 20), "joins two");
        assert!(set.insert(5_000, 5_001));
        assert_eq!(set.advance(10), 25);
    }
}
