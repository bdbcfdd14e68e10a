//! Data that came out of order: stored in the ring at its place, remembered as intervals (`gaps.rs`), reported by SACK.

use crate::counters::Cause;
use crate::payload::write;
use crate::setup::{State, Work};
use base::SeqNumber;
use flow::{FlowMut, Interval, sack_order, state};
use wire::{SackBlock, SackBlocks};

impl State {
    /// Stores bytes that begin after `rcv_nxt`. Returns how many were stored.
    pub(crate) fn take_ahead(&mut self, w: &mut Work<'_>, seq: SeqNumber, bytes: &[u8]) -> usize {
        self.counters.out_of_order += 1;
        w.f.cold.counters.out_of_order += 1;
        // "A TCP receiver SHOULD send an immediate duplicate ACK when an out-of-order segment arrives" (RFC 5681 section 4.2).
        w.f.rx.set(state::ACK_NOW);
        let offset = seq.since(w.f.rx.rcv_nxt) as usize;
        if w.f.rx.has_ahead == 0 {
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
        if !self.gaps.add(&mut w.f, Interval { left: seq, right: seq.plus(n as u32) }) {
            self.counters.count(Cause::IntervalsFull);
            return 0;
        }
        w.f.rx.has_ahead = 1;
        write(w, ring, sender.head + offset as u64, &bytes[..n]);
        n
    }

    /// `rcv_nxt` has moved: takes in the intervals that it has reached. Returns by how many bytes that moves it further.
    pub(crate) fn close_gap(&mut self, w: &mut Work<'_>) -> u32 {
        let before = w.f.rx.rcv_nxt;
        let after = self.gaps.reach(&mut w.f.cold.ahead, before);
        w.f.rx.rcv_nxt = after;
        if w.f.cold.ahead.count == 0 {
            w.f.rx.has_ahead = 0;
            self.lists.lent.push_back(w.id.0, self.now.plus(self.config.ring_linger).as_ns());
        }
        // "... when the receiver ... fills in all or part of a gap": at once, for the sender's recovery (RFC 5681 section 4.2).
        w.f.rx.set(state::ACK_NOW);
        after.since(before)
    }

    /// Discards data that a peer has sent beyond its own FIN, against the rules, as Linux does; it must not keep the ring in use.
    #[cold]
    pub(crate) fn drop_ahead(&mut self, w: &mut Work<'_>) {
        self.gaps.clear(&mut w.f.cold.ahead);
        w.f.rx.has_ahead = 0;
        self.lists.lent.push_back(w.id.0, self.now.plus(self.config.ring_linger).as_ns());
    }

    /// Notes for D-SACK which part of `[left, right)` is stored already, as an out-of-order interval. If there are several parts, the
    /// first: a "D-SACK block is only used to report a duplicate contiguous sequence of data" (RFC 2883 section 4), and there is one.
    pub(crate) fn note_held(&self, f: &mut FlowMut<'_>, left: SeqNumber, right: SeqNumber) {
        let used = self.gaps.used(&f.cold.ahead);
        let at = used.partition_point(|held| held.right.is_at_or_before(left));
        let Some(first) = used.get(at).copied().filter(|held| held.left.is_before(right)) else { return };
        let end = if first.right.is_before(right) { first.right } else { right };
        note_duplicate(f, first.left.later_of(left), end);
    }

    /// The SACK blocks of the next acknowledgement. A duplicate comes first, once: "the first block of the SACK option specifies the
    /// sequence numbers of the segment that triggered the acknowledgement" (RFC 2883 section 4). Then the latest interval, which is the
    /// one that contains the duplicate, if any does: "The first SACK block ... MUST specify the contiguous block of data containing the
    /// segment which triggered this ACK" (RFC 2018 section 4).
    pub(crate) fn sack_blocks(&self, f: &FlowMut<'_>) -> SackBlocks {
        let mut blocks = SackBlocks::EMPTY;
        // Options have room for three blocks beside timestamps, four without.
        let room = if f.rx.has(state::TIMESTAMPS) { 3 } else { 4 };
        let duplicate = f.rx.has(state::REPORT_DUPLICATE).then_some(f.cold.duplicate);
        let ahead = &f.cold.ahead;
        let intervals = sack_order(self.gaps.used(ahead), &ahead.latest, room);
        for interval in duplicate.into_iter().chain(intervals).take(room) {
            blocks.push(SackBlock { left: interval.left, right: interval.right });
        }
        blocks
    }
}

/// Notes that `[left, right)` was received twice, for a D-SACK block in the next acknowledgement; only the latest is kept.
pub(crate) fn note_duplicate(f: &mut FlowMut<'_>, left: SeqNumber, right: SeqNumber) {
    if f.rx.has(state::SACK) {
        f.cold.duplicate = Interval { left, right };
        f.rx.set(state::REPORT_DUPLICATE);
    }
}
