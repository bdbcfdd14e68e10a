//! BBR's model of a path: the largest delivery rate of the last ten rounds, and the least round-trip time of the last ten seconds.

use crate::Signals;
use crate::rate::{Rate, Stamp};
use base::Instant;

/// BtlBwFilterLen: rounds for which a delivery rate counts.
const ROUNDS: usize = 10;
/// RTpropFilterLen: how long a least round-trip time counts: 10 s.
const ROUND_TRIP_LIFE_US: u32 = 10_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Model {
    /// The largest delivery rate of each of the last rounds.
    rates: [Rate; ROUNDS],
    /// Index of the present round in `rates`.
    round: u8,
    /// A round has begun since the last rate that counted.
    is_new_round: bool,
    /// Bytes in flight that were sent while something other than the path was the limit: their rates say little.
    limited_left: u32,
    /// Bytes until all that was in flight at the round's beginning is acknowledged.
    round_left: u32,
    /// RTprop, microseconds; `u32::MAX` before the first.
    round_trip_us: u32,
    round_trip_at: Stamp,
    /// When the present sample of the delivery rate began; `None`: at the next acknowledgement.
    sampled_at: Option<Stamp>,
    /// Bytes delivered since then.
    delivered: u32,
    /// In that time the path was not always the limit.
    is_limited: bool,
}

impl Model {
    pub(super) fn new(now: Instant) -> Self {
        let rates = [Rate::from_kbit(0); ROUNDS];
        Self {
            rates,
            round: 0,
            is_new_round: false,
            limited_left: 0,
            round_left: 0,
            round_trip_us: u32::MAX,
            round_trip_at: Stamp::of(now),
            sampled_at: None,
            delivered: 0,
            is_limited: false,
        }
    }

    /// BtlBw; 0 before the first sample.
    pub(super) fn bandwidth(&self) -> Rate {
        self.rates.iter().copied().max().unwrap_or(Rate::from_kbit(0))
    }

    /// RTprop, microseconds; `u32::MAX` before the first.
    pub(super) fn round_trip_us(&self) -> u32 {
        self.round_trip_us
    }

    /// The bandwidth-delay product in bytes, if both are known.
    pub(super) fn product(&self) -> Option<u64> {
        let rate = self.bandwidth().bytes_per_second();
        let is_known = rate > 0 && self.round_trip_us != u32::MAX;
        is_known.then(|| (u128::from(rate) * u128::from(self.round_trip_us) / 1_000_000) as u64)
    }

    /// Counts an acknowledgement. True when it begins a round.
    pub(super) fn note(&mut self, s: &Signals) -> bool {
        self.round_left = self.round_left.saturating_sub(s.acked_bytes);
        let is_round = self.round_left == 0 && s.acked_bytes > 0;
        if is_round {
            self.is_new_round = true;
            self.begin_round(s.in_flight);
        }
        self.is_limited |= s.is_app_limited || self.limited_left > 0;
        self.limited_left = self.limited_left.saturating_sub(s.acked_bytes);
        if let Some(rate) = self.sample(s) {
            self.note_rate(rate, self.is_limited);
            (self.delivered, self.is_limited) = (0, false);
        }
        is_round
    }

    /// The delivery rate, when a sample ends: what acknowledgements and SACK report as delivered over a round-trip time. (The draft,
    /// section 4.1.1, has a sample for each acknowledgement, each over a round-trip time; the largest of a round differs little.)
    fn sample(&mut self, s: &Signals) -> Option<Rate> {
        self.delivered = self.delivered.saturating_add(s.acked_bytes);
        let passed_us = match self.sampled_at {
            Some(at) => at.passed_us(s.now),
            // What was acknowledged first was sent a round-trip time ago.
            None => s.srtt_us,
        };
        let is_over = s.srtt_us > 0 && self.delivered > 0 && passed_us >= s.srtt_us;
        is_over.then(|| {
            self.sampled_at = Some(Stamp::of(s.now));
            Rate::of(u64::from(self.delivered), passed_us)
        })
    }

    /// The flow sends again after a pause, which no sample may contain.
    pub(super) fn forget_sample(&mut self) {
        (self.sampled_at, self.delivered, self.is_limited) = (None, 0, false);
    }

    /// Counts a delivery rate. If the path was not the limit, it counts only when it is larger than all others (draft, section 4.1.1.3).
    /// Rounds without a rate that counts do not make older ones expire.
    fn note_rate(&mut self, sample: Rate, is_limited: bool) {
        if is_limited && sample < self.bandwidth() {
            return;
        }
        if self.is_new_round {
            self.is_new_round = false;
            self.round = (self.round + 1) % ROUNDS as u8;
            self.rates[usize::from(self.round)] = sample;
        }
        let best = &mut self.rates[usize::from(self.round)];
        *best = sample.max(*best);
    }

    /// The `in_flight` bytes of now were sent while something other than the path was the limit.
    pub(super) fn limit(&mut self, in_flight: u32) {
        self.limited_left = in_flight;
    }

    /// The round ends when the `in_flight` bytes of now are acknowledged.
    pub(super) fn begin_round(&mut self, in_flight: u32) {
        self.round_left = in_flight;
    }

    /// Takes a round-trip time. True when the least one known is more than ten seconds old: then this one replaces it.
    pub(super) fn note_round_trip(&mut self, s: &Signals) -> bool {
        let is_stale = self.round_trip_at.passed_us(s.now) > ROUND_TRIP_LIFE_US;
        if let Some(rtt_us) = s.rtt_us
            && (rtt_us <= self.round_trip_us || is_stale)
        {
            (self.round_trip_us, self.round_trip_at) = (rtt_us.max(1), Stamp::of(s.now));
        }
        is_stale
    }

    /// The least round-trip time counts for ten seconds from `now` on: it was just measured with an empty pipe.
    pub(super) fn renew(&mut self, now: Instant) {
        self.round_trip_at = Stamp::of(now);
    }
}
