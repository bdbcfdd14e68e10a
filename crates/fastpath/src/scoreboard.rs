//! What the peer holds beyond the cumulative acknowledgement (RFC 2018), and which hole is sent again next (RFC 6675).
//!
//! ```text
//!   snd_una            high_rxt                                 snd_max
//!   ---|#######[ held ]###|####[ held ]######[ held ]--------------|
//!       sent again      next: the hole here    not lost yet: less than three segments are held above it
//! ```
//! Without the option the oldest segment is the only known hole (RFC 6582).

use base::SeqNumber;
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
    sum(ranges(f))
}

/// Forgets what the cumulative acknowledgement has passed. One that stops within a range shows a peer that has thrown away
/// what it reported: then nothing it said counts (RFC 2018 section 8).
pub(crate) fn prune(f: &mut FlowMut<'_>) {
    let una = f.tx.snd_una;
    if ranges(f).iter().any(|i| i.left.is_at_or_before(una) && una.is_before(i.right)) {
        f.cold.held_count = 0;
        return;
    }
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

/// The ranges held, in order of sequence.
fn ranges<'a>(f: &'a FlowMut<'_>) -> &'a [Interval] {
    &f.cold.held[..usize::from(f.cold.held_count)]
}

/// The oldest hole, at most a segment of it.
pub(crate) fn first_hole(f: &FlowMut<'_>) -> Interval {
    let (left, mss) = (f.tx.snd_una, u32::from(f.tx.mss));
    let len = ranges(f).first().map_or(mss, |i| i.left.since(left).min(mss));
    Interval { left, right: left.plus(len) }
}

/// The next hole to send again, at most a segment of it. None: everything that counts as lost has been sent again.
pub(crate) fn next_hole(f: &FlowMut<'_>) -> Option<Interval> {
    let (mss, una) = (u32::from(f.tx.mss), f.tx.snd_una);
    let mut left = f.cold.high_rxt.later_of(una);
    if left == una {
        // Each partial acknowledgement shows one hole (RFC 6582): what was sent after it is acknowledged.
        return una.is_before(f.tx.recover).then(|| first_hole(f));
    }
    for (n, interval) in ranges(f).iter().enumerate() {
        // In order of sequence, so `left` is in a hole or moves behind this range.
        if left.is_before(interval.left) {
            let is_lost = left.is_before(f.cold.lost_below) || sum(&ranges(f)[n..]) >= THRESHOLD * mss;
            let hole = interval.left.since(left).min(mss);
            return is_lost.then(|| Interval { left, right: left.plus(hole) });
        }
        left = left.later_of(interval.right);
    }
    None
}

/// "pipe": what is in the network, as far as the reports tell (RFC 6675 section 4). Not in it: what the peer holds, and what is
/// lost and was not sent again.
pub(crate) fn pipe(f: &FlowMut<'_>) -> u32 {
    let (nxt, una, mss) = (f.tx.snd_nxt, f.tx.snd_una, u32::from(f.tx.mss));
    let is_recovery = f.rx.has(state::RECOVERY);
    let again = f.cold.high_rxt.later_of(una);
    let (mut gone, mut above) = (0, 0);
    for (n, interval) in ranges(f).iter().enumerate().rev() {
        let len = interval.right.since(interval.left);
        above += len;
        if interval.right.is_at_or_before(nxt) {
            gone += len;
        }
        let hole = if n == 0 { una } else { ranges(f)[n - 1].right }.later_of(again);
        let is_lost = above >= THRESHOLD * mss || hole.is_before(f.cold.lost_below) || hole == una;
        if is_recovery && is_lost && hole.is_before(interval.left) && interval.left.is_at_or_before(nxt) {
            gone += interval.left.since(hole);
        }
    }
    if is_recovery && f.cold.held_count == 0 && again == una && una.is_before(f.tx.recover) {
        gone += mss;
    }
    f.tx.in_flight().saturating_sub(gone)
}

/// The oldest segment was sent again, and of what was sent after that, so much is held that the repetition is lost as well
/// (the order of sending decides, as in RFC 8985 section 6.2).
pub(crate) fn is_repair_lost(f: &FlowMut<'_>) -> bool {
    let mark = f.cold.repair_mark;
    if !f.tx.snd_una.is_before(f.cold.high_rxt) {
        return false;
    }
    let after = ranges(f).iter().filter(|i| mark.is_before(i.right));
    let bytes: u32 = after.map(|i| i.right.since(i.left.later_of(mark))).sum();
    bytes >= THRESHOLD * u32::from(f.tx.mss)
}

/// One after the highest byte held.
pub(crate) fn highest(f: &FlowMut<'_>) -> SeqNumber {
    ranges(f).last().map_or(f.tx.snd_una, |i| i.right)
}

/// After a timeout everything is sent again, but for what the peer holds.
pub(crate) fn skip_held(f: &mut FlowMut<'_>) {
    let nxt = f.tx.snd_nxt;
    let within = ranges(f).iter().find(|i| i.left.is_at_or_before(nxt) && nxt.is_before(i.right));
    f.tx.snd_nxt = within.map_or(nxt, |i| i.right);
}

/// Bytes from the next to send to the next that the peer holds.
pub(crate) fn until_held(f: &FlowMut<'_>) -> u32 {
    let nxt = f.tx.snd_nxt;
    ranges(f).iter().find(|i| nxt.is_before(i.left)).map_or(u32::MAX, |i| i.left.since(nxt))
}

fn sum(ranges: &[Interval]) -> u32 {
    ranges.iter().map(|i| i.right.since(i.left)).sum()
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
