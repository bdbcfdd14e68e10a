//! One connection's controller: gathers signals from quinn's calls, runs the program once for each acknowledgement and loss, and says the
//! window.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccp_vm::{Bounds, Changes, Invocation, Machine, Program, Signals};
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerMetrics};

use crate::Handler;
use crate::rates::Rates;

/// RFC 9002, section 7.2: ten datagrams, but no more than the larger of 14,720 bytes and two datagrams.
const INITIAL_MAX: u64 = 14_720;

#[derive(Clone)]
pub struct ProgramController {
    connection: u64,
    program: Arc<Program>,
    handler: Option<Arc<dyn Handler>>,
    bounds: Bounds,
    machine: Machine,
    signals: Signals,
    rates: Rates,
    begin: Instant,
    mss: u64,
    cwnd: u64,
    rate: u64,
    srtt: Duration,
    in_flight: u64,
}

impl ProgramController {
    pub fn new(
        connection: u64,
        program: Arc<Program>,
        handler: Option<Arc<dyn Handler>>,
        bounds: Bounds,
        mss: u32,
        now: Instant,
    ) -> Self {
        let machine = Machine::new(&program, 0);
        let mss = u64::from(mss);
        Self {
            connection,
            program,
            handler,
            machine,
            signals: Signals::default(),
            rates: Rates::new(now),
            begin: now,
            mss,
            cwnd: bounds.cwnd(initial_window(mss)),
            rate: 0,
            srtt: Duration::ZERO,
            in_flight: 0,
            bounds,
        }
    }

    /// A packet of `bytes` that left at `sent` was acknowledged.
    fn acknowledged(&mut self, now: Instant, sent: Instant, bytes: u64, srtt: Duration) {
        self.rates.acknowledged(now, sent, bytes);
        self.srtt = srtt;
        let sample = now.saturating_duration_since(sent).as_micros() as u64;
        let signals = &mut self.signals;
        signals.bytes_acked += bytes;
        signals.packets_acked += 1;
        signals.rtt_us = if signals.rtt_us == 0 { sample } else { signals.rtt_us.min(sample) };
    }

    /// Runs the program over what was gathered. A run that a fault stops changes nothing.
    fn run(&mut self, now: Instant) {
        let now_us = now.saturating_duration_since(self.begin).as_micros() as u64;
        self.signals.now_us = now_us;
        self.signals.bytes_in_flight = self.in_flight;
        self.signals.packets_in_flight = self.in_flight.div_ceil(self.mss);
        let signals = std::mem::take(&mut self.signals);
        let input = Invocation { signals: &signals, cwnd: self.cwnd, rate: self.rate };
        if let Ok(decision) = self.machine.run(&self.program, &input) {
            let decision = self.bounds.apply(decision);
            (self.cwnd, self.rate) = (decision.cwnd, decision.rate);
        }
        let Some(values) = self.machine.report(&self.program) else { return };
        let answer = self.handler.as_ref().map(|handler| handler.on_report(self.connection, values));
        self.machine.report_taken();
        if let Some(changes) = answer {
            self.change(&changes);
        }
    }

    /// Sets what the handler, or the factory, asks for. 0 leaves the window, and the rate, as it is.
    pub fn change(&mut self, changes: &Changes) {
        self.machine.change(changes);
        self.cwnd = changes.cwnd.filter(|cwnd| *cwnd > 0).map_or(self.cwnd, |cwnd| self.bounds.cwnd(cwnd));
        self.rate = changes.rate.filter(|rate| *rate > 0).map_or(self.rate, |rate| self.bounds.rate(rate));
    }
}

fn initial_window(mss: u64) -> u64 {
    (10 * mss).min(INITIAL_MAX.max(2 * mss))
}

impl Controller for ProgramController {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        self.rates.sent(now, self.in_flight == 0);
        self.in_flight = self.in_flight.saturating_add(bytes);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, _app_limited: bool, rtt: &RttEstimator) {
        self.acknowledged(now, sent, bytes, rtt.get());
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, _app_limited: bool, _largest: Option<u64>) {
        self.in_flight = in_flight;
        let sample = self.rates.sample();
        self.signals.rate_incoming = sample.incoming;
        self.signals.rate_outgoing = sample.outgoing;
        self.run(now);
    }

    fn on_congestion_event(&mut self, now: Instant, _sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(lost_bytes);
        self.signals.lost_packets += lost_bytes.div_ceil(self.mss).max(1);
        self.signals.was_timeout |= is_persistent;
        self.run(now);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mss = u64::from(new_mtu).max(1);
        self.bounds = Bounds::of(u32::from(new_mtu), self.bounds.cwnd_max, self.bounds.rate_max);
        self.cwnd = self.bounds.cwnd(self.cwnd);
    }

    fn window(&self) -> u64 {
        if self.rate == 0 || self.srtt.is_zero() {
            return self.cwnd;
        }
        // quinn paces 1.25 windows over a round trip.
        let per_round_trip = u128::from(self.rate) * self.srtt.as_micros() / 1_250_000;
        self.cwnd.min(u64::try_from(per_round_trip).unwrap_or(u64::MAX)).max(self.bounds.cwnd_min)
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics.pacing_rate = (self.rate > 0).then_some(self.rate.saturating_mul(8));
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        initial_window(self.mss)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ccp_vm::{Builder, Flag, Primitive, Variable};

    use super::*;
    use crate::{MissingSignal, ProgramFactory};

    const MTU: u64 = 1200;
    const RTT: Duration = Duration::from_millis(20);

    /// Slow start, half the window at a loss, one packet at a timeout; reports of bytes, losses and both rates.
    fn program() -> Program {
        let mut program = Builder::new();
        let acked = program.volatile_report(0);
        let lost = program.volatile_report(0);
        let incoming = program.report_variable(0);
        let outgoing = program.report_variable(0);
        program.always(|event| {
            let sum = event.add(acked, Primitive::BytesAcked);
            event.set(acked, sum);
            let sum = event.add(lost, Primitive::LostPackets);
            event.set(lost, sum);
            event.set(incoming, Primitive::RateIncoming);
            event.set(outgoing, Primitive::RateOutgoing);
            let grown = event.add(Variable::CWND, Primitive::BytesAcked);
            event.set(Variable::CWND, grown);
            event.report();
            event.fallthrough();
        });
        program.when(
            |event| event.gt(Primitive::LostPackets, 0),
            |event| {
                let half = event.div(Variable::CWND, 2);
                event.set(Variable::CWND, half);
                event.fallthrough();
            },
        );
        program.when(|_| Flag::WAS_TIMEOUT, |event| event.set(Variable::CWND, 1));
        program.finish().expect("small").verify().expect("it keeps the rules")
    }

    #[derive(Default)]
    struct Notes {
        reports: Mutex<Vec<Vec<u64>>>,
        rate: Option<u64>,
    }

    impl Handler for Notes {
        fn on_report(&self, _connection: u64, values: &[u64]) -> Changes {
            self.reports.lock().expect("no panic").push(values.to_vec());
            Changes { rate: self.rate, ..Changes::default() }
        }
    }

    fn controller(notes: &Arc<Notes>, now: Instant) -> ProgramController {
        let bounds = Bounds::of(MTU as u32, 1_000_000, u64::MAX);
        let handler: Arc<dyn Handler> = Arc::<Notes>::clone(notes);
        ProgramController::new(1, Arc::new(program()), Some(handler), bounds, MTU as u32, now)
    }

    #[test]
    fn a_window_grows_with_what_is_acknowledged_and_halves_at_a_loss() {
        let (notes, now) = (Arc::new(Notes::default()), Instant::now());
        let mut flow = controller(&notes, now);
        assert_eq!(flow.window(), 12_000, "ten packets");
        for number in 0..10 {
            flow.on_sent(now + Duration::from_millis(number), MTU, number);
        }
        for number in 0..10 {
            let sent = now + Duration::from_millis(number);
            flow.acknowledged(sent + RTT, sent, MTU, RTT);
            flow.on_end_acks(sent + RTT, MTU * (9 - number), false, Some(number));
        }
        assert_eq!(flow.window(), 24_000);
        flow.on_congestion_event(now + 2 * RTT, now, false, 2 * MTU + 1);
        assert_eq!(flow.window(), 12_000);
        let reports = notes.reports.lock().expect("no panic");
        assert_eq!(reports.len(), 11);
        // Twelve thousand bytes since the last packet left: delivered over 29 ms from the flow's beginning on, sent over 9 ms.
        assert_eq!(reports[9][2..], [12_000_000_000 / 29_000, 12_000_000_000 / 9_000]);
        assert_eq!(reports[10][1], 3, "lost bytes, rounded up to packets");
    }

    #[test]
    fn a_mark_counts_as_a_loss_and_persistent_congestion_as_a_timeout() {
        let (notes, now) = (Arc::new(Notes::default()), Instant::now());
        let mut flow = controller(&notes, now);
        flow.on_congestion_event(now, now, false, 0);
        assert_eq!(flow.window(), 6000);
        flow.on_congestion_event(now, now, true, MTU);
        assert_eq!(flow.window(), MTU, "the least window is one packet");
    }

    #[test]
    fn a_rate_is_enforced_by_the_window_that_quinn_paces_to_it() {
        let notes = Arc::new(Notes { rate: Some(250_000), ..Notes::default() });
        let now = Instant::now();
        let mut flow = controller(&notes, now);
        flow.on_sent(now, MTU, 0);
        flow.acknowledged(now + RTT, now, MTU, RTT);
        flow.on_end_acks(now + RTT, 0, false, Some(0));
        // 250 kB/s over 20 ms are 5000 bytes; quinn paces a quarter faster than its window.
        assert_eq!((flow.window(), flow.cwnd), (4000, 13_200));
        assert_eq!(flow.metrics().pacing_rate, Some(2_000_000));
    }

    #[test]
    fn programs_that_need_what_quinn_cannot_give_are_refused_by_its_name() {
        for (name, signal) in Primitive::NAMES {
            let mut program = Builder::new();
            program.always(|event| event.set(Variable::CWND, signal));
            let program = program.finish().expect("small").verify().expect("it keeps the rules");
            let refused = ProgramFactory::new(program, 1_000_000).err();
            let is_missing = name.contains("ecn") || name.contains("pending");
            assert_eq!(refused, is_missing.then_some(MissingSignal { name }));
        }
    }

    #[test]
    fn a_clone_goes_on_by_itself() {
        let (notes, now) = (Arc::new(Notes::default()), Instant::now());
        let flow = controller(&notes, now);
        let mut other = flow.clone_box();
        other.on_congestion_event(now, now, false, MTU);
        assert_eq!((flow.window(), other.window()), (12_000, 6000));
    }
}
