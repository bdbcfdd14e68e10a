//! The state of a law that decides a rate, beside a flow's window, and the settings that such laws begin with. Only their flows touch it.

use super::{ConstantRate, Rate, RateDctcp, RateDctcpSettings, Timely, TimelySettings};
use crate::bbr::Bbr;
use crate::{Algorithm, Decision, Event, Signals};
use base::Instant;

/// Settings of the laws that have any. A flow keeps those that it began with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RateSettings {
    /// For flows of [`Algorithm::RateDctcp`].
    pub dctcp: RateDctcpSettings,
    /// For flows of [`Algorithm::Timely`].
    pub timely: TimelySettings,
}

/// The state of the law that decides one flow's rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RateLaw {
    /// The flow's algorithm decides a window alone.
    #[default]
    None,
    /// Rate-based DCTCP, with the settings that the flow began with.
    Dctcp(RateDctcp, RateDctcpSettings),
    /// TIMELY, with the settings that the flow began with.
    Timely(Timely, TimelySettings),
    /// BBR, which has no settings.
    Bbr(Bbr),
    /// One rate, whatever happens.
    Constant(ConstantRate),
}

impl RateLaw {
    /// The law of `algorithm` for a new flow of segments of `mss` bytes.
    #[must_use]
    pub fn new(algorithm: Algorithm, settings: &RateSettings, mss: u16, now: Instant) -> Self {
        match algorithm {
            Algorithm::Reno | Algorithm::Cubic | Algorithm::Dctcp | Algorithm::Constant(_) => Self::None,
            Algorithm::RateDctcp => Self::Dctcp(RateDctcp::new(mss, now), settings.dctcp),
            Algorithm::Timely => Self::Timely(Timely::new(mss, now), settings.timely),
            Algorithm::Bbr => Self::Bbr(Bbr::new(mss, now)),
            Algorithm::Rate(kbit) => Self::Constant(ConstantRate::new(Rate::from_kbit(kbit), mss)),
        }
    }

    /// The rate in force, bytes per second; 0: none yet, or the flow's algorithm decides none.
    #[must_use]
    pub fn pace_rate(&self) -> u64 {
        let rate = match self {
            Self::None => None,
            Self::Dctcp(law, _) => law.rate(),
            Self::Timely(law, _) => law.rate(),
            Self::Bbr(law) => Some(law.pace()),
            Self::Constant(law) => Some(law.rate()),
        };
        rate.map_or(0, Rate::bytes_per_second)
    }

    /// Takes an event with the flow's state at that time. `None` for [`RateLaw::None`].
    #[inline(never)]
    pub fn on(&mut self, event: Event<'_>, s: &Signals) -> Option<Decision> {
        match self {
            Self::None => None,
            Self::Dctcp(law, settings) => Some(law.on(event, s, settings)),
            Self::Timely(law, settings) => Some(law.on(event, s, settings)),
            Self::Bbr(law) => Some(law.on(event, s)),
            Self::Constant(law) => Some(law.on(event, s)),
        }
    }
}
