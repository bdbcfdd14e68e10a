//! Data that came out of order: stored in the ring at its place, remembered as intervals.
//!
//! ```text
//!     rcv_nxt        ahead[1]            ahead[0] (the latest)
//!  ------|--- gap ---[=======)--- gap ---[====)------| rcv_edge
//! ```

use crate::counters::Cause;
use crate::payload::write;
use crate::setup::{State, Work};
use base::SeqNumber;
use flow::{FlowMut, INTERVALS, Interval, state};
use wire::{SackBlock, SackBlocks};

impl State {
    /// Stores bytes that begin after `rcv_nxt`. Returns how many were stored.
    pub(crate) fn take_ahead(&mut self, w: &mut Work<'_>, seq: SeqNumber, bytes: &[u8]) -> usize {
        self.counters.out_of_order += 1;
        w.f.cold.counters.out_of_order += 1;
        // "A TCP receiver SHOULD send an immediate duplicate ACK when an out-of-order segment arrives" (RFC 5681 section 4.2).
        w.f.rx.set(state::ACK_NOW);
        let offset = seq.since(w.f.rx.rcv_nxt) as usize;
        if w.f.rx.intervals == 0 {
            // While data ahead of a gap is stored the ring cannot be replaced, so take one that holds the whole window.
            let window = w.f.rx.rcv_edge.since(w.f.rx.rcv_nxt) as usize;
            self.space_for(w, window.max(offset + bytes.len()));
        }
        let sender = w.f.rx.sender(w.f.cold.rx_old);
        let (Some(ring), space) = (sender.ring, sender.space()) else { return 0 };
        let n = bytes.len().min(space.saturating_sub(offset));
        if n < bytes.len() {
            self.counters.count(Cause::NoMemory);
        }
        if n == 0 {
            return 0;
        }
        if !remember(&mut w.f, Interval { left: seq, right: seq.plus(n as u32) }) {
            self.counters.count(Cause::IntervalsFull);
            return 0;
        }
        write(w, ring, sender.head + offset as u64, &bytes[..n]);
        n
    }

    /// `rcv_nxt` has moved: takes in the intervals that it has reached. Returns by how many bytes that moves it further.
    pub(crate) fn close_gap(&mut self, w: &mut Work<'_>) -> u32 {
        let rx = &mut *w.f.rx;
        let before = rx.rcv_nxt;
        let mut i = 0;
        while i < usize::from(rx.intervals) {
            let interval = w.f.cold.ahead[i];
            if rx.rcv_nxt.is_before(interval.left) {
                i += 1;
                continue;
            }
            rx.rcv_nxt = rx.rcv_nxt.later_of(interval.right);
            forget(&mut w.f.cold.ahead, &mut rx.intervals, i);
            i = 0;
        }
        let after = rx.rcv_nxt;
        if rx.intervals == 0 {
            self.lists.lent.push_back(w.id.0, self.now.plus(self.config.ring_linger).as_ns());
        }
        // "... when the receiver ... fills in all or part of a gap": at once, for the sender's recovery (RFC 5681 section 4.2).
        w.f.rx.set(state::ACK_NOW);
        after.since(before)
    }

    /// Discards data that a peer has sent beyond its own FIN, against the rules, as Linux does; it must not keep the ring in use.
    #[cold]
    pub(crate) fn drop_ahead(&mut self, w: &mut Work<'_>) {
        w.f.rx.intervals = 0;
        self.lists.lent.push_back(w.id.0, self.now.plus(self.config.ring_linger).as_ns());
    }
}

/// Notes for D-SACK which part of `[left, right)` is stored already, as an out-of-order interval. If there are several parts, the
/// first: a "D-SACK block is only used to report a duplicate contiguous sequence of data" (RFC 2883 section 4), and there is one.
pub(crate) fn note_held(f: &mut FlowMut<'_>, left: SeqNumber, right: SeqNumber) {
    let ahead = &f.cold.ahead[..usize::from(f.rx.intervals)];
    let held = ahead.iter().filter(|i| i.left.is_before(right) && left.is_before(i.right));
    let Some(first) = held.copied().reduce(|a, b| if b.left.is_before(a.left) { b } else { a }) else {
        return;
    };
    let end = if first.right.is_before(right) { first.right } else { right };
    note_duplicate(f, first.left.later_of(left), end);
}

/// Adds `new` as the latest interval, joined with every interval that it touches. False when no interval is free.
fn remember(f: &mut FlowMut<'_>, new: Interval) -> bool {
    let (ahead, count) = (&mut f.cold.ahead, &mut f.rx.intervals);
    let mut joined = new;
    let mut i = 0;
    while i < usize::from(*count) {
        let old = ahead[i];
        if old.left.is_at_or_before(joined.right) && joined.left.is_at_or_before(old.right) {
            if old.left.is_before(joined.left) {
                joined.left = old.left;
            }
            joined.right = joined.right.later_of(old.right);
            forget(ahead, count, i);
            i = 0;
        } else {
            i += 1;
        }
    }
    let n = usize::from(*count);
    if n == INTERVALS {
        return false;
    }
    ahead.copy_within(..n, 1);
    ahead[0] = joined;
    *count += 1;
    true
}

fn forget(ahead: &mut [Interval; INTERVALS], count: &mut u8, i: usize) {
    ahead.copy_within(i + 1..usize::from(*count), i);
    *count -= 1;
}

/// Notes that `[left, right)` was received twice, for a D-SACK block in the next acknowledgement; only the latest is kept.
pub(crate) fn note_duplicate(f: &mut FlowMut<'_>, left: SeqNumber, right: SeqNumber) {
    if f.rx.has(state::SACK) {
        f.cold.duplicate = Interval { left, right };
        f.rx.set(state::REPORT_DUPLICATE);
    }
}

/// The SACK blocks of the next acknowledgement. A duplicate comes first, once: "the first block of the SACK option specifies the
/// sequence numbers of the segment that triggered the acknowledgement" (RFC 2883 section 4). Then the latest interval, which is the
/// one that contains the duplicate, if any does: "The first SACK block ... MUST specify the contiguous block of data containing the
/// segment which triggered this ACK" (RFC 2018 section 4).
pub(crate) fn sack_blocks(f: &FlowMut<'_>) -> SackBlocks {
    let mut blocks = SackBlocks::EMPTY;
    // Options have room for three blocks beside timestamps, four without.
    let room = if f.rx.has(state::TIMESTAMPS) { 3 } else { 4 };
    let duplicate = f.rx.has(state::REPORT_DUPLICATE).then_some(&f.cold.duplicate);
    let ahead = &f.cold.ahead[..usize::from(f.rx.intervals)];
    for interval in duplicate.into_iter().chain(ahead).take(room) {
        blocks.push(SackBlock { left: interval.left, right: interval.right });
    }
    blocks
}
