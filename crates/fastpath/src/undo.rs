//! Undoing needless retransmissions: detection by reports of duplicates (RFC 2883, RFC 3708), timestamps (RFC 3522) and F-RTO
//! (RFC 5682), and the response (RFC 4015: the window is restored).

use crate::rack::{News, Sending};
use crate::setup::State;
use base::SeqNumber;
use flow::{Episode, Event, FlowMut, Interval, Kind, state};

/// "RACK.reo_wnd_persist" (RFC 8985 section 6.2).
const PERSIST: u8 = 16;

/// Largest number of bytes that one report of a duplicate stands for: "each DSACK block ... report[s] only one duplicate ... segment" (RFC 2883
/// section 4 in short), and a host that joins segments before its TCP sees them reports as many as an IP packet can hold.
const DUPLICATE_MAX: u32 = 1 << 16;

impl State {
    /// The peer reports that it has received `range` twice.
    pub(crate) fn on_duplicate(&mut self, f: &mut FlowMut<'_>, range: Interval) {
        let (una, max) = (f.tx.snd_una, f.tx.snd_max);
        let is_probe = f.rx.has(state::PROBED) && range.right == f.cold.recovery.probe_end;
        let window = 2u32 << f.tx.window_log2_max.min(29);
        let distance = |seq: SeqNumber| seq.since(una.minus(window));
        let is_sent = 0 < distance(range.left)
            && distance(range.left) < distance(range.right)
            && distance(range.right) <= distance(max);
        if is_probe || !is_sent {
            // The duplicate of a needless probe is no sign of reordering; a range that was never sent is invalid.
            return;
        }
        self.counters.duplicates_reported += 1;
        let r = &mut f.cold.recovery;
        r.duplicates = r.duplicates.saturating_add(1);
        // "Grow the reordering window per round that sees DSACK."
        if r.has_dsack_round && r.dsack_round.is_at_or_before(una) {
            r.has_dsack_round = false;
        }
        if !r.has_dsack_round {
            (r.has_dsack_round, r.dsack_round) = (true, max);
            (r.reo_mult, r.reo_persist) = (r.reo_mult.saturating_add(1), PERSIST);
        }
        // Reports about an episode that is over count as well, unless it ended so long ago that sequence numbers may have wrapped.
        let is_recent = una.minus(window.saturating_mul(2)).is_before(r.undo_from);
        if r.may_undo && is_recent && r.undo_from.is_at_or_before(range.left) {
            r.undo_bytes = r.undo_bytes.saturating_sub(range.right.since(range.left).min(DUPLICATE_MAX));
        }
    }

    /// True when the episode's retransmissions were needless: the peer has reported all of them as duplicates, or all of them are
    /// acknowledged with the timestamps of first sendings. (If some segments were lost and one was only late, reducing the window was
    /// right.) After a timeout also when data that was not retransmitted yet is acknowledged (RFC 5682 section 3.1 step 3b).
    pub(crate) fn is_spurious(&self, f: &FlowMut<'_>, news: &News, advanced: bool) -> bool {
        let r = &f.cold.recovery;
        // Without SACK, the ACK of a retransmission may also cover data that the peer already had; the next ACK does not.
        let is_told = f.rx.has(state::SACK) && r.frto > 0 || r.frto == 3;
        let is_found = r.episode == Episode::Timeout && is_told && news.is_original && advanced;
        // If the flow has timestamps, they decide, not F-RTO.
        self.is_all_duplicate(f, news)
            || news.oldest == Some(Sending::First) && !r.was_needed && r.again == 0
            || is_found && !f.rx.has(state::TIMESTAMPS)
    }

    /// True when the peer has reported all retransmissions of the episode as duplicates, the last of them now. Of data that was in flight when
    /// an episode was undone it is not believed a second time: a peer could have every episode undone as it begins, with each segment.
    pub(crate) fn is_all_duplicate(&self, f: &FlowMut<'_>, news: &News) -> bool {
        let r = &f.cold.recovery;
        news.duplicate.is_some() && r.may_undo && r.undo_bytes == 0 && r.undone_until <= f.tx.tx_una
    }

    /// Restores the state before the episode. Data that counts as lost counts as in flight again.
    pub(crate) fn undo(&mut self, f: &mut FlowMut<'_>) {
        let whole = Interval { left: f.tx.snd_una, right: f.tx.snd_max };
        // It may be that nothing counts as lost any more.
        let _ = self.turn_runs(f.cold, whole, None, |run| run.is_some_and(|run| run.kind == Kind::Lost));
        let before = f.cold.recovery.before;
        f.steer(Event::Undo { before: &before }, &f.signals(self.now));
        // Fast recovery was needless: segments overtake each other on this path.
        f.cold.recovery.is_reordered |= f.cold.recovery.episode == Episode::Fast;
        self.leave_episode(f);
        f.cold.recovery.may_undo = false;
        f.cold.recovery.undone_until = f.tx.tx_una + u64::from(f.tx.in_flight());
        f.tx.recover = f.tx.snd_una;
        self.counters.undone += 1;
    }
}
