//! `TCP_DEFER_ACCEPT`, the rule: a new connection stays out of the accept queue until the peer's first bytes or its end come, or until the
//! listener's time is over.
//!
//! The library rounds the option's seconds when the program sets it. The slow path obeys for connections over a port: it drops the last step
//! of the handshake. Within the host a connection is accepted at once, as Linux does when the time is over.

use base::Duration;

/// Longest time between two SYN-ACKs, in seconds: Linux's `TCP_RTO_MAX`.
const INTERVAL_MAX: i32 = 120;
/// Most SYN-ACKs that Linux counts, in the eight bits of `rskq_defer_accept`.
const COUNT_MAX: u8 = u8::MAX;

/// How long a listener waits for the first bytes of a new connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeferAccept(Duration);

impl DeferAccept {
    /// From the option's seconds. `None`: the listener does not wait.
    #[must_use]
    pub const fn from_seconds(seconds: u16) -> Option<Self> {
        if seconds == 0 { None } else { Some(Self(Duration::from_secs(seconds as u64))) }
    }

    /// How much longer a connection waits, after `elapsed` since its SYN-ACK and with no byte nor end of the peer. `None`: it waits no more.
    #[must_use]
    pub const fn left(self, elapsed: Duration) -> Option<Duration> {
        match self.0.as_ns().checked_sub(elapsed.as_ns()) {
            None | Some(0) => None,
            Some(left) => Some(Duration::from_ns(left)),
        }
    }

    /// The option's seconds as Linux keeps them: rounded up to the time of a number of SYN-ACK retransmissions at 1, 2, 4, ... seconds, at
    /// most two minutes apart, and at most 255.
    #[must_use]
    pub fn rounded(seconds: i32) -> i32 {
        let (mut interval, mut sum) = (1, 0);
        for _ in 0..COUNT_MAX {
            if sum >= seconds {
                break;
            }
            sum += interval;
            interval = (interval * 2).min(INTERVAL_MAX);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_waits_for_the_time_and_not_longer() {
        assert_eq!(DeferAccept::from_seconds(0), None);
        let rule = DeferAccept::from_seconds(10).unwrap();
        assert_eq!(rule.left(Duration::ZERO), Some(Duration::from_secs(10)));
        assert_eq!(rule.left(Duration::from_ms(9_999)), Some(Duration::from_ms(1)));
        assert_eq!([10, 11].map(|s| rule.left(Duration::from_secs(s))), [None, None]);
        assert!(DeferAccept::from_seconds(u16::MAX).unwrap().left(Duration::from_secs(65_534)).is_some());
    }

    #[test]
    fn seconds_are_rounded_to_a_sum_of_timeouts() {
        let cases = [(-1, 0), (0, 0), (1, 1), (2, 3), (3, 3), (5, 7), (127, 127), (128, 247), (247, 247)];
        for (seconds, kept) in cases {
            assert_eq!(DeferAccept::rounded(seconds), kept, "{seconds}");
        }
        // Seven timeouts that double, then 248 of two minutes.
        assert_eq!(DeferAccept::rounded(i32::MAX), 127 + 248 * 120);
    }
}
