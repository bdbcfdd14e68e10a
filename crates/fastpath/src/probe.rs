//! Loss timers of flows with data in flight: the reordering timer (RFC 8985 section 6.2), tail loss probes (section 7),
//! retransmissions that get no answer, and timeouts that the slow path has decided on.

use crate::flow_lists::FlowLists;
use crate::rack::News;
use crate::setup::{Home, Miss, State, TIMERS_MAX, Work};
use base::{Duration, Instant};
use flow::{Episode, Event, FlowId, FlowMut, Flows, Interval, state};
use port::Port;

/// Least time before a probe in recovery: on faster paths the peer's scheduling takes most of the time.
const PATIENCE_MIN: Duration = Duration::from_us(500);
/// Time added to two round trips for the peer to answer: Linux's `TCP_TIMEOUT_MIN`, two ticks of a millisecond.
const PEER_TIME: Duration = Duration::from_ms(2);
/// Added to a flow's time for each flow in flight, so that checking flows takes at most a tenth of a core's time.
const EACH: Duration = Duration::from_us(1);
/// Most probes per episode that get no answer; after them the slow path's timeout decides.
const STALLS: u8 = 3;
/// Number of flow records that are prefetched together before the flows are checked.
const AHEAD: usize = 16;
/// After so many rounds with full batches, timers are handled even if more packets may wait in the port.
const ROUNDS_FULL_MAX: u32 = 64;

impl State {
    /// Time without an answer after which a probe is sent: "PTO = 2 * SRTT" (RFC 8985 section 7.2), and a little for the peer, as
    /// Linux. In recovery the peer answers at once: "an immediate duplicate ACK" (RFC 5681 section 4.2).
    #[inline]
    fn patience(f: &FlowMut<'_>) -> Duration {
        let round_trips = Duration::from_us(2 * u64::from(f.cold.srtt_us));
        if f.cold.recovery.episode == Episode::None {
            round_trips.plus(PEER_TIME)
        } else {
            round_trips.max(PATIENCE_MIN)
        }
    }

    /// True when at most one segment is in flight, and no episode of recovery is under way.
    #[inline]
    fn is_lone(f: &FlowMut<'_>) -> bool {
        f.tx.in_flight() <= u32::from(f.tx.mss) && f.cold.recovery.episode == Episode::None
    }

    /// The flow has sent data, with `before` bytes in flight already: makes sure that its loss timer runs.
    #[inline(always)]
    pub(crate) fn watch(&mut self, w: &mut Work<'_>, before: u32) {
        let mss = u32::from(w.f.tx.mss);
        let is_lone_no_more = before <= mss && w.f.tx.in_flight() > mss;
        if !w.f.rx.has(state::WATCHED) || is_lone_no_more {
            self.watch_soon(w);
        }
    }

    /// Starts the loss timer, or shortens it if it runs too long.
    #[inline(never)]
    pub(crate) fn watch_soon(&mut self, w: &mut Work<'_>) {
        let others = EACH.times(u64::from(self.lists.looks.len()));
        let at = self.now.plus(Self::patience(&w.f)).plus(others);
        // The timer may be set for the probe of a lone segment, which comes much later.
        if !w.f.rx.has(state::WATCHED) || at < self.lists.looks.at(w.id.0) {
            w.f.rx.set(state::WATCHED);
            self.lists.looks.remove(w.id.0);
            self.lists.looks.wait(w.id.0, at);
        }
    }

    /// Sets the loss timer to `at`, or stops it.
    fn watch_until(&mut self, w: &mut Work<'_>, at: Option<Instant>) {
        self.lists.looks.remove(w.id.0);
        w.f.rx.clear(state::WATCHED);
        let Some(at) = at else { return };
        self.lists.looks.wait(w.id.0, at);
        // WATCHED means that the timer is early enough for data sent meanwhile. It is not if `at` is late, unless that data is a lone
        // segment again, because the probe of that one comes as late.
        if at <= self.now.plus(Self::patience(&w.f)) || Self::is_lone(&w.f) {
            w.f.rx.set(state::WATCHED);
        }
    }

    /// After news of losses: computes the loss timer's time anew.
    pub(crate) fn hasten(&mut self, w: &mut Work<'_>) {
        self.hasten_with(w, Instant::ZERO);
    }

    /// As `hasten`, with no probe before `earliest`.
    fn hasten_with(&mut self, w: &mut Work<'_>, earliest: Instant) {
        note_measured(&mut w.f);
        let (_, reordered) = self.detect(&mut w.f);
        let next = self.next_probe(&w.f).map(|at| at.max(earliest));
        self.watch_until(w, [reordered, next].into_iter().flatten().min());
    }

    /// Handles the flows with an expired loss timer. Packets that wait in the port are handled first: a core that did not run for
    /// a while must not take its own silence for the peer's.
    pub(crate) fn look_after<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        port: &mut P,
    ) {
        self.rounds_full = if self.is_crowded { self.rounds_full + 1 } else { 0 };
        if self.is_crowded && self.rounds_full < ROUNDS_FULL_MAX {
            return;
        }
        self.rounds_full = 0;
        let FlowLists { looks, due, .. } = &mut self.lists;
        looks.expire(self.now, |flow| due.push_back(flow, 0));
        for i in 0..TIMERS_MAX {
            if i % AHEAD == 0 {
                self.lists.due.iter().take(AHEAD).for_each(|flow| flows.prefetch_waiting(FlowId(flow)));
            }
            let Some(flow) = self.lists.due.pop_due(0) else { return };
            let done = self.with(flows, homes, FlowId(flow), |state, w| {
                w.f.rx.clear(state::WATCHED);
                if w.f.rx.has(state::LEAVING) || w.f.tx.snd_una == w.f.tx.snd_max {
                    return;
                }
                state.counters.loss_timers += 1;
                if w.f.tx.snd_nxt == w.f.tx.snd_max {
                    state.check(w, port);
                } else {
                    state.lose_all(w, port);
                }
            });
            if done == Err(Miss::Busy) {
                self.lists.due.push_back(flow, 0);
                return;
            }
        }
    }

    fn check<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        note_measured(&mut w.f);
        let (is_lost, _) = self.detect(&mut w.f);
        let mut earliest = Instant::ZERO;
        if is_lost {
            if w.f.cold.recovery.episode == Episode::None {
                self.enter(&mut w.f);
            }
            self.reduce(&mut w.f, 0, false);
            self.finish(w, port);
        } else if self.next_probe(&w.f).is_some_and(|at| at <= self.now) && !self.probe_tail(w, port) {
            // The probe stays due. Without a pause the timer would fire in each round.
            earliest = self.now.plus(Self::patience(&w.f));
        }
        self.hasten_with(w, earliest);
    }

    /// When to probe if the peer stays silent. `None`: the slow path's timeout decides, so that a peer that is gone keeps no core awake;
    /// also without SACK, which "the connection MUST use" (RFC 8985 section 4), because nothing else shows the result of a probe.
    fn next_probe(&self, f: &FlowMut<'_>) -> Option<Instant> {
        let r = &f.cold.recovery;
        if !f.rx.has(state::SACK)
            || f.cold.srtt_us == 0
            || f.tx.in_flight() == 0
            || f.rx.has(state::PROBED)
            || r.stalls >= STALLS
        {
            return None;
        }
        if r.episode == Episode::None && (r.is_probe_unmeasured || !self.config.tail_probes) {
            return None;
        }
        let sent_ago = u64::from(self.now_us().wrapping_sub(f.cold.sent_at));
        let sent_at = Instant::from_ns(self.now.as_ns().saturating_sub(sent_ago * 1_000));
        let since = f.cold.progress_at.max(r.restart_at).max(sent_at);
        let mut patience = Self::patience(f).times(1 << r.stalls);
        if Self::is_lone(f) {
            // "If FlightSize is one segment: PTO += TLP.max_ack_delay", for which Linux, too, takes the least timeout.
            patience = patience.plus(self.config.rto_min);
        }
        if r.episode != Episode::None {
            return (patience < f.cold.rto).then(|| since.plus(patience));
        }
        // "If the time at which an RTO would fire ... is sooner than the computed time for the PTO, then the sender schedules a TLP
        // to be sent at that RTO time": the slow path leaves it that much time (`flow::Cold::is_probe_due`).
        let timeout = f.cold.progress_at.max(r.restart_at).plus(f.cold.rto);
        Some(since.plus(patience).min(timeout))
    }

    /// The peer was silent for too long. Without a sign of loss: sends new data, or the last segment in flight again, so that an
    /// acknowledgement shows what is missing; one probe until the peer has acknowledged it (RFC 8985 section 7.3). If retransmissions are
    /// under way, the oldest segment counts as lost again. False when nothing could be sent, and nothing is noted.
    #[must_use]
    fn probe_tail<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) -> bool {
        let (una, max, mss) = (w.f.tx.snd_una, w.f.tx.snd_max, u32::from(w.f.tx.mss));
        if w.f.cold.runs > 0 {
            w.f.cold.recovery.restart_at = self.now;
            if w.f.cold.recovery.episode == Episode::None {
                self.enter(&mut w.f);
            }
            w.f.cold.recovery.stalls += 1;
            self.lose_first(&mut w.f);
            self.reduce(&mut w.f, 0, false);
            self.finish(w, port);
            return true;
        }
        let cwnd = w.f.tx.cwnd;
        w.f.tx.cwnd = cwnd.saturating_add(mss);
        self.transmit(w, port);
        w.f.tx.cwnd = cwnd;
        let is_new = w.f.tx.snd_max != max;
        // The last segment; a FIN that was sent as a segment of its own is sent so again.
        let last = if w.f.rx.has(state::FIN_SENT) && w.f.cold.is_fin_alone { 1 } else { mss };
        let len = max.since(una).min(last);
        let range = Interval { left: max.minus(len), right: max };
        if !is_new && !self.send_again(w, range, port) {
            return false;
        }
        w.f.rx.set(state::PROBED);
        let r = &mut w.f.cold.recovery;
        (r.probe_end, r.is_probe_new, r.restart_at) = (w.f.tx.snd_max, is_new, self.now);
        r.is_probe_unmeasured = true;
        self.counters.tail_probes += 1;
        true
    }

    /// Judges the result of a probe. A report of a duplicate, an older timestamp, or, from a peer that reports no duplicates, a bare
    /// second acknowledgement shows that nothing was lost. An acknowledgement beyond the probe without any of these shows that the probe
    /// repaired a loss, after which the window is reduced as after any other (RFC 8985 section 7.4).
    pub(crate) fn judge_probe(&mut self, f: &mut FlowMut<'_>, news: &News, advanced: bool) {
        let (una, end) = (f.tx.snd_una, f.cold.recovery.probe_end);
        let is_in_vain = f.cold.recovery.is_probe_new && end.is_at_or_before(una)
            || news.duplicate.is_some_and(|range| range.right == end)
            || news.is_pure_duplicate && una == end
            || news.is_delayed && advanced;
        if is_in_vain {
            return f.rx.clear(state::PROBED);
        }
        if end.is_before(una) {
            f.rx.clear(state::PROBED);
            f.cold.recovery.may_undo = false;
            f.cold.recovery.lost_total = f.cold.recovery.lost_total.wrapping_add(u32::from(f.tx.mss));
            self.reduce_for(f, Event::Lost);
        }
    }
}

/// No probe is sent before "a new RTT measurement" was taken since the last one (RFC 8985 section 7.3 in short). The acknowledgement
/// of data sent after the probe, or of a probe that was new data, is such a measurement.
fn note_measured(f: &mut FlowMut<'_>) {
    let (una, r) = (f.tx.snd_una, &mut f.cold.recovery);
    let is_measured = r.probe_end.is_before(una) || r.is_probe_new && r.probe_end == una;
    r.is_probe_unmeasured &= !is_measured;
}
