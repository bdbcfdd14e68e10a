//! The branches of the paper's algorithm 1, and a queue that flows share.

extern crate std;
use super::*;
use base::{Duration, Instant};
use proptest::prelude::*;
use std::vec::Vec;

const MSS: u16 = 1_000;
/// The paper's thresholds of 50 and 500 us, for a least round trip of 20 us.
const SETTINGS: TimelySettings =
    TimelySettings { low_us: 30, high_us: 480, step: Rate::from_kbit(10_000), interval_round_trips: 1 };

fn at(us: u64) -> Instant {
    Instant::ZERO.plus(Duration::from_us(us))
}

struct Flow {
    law: Timely,
    us: u64,
}

impl Flow {
    /// A flow of `kbit` after slow start.
    fn avoiding(kbit: u32) -> Self {
        let law = Timely { rate: Some(Rate(kbit)), is_slow_start: false, ..Timely::new(MSS, at(0)) };
        Self { law, us: 0 }
    }

    /// Takes a round trip of `rtt_us`; returns the new rate, kbit/s.
    fn rtt(&mut self, rtt_us: u32) -> u32 {
        self.sample(rtt_us, false)
    }

    fn sample(&mut self, rtt_us: u32, is_app_limited: bool) -> u32 {
        self.us += 1_000;
        let s = Signals {
            acked_bytes: 1_000,
            rtt_us: Some(rtt_us),
            srtt_us: 1_000,
            min_rtt_us: 20,
            is_app_limited,
            ..Signals::at(at(self.us))
        };
        self.law.on(Event::Ack, &s, &SETTINGS);
        self.law.rate.map_or(0, Rate::kbit)
    }
}

fn near(got: u32, want: f64) {
    assert!((f64::from(got) - want).abs() <= want / 1_000.0 + 1.0, "{got} for {want}");
}

#[test]
fn below_the_low_threshold_the_rate_rises_by_a_step_whatever_the_gradient() {
    let mut flow = Flow::avoiding(1_000_000);
    for (i, rtt) in [20, 49, 25, 48].into_iter().enumerate() {
        assert_eq!(flow.rtt(rtt), 1_010_000 + 10_000 * i as u32);
    }
}

/// "rate = rate * (1 - beta * (1 - T_high / new_rtt))".
#[test]
fn above_the_high_threshold_the_rate_falls_by_the_excess() {
    for rtt in [501, 625, 1_000, 5_000] {
        let want = 1_000_000.0 * (1.0 - 0.8 * (1.0 - 500.0 / f64::from(rtt)));
        near(Flow::avoiding(1_000_000).rtt(rtt), want);
    }
}

/// "rtt_diff = (1 - alpha) * rtt_diff + alpha * new_rtt_diff; normalized_gradient = rtt_diff / minRTT; rate = rate * (1 - beta *
/// normalized_gradient)".
#[test]
fn between_the_thresholds_a_rising_round_trip_lowers_the_rate_by_its_gradient() {
    let mut flow = Flow::avoiding(1_000_000);
    // The first sample has no gradient: a step.
    assert_eq!(flow.rtt(100), 1_010_000);
    // 0.875 * 8 = 7 microseconds, 0.35 of the least round trip.
    near(flow.rtt(108), 1_010_000.0 * (1.0 - 0.8 * 0.35));
    let before = flow.law.rate.map_or(0, Rate::kbit);
    // 0.125 * 7 + 0.875 * 16 = 14.875, in whole microseconds 14: 0.7.
    near(flow.rtt(124), f64::from(before) * (1.0 - 0.8 * 0.7));
    // A gradient above 1 takes four fifths, and no more.
    let before = flow.law.rate.map_or(0, Rate::kbit);
    near(flow.rtt(400), f64::from(before) * 0.2);
}

#[test]
fn after_five_calm_decisions_the_rate_rises_by_five_steps() {
    let mut flow = Flow::avoiding(1_000_000);
    let rates: Vec<u32> = (0..7).map(|_| flow.rtt(100)).collect();
    assert_eq!(rates, [1_010_000, 1_020_000, 1_030_000, 1_040_000, 1_090_000, 1_140_000, 1_190_000]);
    flow.rtt(130);
    let before = flow.law.rate.map_or(0, Rate::kbit);
    assert_eq!(flow.rtt(100), before + 10_000, "counted anew");
}

#[test]
fn slow_start_doubles_until_the_round_trip_reaches_the_low_threshold() {
    let mut flow = Flow { law: Timely::new(MSS, at(0)), us: 0 };
    // 10,000 bytes for each smoothed round trip of 1 ms.
    assert_eq!(flow.rtt(20), 80_000);
    assert_eq!([flow.rtt(20), flow.rtt(49), flow.rtt(30)], [160_000, 320_000, 640_000]);
    assert!(flow.rtt(60) < 640_000, "the round trip rises");
    let before = flow.law.rate.map_or(0, Rate::kbit);
    assert_eq!(flow.rtt(20), before + 10_000);
}

#[test]
fn a_rate_that_the_application_does_not_use_does_not_rise_but_falls() {
    let mut flow = Flow::avoiding(1_000_000);
    assert_eq!(flow.sample(20, true), 1_000_000);
    near(flow.sample(1_000, true), 600_000.0);
}

#[test]
fn losses_halve_a_timeout_and_a_pause_begin_anew() {
    let mut flow = Flow::avoiding(8_000_000);
    let s = Signals { srtt_us: 1_000, ..Signals::at(at(10)) };
    let rate = |decision: Decision| decision.pace_rate * 8 / 1_000;
    assert_eq!(rate(flow.law.on(Event::Lost, &s, &SETTINGS)), 4_000_000);
    assert_eq!(rate(flow.law.on(Event::Idle { rto: Duration::from_ms(1) }, &s, &SETTINGS)), 80_000);
    assert!(flow.law.is_slow_start);
    assert_eq!(rate(flow.law.on(Event::Timeout { is_reduced: false }, &s, &SETTINGS)), 8_000);
}

/// Four flows at 10 Gbit/s with a queue that grows by what they send too much: they use the link, and above T_high the queue is drained
/// before it is a quarter longer.
#[test]
fn flows_fill_a_link_and_keep_its_queue_near_the_high_threshold_at_most() {
    let mut flows: Vec<Flow> = [4_000_000, 1_000_000, 500_000, 100_000].map(Flow::avoiding).into();
    let (mut queue_us, mut sent, mut longest) = (0.0f64, 0.0f64, 0.0f64);
    for round in 0..20_000 {
        let sum: f64 = flows.iter().map(|f| f64::from(f.law.rate.map_or(0, Rate::kbit))).sum();
        // A decision every 50 us: the queue grows by the excess.
        queue_us = (queue_us + 50.0 * (sum / 10_000_000.0 - 1.0)).max(0.0);
        flows.iter_mut().for_each(|f| {
            f.rtt(20 + queue_us as u32);
        });
        if round >= 10_000 {
            sent += sum.min(10_000_000.0) / 10_000.0;
            longest = longest.max(queue_us);
        }
    }
    assert!(sent > 8_500_000.0, "{sent}");
    assert!(longest < 600.0, "{longest}");
}

proptest! {
    #[test]
    fn any_order_of_events_keeps_the_bounds(
        mss: u16,
        low_us: u32,
        high_us: u32,
        inputs in proptest::collection::vec((0u8..8, any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>()), 1..200),
    ) {
        let settings = TimelySettings { low_us, high_us, ..SETTINGS };
        let mut law = Timely::new(mss, at(0));
        for (kind, rtt_us, srtt_us, min_rtt_us, ns) in inputs {
            let s = Signals { rtt_us: Some(rtt_us), srtt_us, min_rtt_us, ..Signals::at(Instant::from_ns(ns)) };
            let event = match kind {
                0..=3 => Event::Ack,
                4 => Event::Lost,
                5 => Event::Timeout { is_reduced: false },
                6 => Event::Idle { rto: Duration::from_ms(200) },
                _ => Event::Partial,
            };
            let decision = law.on(event, &s, &settings);
            prop_assert!(decision.cwnd >= 10 * u32::from(mss.max(1)) && decision.cwnd <= crate::CWND_MAX);
            prop_assert!(law.rate.is_none_or(|rate| rate.kbit() > 0));
        }
    }
}
