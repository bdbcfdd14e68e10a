//! Congestion control of a flow: the signals that it gets, and where its decisions are kept. Decides nothing itself.

use crate::{FlowMut, state};
use base::Instant;
use congestion::{Algorithm, Decision, Event, RateLaw, RateSettings, Signals};

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
        if self.cold.window.is_decided_outside() {
            return self.steer_outside(event, signals);
        }
        let decision = self.cold.window.on(event, signals);
        if self.cold.pace_rate != decision.pace_rate {
            // The pace rate seldom changes, and when it does the pacer's fields are in the cache anyway.
            self.cold.set_pace(decision.pace_rate);
        }
        self.tx.cwnd = decision.cwnd;
        decision
    }

    /// As [`steer`](Self::steer), when a law beside the window decides, or a program.
    #[inline(never)]
    fn steer_outside(&mut self, event: Event<'_>, signals: &Signals) -> Decision {
        if self.cold.window.is_programmed() {
            self.steer_programmed(event, signals)
        } else {
            self.steer_rate(event, signals)
        }
    }

    /// As [`steer`](Self::steer), for an algorithm that decides the rate.
    fn steer_rate(&mut self, event: Event<'_>, signals: &Signals) -> Decision {
        let cold = &mut *self.cold;
        let same = Decision { cwnd: self.tx.cwnd, pace_rate: cold.pace_rate, is_echo_answered: false };
        let decision = cold.law.on(event, signals).unwrap_or(same);
        cold.window.follow(event, signals, &decision);
        if cold.pace_rate != decision.pace_rate {
            cold.change_pace(decision.pace_rate, signals.now);
        }
        if let Event::Timeout { .. } = event {
            // What the bucket has saved up while nothing was acknowledged must not go at once.
            cold.pace_at = cold.pace_at.max(signals.now);
        }
        self.tx.cwnd = decision.cwnd;
        decision
    }

    /// Switches to `algorithm`, with its form of ECN feedback. The window stays.
    pub fn choose(&mut self, now: Instant, algorithm: Algorithm, rates: &RateSettings) {
        if self.cold.window.algorithm() == algorithm {
            return;
        }
        self.cold.window.switch(algorithm, now);
        self.follow_window(now, rates);
        if algorithm.wants_exact_echo() {
            self.rx.set(state::EXACT_ECN);
        } else {
            self.rx.clear(state::EXACT_ECN);
        }
    }

    /// The window has got another algorithm: the law beside it, the pace rate and the window in force become those of that algorithm.
    pub(crate) fn follow_window(&mut self, now: Instant, rates: &RateSettings) {
        let cold = &mut *self.cold;
        cold.law = RateLaw::new(cold.window.algorithm(), rates, self.tx.mss, now);
        cold.limit_pace(cold.pace_most);
        self.allow_window();
    }

    /// The window becomes the one in force. After a timeout, one segment is until the peer is heard, whatever decides the window: each further
    /// timeout would repeat all that is in flight. "The loss window, LW, ... equals 1 full-sized segment" (RFC 5681 section 3.1 in short).
    pub fn allow_window(&mut self) {
        let most = if self.cold.recovery.is_unheard() { u32::from(self.tx.mss) } else { u32::MAX };
        self.tx.cwnd = self.cold.window.cwnd().min(most);
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
        if self.rx.has(state::RECOVERY) && !self.cold.window.is_programmed() {
            // The repair of losses governs the window (RFC 9937), and returns it to congestion control at its end.
            // (A flow whose rate is decided gets its window when the next acknowledgement comes.)
            let cold = &mut *self.cold;
            match cold.law.on(Event::Mtu { mss }, &signals) {
                Some(decision) => cold.window.follow(Event::Mtu { mss }, &signals, &decision),
                None => _ = cold.window.on(Event::Mtu { mss }, &signals),
            }
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
