//! What the peer holds beyond the cumulative acknowledgement (RFC 2018), and which hole is sent again next (RFC 6675).
//!
//! ```text
//!   snd_una            high_rxt                                 snd_max
//!   ---|#######[ held ]###|####[ held ]######[ held ]--------------|
//!       sent again      next: the hole here    not lost yet: less than three segments are held above it
//! ```
//! Without the option the oldest segment is the only known hole (RFC 6582).

use flow::{FlowMut, INTERVALS, Interval, state};
use wire::SackBlocks;

/// "DupThresh": segments held above a hole that make it a loss (RFC 6675 section 2).
const THRESHOLD: u32 = 3;

/// Takes in the blocks of an acknowledgement. True when they say something new. Blocks outside what is in flight are
/// ignored, as are new ranges when the board is full: they are said again.
pub(crate) fn note(f: &mut FlowMut<'_>, blocks: &SackBlocks) -> bool {
    let before = held(f);
    for block in blocks.as_slice() {
        let (left, right) = (block.left, block.right);
        // A duplicate's report (RFC 2883) lies below `snd_una`.
        let is_sane =
            f.tx.snd_una.is_before(left) && left.is_before(right) && right.is_at_or_before(f.tx.snd_max);
        if is_sane {
            add(f, Interval { left, right });
        }
    }
    held(f) != before
}

/// Bytes that the peer is known to hold beyond the cumulative acknowledgement.
pub(crate) fn held(f: &FlowMut<'_>) -> u32 {
    f.cold.held[..usize::from(f.cold.held_count)].iter().map(|i| i.right.since(i.left)).sum()
}

/// Forgets what the cumulative acknowledgement has passed.
pub(crate) fn prune(f: &mut FlowMut<'_>) {
    let una = f.tx.snd_una;
    let mut kept = 0;
    for i in 0..usize::from(f.cold.held_count) {
        let interval = f.cold.held[i];
        if una.is_before(interval.left) {
            f.cold.held[kept] = interval;
            kept += 1;
        }
    }
    f.cold.held_count = kept as u8;
}

/// Is so much held that the oldest segment counts as lost? With super-frames one acknowledgement may stand for many segments,
/// so bytes tell what counting duplicates would miss.
pub(crate) fn is_oldest_lost(f: &FlowMut<'_>) -> bool {
    held(f) >= THRESHOLD * u32::from(f.tx.mss)
}

/// The next hole to send again, at most a segment of it. None: everything that counts as lost has been sent again.
pub(crate) fn next_hole(f: &FlowMut<'_>) -> Option<Interval> {
    let mss = u32::from(f.tx.mss);
    let una = f.tx.snd_una;
    if !f.rx.has(state::SACK) || f.cold.held_count == 0 {
        // Each partial acknowledgement shows one hole.
        return Some(Interval { left: una, right: una.plus(mss) });
    }
    let mut left = f.cold.high_rxt.later_of(una);
    for interval in &f.cold.held[..usize::from(f.cold.held_count)] {
        // In order of sequence, so `left` is in a hole or moves behind this range.
        if left.is_before(interval.left) {
            let above: u32 = f.cold.held[..usize::from(f.cold.held_count)]
                .iter()
                .filter(|i| left.is_before(i.left))
                .map(|i| i.right.since(i.left))
                .sum();
            let is_first = left == una;
            if !is_first && above < THRESHOLD * mss {
                return None;
            }
            let hole = interval.left.since(left).min(mss);
            return Some(Interval { left, right: left.plus(hole) });
        }
        left = left.later_of(interval.right);
    }
    None
}

/// Adds a range, joined with those it touches, in order of sequence.
fn add(f: &mut FlowMut<'_>, new: Interval) {
    let (held, count) = (&mut f.cold.held, &mut f.cold.held_count);
    let mut n = usize::from(*count);
    let mut joined = new;
    let mut kept = 0;
    for i in 0..n {
        let old = held[i];
        if old.left.is_at_or_before(joined.right) && joined.left.is_at_or_before(old.right) {
            if old.left.is_before(joined.left) {
                joined.left = old.left;
            }
            joined.right = joined.right.later_of(old.right);
        } else {
            held[kept] = old;
            kept += 1;
        }
    }
    n = kept;
    let at = held[..n].iter().position(|i| joined.left.is_before(i.left)).unwrap_or(n);
    if n < INTERVALS * 2 {
        held.copy_within(at..n, at + 1);
        held[at] = joined;
        n += 1;
    }
    *count = n as u8;
}
