//! Rate-based DCTCP, as TAS has it (TAS paper, section 3.2): DCTCP's law applied to a rate, once for each control interval.

use super::{Interval, Rate, RoundTrip, decision, initial_rate, least_rate};
use crate::{Decision, Event, Signals};

/// The fraction 1 in fixed point.
const ONE: u64 = 1 << 15;
/// g = 1/16 (RFC 8257 section 4.1).
const G: u64 = 16;

/// Least round trips in which the least rate sends a segment.
const FLOOR_ROUND_TRIPS: u32 = 100;

/// Numbers that the paper leaves open, or gives as defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateDctcpSettings {
    /// The control interval in quarters of a round trip: "by default every 2 RTTs".
    pub interval_quarters: u16,
    /// Which round trip that is. The paper does not say.
    pub round_trip: RoundTrip,
    /// What an interval without congestion adds.
    pub step: Step,
    /// Intervals that passed without an acknowledgement add a step, too, as TAS's loop does, which does not wait for acknowledgements.
    pub adds_in_silence: bool,
}

/// What an interval without congestion adds to a rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The same for every rate: "10mbps by default".
    Fixed(Rate),
    /// The root of this rate times the flow's own: slow flows are not driven far beyond their share, fast ones grow fast, and two flows
    /// still come to equal shares, because the decrease is proportional to the rate (binomial congestion control, INFOCOM 2001).
    Root(Rate),
}

impl Step {
    fn at(self, rate: Rate) -> Rate {
        match self {
            Self::Fixed(step) => step,
            Self::Root(step) => {
                let product = u64::from(step.kbit()) * u64::from(rate.kbit());
                Rate::from_kbit(product.isqrt() as u32)
            }
        }
    }
}

/// Every two least round trips, as the paper but for the step: at 10 Mbit/s hundreds of flows with a few megabits each are far from equal, and at
/// any fixed step that suits them long flows take twice as long (docs/congestion.md has the numbers).
impl Default for RateDctcpSettings {
    fn default() -> Self {
        Self {
            interval_quarters: 8,
            round_trip: RoundTrip::Least,
            step: Step::Root(Rate::from_kbit(300)),
            adds_in_silence: true,
        }
    }
}

impl RateDctcpSettings {
    fn interval_us(&self, s: &Signals) -> u32 {
        let us = u64::from(self.round_trip.of(s)) * u64::from(self.interval_quarters) / 4;
        us.clamp(1, u64::from(u32::MAX)) as u32
    }
}

/// The state of one flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateDctcp {
    /// `None` until a round trip is known.
    rate: Option<Rate>,
    interval: Interval,
    /// Bytes acknowledged in this interval.
    acked: u32,
    /// The part of `acked` with marks.
    marked: u32,
    /// DCTCP.Alpha, the smoothed fraction of marked bytes, in units of 1 / `ONE`.
    alpha: u16,
    mss: u16,
    is_slow_start: bool,
}

impl RateDctcp {
    /// A new flow of segments of `mss` bytes. Its initial window goes without a rate; at the first round-trip time its rate becomes an
    /// initial window for each round trip.
    #[must_use]
    pub fn new(mss: u16, now: base::Instant) -> Self {
        let interval = Interval::new(now);
        // "DCTCP.Alpha ... initialized to 1" (RFC 8257 section 3.3).
        Self { rate: None, interval, acked: 0, marked: 0, alpha: ONE as u16, mss, is_slow_start: true }
    }

    /// The rate in force; `None` until a round trip is known.
    pub(crate) fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Takes an event with the flow's state at that time.
    pub fn on(&mut self, event: Event<'_>, s: &Signals, settings: &RateDctcpSettings) -> Decision {
        let was_marked = self.marked > 0 || s.marked_bytes > 0;
        match event {
            Event::Ack | Event::Partial => self.on_ack(s, settings),
            // "A DCTCP sender MUST react to loss episodes in the same way as conventional TCP" (RFC 8257 section 3.4): by half.
            Event::Lost => self.slow_down(1, 2),
            Event::Timeout { .. } => self.on_timeout(s),
            Event::Idle { .. } => self.on_pause(s),
            Event::Mtu { mss } => self.mss = mss,
            // A rate does not depend on what is in flight. A needless reduction is made good by increase or slow start.
            Event::Duplicate { .. } | Event::Recovered { .. } | Event::Undo { .. } => {}
        }
        // A peer that latches its echo (RFC 3168) is told by CWR that it was heard.
        let is_echo_answered = matches!(event, Event::Ack) && self.marked == 0 && was_marked;
        Decision { is_echo_answered, ..decision(self.rate, s.srtt_us, self.mss) }
    }

    fn on_ack(&mut self, s: &Signals, settings: &RateDctcpSettings) {
        self.acked = self.acked.saturating_add(s.acked_bytes);
        self.marked = self.marked.saturating_add(s.marked_bytes.min(s.acked_bytes));
        let Some(rate) = self.rate else {
            if s.srtt_us > 0 {
                self.rate = Some(initial_rate(self.mss, s.srtt_us));
                self.begin(s);
            }
            return;
        };
        let interval_us = settings.interval_us(s);
        if let Some(passed_us) = self.interval.end(s.now, interval_us) {
            let steps = if settings.adds_in_silence { (passed_us / interval_us).max(1) } else { 1 };
            let step = settings.step.at(rate).times(u64::from(steps), 1);
            self.rate = Some(self.judge(rate, passed_us, step, self.floor(s)));
            (self.acked, self.marked) = (0, 0);
        }
    }

    /// The least rate: a segment for each hundred round trips, a hundredth of the least window's. A flow below it would hear nothing for so
    /// long that it takes no part in the search for a fair share.
    fn floor(&self, s: &Signals) -> Rate {
        let trips_us = s.min_rtt_us.min(s.srtt_us).saturating_mul(FLOOR_ROUND_TRIPS);
        Rate::of(u64::from(self.mss.max(1)), trips_us).max(least_rate(self.mss))
    }

    /// The rate after an interval of `passed_us` at `rate`.
    fn judge(&mut self, rate: Rate, passed_us: u32, step: Rate, floor: Rate) -> Rate {
        // "To prevent rates from growing arbitrarily in the absence of congestion, we ensure at the beginning of the control loop that the
        // rate is no more than 20% higher than the flow's send rate."
        let sent = Rate::of(u64::from(self.acked), passed_us);
        let rate = rate.min(sent.times(6, 5)).max(floor);
        if self.acked > 0 {
            // Alpha = Alpha * (1 - g) + g * M; the decay is rounded up, so that alpha can reach zero.
            let alpha = u64::from(self.alpha);
            let fraction = u64::from(self.marked) * ONE / u64::from(self.acked);
            self.alpha = (alpha - alpha.div_ceil(G) + fraction / G).min(ONE) as u16;
        }
        if self.marked > 0 {
            // "rate-decrease proportional to fraction of ECN marked bytes": DCTCP's 1 - Alpha / 2.
            self.is_slow_start = false;
            return rate.times(2 * ONE - u64::from(self.alpha), 2 * ONE).max(floor);
        }
        // "during slow start we double the rate every control interval until there is an indication of congestion, and during additive
        // increase we add a configurable step size ... to the current rate."
        // (Steps for time without acknowledgements double the rate at most, as slow start does.)
        if self.is_slow_start { rate.times(2, 1) } else { rate.plus(step.min(rate)) }
    }

    /// The rate becomes `numerator / denominator` of what it was, and slow start is over.
    fn slow_down(&mut self, numerator: u64, denominator: u64) {
        self.is_slow_start = false;
        self.rate = self.rate.map(|rate| rate.times(numerator, denominator).max(least_rate(self.mss)));
    }

    /// RFC 5681 section 3.1's loss window, one segment, for each round trip; then slow start.
    fn on_timeout(&mut self, s: &Signals) {
        let loss_rate = Rate::of(u64::from(self.mss), s.srtt_us).max(least_rate(self.mss));
        self.rate = self.rate.map(|rate| rate.min(loss_rate));
        self.is_slow_start = true;
        self.begin(s);
    }

    /// After a pause the rate is at most that of a new flow (RFC 5681 section 4.1), and the pause does not count as a low send rate.
    fn on_pause(&mut self, s: &Signals) {
        let restart = initial_rate(self.mss, s.srtt_us);
        self.rate = self.rate.map(|rate| rate.min(restart));
        self.begin(s);
    }

    fn begin(&mut self, s: &Signals) {
        (self.interval, self.acked, self.marked) = (Interval::new(s.now), 0, 0);
    }
}

#[cfg(test)]
mod tests;
