//! Data that has come ahead of a gap, as intervals of sequence numbers: sorted, neither touching nor overlapping. Few of them lie in the flow's own
//! record, more in a gap record that its core lends it.
//!
//! ```text
//!   rcv_nxt          held[first]               held[first + count - 1]
//!  ----|--- gap ---[===========)--- gap ---[===)------| rcv_edge
//! ```
//! Each change moves the intervals on one side of its place: a gap that closes moves `first`, data behind all others moves none.

use crate::Interval;
use base::SeqNumber;

/// Intervals in the record of each flow. If one packet in twenty is late by a round trip, a window of 640 segments has 32 gaps.
pub const INTERVALS: usize = 32;
/// Intervals of a gap record. A start on a long path may lose every second segment of a window: of 12 MB, with this. Beyond it only data that joins
/// an interval is taken. 32 KiB are moved at most for one segment: a peer that sends every second byte in random order makes it cost about a microsecond.
pub const INTERVALS_MAX: usize = 4096;
/// Blocks that a SACK option without timestamps has room for.
const BLOCKS: usize = 4;

/// What a flow's own record says of data ahead of gaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Ahead {
    /// The intervals, while no gap record is borrowed.
    pub own: [Interval; INTERVALS],
    /// Index of the lowest interval.
    pub first: u16,
    /// Number of intervals.
    pub count: u16,
    /// The gap record that the flow has borrowed from its core: 1 + its index, or 0.
    pub record: u16,
    /// A sequence number of each block that was changed last, the latest first. It may lie in no block any more.
    pub latest: [SeqNumber; BLOCKS],
}

impl Ahead {
    /// Nothing has come ahead.
    pub const NONE: Self = Self {
        own: [Interval { left: SeqNumber(0), right: SeqNumber(0) }; INTERVALS],
        first: 0,
        count: 0,
        record: 0,
        latest: [SeqNumber(0); BLOCKS],
    };

    /// The part of `held`, the flow's own intervals or those of its gap record, that is in use. Empty while the record is on its way to another core.
    #[must_use]
    pub fn used<'a>(&self, held: &'a [Interval]) -> &'a [Interval] {
        let first = usize::from(self.first);
        held.get(first..first + usize::from(self.count)).unwrap_or_default()
    }

    /// The flow's own intervals, for changing them.
    pub fn own(&mut self) -> Intervals<'_> {
        let Self { own, first, count, latest, .. } = self;
        Intervals { held: own, first, count, latest }
    }

    /// The intervals of its gap record, for changing them.
    pub fn borrowed<'a>(&'a mut self, held: &'a mut [Interval]) -> Intervals<'a> {
        Intervals { held, first: &mut self.first, count: &mut self.count, latest: &mut self.latest }
    }
}

/// The intervals of one flow, where they lie now.
#[derive(Debug)]
pub struct Intervals<'a> {
    held: &'a mut [Interval],
    first: &'a mut u16,
    count: &'a mut u16,
    latest: &'a mut [SeqNumber; BLOCKS],
}

impl Intervals<'_> {
    /// Adds `new`, joined with all intervals that it touches. False, and nothing changed, when no place is free for it.
    #[must_use]
    pub fn add(&mut self, new: Interval) -> bool {
        let used = self.used();
        let begin = used.partition_point(|old| old.right.is_before(new.left));
        let end = begin + used[begin..].partition_point(|old| old.left.is_at_or_before(new.right));
        let mut joined = new;
        if let [lowest, ..] = used[begin..end]
            && let [.., highest] = used[begin..end]
        {
            if lowest.left.is_before(joined.left) {
                joined.left = lowest.left;
            }
            joined.right = joined.right.later_of(highest.right);
            self.remove(begin + 1, end);
        } else if !self.open(begin) {
            return false;
        }
        self.held[usize::from(*self.first) + begin] = joined;
        self.note(joined);
        true
    }

    /// Removes the intervals that begin at or before `next`. Returns the first sequence number from `next` on that has not come.
    #[must_use]
    pub fn reach(&mut self, next: SeqNumber) -> SeqNumber {
        let used = self.used();
        let over = used.partition_point(|held| held.left.is_at_or_before(next));
        let end = used[..over].last().map_or(next, |held| next.later_of(held.right));
        self.remove(0, over);
        end
    }

    fn used(&self) -> &[Interval] {
        let first = usize::from(*self.first);
        &self.held[first..first + usize::from(*self.count)]
    }

    /// Makes a place at index `at` of the used ones, by moving those on its shorter side that has room. False when there is none.
    #[must_use]
    fn open(&mut self, at: usize) -> bool {
        let (first, count) = (usize::from(*self.first), usize::from(*self.count));
        let (is_room_below, is_room_above) = (first > 0, first + count < self.held.len());
        if is_room_below && (at <= count / 2 || !is_room_above) {
            self.held.copy_within(first..first + at, first - 1);
            *self.first -= 1;
        } else if is_room_above {
            self.held.copy_within(first + at..first + count, first + at + 1);
        } else {
            return false;
        }
        *self.count += 1;
        true
    }

    /// Removes the used ones from index `from` up to `to`, by moving those on their shorter side.
    fn remove(&mut self, from: usize, to: usize) {
        let (first, count, gone) = (usize::from(*self.first), usize::from(*self.count), to - from);
        if from < count - to {
            self.held.copy_within(first..first + from, first + gone);
            *self.first += gone as u16;
        } else {
            self.held.copy_within(first + to..first + count, first + from);
        }
        *self.count -= gone as u16;
    }

    /// Notes that `block` is the one that was changed last.
    fn note(&mut self, block: Interval) {
        let before = *self.latest;
        let others = before.into_iter().filter(|seq| !block.has(*seq));
        let blocks = [block.left].into_iter().chain(others);
        self.latest.iter_mut().zip(blocks).for_each(|(place, seq)| *place = seq);
    }
}

impl Interval {
    /// True when `seq` lies in the interval.
    #[must_use]
    pub const fn has(&self, seq: SeqNumber) -> bool {
        self.left.is_at_or_before(seq) && seq.is_before(self.right)
    }
}

/// The blocks of a SACK option, at most `most`, for the intervals `used`: those that were changed last, the latest first; then, if some of these have
/// become one, the highest others. "The data receiver SHOULD include as many distinct SACK blocks as possible in the SACK option" (RFC 2018 section 4).
pub fn sack_order<'a>(
    used: &'a [Interval],
    latest: &'a [SeqNumber; BLOCKS],
    most: usize,
) -> impl Iterator<Item = Interval> + use<'a> {
    let find = |seq: SeqNumber| {
        let at = used.partition_point(|held| held.right.is_at_or_before(seq));
        used.get(at).filter(|held| held.has(seq)).copied()
    };
    let mut told = [None; BLOCKS];
    let mut count = 0;
    let changed = latest.iter().filter_map(move |seq| find(*seq));
    let others = used.iter().rev().take(2 * BLOCKS).copied();
    changed
        .chain(others)
        .filter(move |block| {
            let is_new = count < BLOCKS && !told[..count].contains(&Some(*block));
            if is_new {
                told[count] = Some(*block);
                count += 1;
            }
            is_new
        })
        .take(most)
}

#[cfg(test)]
mod tests;
