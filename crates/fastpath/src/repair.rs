//! Lost segments: holes sent again as the pipe allows (RFC 6675), retransmissions lost in their turn, and losses that no
//! duplicate acknowledgement shows (RFC 8985 sections 6 and 7). What needs a timeout is the slow path's.

use crate::classify::Miss;
use crate::scoreboard;
use crate::segment::Out;
use crate::setup::{Home, State, TIMERS_MAX, Work};
use crate::transmit::{TURN, checked, data_len};
use base::Duration;
use flow::{FlowId, FlowMut, Flows, Interval, state};
use port::Port;
use queue::stream::readable;
use wire::{SackBlocks, TcpFlags};

/// Flows in flight are looked at this often, and at the earliest this long after their last progress: Linux does not probe
/// earlier than after two jiffies either, and a list in order of time costs nothing per packet.
const WATCH: Duration = Duration::from_ms(2);
/// Each flow in flight makes the others wait so much longer: looking takes a tenth of a core's time at most.
const WATCH_EACH: Duration = Duration::from_us(1);

/// "FlightSize" at a loss: acknowledgements of the same batch have not yet been followed by what they make room for, so a flow
/// that used its window counts with all of it.
fn flight(f: &FlowMut<'_>) -> u32 {
    let used = if f.rx.has(state::CWND_FULL) { f.tx.cwnd } else { 0 };
    f.tx.in_flight().max(used)
}

impl State {
    /// Sends holes again: the oldest one if asked to, then those that the peer's reports show.
    pub(crate) fn resend<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        if w.f.rx.has(state::RESEND) {
            // "Retransmit the first data segment presumed dropped", whatever the window says (RFC 6675 section 5 step 4.3).
            if !self.send_hole(w, scoreboard::first_hole(&w.f), port) {
                return;
            }
            w.f.rx.clear(state::RESEND);
        }
        if !w.f.rx.has(state::RECOVERY | state::SACK) {
            return;
        }
        for _ in 0..TURN {
            let Some(hole) = scoreboard::next_hole(&w.f) else { return };
            // "If cwnd - pipe >= 1 SMSS the sender SHOULD transmit one or more segments" (RFC 6675 section 5 step C).
            let room = w.f.tx.cwnd.saturating_sub(scoreboard::pipe(&w.f));
            if room < u32::from(w.f.tx.mss) || !self.send_hole(w, hole, port) {
                return;
            }
        }
        self.ready.push_back(w.id.0, 0);
    }

    /// Sends what lies in `hole`. False when that is not possible now, or ever.
    fn send_hole<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, hole: Interval, port: &mut P) -> bool {
        let (rx, tx) = (&w.f.rx, &w.f.tx);
        let is_fin_out = rx.has(state::FIN_SENT) && !rx.has(state::FIN_ACKED);
        let offset = hole.left.since(tx.snd_una);
        let data = (tx.snd_max.since(hole.left)).saturating_sub(u32::from(is_fin_out));
        let position = tx.tx_una + u64::from(offset);
        let Some((_, peer)) = w.home.region.halves(rx.slot) else { return false };
        let found = if data == 0 { Ok(None) } else { readable(peer, position, data_len(w)) };
        let found = match found.and_then(|found| checked(w, found, position, data)) {
            Ok(found) => found,
            Err(what) => {
                self.violation(w, what);
                return false;
            }
        };
        let len = found.map_or(0, |r| r.len as u32).min(data).min(hole.right.since(hole.left));
        let is_fin = is_fin_out && len == data;
        if len == 0 && !is_fin {
            w.f.rx.clear(state::RESEND);
            return false;
        }
        let flags = if is_fin { TcpFlags::ACK.with(TcpFlags::FIN) } else { TcpFlags::ACK };
        let ring = found.filter(|_| len > 0).map(|r| r.ring);
        let out = Out { seq: hole.left, ring, position, len, flags, is_again: true };
        if !self.emit(w, port, &out) {
            self.ready.push_back(w.id.0, 0);
            return false;
        }
        let f = &mut w.f;
        f.cold.high_rxt = f.cold.high_rxt.later_of(hole.left.plus(len + u32::from(is_fin)));
        if hole.left == f.tx.snd_una {
            (f.cold.repair_mark, f.cold.repair_at) = (f.tx.snd_max, self.now);
        }
        self.count_again(w, hole.left, len);
        self.watch(w);
        true
    }

    /// Begins fast recovery, unless one that covers the oldest segment is over already: "... and the cumulative
    /// acknowledgment covers more than recover" (RFC 6582 section 3.2 step 2), for repetitions after a timeout cause
    /// duplicates that mean nothing.
    pub(crate) fn recover(&mut self, f: &mut FlowMut<'_>) {
        if !f.tx.recover.is_at_or_before(f.tx.snd_una) {
            return;
        }
        f.rx.set(state::RECOVERY | state::RESEND);
        f.rx.clear(state::PROBED);
        f.tx.recover = f.tx.snd_max;
        (f.cold.high_rxt, f.cold.lost_below) = (f.tx.snd_una, f.tx.snd_una);
        f.cold.window.on_fast_retransmit(self.now, flight(f));
        f.cold.counters.recoveries += 1;
        self.counters.recoveries += 1;
    }

    /// The flow has something in flight: look at it in a while. Without SACK nothing tells what a probe found.
    #[inline]
    pub(crate) fn watch(&mut self, w: &mut Work<'_>) {
        if !w.f.rx.has(state::WATCHED) && w.f.rx.has(state::SACK) {
            w.f.rx.set(state::WATCHED);
            let others = WATCH_EACH.times(u64::from(self.watched.len()));
            self.watched.push_back(w.id.0, self.now.plus(WATCH).plus(others).as_ns());
        }
    }

    /// Flows whose turn has come to be looked at.
    pub(crate) fn look_after<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        port: &mut P,
    ) {
        for _ in 0..TIMERS_MAX {
            let Some(flow) = self.watched.pop_due(self.now.as_ns()) else { return };
            let done = self.with(flows, homes, FlowId(flow), |state, w| {
                w.f.rx.clear(state::WATCHED);
                if w.f.rx.has(state::LEAVING) || w.f.tx.snd_una == w.f.tx.snd_max {
                    return;
                }
                let since = w.f.cold.progress_at.max(w.f.cold.repair_at);
                if state.now < since.plus(w.f.cold.rto) {
                    state.watch(w);
                    state.check(w, port);
                }
                // Else it is the timeout's: a peer that is gone keeps no core awake.
            });
            if done == Err(Miss::Busy) {
                self.watched.push_back(flow, self.now.plus(WATCH).as_ns());
            }
        }
    }

    /// Has the oldest segment been out for longer than an acknowledgement takes? "PTO = 2 * SRTT" (RFC 8985 section 7.2).
    fn check<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        let f = &mut w.f;
        let patience = Duration::from_us(2 * u64::from(f.cold.srtt_us)).max(WATCH);
        let since = f.cold.progress_at.max(f.cold.repair_at);
        if f.cold.srtt_us == 0 || self.now < since.plus(patience) {
            return;
        }
        if f.cold.held_count > 0 {
            // What was sent after it has arrived (RFC 8985 section 6.2): it is lost, and so is every hole below.
            if f.tx.snd_nxt == f.tx.snd_max && !f.rx.has(state::RECOVERY) {
                self.recover(f);
                f.cold.lost_below = scoreboard::highest(f);
                f.tx.cwnd = f.cold.window.cwnd();
            }
            f.rx.set(state::RESEND);
            return self.finish(w, port);
        }
        self.probe_tail(w, port);
        self.finish(w, port);
    }

    /// Nothing was heard of what is in flight: sends its end once more, so that an acknowledgement shows what is missing. One
    /// probe until the peer has acknowledged it (RFC 8985 section 7.3). Not for a single segment, which the peer may
    /// acknowledge later than any timeout.
    fn probe_tail<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        let (rx, tx) = (&w.f.rx, &w.f.tx);
        let mss = u32::from(tx.mss);
        if rx.has(state::PROBED) || tx.snd_nxt != tx.snd_max || tx.in_flight() <= mss {
            return;
        }
        let last = Interval { left: tx.snd_max.minus(mss), right: tx.snd_max };
        let high_rxt = w.f.cold.high_rxt;
        if self.send_hole(w, last, port) {
            w.f.rx.set(state::PROBED);
            // The probe is no part of a recovery.
            (w.f.cold.high_rxt, w.f.cold.probe_end) = (high_rxt, w.f.tx.snd_max);
            self.counters.tail_probes += 1;
        }
    }

    /// What came of a probe: a report of a duplicate says that nothing was lost; an acknowledgement of more without one says
    /// that the probe repaired a loss, which is as good a reason to slow down as any other (RFC 8985 section 7.4).
    pub(crate) fn judge_probe(&mut self, f: &mut FlowMut<'_>, sack: &SackBlocks) {
        let una = f.tx.snd_una;
        if sack.as_slice().first().is_some_and(|block| block.right.is_at_or_before(una)) {
            f.rx.clear(state::PROBED);
        } else if f.cold.probe_end.is_before(una) {
            f.rx.clear(state::PROBED);
            f.cold.window.on_fast_retransmit(self.now, flight(f));
            f.tx.cwnd = f.cold.window.cwnd();
        }
    }
}
