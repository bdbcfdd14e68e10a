//! TIMELY (Mittal et al., SIGCOMM 2015, algorithm 1): a rate from the gradient of the round-trip time, with slow start for TCP as TAS has it
//! (TAS paper, section 3.2). Needs no marks.

use super::{Interval, Rate, decision, initial_rate, least_rate};
use crate::{Decision, Event, Signals};

/// The weight of the newest difference of round-trip times in their moving average, in eighths: 0.875.
const WEIGHT_EIGHTHS: i64 = 7;
/// beta = 0.8, in tenths.
const BETA_TENTHS: u64 = 8;
/// Completion events with a falling or level round-trip time after which the flow increases hyperactively.
const HYPERACTIVE_AFTER: u8 = 5;
/// Steps of a hyperactive increase.
const HYPERACTIVE_STEPS: u64 = 5;
/// The fraction 1 of a gradient, in fixed point.
const ONE: u64 = 1 << 16;

/// The thresholds and the step of TIMELY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimelySettings {
    /// T_low, microseconds above the least round-trip time: below it the rate rises whatever the gradient.
    pub low_us: u32,
    /// T_high, microseconds above the least round-trip time: above it the rate falls whatever the gradient.
    pub high_us: u32,
    /// delta: what an event without congestion adds.
    pub step: Rate,
    /// Round trips from one decision to the next. The paper decides at each completion of 16 to 64 KiB.
    pub interval_round_trips: u8,
}

/// The paper's T_low of 50 and T_high of 500 microseconds are for paths with a least round trip of about 20 microseconds. Here they count
/// above the least round trip, so that one setting serves all paths.
impl Default for TimelySettings {
    fn default() -> Self {
        Self { low_us: 30, high_us: 480, step: Rate::from_kbit(10_000), interval_round_trips: 2 }
    }
}

/// The state of one flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timely {
    /// `None` until a round trip is known.
    rate: Option<Rate>,
    interval: Interval,
    /// The newest round-trip time at the decision before, microseconds.
    rtt_before_us: u32,
    /// The newest round-trip time since then, microseconds; 0: none.
    rtt_us: u32,
    /// Moving average of differences between successive round-trip times, microseconds.
    rtt_diff_us: i32,
    /// Decisions in a row with a gradient of at most 0.
    calm: u8,
    is_slow_start: bool,
    /// In this interval the application had less to send than it was allowed.
    is_app_limited: bool,
    mss: u16,
}

impl Timely {
    /// A new flow of segments of `mss` bytes. Its initial window goes without a rate; at the first round-trip time its rate becomes an
    /// initial window for each round trip.
    #[must_use]
    pub fn new(mss: u16, now: base::Instant) -> Self {
        Self {
            rate: None,
            interval: Interval::new(now),
            rtt_before_us: 0,
            rtt_us: 0,
            rtt_diff_us: 0,
            calm: 0,
            is_slow_start: true,
            is_app_limited: false,
            mss,
        }
    }

    /// The rate in force; `None` until a round trip is known.
    pub(crate) fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Takes an event with the flow's state at that time.
    pub fn on(&mut self, event: Event<'_>, s: &Signals, settings: &TimelySettings) -> Decision {
        match event {
            Event::Ack | Event::Partial => self.on_ack(s, settings),
            // The paper's networks lose nothing. Over others a loss is congestion (RFC 5681 section 3.1), and halves.
            Event::Lost => {
                self.is_slow_start = false;
                self.rate = self.rate.map(|rate| rate.times(1, 2).max(least_rate(self.mss)));
            }
            Event::Timeout { .. } => {
                let loss_rate = Rate::of(u64::from(self.mss), s.srtt_us).max(least_rate(self.mss));
                self.rate = self.rate.map(|rate| rate.min(loss_rate));
                self.begin_anew(s);
            }
            Event::Idle { .. } => {
                let restart = initial_rate(self.mss, s.srtt_us);
                self.rate = self.rate.map(|rate| rate.min(restart));
                self.begin_anew(s);
            }
            Event::Mtu { mss } => self.mss = mss,
            Event::Duplicate { .. } | Event::Recovered { .. } | Event::Undo { .. } => {}
        }
        decision(self.rate, s.srtt_us, self.mss)
    }

    /// Slow start, without the round-trip times before a pause or a timeout.
    fn begin_anew(&mut self, s: &Signals) {
        let Self { rate, mss, .. } = *self;
        *self = Self { rate, ..Self::new(mss, s.now) };
    }

    fn on_ack(&mut self, s: &Signals, settings: &TimelySettings) {
        self.is_app_limited |= s.is_app_limited;
        self.rtt_us = s.rtt_us.unwrap_or(self.rtt_us);
        let Some(rate) = self.rate else {
            if s.srtt_us > 0 {
                self.rate = Some(initial_rate(self.mss, s.srtt_us));
                self.interval = Interval::new(s.now);
            }
            return;
        };
        let length_us = s.srtt_us.saturating_mul(u32::from(settings.interval_round_trips));
        if self.rtt_us > 0 && self.interval.end(s.now, length_us).is_some() {
            let least_us = s.min_rtt_us.min(self.rtt_us);
            let next = self.judge(rate, least_us, settings).max(least_rate(self.mss));
            // A rate that the application did not use is no evidence that the path has more (RFC 7661).
            self.rate = Some(if self.is_app_limited { next.min(rate) } else { next });
            (self.rtt_us, self.is_app_limited) = (0, false);
        }
    }

    /// Algorithm 1 of the paper: the rate after `rate`, for a least round trip of `least_us`.
    fn judge(&mut self, rate: Rate, least_us: u32, settings: &TimelySettings) -> Rate {
        let rtt_us = self.rtt_us;
        self.note_difference(rtt_us);
        let low_us = least_us.saturating_add(settings.low_us);
        let high_us = least_us.saturating_add(settings.high_us).max(1);
        let step = |n: u64| rate.plus(settings.step.times(n, 1));
        if self.is_slow_start && rtt_us < low_us {
            return rate.times(2, 1);
        }
        self.is_slow_start = false;
        if rtt_us < low_us {
            self.calm = 0;
            return step(1);
        }
        if rtt_us > high_us {
            // rate * (1 - beta * (1 - T_high / new_rtt))
            self.calm = 0;
            let excess = ONE - u64::from(high_us) * ONE / u64::from(rtt_us);
            return rate.times(10 * ONE - BETA_TENTHS * excess, 10 * ONE);
        }
        if self.rtt_diff_us <= 0 {
            self.calm = self.calm.saturating_add(1);
            return step(if self.calm >= HYPERACTIVE_AFTER { HYPERACTIVE_STEPS } else { 1 });
        }
        // rate * (1 - beta * normalized_gradient); a gradient above 1 counts as 1, so that the rate stays above 0.
        self.calm = 0;
        let gradient =
            (u64::from(self.rtt_diff_us.unsigned_abs()) * ONE / u64::from(least_us.max(1))).min(ONE);
        rate.times(10 * ONE - BETA_TENTHS * gradient, 10 * ONE)
    }

    /// "rtt_diff = (1 - alpha) * rtt_diff + alpha * new_rtt_diff".
    fn note_difference(&mut self, rtt_us: u32) {
        if self.rtt_before_us > 0 {
            let newest = i64::from(rtt_us) - i64::from(self.rtt_before_us);
            let mean = (i64::from(self.rtt_diff_us) * (8 - WEIGHT_EIGHTHS) + newest * WEIGHT_EIGHTHS) / 8;
            self.rtt_diff_us = mean.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
        }
        self.rtt_before_us = rtt_us;
    }
}

#[cfg(test)]
mod tests;
