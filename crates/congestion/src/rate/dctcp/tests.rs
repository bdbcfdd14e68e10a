//! The paper's sentences one by one, and two flows at one link.

extern crate std;
use super::*;
use base::{Duration, Instant};
use proptest::prelude::*;

const MSS: u16 = 1_000;
const RTT_US: u32 = 100;
const SETTINGS: RateDctcpSettings = RateDctcpSettings {
    interval_quarters: 8,
    round_trip: RoundTrip::Smoothed,
    step: Step::Fixed(Rate::from_kbit(10_000)),
    adds_in_silence: true,
};

fn at(us: u64) -> Instant {
    Instant::ZERO.plus(Duration::from_us(us))
}

fn ack(us: u64, acked_bytes: u32, marked_bytes: u32) -> Signals {
    Signals { acked_bytes, marked_bytes, srtt_us: RTT_US, min_rtt_us: RTT_US / 2, ..Signals::at(at(us)) }
}

/// A flow and its time, microseconds.
struct Flow {
    law: RateDctcp,
    us: u64,
}

impl Flow {
    /// A flow that has just measured its first round trip.
    fn new() -> Self {
        let mut law = RateDctcp::new(MSS, at(0));
        law.on(Event::Ack, &ack(100, 1_000, 0), &SETTINGS);
        Self { law, us: 100 }
    }

    /// A flow of `kbit` after slow start, with an estimate of `alpha` / `ONE`.
    fn avoiding(kbit: u32, alpha: u16) -> Self {
        let mut flow = Self::new();
        flow.law = RateDctcp { rate: Some(Rate(kbit)), alpha, is_slow_start: false, ..flow.law };
        flow
    }

    fn kbit(&self) -> u32 {
        self.law.rate.map_or(0, Rate::kbit)
    }

    /// An interval of two round trips in which the flow sends at its rate, and `percent` of the bytes are marked.
    fn interval(&mut self, percent: u32) -> Decision {
        let bytes = self.kbit() / 8 * 2 * RTT_US / 1_000;
        self.us += u64::from(2 * RTT_US);
        let marked = (u64::from(bytes) * u64::from(percent) / 100) as u32;
        self.law.on(Event::Ack, &ack(self.us, bytes, marked), &SETTINGS)
    }
}

#[test]
fn the_initial_window_goes_without_a_rate_and_the_first_round_trip_sets_one() {
    let mut law = RateDctcp::new(MSS, at(0));
    let decision = law.on(Event::Ack, &Signals { srtt_us: 0, ..ack(50, 1_000, 0) }, &SETTINGS);
    assert_eq!((decision.cwnd, decision.pace_rate), (10_000, 0));
    // 10,000 bytes in 100 microseconds.
    assert_eq!(law.on(Event::Ack, &ack(100, 1_000, 0), &SETTINGS).pace_rate, 100_000_000);
}

/// "during slow start we double the rate every control interval until there is an indication of congestion".
#[test]
fn slow_start_doubles_each_interval_until_a_mark() {
    let mut flow = Flow::new();
    for doublings in 1..=4 {
        let decision = flow.interval(0);
        assert_eq!(decision.pace_rate, 100_000_000 << doublings);
        assert_eq!(
            u64::from(decision.cwnd),
            (decision.pace_rate / 5_000).max(10_000),
            "two round trips' worth"
        );
    }
    let before = flow.kbit();
    flow.interval(100);
    // Alpha is 1 until the first unmarked interval: less a sixteenth for each of the four.
    let alpha = (15.0f64 / 16.0).powi(4) * 15.0 / 16.0 + 1.0 / 16.0;
    let want = f64::from(before) * (1.0 - alpha / 2.0);
    assert!((f64::from(flow.kbit()) - want).abs() < want / 1_000.0, "{} for {want}", flow.kbit());
    let after = flow.kbit();
    flow.interval(0);
    assert_eq!(flow.kbit(), after + 10_000, "additive increase from then on");
}

#[test]
fn nothing_is_decided_before_an_interval_is_over() {
    let mut flow = Flow::new();
    let before = flow.law.rate;
    for us in [150, 200, 299] {
        flow.law.on(Event::Ack, &ack(us, 5_000, 0), &SETTINGS);
        assert_eq!(flow.law.rate, before, "{us}");
    }
    flow.law.on(Event::Ack, &ack(300, 5_000, 0), &SETTINGS);
    assert_ne!(flow.law.rate, before);
    // From the least round trip, 50 us, an interval is half as long.
    let least = RateDctcpSettings { round_trip: RoundTrip::Least, ..SETTINGS };
    let rate = flow.law.rate;
    flow.law.on(Event::Ack, &ack(399, 50_000, 0), &least);
    assert_eq!(flow.law.rate, rate);
    flow.law.on(Event::Ack, &ack(400, 50_000, 0), &least);
    assert_ne!(flow.law.rate, rate);
}

/// RFC 8257 section 3.3: "Alpha = Alpha * (1 - g) + g * M", and "cwnd * (1 - DCTCP.Alpha / 2)", here of the rate.
#[test]
fn the_rate_falls_by_half_the_smoothed_fraction() {
    let mut flow = Flow::avoiding(8_000_000, 0);
    let (mut alpha, mut rate) = (0.0f64, 8_000_000.0f64);
    for percent in [25, 50, 100, 10, 0, 75] {
        flow.interval(percent);
        alpha = alpha * 15.0 / 16.0 + f64::from(percent) / 1_600.0;
        rate = if percent > 0 { rate * (1.0 - alpha / 2.0) } else { rate + 10_000.0 };
        assert!(
            (f64::from(flow.kbit()) - rate).abs() < rate / 500.0,
            "{} for {rate} at {percent}",
            flow.kbit()
        );
    }
}

/// "we ensure at the beginning of the control loop that the rate is no more than 20% higher than the flow's send rate."
#[test]
fn a_rate_that_is_not_used_is_capped() {
    let mut flow = Flow::avoiding(8_000_000, 0);
    // 20,000 bytes in 200 us: 800 Mbit/s.
    flow.law.on(Event::Ack, &ack(300, 20_000, 0), &SETTINGS);
    assert_eq!(flow.kbit(), 960_000 + 10_000);
}

#[test]
fn intervals_without_acknowledgements_add_a_step_if_they_are_to() {
    for (adds_in_silence, steps) in [(true, 5), (false, 1)] {
        let mut flow = Flow::avoiding(80_000, 0);
        let settings = RateDctcpSettings { adds_in_silence, ..SETTINGS };
        flow.law.on(Event::Ack, &ack(1_100, 10_000, 0), &settings);
        assert_eq!(flow.kbit(), 80_000 + steps * 10_000);
    }
}

#[test]
fn losses_halve_and_a_timeout_begins_with_a_segment_for_each_round_trip() {
    let mut flow = Flow::avoiding(8_000_000, 0);
    flow.law.on(Event::Lost, &ack(150, 0, 0), &SETTINGS);
    assert_eq!(flow.kbit(), 4_000_000);
    flow.law.on(Event::Timeout { is_reduced: false }, &ack(400, 0, 0), &SETTINGS);
    assert_eq!(flow.kbit(), 80_000, "1,000 bytes in 100 us");
    flow.us = 400;
    flow.interval(0);
    assert_eq!(flow.kbit(), 160_000);
}

#[test]
fn after_a_pause_a_flow_begins_as_a_new_one() {
    let mut flow = Flow::avoiding(8_000_000, 0);
    flow.us = 1_000_000;
    flow.law.on(Event::Idle { rto: Duration::from_ms(200) }, &ack(flow.us, 0, 0), &SETTINGS);
    assert_eq!(flow.kbit(), 800_000);
    flow.interval(0);
    assert_eq!(flow.kbit(), 810_000, "the pause does not count as a send rate");
}

/// Two flows at a link of 10 Gbit/s that marks while they send more than it has: shares become equal, and the link is used.
#[test]
fn two_flows_come_to_equal_shares() {
    let mut flows = [Flow::avoiding(9_000_000, 0), Flow::avoiding(500_000, 0)];
    let mut used = 0u64;
    for round in 0..4_000 {
        let sum: u32 = flows.iter().map(Flow::kbit).sum();
        let percent = if sum > 10_000_000 { 50 } else { 0 };
        flows.iter_mut().for_each(|flow| {
            flow.interval(percent);
        });
        used += if round >= 2_000 { u64::from(sum.min(10_000_000)) } else { 0 };
    }
    let (a, b) = (f64::from(flows[0].kbit()), f64::from(flows[1].kbit()));
    let jain = (a + b) * (a + b) / (2.0 * (a * a + b * b));
    assert!(jain > 0.99, "{a} and {b}");
    assert!(used / 2_000 > 9_000_000, "{}", used / 2_000);
}

proptest! {
    #[test]
    fn any_order_of_events_keeps_the_bounds(
        mss: u16,
        quarters: u16,
        step: u32,
        inputs in proptest::collection::vec((0u8..8, any::<u32>(), any::<u32>(), any::<u64>()), 1..200),
    ) {
        let settings = RateDctcpSettings { interval_quarters: quarters, step: Step::Fixed(Rate(step)), ..SETTINGS };
        let mut law = RateDctcp::new(mss, at(0));
        for (kind, acked, srtt_us, ns) in inputs {
            let now = Instant::from_ns(ns);
            let s = Signals { acked_bytes: acked, marked_bytes: acked / 2 * (ns as u32 % 2), srtt_us, ..Signals::at(now) };
            let event = match kind {
                0..=3 => Event::Ack,
                4 => Event::Lost,
                5 => Event::Timeout { is_reduced: false },
                6 => Event::Idle { rto: Duration::from_ms(200) },
                _ => Event::Partial,
            };
            let decision = law.on(event, &s, &settings);
            prop_assert!(decision.cwnd >= 10 * u32::from(mss.max(1)) && decision.cwnd <= crate::CWND_MAX);
            prop_assert!(law.alpha <= ONE as u16);
            prop_assert!(law.rate.is_none_or(|rate| rate.kbit() > 0));
        }
    }
}
