//! The sending end of a line: computes when the last bit of each packet has left.

use crate::config::LinkConfig;
use crate::trace::{OPPORTUNITY_BYTES, Trace};
use base::{Duration, Instant};

/// A line, which sends one packet after the other.
#[derive(Clone, Debug)]
pub(crate) enum Line {
    /// Sending takes no time.
    Unlimited,
    /// Sends at a constant rate.
    Rate(RateLine),
    /// Sends at the times of a trace.
    Trace(TraceLine),
}

/// A line of constant rate. The remainder of each division is carried to the next packet of a busy period, so rounding errors do not add
/// up.
#[derive(Clone, Debug)]
pub(crate) struct RateLine {
    bits_per_second: u64,
    free_at: Instant,
    /// The remainder in units of 1 / `bits_per_second` nanoseconds.
    remainder: u64,
}

/// A line that sends at the opportunities of a trace.
#[derive(Clone, Debug)]
pub(crate) struct TraceLine {
    trace: Trace,
    /// The current opportunity's number, and the bytes left in it.
    index: u64,
    left: u32,
}

impl Line {
    pub(crate) fn new(config: &LinkConfig) -> Self {
        match (&config.trace, config.rate_bits_per_second) {
            (Some(trace), _) => {
                Self::Trace(TraceLine { trace: trace.clone(), index: 0, left: OPPORTUNITY_BYTES })
            }
            (None, Some(bits_per_second)) => {
                Self::Rate(RateLine { bits_per_second, free_at: Instant::ZERO, remainder: 0 })
            }
            (None, None) => Self::Unlimited,
        }
    }

    /// Sends a packet of `bytes` offered at `now`, after all earlier packets. Returns the time at which it has left.
    pub(crate) fn send(&mut self, now: Instant, bytes: usize) -> Instant {
        match self {
            Self::Unlimited => now,
            Self::Rate(line) => line.send(now, bytes),
            Self::Trace(line) => line.send(now, bytes),
        }
    }
}

impl RateLine {
    fn send(&mut self, now: Instant, bytes: usize) -> Instant {
        if self.free_at < now {
            (self.free_at, self.remainder) = (now, 0);
        }
        // A frame has less than 2^20 bits and a rate is at most 10^12: the sum stays below 2^60.
        let work = bytes as u64 * 8 * 1_000_000_000 + self.remainder;
        self.remainder = work % self.bits_per_second;
        self.free_at = self.free_at.plus(Duration::from_ns(work / self.bits_per_second));
        self.free_at
    }
}

impl TraceLine {
    fn send(&mut self, now: Instant, bytes: usize) -> Instant {
        if self.trace.time(self.index) < now {
            (self.index, self.left) = (self.trace.first_from(now), OPPORTUNITY_BYTES);
        }
        let mut bytes = bytes as u64;
        if u64::from(self.left) < bytes {
            bytes -= u64::from(self.left);
            // Number of further opportunities; the packet may use the last of them in part.
            let more = bytes.div_ceil(u64::from(OPPORTUNITY_BYTES));
            self.index += more;
            self.left = (more * u64::from(OPPORTUNITY_BYTES) - bytes) as u32;
        } else {
            self.left -= bytes as u32;
        }
        self.trace.time(self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::Line;
    use crate::{LinkConfig, Trace};
    use base::{Duration, Instant};

    #[test]
    fn rate_is_exact_over_a_long_busy_time() {
        // Rates that do not divide a second: rounding per packet would drift by up to 1 ns each.
        for rate in [1_000_000_007, 9_999_999_999, 333_333_333, 7] {
            let mut line = Line::new(&LinkConfig::rated(rate, Duration::ZERO));
            let (mut bits, mut left) = (0u128, Instant::ZERO);
            for n in 0..200_000u64 {
                let bytes = 60 + (n % 1455) as usize;
                bits += bytes as u128 * 8;
                left = line.send(Instant::ZERO, bytes);
            }
            assert_eq!(u128::from(left.as_ns()), bits * 1_000_000_000 / u128::from(rate), "{rate}");
        }
    }

    #[test]
    fn idle_line_begins_at_once() {
        let mut line = Line::new(&LinkConfig::rated(8_000_000_000, Duration::ZERO));
        assert_eq!(line.send(Instant::from_ns(500), 100).as_ns(), 600);
        assert_eq!(line.send(Instant::from_ns(500), 100).as_ns(), 700);
        assert_eq!(line.send(Instant::from_ns(9_000), 100).as_ns(), 9_100);
    }

    #[test]
    fn opportunity_carries_1500_bytes_and_is_lost_when_nobody_waits() {
        let trace = Some(Trace::parse("t", "1\n2\n2\n4\n").unwrap());
        let mut line = Line::new(&LinkConfig { trace, ..LinkConfig::default() });
        let mut send = |now_us: u64, bytes| line.send(Instant::from_ns(now_us * 1_000), bytes).as_ms();
        // Two small packets share an opportunity; a third does not fit into its rest and ends in the next.
        assert_eq!([send(0, 700), send(0, 700), send(0, 700)], [1, 1, 2]);
        // Both opportunities of 2 ms are used or past at 2.5 ms: the next is at 4 ms, then 5 and twice 6.
        assert_eq!([send(2_500, 100), send(2_500, 1_400), send(2_500, 3_000)], [4, 4, 6]);
        // The rest of an opportunity is lost if no packet waits for it.
        assert_eq!(send(6_001, 10), 6 + 2);
    }
}
