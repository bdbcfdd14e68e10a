//! A flow's record under a program: how the program begins, what is enforced of its decisions, and how the flow goes back to its algorithm.
//! Runs no program.

use crate::{FlowMut, FlowProgram, Situation, Start};
use base::Instant;
use ccp_vm::Changes;
use congestion::{Decision, Event, RateSettings, Signals};

impl FlowMut<'_> {
    /// As [`steer`](Self::steer), for a flow with a program: nothing but the program's own decisions, and the segment size as the least,
    /// changes window and rate.
    #[cold]
    pub(crate) fn steer_programmed(&mut self, event: Event<'_>, signals: &Signals) -> Decision {
        if let Event::Mtu { .. } = event {
            self.cold.window.on(event, signals);
            self.allow_window();
        }
        Decision { cwnd: self.tx.cwnd, pace_rate: self.cold.pace_rate, is_echo_answered: false }
    }

    /// Enforces a decision of the flow's program: bytes of window, and bytes per second (0: no pacing).
    #[inline]
    pub fn decide(&mut self, cwnd: u64, rate: u64) {
        self.cold.window.set_programmed(cwnd);
        self.allow_window();
        if self.cold.pace_rate != rate {
            self.cold.set_pace(rate);
        }
    }

    /// A program begins to steer the flow, or takes the place of the one before; its changes are made. `at` is the flow's state now.
    // SETUP: the slow path calls it when an agent chooses a program.
    pub fn begin_program(&mut self, start: &Start, at: &Situation) {
        match &mut self.cold.program {
            Some(program) => program.replace(start, at, self.tx.snd_max),
            None => {
                self.cold.program = Some(Box::new(FlowProgram::new(start, at, self.tx.snd_max)));
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

    /// The flow goes back to its algorithm, with a window no larger than what is in flight (`pipe` bytes), or than a new connection's. The
    /// program that ends, if there was one.
    pub fn end_program(&mut self, now: Instant, pipe: u32, rates: &RateSettings) -> Option<Box<FlowProgram>> {
        let program = self.cold.program.take()?;
        // Unanswered window probes are backed off, too; they say nothing of the path.
        let is_unheard = self.cold.backoff > 0 && self.tx.in_flight() > 0;
        self.cold.window.take_from_program(now, pipe, is_unheard);
        self.follow_window(now, rates);
        self.leave_repair_alone();
        Some(program)
    }

    /// Another law decides about the window from now on, and it has not reduced the window for the losses that are being repaired: undoing
    /// the repair does not bring back the window, and the law, from before. Proportional rate reduction begins anew.
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
}

#[cfg(test)]
mod tests {
    use crate::{Cold, Config, Echo, FlowId, FlowProgram, Flows, Start, state};
    use base::{Duration, Instant};
    use ccp_vm::{Bounds, Builder, Changes, Primitive, Variable};
    use congestion::{Algorithm, Event, RateSettings, Window};
    use std::sync::Arc;

    const MSS: u16 = 1448;

    fn at(ms: u64) -> Instant {
        Instant::ZERO.plus(Duration::from_ms(ms))
    }

    fn start(number: u32, cwnd: Option<u64>) -> Start {
        let mut program = Builder::new();
        let lost = program.volatile_report(0);
        program.always(|event| {
            event.set(lost, Primitive::LostPackets);
            event.set(Variable::CWND, u32::MAX);
            event.report();
        });
        let program = program.finish().and_then(|source| source.verify()).expect("it keeps every rule");
        let bounds = Bounds::of(u32::from(MSS), 50_000, u64::MAX);
        Start { program: Arc::new(program), number, bounds, changes: Changes { cwnd, ..Changes::default() } }
    }

    #[test]
    fn ticks_in_a_row_are_counted_until_something_comes() {
        let flows = Flows::new(Config::default(), [1, 2]);
        flows.make(FlowId(0));
        let mut guard = flows.try_lock(FlowId(0)).expect("nothing else holds it");
        let mut f = guard.parts();
        *f.cold = Cold::new(Window::new(Algorithm::Reno, MSS, at(0)), at(0));
        f.tx.mss = MSS;
        f.begin_program(&start(7, None), &f.situation(at(1), 0, 0));
        let situation = f.situation(at(2), 0, 0);
        let (una, end) = (f.tx.snd_una, f.tx.snd_max);
        let program = f.cold.program.as_mut().expect("it has just begun");
        let mut runs = |events: &[fn(&mut FlowProgram)]| {
            events.iter().for_each(|event| event(program));
            program.run(&situation).expect("nothing in it can fail");
            program.ticks()
        };
        assert_eq!([runs(&[FlowProgram::on_tick]), runs(&[FlowProgram::on_tick])], [1, 2]);
        assert_eq!(runs(&[FlowProgram::on_timeout, FlowProgram::on_tick]), 0, "the timeout came, too");
        assert_eq!([runs(&[FlowProgram::on_tick]), runs(&[])], [1, 0], "a run for a loss");
        assert_eq!(runs(&[FlowProgram::on_tick]), 1);
        program.on_ack(una, 0, end, Echo::None);
        program.run(&situation).expect("nothing in it can fail");
        assert_eq!(program.ticks(), 0);
    }

    /// The agent of an idle connection has died: the connection goes on as after any pause (RFC 5681 section 4.1), not with one segment.
    #[test]
    fn an_idle_flow_goes_back_with_a_restart_window() {
        let flows = Flows::new(Config::default(), [1, 2]);
        flows.make(FlowId(0));
        let mut guard = flows.try_lock(FlowId(0)).expect("nothing else holds it");
        let mut f = guard.parts();
        let whole = 10 * u32::from(MSS);
        // Backed off for window probes, and for data that is in flight and all lost.
        for (programmed, backoff, in_flight, left) in [
            (40_000, 0, 0, whole),
            (5_000, 0, 0, 5_000),
            (40_000, 2, 0, whole),
            (40_000, 2, 30_000, u32::from(MSS)),
        ] {
            *f.cold = Cold::new(Window::new(Algorithm::Reno, MSS, at(0)), at(0));
            (f.tx.mss, f.tx.cwnd, f.cold.backoff) = (MSS, f.cold.window.cwnd(), backoff);
            f.begin_program(&start(7, Some(programmed)), &f.situation(at(1), 0, 0));
            assert_eq!((u64::from(f.tx.cwnd), f.pipe()), (programmed, 0));
            f.tx.snd_max = f.tx.snd_una.plus(in_flight);
            assert!(f.end_program(at(60_000), 0, &RateSettings::default()).is_some());
            assert_eq!((f.tx.cwnd, f.cold.window.cwnd()), (left, left));
            f.tx.snd_max = f.tx.snd_una;
        }
    }

    #[test]
    fn events_change_nothing_under_a_program_and_a_flow_goes_back_with_what_is_in_flight() {
        let flows = Flows::new(Config::default(), [1, 2]);
        flows.make(FlowId(0));
        let mut guard = flows.try_lock(FlowId(0)).expect("nothing else holds it");
        let mut f = guard.parts();
        *f.cold = Cold::new(Window::new(Algorithm::Reno, MSS, at(0)), at(0));
        f.cold.srtt_us = 10_000;
        (f.tx.mss, f.tx.cwnd) = (MSS, f.cold.window.cwnd());
        f.tx.snd_max = f.tx.snd_una.plus(30_000);
        f.rx.set(state::SACK);
        let before = f.cold.window;
        let situation = f.situation(at(1), f.pipe(), 0);
        f.begin_program(&start(7, Some(40_000)), &situation);
        assert_eq!((f.tx.cwnd, f.cold.window.algorithm()), (40_000, Algorithm::Reno));
        for event in [
            Event::Lost,
            Event::Timeout { is_reduced: false },
            Event::Partial,
            Event::Recovered { is_inflated: true },
            Event::Idle { rto: Duration::from_ms(1) },
            Event::Undo { before: &before },
        ] {
            f.steer(event, &f.signals(at(10_000)));
            assert_eq!((f.tx.cwnd, f.cold.window.cwnd(), f.cold.pace_rate), (40_000, 40_000, 0), "{event:?}");
        }
        // What the program asks for is moved into its bounds, and counted.
        f.cold.recovery.lost_total += 3_000;
        let situation = f.situation(at(2), f.pipe(), 0);
        let program = f.cold.program.as_mut().expect("it has just begun");
        assert!(program.is_due(situation.lost));
        let decision = program.run(&situation).expect("nothing in it can fail");
        assert!(program.announces() && !program.announces());
        assert_eq!((program.report(), program.totals()), (Some(&[3][..]), (1, 0, 1)));
        f.decide(decision.cwnd, decision.rate);
        assert_eq!(f.tx.cwnd, 50_000);
        assert!(f.end_program(at(3), f.pipe(), &RateSettings::default()).is_some());
        assert_eq!((f.tx.cwnd, f.cold.window.is_programmed()), (30_000, false));
        // The window from before the program does not come back.
        let before = f.cold.recovery.before;
        f.steer(Event::Undo { before: &before }, &f.signals(at(4)));
        assert_eq!(f.tx.cwnd, 30_000);
        assert!(
            !f.change_program(&Changes::default())
                && f.end_program(at(5), 0, &RateSettings::default()).is_none()
        );
    }
}
