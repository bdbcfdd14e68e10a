//! A constant rate, whatever happens. For measurements on private links.

use super::{Rate, decision};
use crate::{Decision, Event, Signals};

/// A flow that sends at one rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConstantRate {
    rate: Rate,
    mss: u16,
}

impl ConstantRate {
    /// A flow of segments of `mss` bytes that sends at `rate`.
    #[must_use]
    pub const fn new(rate: Rate, mss: u16) -> Self {
        Self { rate, mss }
    }

    /// The rate that the flow keeps.
    pub(crate) const fn rate(&self) -> Rate {
        self.rate
    }

    /// Takes an event; the rate stays.
    pub fn on(&mut self, event: Event<'_>, s: &Signals) -> Decision {
        if let Event::Mtu { mss } = event {
            self.mss = mss;
        }
        decision(Some(self.rate), s.srtt_us, self.mss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Duration, Instant};

    #[test]
    fn the_rate_stays_and_the_window_is_two_round_trips_of_it() {
        let mut law = ConstantRate::new(Rate::from_kbit(80_000), 1_000);
        let s = Signals {
            srtt_us: 20_000,
            acked_bytes: 5_000,
            marked_bytes: 5_000,
            ..Signals::at(Instant::ZERO)
        };
        let events = [
            Event::Ack,
            Event::Lost,
            Event::Timeout { is_reduced: false },
            Event::Idle { rto: Duration::from_ms(200) },
            Event::Mtu { mss: 500 },
        ];
        for event in events {
            let decision = law.on(event, &s);
            assert_eq!((decision.pace_rate, decision.cwnd), (10_000_000, 400_000), "{event:?}");
        }
        assert_eq!(
            law.on(Event::Ack, &Signals::at(Instant::ZERO)).cwnd,
            5_000,
            "the initial window at least"
        );
    }
}
