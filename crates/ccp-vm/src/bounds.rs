//! The window and the rate that a flow may be given at least and at most, whatever a program or an agent asks for.

use crate::machine::Decision;

/// Bounds of one flow. What lies outside is moved to the nearest bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// The least window, bytes: one segment.
    pub cwnd_min: u64,
    /// The largest window, bytes, not below the least.
    pub cwnd_max: u64,
    /// The least rate, bytes per second, that is not 0.
    pub rate_min: u64,
    /// The largest rate, bytes per second, not below the least.
    pub rate_max: u64,
}

impl Bounds {
    /// Bounds of a flow with segments of `mss` bytes, with at most this window and rate by policy. The least rate is a segment for
    /// each second, which is TCP's first retransmission timeout (RFC 6298, section 2.1).
    #[must_use]
    pub fn of(mss: u32, cwnd_max: u64, rate_max: u64) -> Self {
        let least = u64::from(mss).max(1);
        Self {
            cwnd_min: least,
            cwnd_max: cwnd_max.max(least),
            rate_min: least,
            rate_max: rate_max.max(least),
        }
    }

    /// The window within the bounds; 0, which changes nothing, stays 0.
    #[must_use]
    pub fn cwnd(&self, bytes: u64) -> u64 {
        if bytes == 0 { 0 } else { bytes.max(self.cwnd_min).min(self.cwnd_max) }
    }

    /// The rate within the bounds; 0, which changes nothing, stays 0.
    #[must_use]
    pub fn rate(&self, bytes_per_second: u64) -> u64 {
        if bytes_per_second == 0 { 0 } else { bytes_per_second.max(self.rate_min).min(self.rate_max) }
    }

    /// What is enforced of a program's decision. It differs from `decision` where a bound was hit, which the datapath counts.
    #[must_use]
    pub fn apply(&self, decision: Decision) -> Decision {
        Decision { cwnd: self.cwnd(decision.cwnd), rate: self.rate(decision.rate) }
    }
}
