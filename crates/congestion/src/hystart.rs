//! HyStart++ (RFC 9406): leaves slow start when the delay rises, before a loss. Its input is rounds and RTT samples only.

/// RFC 9406 section 4.3: recommended values.
const MIN_RTT_THRESH_US: u32 = 4_000;
const MAX_RTT_THRESH_US: u32 = 16_000;
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u8 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;

const NONE: u32 = u32::MAX;

/// The state of one slow start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HyStart {
    /// Bytes until all data in flight at the beginning of the round is acknowledged.
    round_left: u32,
    last_round_min_us: u32,
    round_min_us: u32,
    /// In conservative slow start: the round's minimum that caused it.
    css_baseline_us: u32,
    samples: u8,
    /// 0: in slow start. Else the number of rounds of conservative slow start, including the present one.
    css_rounds: u8,
}

/// How the window grows after an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growth {
    /// Add so many bytes and stay in slow start.
    By(u32),
    /// The path is full: leave slow start for congestion avoidance.
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

    /// `in_flight`: bytes unacknowledged after this acknowledgement of `acked` bytes. `window`: the window, if it was used up and its
    /// new room is not filled yet, because a round ends with the last byte that its first acknowledgement allowed. In the order of
    /// section 4.2: the window grows, then the sample counts, then the round may end. Without the limit `L`, which a paced sender does
    /// not need.
    pub(crate) fn on_ack(
        &mut self,
        acked: u32,
        rtt_us: Option<u32>,
        in_flight: u32,
        window: Option<u32>,
    ) -> Growth {
        let growth = if self.css_rounds == 0 { acked } else { acked / CSS_GROWTH_DIVISOR };
        if let Some(rtt_us) = rtt_us {
            self.round_min_us = self.round_min_us.min(rtt_us);
            self.samples = self.samples.saturating_add(1);
        }
        self.judge();
        self.round_left = self.round_left.saturating_sub(acked);
        let window = window.map_or(0, |window| window.saturating_add(growth));
        if self.round_left == 0 && self.end_round(in_flight.max(window)) {
            return Growth::Leave;
        }
        Growth::By(growth)
    }

    fn judge(&mut self) {
        if self.samples < N_RTT_SAMPLE || self.round_min_us == NONE {
            return;
        }
        if self.css_rounds > 0 {
            // "If currentRoundMinRTT < cssBaselineMinRtt: resume slow start": our data did not cause the rise.
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

    /// Begins a new round. True when conservative slow start has lasted long enough.
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
mod tests;
