//! Flows in flight, looked at when their time has come: the reordering timer (RFC 8985 section 6.2), tail loss probes (section
//! 7), repairs that are met with silence, and timeouts that the slow path has decided on.

use crate::classify::Miss;
use crate::rack::News;
use crate::records::last_record;
use crate::repair::{flight, say_reduced};
use crate::setup::{Home, State, TIMERS_MAX, Work};
use base::{Duration, Instant};
use flow::{Episode, FlowId, FlowMut, Flows, Interval, state};
use port::Port;

/// No repetition earlier: on faster paths the peer's scheduling is what takes the time.
const PATIENCE_MIN: Duration = Duration::from_us(500);
/// What a probe leaves the peer beyond two round trips: Linux's `TCP_TIMEOUT_MIN`, two ticks of a millisecond.
const PEER_TIME: Duration = Duration::from_ms(2);
/// Each flow in flight makes the others wait so much longer: looking takes a tenth of a core's time at most.
const EACH: Duration = Duration::from_us(1);
/// Repetitions for silence within an episode; the timeout comes after them.
const STALLS: u8 = 3;
/// So many flows are fetched together before they are looked at.
const AHEAD: usize = 16;
/// Rounds with full batches after which timers are judged though more input may wait.
const ROUNDS_FULL_MAX: u32 = 64;

impl State {
    /// "PTO = 2 * SRTT" (RFC 8985 section 7.2), and a little for the peer, as Linux. In a repair the peer answers at once: "an
    /// immediate duplicate ACK" (RFC 5681 section 4.2).
    #[inline]
    fn patience(f: &FlowMut<'_>) -> Duration {
        let round_trips = Duration::from_us(2 * u64::from(f.cold.srtt_us));
        if f.cold.recovery.episode == Episode::None {
            round_trips.plus(PEER_TIME)
        } else {
            round_trips.max(PATIENCE_MIN)
        }
    }

    /// Nothing but one segment is in flight, and nothing is being repaired.
    #[inline]
    fn is_lone(f: &FlowMut<'_>) -> bool {
        f.tx.in_flight() <= u32::from(f.tx.mss) && f.cold.recovery.episode == Episode::None
    }

    /// The flow has something in flight, of which there was `before` already: look at it in a while.
    #[inline(always)]
    pub(crate) fn watch(&mut self, w: &mut Work<'_>, before: u32) {
        let mss = u32::from(w.f.tx.mss);
        let is_lone_no_more = before <= mss && w.f.tx.in_flight() > mss;
        if !w.f.rx.has(state::WATCHED) || is_lone_no_more {
            self.watch_soon(w);
        }
    }

    /// It is not looked at yet, or perhaps too late.
    #[inline(never)]
    pub(crate) fn watch_soon(&mut self, w: &mut Work<'_>) {
        let others = EACH.times(u64::from(self.looks.len()));
        let at = self.now.plus(Self::patience(&w.f)).plus(others);
        // It may wait for the distant probe of a lone segment.
        if !w.f.rx.has(state::WATCHED) || at < self.looks.at(w.id.0) {
            w.f.rx.set(state::WATCHED);
            self.looks.remove(w.id.0);
            self.looks.wait(w.id.0, at);
        }
    }

    /// Looks at the flow when something is due next.
    fn watch_until(&mut self, w: &mut Work<'_>, at: Option<Instant>) {
        self.looks.remove(w.id.0);
        w.f.rx.clear(state::WATCHED);
        let Some(at) = at else { return };
        self.looks.wait(w.id.0, at);
        // Else what is sent meanwhile may want to be looked at before that, unless it is a lone segment again, whose probe is as distant.
        if at <= self.now.plus(Self::patience(&w.f)) || Self::is_lone(&w.f) {
            w.f.rx.set(state::WATCHED);
        }
    }

    /// After news of losses: the time to look again is another.
    pub(crate) fn hasten(&mut self, w: &mut Work<'_>) {
        note_measured(&mut w.f);
        let (_, reordered) = self.detect(&mut w.f);
        let next = self.next_probe(&w.f);
        self.watch_until(w, [reordered, next].into_iter().flatten().min());
    }

    /// Flows whose turn has come to be looked at. What waits in the port is heard first: a core that did not run for a while
    /// must not take its own silence for the peer's.
    pub(crate) fn look_after<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        port: &mut P,
        is_drained: bool,
    ) {
        self.rounds_full = if is_drained { 0 } else { self.rounds_full + 1 };
        if !is_drained && self.rounds_full < ROUNDS_FULL_MAX {
            return;
        }
        self.rounds_full = 0;
        self.looks.expire(self.now, &mut self.due);
        for i in 0..TIMERS_MAX {
            if i % AHEAD == 0 {
                self.due.iter().take(AHEAD).for_each(|flow| flows.prefetch_waiting(FlowId(flow)));
            }
            let Some(flow) = self.due.pop_due(0) else { return };
            let done = self.with(flows, homes, FlowId(flow), |state, w| {
                w.f.rx.clear(state::WATCHED);
                if w.f.rx.has(state::LEAVING) || w.f.tx.snd_una == w.f.tx.snd_max {
                    return;
                }
                if w.f.tx.snd_nxt == w.f.tx.snd_max {
                    state.check(w, port);
                } else {
                    state.lose_all(w, port);
                }
            });
            if done == Err(Miss::Busy) {
                self.due.push_back(flow, 0);
                return;
            }
        }
    }

    fn check<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        note_measured(&mut w.f);
        let (is_lost, _) = self.detect(&mut w.f);
        if is_lost {
            if w.f.cold.recovery.episode == Episode::None {
                self.enter(&mut w.f);
            }
            self.reduce(&mut w.f, 0, false);
            self.finish(w, port);
        } else if self.next_probe(&w.f).is_some_and(|at| at <= self.now) {
            self.probe_tail(w, port);
        }
        self.hasten(w);
    }

    /// When silence becomes a sign. None: it is the timeout's business, so that a peer that is gone keeps no core awake; nor without
    /// SACK, which "the connection MUST use" (RFC 8985 section 4), for nothing else tells what a probe has shown.
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
            // "If FlightSize is one segment: PTO += TLP.max_ack_delay", of which the least timeout is the measure on Linux, too.
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

    /// Nothing was heard for too long. Without a sign of loss: new data, or the end of what is in flight once more, so that an
    /// acknowledgement shows what is missing; one probe until the peer has acknowledged it (RFC 8985 section 7.3). Where a repair is
    /// under way, its oldest segment is lost again.
    fn probe_tail<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        let (una, max, mss) = (w.f.tx.snd_una, w.f.tx.snd_max, u32::from(w.f.tx.mss));
        if w.f.cold.runs > 0 {
            w.f.cold.recovery.restart_at = self.now;
            if w.f.cold.recovery.episode == Episode::None {
                self.enter(&mut w.f);
            }
            w.f.cold.recovery.stalls += 1;
            self.lose_first(&mut w.f);
            self.reduce(&mut w.f, 0, false);
            return self.finish(w, port);
        }
        let cwnd = w.f.tx.cwnd;
        w.f.tx.cwnd = cwnd.saturating_add(mss);
        self.transmit(w, port);
        w.f.tx.cwnd = cwnd;
        let is_new = w.f.tx.snd_max != max;
        // The last segment: a FIN that went alone goes alone again.
        let last = if w.f.rx.has(state::FIN_SENT) && w.f.cold.is_fin_alone { 1 } else { mss };
        let len = max.since(una).min(last);
        // Not of two records.
        let len = len.min(last_record(w));
        let range = Interval { left: max.minus(len), right: max };
        if is_new || self.send_again(w, range, port) {
            w.f.rx.set(state::PROBED);
            let r = &mut w.f.cold.recovery;
            (r.probe_end, r.is_probe_new, r.restart_at) = (w.f.tx.snd_max, is_new, self.now);
            r.is_probe_unmeasured = true;
            self.counters.tail_probes += 1;
        }
    }

    /// What came of a probe: a report of a duplicate, an older timestamp, or from a peer that reports no duplicates a bare second
    /// acknowledgement says that nothing was lost; an acknowledgement of more without one says that the probe repaired a loss,
    /// which is as good a reason to slow down as any other (RFC 8985 section 7.4).
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
            let flight = flight(f);
            f.cold.window.on_fast_retransmit(self.now, flight);
            say_reduced(f);
            f.tx.cwnd = f.cold.window.cwnd();
        }
    }
}

/// No probe goes out before "a new RTT measurement" was taken since the last one (RFC 8985 section 7.3 in short). What was sent after a probe, or was new data itself, measures when it is acknowledged.
fn note_measured(f: &mut FlowMut<'_>) {
    let (una, r) = (f.tx.snd_una, &mut f.cold.recovery);
    let is_measured = r.probe_end.is_before(una) || r.is_probe_new && r.probe_end == una;
    r.is_probe_unmeasured &= !is_measured;
}
