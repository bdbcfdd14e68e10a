//! What laws that decide a rate have in common: the unit, the control interval, and the window that goes with a rate.
//!
//! Each law is a state machine with the entry of [`Window`](crate::Window): an event with signals, answered by a decision. It decides once
//! for each control interval, at the first acknowledgement after its end, where TAS has a loop in the slow path over all flows.

mod constant;
mod dctcp;
mod law;
mod timely;

pub use constant::ConstantRate;
pub use dctcp::{RateDctcp, RateDctcpSettings, Step};
pub use law::{RateLaw, RateSettings};
pub use timely::{Timely, TimelySettings};

use crate::{CWND_MAX, Decision, INITIAL_SEGMENTS};
use base::Instant;

/// A sending rate in kilobits per second: up to 4.29 Tbit/s, in steps of 125 bytes per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub struct Rate(u32);

impl Rate {
    /// A rate of `kbit` kilobits per second.
    #[must_use]
    pub const fn from_kbit(kbit: u32) -> Self {
        Self(kbit)
    }

    /// The rate in kilobits per second.
    #[must_use]
    pub const fn kbit(self) -> u32 {
        self.0
    }

    /// The rate in bytes per second, as the pacer takes it.
    #[must_use]
    pub fn bytes_per_second(self) -> u64 {
        u64::from(self.0) * 125
    }

    /// The rate of `bytes` in `time_us` microseconds; a time of 0 counts as 1.
    pub(crate) fn of(bytes: u64, time_us: u32) -> Self {
        Self::bounded(bytes.saturating_mul(8_000) / u64::from(time_us.max(1)))
    }

    fn plus(self, more: Self) -> Self {
        Self(self.0.saturating_add(more.0))
    }

    pub(crate) fn times(self, numerator: u64, denominator: u64) -> Self {
        Self::bounded(u64::from(self.0).saturating_mul(numerator) / denominator)
    }

    fn bounded(kbit: u64) -> Self {
        Self(kbit.min(u64::from(u32::MAX)) as u32)
    }
}

/// Which round-trip time the control interval is a multiple of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoundTrip {
    /// The smoothed one, which includes the time in queues.
    Smoothed,
    /// The least one known.
    Least,
}

impl RoundTrip {
    /// Microseconds; 0 before the first sample.
    fn of(self, s: &crate::Signals) -> u32 {
        match self {
            Self::Least if s.min_rtt_us < s.srtt_us => s.min_rtt_us,
            _ => s.srtt_us,
        }
    }
}

/// A point in time in four bytes: microseconds modulo 2^32, of the last 71 minutes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct Stamp(u32);

impl Stamp {
    pub(crate) fn of(now: Instant) -> Self {
        Self(now.as_us() as u32)
    }

    /// Microseconds from this time to `now`.
    pub(crate) fn passed_us(self, now: Instant) -> u32 {
        (now.as_us() as u32).wrapping_sub(self.0)
    }
}

/// The control interval under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Interval {
    began: Stamp,
}

impl Interval {
    fn new(now: Instant) -> Self {
        Self { began: Stamp::of(now) }
    }

    /// If at least `least_us` have passed since the interval began: how many microseconds, and the next interval begins.
    fn end(&mut self, now: Instant, least_us: u32) -> Option<u32> {
        let passed = self.began.passed_us(now);
        let is_over = passed >= least_us.max(1);
        is_over.then(|| {
            *self = Self::new(now);
            passed
        })
    }
}

/// The initial window in bytes (RFC 6928).
fn initial(mss: u16) -> u32 {
    INITIAL_SEGMENTS * u32::from(mss.max(1))
}

/// The rate of an initial window for each round trip; not 0, which would be no pacing at all.
fn initial_rate(mss: u16, rtt_us: u32) -> Rate {
    Rate::of(u64::from(initial(mss)), rtt_us).max(least_rate(mss))
}

/// The least rate: one segment in each second, RFC 6298's least timeout.
fn least_rate(mss: u16) -> Rate {
    Rate::of(u64::from(mss.max(1)), 1_000_000).max(Rate(1))
}

/// The decision for `rate`. The window bounds what is in flight when acknowledgements stay away: two round trips' worth, and at least the
/// initial window, so that it is not the limit while they come. `None`: no round trip is known yet, so there is no rate either.
fn decision(rate: Option<Rate>, srtt_us: u32, mss: u16) -> Decision {
    let pace_rate = rate.map_or(0, Rate::bytes_per_second);
    let two_trips = u128::from(pace_rate) * 2 * u128::from(srtt_us) / 1_000_000;
    let cwnd = two_trips.clamp(u128::from(initial(mss)), u128::from(CWND_MAX)) as u32;
    Decision { cwnd, pace_rate, is_echo_answered: false }
}
