//! Congestion control of a flow: the signals that it gets, and where its decisions are kept. Decides nothing itself.

use crate::{FlowMut, FlowProgram, Situation, Start, state};
use base::Instant;
use ccp_vm::Changes;
use congestion::{Decision, Event, Signals};

impl FlowMut<'_> {
    /// The flow's state, as congestion control sees it at an event without an acknowledgement.
    #[must_use]
    #[inline]
    pub fn signals(&self, now: Instant) -> Signals {
        Signals {
            now,
            acked_bytes: 0,
            marked_bytes: 0,
            in_flight: self.tx.in_flight(),
            flight_max: self.cold.flight_max,
            rtt_us: None,
            srtt_us: self.cold.srtt_us,
            min_rtt_us: self.cold.rtt_us_min,
            delivery_rate: self.cold.delivery_rate,
            lost_bytes_total: self.cold.counters.retransmitted_bytes,
            is_app_limited: !self.rx.has(state::CWND_FULL),
        }
    }

    /// Tells congestion control of `event`. Its decision, which is returned, is in force from now on.
    #[inline]
    pub fn steer(&mut self, event: Event<'_>, signals: &Signals) -> Decision {
        if self.cold.window.is_programmed() {
            return self.steer_programmed(event, signals);
        }
        let decision = self.cold.window.on(event, signals);
        if self.cold.pace_rate != decision.pace_rate {
            // The pace rate seldom changes, and when it does the pacer's fields are in the cache anyway.
            self.cold.set_pace(decision.pace_rate);
        }
        self.tx.cwnd = decision.cwnd;
        decision
    }

    /// As [`steer`](Self::steer), for a flow with a program: nothing but the program's own decisions, and the segment size as the least,
    /// changes window and rate.
    #[cold]
    fn steer_programmed(&mut self, event: Event<'_>, signals: &Signals) -> Decision {
        if let Event::Mtu { .. } = event {
            self.cold.window.on(event, signals);
            self.tx.cwnd = self.cold.window.cwnd();
        }
        Decision { cwnd: self.tx.cwnd, pace_rate: self.cold.pace_rate, is_echo_answered: false }
    }

    /// Enforces a decision of the flow's program: bytes of window, and bytes per second (0: no pacing).
    #[inline]
    pub fn decide(&mut self, cwnd: u64, rate: u64) {
        self.cold.window.set_programmed(cwnd);
        self.tx.cwnd = self.cold.window.cwnd();
        if self.cold.pace_rate != rate {
            self.cold.set_pace(rate);
        }
    }

    /// A program begins to steer the flow, or takes the place of the one before; its changes are made. `at` is the flow's state now.
    // SETUP: the slow path calls it when an agent chooses a program.
    pub fn begin_program(&mut self, start: &Start, at: &Situation) {
        match &mut self.cold.program {
            Some(program) => program.replace(start, at.now_us),
            None => {
                let rate = self.cold.pace_rate;
                self.cold.program = Some(Box::new(FlowProgram::new(start, at, self.tx.snd_max, rate)));
                self.cold.window.give_to_program();
                self.leave_repair_alone();
            }
        }
        self.change_program(&start.changes);
    }

    /// Makes changes of the flow's program between two runs. False, and nothing done, if the flow has none.
    pub fn change_program(&mut self, changes: &Changes) -> bool {
        let Some(program) = &mut self.cold.program else { return false };
        program.change(changes);
        let rate = program.rate();
        self.decide(changes.cwnd.unwrap_or(u64::from(self.tx.cwnd)), rate);
        true
    }

    /// The flow goes back to its algorithm, with a window no larger than what is in flight (`pipe` bytes). The program that ends, if
    /// there was one.
    pub fn end_program(&mut self, now: Instant, pipe: u32) -> Option<Box<FlowProgram>> {
        let program = self.cold.program.take()?;
        self.cold.window.take_from_program(now, pipe);
        self.tx.cwnd = self.cold.window.cwnd();
        self.cold.set_pace(self.cold.window.pace_rate(self.cold.srtt_us));
        self.leave_repair_alone();
        Some(program)
    }

    /// Whoever decides about the window from now on has not reduced it for the losses that are being repaired: undoing the repair does not
    /// bring back the window, and the law, from before. Proportional rate reduction begins anew.
    fn leave_repair_alone(&mut self) {
        let flight = self.tx.in_flight().max(1);
        let r = &mut self.cold.recovery;
        (r.before, r.may_undo) = (self.cold.window, false);
        (r.prr_delivered, r.prr_out, r.prr_flight) = (0, 0, flight);
    }

    /// The state of the flow that its program is told of; `pipe` are the bytes in the network, `pending` those that the application has
    /// written and that were never sent.
    #[must_use]
    pub fn situation(&self, now: Instant, pipe: u32, pending: u64) -> Situation {
        let (tx, cold) = (&*self.tx, &*self.cold);
        let held = if cold.runs > 0 { cold.recovery.held } else { 0 };
        // Without SACK a duplicate acknowledgement stands for a segment.
        let duplicates = u32::from(self.rx.dup_acks) * u32::from(tx.mss);
        Situation {
            now_us: now.as_us(),
            acked: tx.tx_una,
            delivered: tx.tx_una + u64::from(held.max(duplicates)),
            lost: cold.recovery.lost_total,
            pipe,
            pending,
            una: tx.snd_una,
            mss: tx.mss,
            cwnd: tx.cwnd,
            min_rtt_us: cold.rtt_us_min,
        }
    }

    /// "pipe": bytes in the network, as far as is known (RFC 6675 section 4). Not counted: data that the peer has reported, and lost data
    /// that was not retransmitted.
    #[must_use]
    #[inline]
    pub fn pipe(&self) -> u32 {
        let gone = if self.cold.runs > 0 { self.cold.recovery.held + self.cold.recovery.lost } else { 0 };
        self.tx.in_flight().saturating_sub(gone)
    }

    /// As [`steer`](Self::steer), when the flow is about to send after a pause: see [`congestion::Window::is_restart_due`].
    #[cold]
    pub fn restart(&mut self, now: Instant) {
        let signals = self.signals(now);
        self.steer(Event::Idle { rto: self.cold.rto }, &signals);
    }

    /// Sets the payload of a full segment to `mss` bytes.
    pub fn resize(&mut self, now: Instant, mss: u16) {
        self.tx.mss = mss;
        let signals = self.signals(now);
        if self.rx.has(state::RECOVERY) {
            // The repair of losses governs the window (RFC 9937), and returns it to congestion control at its end.
            self.cold.window.on(Event::Mtu { mss }, &signals);
        } else {
            self.steer(Event::Mtu { mss }, &signals);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, FlowId, Flows, state};
    use base::{Duration, Instant};
    use congestion::{Algorithm, Event, Window};

    const MSS: u16 = 1448;

    fn at(ms: u64) -> Instant {
        Instant::ZERO.plus(Duration::from_ms(ms))
    }

    /// Calls `check` with a new flow of Reno that has a round trip of 100 ms.
    fn with_flow(check: impl FnOnce(&mut crate::FlowMut<'_>)) {
        let flows = Flows::new(Config { flows: 1, ..Config::default() }, [1, 2]);
        flows.make(FlowId(0));
        let mut guard = flows.try_lock(FlowId(0)).expect("no other thread has it");
        let mut f = guard.parts();
        f.cold.window = Window::new(Algorithm::Reno, MSS, at(0));
        (f.tx.mss, f.tx.cwnd, f.cold.srtt_us) = (MSS, f.cold.window.cwnd(), 100_000);
        check(&mut f);
    }

    #[test]
    fn a_decision_is_in_force_with_its_window_and_its_rate() {
        with_flow(|f| {
            f.cold.window = Window::new(Algorithm::Reno, u16::MAX, at(0));
            let signals = congestion::Signals { in_flight: 600_000, ..f.signals(at(1)) };
            let decision = f.steer(Event::Lost, &signals);
            assert_eq!((decision.cwnd, decision.pace_rate), (300_000, 300_000 * 12));
            assert_eq!((f.tx.cwnd, f.cold.pace_rate), (300_000, 300_000 * 12));
            f.cold.limit_pace(1_000);
            f.steer(Event::Lost, &signals);
            assert_eq!(
                (f.tx.cwnd, f.cold.pace_rate),
                (150_000, 1_000),
                "SO_MAX_PACING_RATE bounds each decision"
            );
        });
    }

    #[test]
    fn larger_segments_leave_room_for_one_but_not_while_losses_are_repaired() {
        with_flow(|f| {
            f.steer(Event::Timeout { is_reduced: false }, &f.signals(at(1)));
            assert_eq!(f.tx.cwnd, u32::from(MSS));
            f.rx.set(state::RECOVERY);
            f.resize(at(2), 5_000);
            assert_eq!((f.tx.mss, f.tx.cwnd, f.cold.window.cwnd()), (5_000, u32::from(MSS), 5_000));
            f.rx.clear(state::RECOVERY);
            f.resize(at(3), 8_000);
            assert_eq!((f.tx.mss, f.tx.cwnd), (8_000, 8_000));
        });
    }
}
