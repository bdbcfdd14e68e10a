//! When a connection was last challenged: the limit of challenge ACKs that each connection has of its own.

use base::{Duration, Instant};

/// Least time between two answers on one connection to segments that are not acceptable: Linux's `tcp_invalid_ratelimit`.
pub const CHALLENGE_INTERVAL: Duration = Duration::from_ms(500);

/// "An implementation SHOULD include an ACK throttling mechanism" (RFC 5961 section 7): one answer in each [`CHALLENGE_INTERVAL`]. A
/// connection has its own, whatever others were sent: what an attacker causes at one connection changes nothing at another, so that counting
/// answers tells nothing of it (CVE-2016-5696). It also makes an exchange between two ends that are out of step die down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Challenged {
    /// The time of the last answer; `ZERO`: never.
    at: Instant,
}

impl Challenged {
    /// Of a connection that was never challenged.
    pub const NEVER: Self = Self { at: Instant::ZERO };

    /// Takes the right to one answer. False: the last one is too recent, and the segment gets none.
    #[must_use]
    pub fn take(&mut self, now: Instant) -> bool {
        let may = self.at == Instant::ZERO || now.since(self.at) >= CHALLENGE_INTERVAL;
        if may {
            self.at = now;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_comes_back_after_the_interval() {
        let start = Instant::ZERO.plus(Duration::from_secs(9));
        let mut challenged = Challenged::NEVER;
        let taken = |challenged: &mut Challenged, ms| challenged.take(start.plus(Duration::from_ms(ms)));
        assert_eq!(
            [0, 0, 499, 500, 999, 1000].map(|ms| taken(&mut challenged, ms)),
            [true, false, false, true, false, true]
        );
    }
}
