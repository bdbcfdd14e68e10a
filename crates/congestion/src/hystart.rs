//! HyStart++ (RFC 9406): leaves slow start when the delay rises, before the loss. Sees rounds and RTT samples only.

/// RFC 9406 section 4.3: recommended values.
const MIN_RTT_THRESH_US: u32 = 4_000;
const MAX_RTT_THRESH_US: u32 = 16_000;
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u8 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;

const NONE: u32 = u32::MAX;

/// One slow start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HyStart {
    /// Bytes until everything that was in flight when the round began is acknowledged.
    round_left: u32,
    last_round_min_us: u32,
    round_min_us: u32,
    /// While in conservative slow start: the minimum that made us suspicious.
    css_baseline_us: u32,
    samples: u8,
    /// 0: in slow start. Else the rounds of conservative slow start, this one included.
    css_rounds: u8,
}

/// What to do with acknowledged bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growth {
    /// Add so many bytes and stay.
    By(u32),
    /// The path is full: go over to congestion avoidance.
    Leave,
}

impl HyStart {
    pub(crate) const NEW: Self = Self {
        round_left: 0,
        last_round_min_us: NONE,
        round_min_us: NONE,
        css_baseline_us: NONE,
        samples: 0,
        css_rounds: 0,
    };

    /// `in_flight` is what is unacknowledged after this acknowledgement of `acked` bytes.
    pub(crate) fn on_ack(&mut self, acked: u32, rtt_us: Option<u32>, in_flight: u32) -> Growth {
        if let Some(rtt_us) = rtt_us {
            self.round_min_us = self.round_min_us.min(rtt_us);
            self.samples = self.samples.saturating_add(1);
        }
        self.judge();
        self.round_left = self.round_left.saturating_sub(acked);
        if self.round_left == 0 && self.end_round(in_flight) {
            return Growth::Leave;
        }
        Growth::By(if self.css_rounds == 0 { acked } else { acked / CSS_GROWTH_DIVISOR })
    }

    fn judge(&mut self) {
        if self.samples < N_RTT_SAMPLE || self.round_min_us == NONE {
            return;
        }
        if self.css_rounds > 0 {
            // "If currentRoundMinRTT < cssBaselineMinRtt: resume slow start": the rise was no queue of ours.
            if self.round_min_us < self.css_baseline_us {
                (self.css_baseline_us, self.css_rounds) = (NONE, 0);
            }
        } else if self.last_round_min_us != NONE {
            let threshold =
                (self.last_round_min_us / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH_US, MAX_RTT_THRESH_US);
            if self.round_min_us >= self.last_round_min_us.saturating_add(threshold) {
                (self.css_baseline_us, self.css_rounds) = (self.round_min_us, 1);
            }
        }
    }

    /// True when conservative slow start has lasted long enough.
    fn end_round(&mut self, in_flight: u32) -> bool {
        if self.css_rounds > 0 {
            self.css_rounds += 1;
        }
        self.round_left = in_flight;
        self.last_round_min_us = self.round_min_us;
        (self.round_min_us, self.samples) = (NONE, 0);
        self.css_rounds > CSS_ROUNDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(h: &mut HyStart, rtt_us: u32) -> Growth {
        let mut last = Growth::By(0);
        for left in (0..10u32).rev() {
            last = h.on_ack(1000, Some(rtt_us), if left == 0 { 10_000 } else { left * 1000 });
            if last == Growth::Leave {
                break;
            }
        }
        last
    }

    #[test]
    fn steady_delay_stays_in_slow_start() {
        let mut h = HyStart::NEW;
        assert!((0..20).all(|_| round(&mut h, 50_000) == Growth::By(1000)));
    }

    #[test]
    fn rising_delay_slows_and_then_leaves() {
        let mut h = HyStart::NEW;
        for _ in 0..3 {
            round(&mut h, 50_000);
        }
        assert_eq!(round(&mut h, 60_000), Growth::By(250));
        assert!((0..6).any(|_| round(&mut h, 60_000) == Growth::Leave));
    }

    #[test]
    fn delay_that_falls_again_resumes_slow_start() {
        let mut h = HyStart::NEW;
        for rtt in [50_000, 50_000, 60_000] {
            round(&mut h, rtt);
        }
        round(&mut h, 50_000);
        assert_eq!(round(&mut h, 50_000), Growth::By(1000));
    }
}
