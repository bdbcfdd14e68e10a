//! Loss recovery: fast recovery with proportional rate reduction (RFC 9937), NewReno without SACK (RFC 6582), timeouts
//! (RFC 6298), and retransmission.

use crate::payload::{checked, data_len};
use crate::rack::{News, Sending};
use crate::segment::Out;
use crate::setup::{State, TURN, Work};
use base::{Instant, SeqNumber};
use core::sync::atomic::Ordering::Relaxed;
use flow::{Episode, Event, FlowMut, Interval, Kind, Run, Signals, state};
use port::Port;
use queue::stream::readable;
use wire::TcpFlags;

/// "FlightSize" at a loss, bytes. Acknowledgements of this batch have made room that is not used yet, so a flow that used its
/// whole window counts with all of it.
pub(crate) fn flight(f: &FlowMut<'_>) -> u32 {
    let used = if f.rx.has(state::CWND_FULL) { f.tx.cwnd } else { 0 };
    f.tx.in_flight().max(used)
}

/// The first segment of `range`.
fn segment_of(f: &FlowMut<'_>, range: Interval) -> Interval {
    let len = range.right.since(range.left).min(u32::from(f.tx.mss));
    Interval { left: range.left, right: range.left.plus(len) }
}

/// The window was reduced. "When an ECN-Capable TCP sender reduces its congestion window for any reason ..., the TCP sender sets the CWR
/// flag in the TCP header of the first new data packet sent after the window reduction" (RFC 3168 section 6.1.2). With accurate ECN it
/// "MUST NOT set CWR to indicate that" (RFC 9768 section 3.1.5).
pub(crate) fn note_reduced(f: &mut FlowMut<'_>) {
    if f.rx.has(state::ECN) && !f.cold.accurate.is_agreed() {
        f.rx.set(state::SEND_CWR);
    }
}

impl State {
    /// Tells congestion control of a loss: `event` is [`Event::Lost`] or [`Event::Timeout`].
    pub(crate) fn reduce_for(&self, f: &mut FlowMut<'_>, event: Event<'_>) {
        let in_flight = if f.cold.window.decides_rate() { f.pipe() } else { flight(f) };
        let signals = Signals { in_flight, ..f.signals(self.now) };
        f.steer(event, &signals);
        note_reduced(f);
    }

    /// Retransmits data that counts as lost: the first segment at once if `RESEND` is set, the rest as the window has room.
    pub(crate) fn resend<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        for _ in 0..TURN {
            let is_forced = w.f.rx.has(state::RESEND);
            if w.f.cold.recovery.lost == 0 {
                return w.f.rx.clear(state::RESEND);
            }
            if w.f.cold.recovery.frto > 1 && !is_forced && self.waits_for_proof(w) {
                return;
            }
            let whole = Interval { left: w.f.tx.snd_una, right: w.f.tx.snd_max };
            let is_lost = |run: Option<Run>| run.is_some_and(|run| run.kind == Kind::Lost);
            let Some(range) = self.records.find(w.f.cold, whole, is_lost) else { return };
            // "Retransmit the first data segment presumed dropped", whatever the window says; then "if cwnd - pipe >= 1 SMSS
            // the sender SHOULD transmit one or more segments" (RFC 6675 section 5 steps 4.3 and C).
            let room = w.f.tx.cwnd.saturating_sub(w.f.pipe());
            let segment = segment_of(&w.f, range);
            if !is_forced
                && (room < segment.right.since(segment.left)
                    || !self.may_go(w, room.min(u32::from(w.f.tx.mss))))
            {
                return;
            }
            if !self.send_again(w, segment, port) {
                return;
            }
            w.f.rx.clear(state::RESEND);
        }
        self.wait_for_turn(w);
    }

    /// RFC 5682 section 3.1 step 2b: "transmit up to two new (previously unsent) segments" and wait for the next acknowledgement.
    /// False when there is no new data to send, so that retransmission goes on.
    fn waits_for_proof(&mut self, w: &mut Work<'_>) -> bool {
        if w.f.cold.recovery.frto == 2 {
            w.f.cold.recovery.frto = if self.has_new(w) { 3 } else { 0 };
        }
        w.f.cold.recovery.frto == 3
    }

    /// Retransmits the first segment of `range`. False when that is not possible now, or ever.
    #[must_use]
    pub(crate) fn send_again<P: Port + ?Sized>(
        &mut self,
        w: &mut Work<'_>,
        range: Interval,
        port: &mut P,
    ) -> bool {
        let (rx, tx) = (&w.f.rx, &w.f.tx);
        let is_fin_out = rx.is_fin_out();
        let data = (tx.snd_max.since(range.left)).saturating_sub(u32::from(is_fin_out));
        let position = tx.tx_una + u64::from(range.left.since(tx.snd_una));
        let peer = w.peer;
        let found = if data == 0 { Ok(None) } else { readable(peer, position, data_len(w)) };
        let found = match found.and_then(|found| checked(w, found, position, data)) {
            Ok(found) => found,
            Err(what) => {
                self.violation(w, what);
                return false;
            }
        };
        let advice = peer.extra.load(Relaxed);
        self.look_for_urgent(w, advice);
        let len = found.map_or(0, |r| r.len as u32).min(data).min(range.right.since(range.left));
        let is_fin = is_fin_out && len == data;
        if len == 0 && !is_fin {
            return false;
        }
        let mut flags = if is_fin { TcpFlags::ACK.with(TcpFlags::FIN) } else { TcpFlags::ACK };
        if len > 0 && len == data {
            // The end of the data sent, or of a record, keeps its PSH.
            flags = flags.with(TcpFlags::PSH);
        }
        let ring = found.filter(|_| len > 0).map(|r| r.ring);
        let out = Out { seq: range.left, ring, in_ring: len, position, len, flags, is_again: true, rest: 0 };
        if !self.emit(w, port, &out) {
            self.wait_for_turn(w);
            return false;
        }
        self.count_again(w, range.left, len);
        self.note_again(
            &mut w.f,
            Interval { left: range.left, right: range.left.plus(len + u32::from(is_fin)) },
        );
        self.watch_soon(w);
        true
    }

    /// Updates the scoreboard and the sums for retransmitted data.
    fn note_again(&mut self, f: &mut FlowMut<'_>, range: Interval) {
        self.set_runs(f.cold, range, Some(Kind::Again));
        // As Linux, the timer counts from when the oldest segment was retransmitted, but only from the first time since the peer has
        // acknowledged or reported something. If each retransmission put it off, the timer would wait for the end of what it is to end.
        let is_oldest = range.left == f.tx.snd_una;
        let is_impatient = f.cold.is_impatient(f.rx.flags);
        let progress_at = f.cold.progress_at;
        let r = &mut f.cold.recovery;
        let is_first = !r.is_restarted || r.restart_at < progress_at;
        if is_oldest && is_first && !is_impatient {
            (r.restart_at, r.is_restarted) = (self.now, true);
        }
        if r.episode != Episode::None {
            let len = range.right.since(range.left);
            r.prr_out = r.prr_out.saturating_add(len);
            r.undo_bytes = r.undo_bytes.saturating_add(len);
            r.may_undo = true;
        }
    }

    /// Begins fast recovery, unless the last episode covers the oldest segment: "... and the cumulative
    /// acknowledgment covers more than recover" (RFC 6582 section 3.2 step 2), because retransmissions after a timeout cause
    /// duplicates that mean nothing.
    pub(crate) fn enter(&mut self, f: &mut FlowMut<'_>) {
        if !f.tx.recover.is_at_or_before(f.tx.snd_una) {
            return;
        }
        self.begin(f, Episode::Fast);
        f.rx.set(state::RECOVERY | state::RESEND);
        let flight = flight(f);
        // The reduction is the ratio of the windows; a flow limited by its application has less than its window in flight.
        let before = f.cold.window.cwnd().max(flight);
        // Bytes delivered in this batch: the room that they made was not used yet.
        let owed = flight.saturating_sub(f.tx.in_flight());
        self.reduce_for(f, Event::Lost);
        let r = &mut f.cold.recovery;
        r.restart_at = self.now;
        (r.prr_delivered, r.prr_out, r.prr_flight) = (owed, 0, before.max(1));
        f.cold.counters.recoveries += 1;
        self.counters.recoveries += 1;
    }

    /// The common beginning of fast recovery and of a timeout episode.
    fn begin(&mut self, f: &mut FlowMut<'_>, episode: Episode) {
        f.rx.clear(state::PROBED | state::RECOVERY | state::RESEND);
        f.rx.dup_acks = 0;
        f.tx.recover = f.tx.snd_max;
        let una = f.tx.snd_una;
        let r = &mut f.cold.recovery;
        if r.episode == Episode::None {
            r.before = f.cold.window;
            (r.undo_from, r.undo_bytes, r.may_undo, r.was_needed) = (una, 0, false, false);
        }
        // After a timeout no probes are sent until an acknowledgement comes: the next timeout handles silence.
        (r.episode, r.frto, r.stalls) = (episode, 0, if episode == Episode::Timeout { u8::MAX } else { 0 });
    }

    /// Handles an acknowledgement within an episode.
    pub(crate) fn go_on(&mut self, f: &mut FlowMut<'_>, news: &News, advanced: bool) {
        f.cold.recovery.was_needed |= news.oldest == Some(Sending::Repeated);
        if self.is_spurious(f, news, advanced) {
            return self.undo(f);
        }
        if f.tx.recover.is_at_or_before(f.tx.snd_una) {
            return self.complete(f);
        }
        let r = &mut f.cold.recovery;
        match r.episode {
            Episode::Fast if advanced && !f.rx.has(state::SACK) => {
                // "If this ACK does not acknowledge all of the data up to and including recover, then this is a partial ACK. In
                // this case, retransmit the first unacknowledged segment ... For the first partial ACK that arrives during fast
                // recovery, also reset the retransmit timer" (RFC 6582 section 3.2).
                if r.prr_out <= u32::from(f.tx.mss) {
                    r.restart_at = self.now;
                }
                let signals = Signals { acked_bytes: news.bytes, ..f.signals(self.now) };
                f.steer(Event::Partial, &signals);
                self.lose_first(f);
            }
            // RFC 5682 sections 2.1 and 3.1 step 2: the first acknowledgement that advances lets new data go; the next one decides.
            Episode::Timeout if r.frto > 0 => {
                let is_first = r.frto == 1 && advanced && !f.rx.has(state::TIMESTAMPS);
                if r.frto == 3 && news.is_pure_duplicate {
                    // "If the acknowledgment is a duplicate ACK, set the congestion window to no more than 3 * MSS": it makes room for
                    // the repair, for two new segments are under way (RFC 5682 section 2.1 step 3a).
                    f.steer(Event::Duplicate { segments: 1 }, &f.signals(self.now));
                }
                f.cold.recovery.frto = if is_first { 2 } else { 0 };
            }
            _ => {}
        }
    }

    /// Marks the oldest segment in flight as lost; it is retransmitted at once.
    pub(crate) fn lose_first(&mut self, f: &mut FlowMut<'_>) {
        let (una, max) = (f.tx.snd_una, f.tx.snd_max);
        let is_out = |run: Option<Run>| run.is_none_or(|run| run.kind != Kind::Held);
        if let Some(piece) = self.records.find(f.cold, Interval { left: una, right: max }, is_out) {
            let segment = segment_of(f, piece);
            self.set_runs(f.cold, segment, Some(Kind::Lost));
            f.rx.set(state::RESEND);
        }
    }

    /// Ends the episode: all data sent before it is acknowledged.
    fn complete(&mut self, f: &mut FlowMut<'_>) {
        let is_inflated = f.cold.recovery.episode == Episode::Fast && !f.rx.has(state::SACK);
        f.steer(Event::Recovered { is_inflated }, &f.signals(self.now));
        let r = &mut f.cold.recovery;
        // "Reset the window after 16 DSACK-free recoveries" (RFC 8985 section 6.2 step 4).
        r.reo_persist = r.reo_persist.saturating_sub(1);
        if r.reo_persist == 0 {
            r.reo_mult = 1;
        }
        self.leave_episode(f);
    }

    /// Returns to the state without an episode.
    pub(crate) fn leave_episode(&mut self, f: &mut FlowMut<'_>) {
        f.rx.clear(state::RECOVERY | state::RESEND);
        (f.cold.recovery.episode, f.cold.recovery.frto) = (Episode::None, 0);
        f.cold.timeouts.end(self.now);
    }

    /// Proportional rate reduction (RFC 9937 section 6.2, as Linux). While more is in flight than the target, the window falls in
    /// proportion to the bytes delivered; if less is in flight, because more was lost, it rises by the bytes delivered, plus a segment
    /// for each acknowledgement that `is_safe`: "SafeACK = (snd.una has advanced and no further loss indicated)". Not for an algorithm
    /// that decides a rate, and not for a program.
    pub(crate) fn reduce(&mut self, f: &mut FlowMut<'_>, delivered: u32, is_safe: bool) {
        let is_governed = f.cold.recovery.episode == Episode::Fast && f.rx.has(state::SACK);
        if !is_governed || f.cold.window.is_decided_outside() {
            return;
        }
        let (pipe, target, mss) = (f.pipe(), f.cold.window.cwnd(), u32::from(f.tx.mss));
        let r = &mut f.cold.recovery;
        r.prr_delivered = r.prr_delivered.saturating_add(delivered);
        let room = if target < pipe {
            // "sndcnt = CEIL(prr_delivered * ssthresh / RecoverFS) - prr_out"
            let allowed = (u64::from(r.prr_delivered) * u64::from(target)).div_ceil(u64::from(r.prr_flight));
            allowed.min(u64::from(u32::MAX)) as u32
        } else {
            // "sndcnt = MAX(prr_delivered - prr_out, DeliveredData); if (SafeACK) sndcnt += MSS; sndcnt = MIN(ssthresh - inflight,
            // sndcnt)".
            let owed = r.prr_delivered.saturating_sub(r.prr_out).max(delivered);
            let limit = owed.saturating_add(if is_safe { mss } else { 0 });
            r.prr_out.saturating_add((target - pipe).min(limit))
        };
        // If nothing is left in the network one segment may always be sent, otherwise nothing would ever be delivered again.
        f.tx.cwnd = pipe.saturating_add(room.saturating_sub(r.prr_out)).max(mss);
    }

    /// Carries out the slow path's decision that everything in flight counts as lost, except data that the peer has reported. For a
    /// timeout this is the moment at which it happens: all packets received until now have been handled.
    pub(crate) fn lose_all<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        let f = &mut w.f;
        if f.tx.snd_nxt == f.tx.snd_max {
            return;
        }
        f.tx.snd_nxt = f.tx.snd_max;
        let is_timeout = f.cold.recovery.expired_at != Instant::ZERO;
        f.cold.recovery.expired_at = Instant::ZERO;
        if is_timeout {
            // At a second timeout in a row, with no answer between: "the sender MUST turn off all of the SACKed bits", because the peer
            // may have discarded data that it has reported (RFC 2018 section 8; Linux waits for proof, as we do the first time).
            let is_first = f.cold.backoff <= 1;
            let is_reduced = f.cold.recovery.episode == Episode::Fast;
            self.begin(f, Episode::Timeout);
            f.cold.recovery.frto = u8::from(is_first);
            f.cold.timeouts.begin(self.now, is_first);
            self.reduce_for(f, Event::Timeout { is_reduced });
            f.allow_window();
            self.forget_times(f, is_first);
            if let Some(program) = &mut f.cold.program {
                program.on_timeout();
            }
        } else {
            // The segments were too large for the path: no sign of congestion.
            f.rx.clear(state::RECOVERY | state::PROBED);
            f.cold.recovery.episode = Episode::None;
            f.cold.timeouts.end(self.now);
            f.tx.recover = f.tx.snd_una;
            let lost_before = f.cold.recovery.lost_total;
            self.forget_times(f, true);
            if let Some(program) = &mut f.cold.program {
                program.forgive(f.cold.recovery.lost_total.wrapping_sub(lost_before));
            }
            f.tx.cwnd = f.cold.window.cwnd();
        }
        f.rx.clear(state::TIMING);
        f.rx.set(state::RESEND);
        self.finish(w, port);
    }

    fn forget_times(&mut self, f: &mut FlowMut<'_>, keeps_held: bool) {
        let whole = Interval { left: f.tx.snd_una, right: f.tx.snd_max };
        if keeps_held {
            let is_out =
                |run: Option<Run>| run.is_none_or(|run| run.kind != Kind::Held && run.kind != Kind::Lost);
            // It may be that all of it counts as lost already.
            let _ = self.turn_runs(f.cold, whole, Some(Kind::Lost), is_out);
        } else {
            self.set_runs(f.cold, whole, Some(Kind::Lost));
        }
        // RACK starts anew: only data sent from now on, or retransmitted, is compared.
        f.cold.recovery.rack_rtt_us = u32::MAX;
    }

    /// `ack` acknowledges data before a timeout of the slow path was carried out: cancels that timeout.
    #[inline]
    pub(crate) fn cancel_timeout(&mut self, f: &mut FlowMut<'_>, ack: SeqNumber) {
        if f.cold.recovery.expired_at == Instant::ZERO {
            f.tx.snd_nxt = f.tx.snd_nxt.later_of(ack);
        } else {
            f.tx.snd_nxt = f.tx.snd_max;
            f.cold.recovery.expired_at = Instant::ZERO;
        }
    }
}
