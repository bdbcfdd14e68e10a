//! Flows that a program steers, on their core: what the program is told, when it runs, and how its decisions are enforced. For such a flow
//! nothing else touches window and rate; finding and repairing losses goes on as for all flows.
//!
//! The program and all its state are in the flow's record ([`flow::FlowProgram`]). What a core keeps of the flow is a place in the wheel of
//! ticks, one of the flow's lists (see `flow_lists`).

use crate::flow_lists::FlowLists;
use crate::repair::note_reduced;
use crate::setup::{Home, Miss, State, TIMERS_MAX, Work};
use base::limits::RING_MAX;
use base::{Duration, Instant};
use core::sync::atomic::Ordering::Acquire;
use flow::{Echo, FlowId, FlowMut, FlowProgram, Flows, Sending, rare, state};
use port::Port;

/// Time without a run after which the program runs though nothing has come, so that its conditions about time come true: a smoothed round
/// trip, but at least 10 ms, by which agents wait for reports, and at most 100 ms. With each further such run the time doubles: very many flows,
/// each of which is acknowledged once a second, would else have ten runs for each acknowledgement.
const TICK: (Duration, Duration) = (Duration::from_ms(10), Duration::from_ms(100));
/// Longest time between two ticks, and between two looks at a flow with a report that no agent has taken yet.
const TICK_MOST: Duration = Duration::from_secs(1);
/// Doublings after which `TICK_MOST` is reached.
const DOUBLINGS: u8 = 7;

/// Time without a run after which there is a tick.
fn tick_of(f: &FlowMut<'_>) -> Duration {
    let first = Duration::from_us(u64::from(f.cold.srtt_us)).max(TICK.0).min(TICK.1);
    let doublings = f.cold.program.as_ref().map_or(0, |program| program.ticks().min(DOUBLINGS));
    Duration::from_ns(first.as_ns() << doublings).min(TICK_MOST)
}

/// When the program ran last.
fn ran_at(program: &FlowProgram) -> Instant {
    Instant::from_ns(program.ran_us() * 1_000)
}

/// Bytes that the application has written and that were never sent. Its half may hold any value, so the result is bounded.
fn pending(w: &Work<'_>) -> u64 {
    let sent = w.f.tx.tx_una + u64::from(w.f.tx.in_flight() - u32::from(w.f.rx.is_fin_out()));
    // Acquire: pairs with the Release in `Sender::publish`.
    w.peer.tx_head.load(Acquire).saturating_sub(sent).min(2 * u64::from(RING_MAX))
}

impl State {
    /// An acknowledgement was taken in: congestion was echoed by it, or not.
    #[inline(never)]
    pub(crate) fn tell_program(f: &mut FlowMut<'_>, echo: bool) {
        let (una, acked, max) = (f.tx.snd_una, f.tx.tx_una, f.tx.snd_max);
        let echo = match (echo, f.cold.accurate.is_agreed()) {
            (false, _) => Echo::None,
            (true, false) => Echo::All,
            (true, true) => Echo::Bytes(f.cold.accurate.pay(u32::MAX)),
        };
        let Some(program) = &mut f.cold.program else { return };
        let before = program.marked();
        let is_new = program.on_ack(una, acked, max, echo);
        f.cold.counters.marked_bytes += program.marked() - before;
        if is_new {
            note_reduced(f);
        }
    }

    /// True when a flow with a program gets its turn after each segment, although more of the batch follow.
    #[inline]
    pub(crate) fn runs_now(&self, w: &Work<'_>) -> bool {
        self.config.runs_each_ack && w.f.cold.window.is_programmed()
    }

    /// Runs the program of the flow, if something has happened since it ran last: in its turn, after all that has come and before anything
    /// is sent.
    #[inline(never)]
    pub(crate) fn run_program(&mut self, w: &mut Work<'_>) {
        let lost = w.f.cold.recovery.lost_total;
        if !w.f.cold.program.as_ref().is_some_and(|program| program.is_due(lost)) {
            return;
        }
        let at = w.f.situation(self.now, w.f.pipe(), pending(w));
        let Some(program) = &mut w.f.cold.program else { return };
        let decision = program.run(&at);
        let is_report_due = program.announces();
        match decision {
            Some(decision) => w.f.decide(decision.cwnd, decision.rate),
            None => self.counters.program_faults += 1,
        }
        if is_report_due {
            Self::owe(&mut w.f, rare::REPORT);
        }
    }

    /// The flow has sent what it could in its turn.
    #[inline(never)]
    pub(crate) fn end_programmed_turn(&mut self, w: &mut Work<'_>) {
        let (pending, pipe) = (pending(w), w.f.pipe());
        if pending == 0
            && pipe < w.f.tx.cwnd
            && w.f.cold.recovery.lost == 0
            && let Some(program) = &mut w.f.cold.program
        {
            program.limit(pipe);
        }
        if (pending > 0 || w.f.tx.in_flight() > 0)
            && let Some(program) = &w.f.cold.program
        {
            self.put_off_tick(w.id.0, ran_at(program), tick_of(&w.f));
        }
    }

    /// The flow's next tick comes a tick's time after the last run, or up to half of it sooner or later: so the wheel is touched twice in that
    /// time, and while the program runs all the time its flow has no ticks.
    #[inline]
    fn put_off_tick(&mut self, flow: u32, ran_at: Instant, tick: Duration) {
        let ticks = &mut self.lists.ticks;
        let at = ran_at.plus(tick);
        if ticks.contains(flow) {
            let next = ticks.at(flow);
            if at.since(next).max(next.since(at)) < Duration::from_ns(tick.as_ns() / 2) {
                return;
            }
            ticks.remove(flow);
        }
        ticks.wait(flow, at);
    }

    /// New data up to `snd_max` is on its way; `is_first`: nothing was in flight before.
    #[inline(never)]
    pub(crate) fn note_programmed(&mut self, f: &mut FlowMut<'_>, is_first: bool) {
        let (end, in_flight, srtt_us) = (f.tx.snd_max, f.tx.in_flight(), f.cold.srtt_us);
        let sending = Sending { end, now_us: self.now_us(), is_first, in_flight, resolution_us: 0 };
        if let Some(program) = &mut f.cold.program {
            program.sent(sending, srtt_us);
        }
    }

    /// Gives the flows with a tick that is due a turn. Packets that wait in the port go first.
    #[inline]
    pub(crate) fn tick_programs<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        port: &mut P,
    ) {
        if !self.is_crowded && self.lists.next_tick() <= self.now {
            self.tick_due(flows, homes, port);
        }
    }

    #[cold]
    fn tick_due<P: Port + ?Sized>(&mut self, flows: &Flows, homes: &mut [Option<Home>], port: &mut P) {
        let FlowLists { ticks, ticked, .. } = &mut self.lists;
        ticks.expire(self.now, |flow| ticked.push_back(flow, 0));
        for _ in 0..TIMERS_MAX {
            let Some(flow) = self.lists.ticked.pop_due(0) else { return };
            let done = self.with(flows, homes, FlowId(flow), |state, w| state.tick(w, port));
            if done == Err(Miss::Busy) {
                self.lists.ticked.push_back(flow, 0);
                return;
            }
        }
    }

    fn tick<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        let tick = tick_of(&w.f);
        let is_leaving = w.f.rx.has(state::LEAVING) || w.f.rx.core != self.index;
        let Some(program) = w.f.cold.program.as_mut().filter(|_| !is_leaving) else { return };
        let at = ran_at(program).plus(tick);
        if at > self.now {
            return self.lists.ticks.wait(w.id.0, at);
        }
        if program.is_announced() {
            // A run would change nothing that the agent sees before it takes the report. Where very many flows wait for that, each is looked at
            // ever later.
            let waited = self.now.since(ran_at(program));
            return self.lists.ticks.wait(w.id.0, self.now.plus(waited.min(TICK_MOST)));
        }
        program.on_tick();
        self.finish(w, port);
    }
}
