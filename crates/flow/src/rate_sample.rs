//! Samples of the round-trip time and of both rates, for flows that a program steers: as Linux takes rate samples
//! (draft-cheng-iccrg-delivery-rate-estimation-02). It sees sequence numbers, byte counts and times, no packets.
//!
//! ```text
//!             mark          mark                 mark
//!   snd_una ---|--- burst ---|------ burst -------|--- burst --- snd_max
//!              each burst: when it was sent, and what was delivered by then
//! ```
//! Data that was sent again gives no sample: which sending has arrived is not known (RFC 6298 section 3). Linux takes rate samples from such
//! data, too.

use base::SeqNumber;

/// Marks of one flow. Two round trips' worth at the resolution of a 64th; beyond that, pairs of marks become one.
const MARKS: usize = 128;

/// What was known when a burst was sent. Times in microseconds, bytes delivered, both modulo 2^32.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// One after the last sequence number of the burst.
    end: SeqNumber,
    /// When its first byte was sent.
    at: u32,
    /// Bytes delivered by then.
    delivered: u32,
    /// When the last of those bytes were delivered: the beginning of the sample's interval at the receiver.
    delivered_at: u32,
    /// When the data delivered last had been sent: the beginning of the sample's interval at the sender.
    first_sent_at: u32,
    is_app_limited: bool,
}

const NONE: Mark =
    Mark { end: SeqNumber(0), at: 0, delivered: 0, delivered_at: 0, first_sent_at: 0, is_app_limited: false };

/// What the data delivered last says about the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Round-trip time of the data sent last among the delivered, microseconds; 0: no sample.
    pub rtt_us: u32,
    /// The rate at which the sampled bytes arrived, bytes per second; 0: no sample.
    pub rate_incoming: u64,
    /// The rate at which they were sent, bytes per second; 0: no sample.
    pub rate_outgoing: u64,
    /// The application had too little to send while the sample was taken: the path may be faster.
    pub is_app_limited: bool,
}

/// A run of bytes that is sent now.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// One after its last sequence number.
    pub end: SeqNumber,
    /// Time, microseconds modulo 2^32.
    pub now_us: u32,
    /// Nothing was in flight before.
    pub is_first: bool,
    /// Bytes in flight, these included.
    pub in_flight: u32,
    /// Bytes sent within so many microseconds count as one burst, unless the samples would differ by more than that, or by a 64th of what
    /// is in flight.
    pub resolution_us: u32,
}

/// What acknowledgements say that came since the last sample.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// One after the last byte, among those delivered just now and sent once, that was sent last.
    pub newest: Option<SeqNumber>,
    /// The oldest sequence number not acknowledged.
    pub una: SeqNumber,
    /// Bytes delivered since the flow began, selectively acknowledged ones included, modulo 2^32.
    pub delivered: u32,
    /// Time, microseconds modulo 2^32.
    pub now_us: u32,
}

/// Marks of the bursts in flight, and what is known of deliveries.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// A ring buffer of `count` marks, the oldest at `first`.
    marks: [Mark; MARKS],
    first: u8,
    count: u8,
    /// Send times of bytes before this number are not known.
    known_from: SeqNumber,
    delivered: u32,
    delivered_at: u32,
    first_sent_at: u32,
    /// Samples are limited by the application until more than this is delivered.
    limited_until: Option<u32>,
}

impl Sampler {
    /// A sampler that knows nothing of data before `snd_max`; `delivered` and `now_us` as in [`Delivery`].
    #[must_use]
    pub fn new(snd_max: SeqNumber, delivered: u32, now_us: u32) -> Self {
        Self {
            marks: [NONE; MARKS],
            first: 0,
            count: 0,
            known_from: snd_max,
            delivered,
            delivered_at: now_us,
            first_sent_at: now_us,
            limited_until: None,
        }
    }

    /// New data is sent, behind all data sent before.
    pub fn sent(&mut self, sending: &Sending) {
        let now_us = sending.now_us;
        if sending.is_first {
            (self.first_sent_at, self.delivered_at) = (now_us, now_us);
        }
        let is_app_limited = self.limited_until.is_some();
        if let Some(last) = usize::from(self.count).checked_sub(1).filter(|_| !sending.is_first) {
            let last = &mut self.marks[place(self.first, last)];
            let more = self.delivered.wrapping_sub(last.delivered);
            let most_us = sending.resolution_us;
            let between = self.first_sent_at.wrapping_sub(last.first_sent_at);
            let is_soon = now_us.wrapping_sub(last.at) <= most_us
                && between.wrapping_add(most_us) <= 2 * most_us
                && more <= sending.in_flight / 64;
            if is_soon && last.is_app_limited == is_app_limited {
                last.end = sending.end;
                return;
            }
        }
        if usize::from(self.count) == MARKS {
            self.halve();
        }
        self.marks[place(self.first, usize::from(self.count))] = Mark {
            end: sending.end,
            at: now_us,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            is_app_limited,
        };
        self.count += 1;
    }

    /// The application has nothing more to send, and the window would take more: samples are limited by the application until what is
    /// `outstanding` now is delivered.
    pub fn limit(&mut self, outstanding: u32) {
        self.limited_until = Some(self.delivered.wrapping_add(outstanding));
    }

    /// Takes in news of deliveries, and draws the sample from them.
    pub fn take(&mut self, news: &Delivery) -> Sample {
        let is_more = (news.delivered.wrapping_sub(self.delivered) as i32) > 0;
        if is_more {
            self.delivered = news.delivered;
        }
        let is_past = |until: u32| (self.delivered.wrapping_sub(until) as i32) > 0;
        self.limited_until = self.limited_until.filter(|until| !is_past(*until));
        let mark = news.newest.and_then(|end| self.mark_of(end.minus(1)));
        let sample = mark.map_or(Sample::default(), |mark| {
            self.first_sent_at = mark.at;
            self.sample(&mark, news)
        });
        if is_more {
            self.delivered_at = news.now_us;
        }
        while self.count > 0 && self.marks[usize::from(self.first)].end.is_at_or_before(news.una) {
            self.known_from = self.marks[usize::from(self.first)].end;
            self.first = place(self.first, 1) as u8;
            self.count -= 1;
        }
        sample
    }

    fn sample(&self, mark: &Mark, news: &Delivery) -> Sample {
        let sent_us = mark.at.wrapping_sub(mark.first_sent_at);
        let arrived_us = news.now_us.wrapping_sub(mark.delivered_at);
        let bytes = u64::from(self.delivered.wrapping_sub(mark.delivered));
        // Linux clears a sample with an interval shorter than the least round trip, which includes the sample's own there. The interval here
        // includes that round trip, and data sent again gives no sample, so there is nothing to clear.
        let rate = |us: u32| if us > 0 { bytes * 1_000_000 / u64::from(us) } else { 0 };
        Sample {
            rtt_us: news.now_us.wrapping_sub(mark.at).max(1),
            rate_incoming: rate(arrived_us),
            rate_outgoing: rate(sent_us),
            is_app_limited: mark.is_app_limited,
        }
    }

    /// The mark of the burst that contains `seq`.
    fn mark_of(&self, seq: SeqNumber) -> Option<Mark> {
        if seq.is_before(self.known_from) || self.count == 0 {
            return None;
        }
        let oldest = &self.marks[usize::from(self.first)];
        if seq.is_before(oldest.end) {
            // The usual case: data is acknowledged in the order in which it was sent.
            return Some(*oldest);
        }
        self.search(seq)
    }

    #[inline(never)]
    fn search(&self, seq: SeqNumber) -> Option<Mark> {
        let (mut low, mut high) = (0, usize::from(self.count));
        while low < high {
            let middle = usize::midpoint(low, high);
            if seq.is_before(self.marks[place(self.first, middle)].end) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        (low < usize::from(self.count)).then(|| self.marks[place(self.first, low)])
    }

    /// Makes one mark of every two: later bytes of a pair seem to have been sent a little earlier than they were.
    #[cold]
    fn halve(&mut self) {
        let half = usize::from(self.count) / 2;
        for i in 0..half {
            let (early, late) = (place(self.first, 2 * i), place(self.first, 2 * i + 1));
            let pair = Mark { end: self.marks[late].end, ..self.marks[early] };
            self.marks[place(self.first, i)] = pair;
        }
        self.count = half as u8;
    }
}

/// The place of mark `n` in a ring that begins at `first`.
#[inline]
const fn place(first: u8, n: usize) -> usize {
    (first as usize + n) % MARKS
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Seed;
    use std::collections::VecDeque;

    fn sending(end: u32, now_us: u32, is_first: bool) -> Sending {
        Sending { end: SeqNumber(end), now_us, is_first, in_flight: 10_000, resolution_us: 50 }
    }

    fn delivery(newest: u32, una: u32, delivered: u32, now_us: u32) -> Delivery {
        Delivery { newest: Some(SeqNumber(newest)), una: SeqNumber(una), delivered, now_us }
    }

    /// 1000 bytes each 100 us; the path has a round trip of 1000 us and passes 1000 bytes each 200 us.
    #[test]
    fn both_rates_are_those_of_sender_and_path() {
        let mut sampler = Sampler::new(SeqNumber(0), 0, 0);
        for i in 0..10 {
            sampler.sent(&sending(1000 * (i + 1), 100 * i, i == 0));
        }
        let mut samples = Vec::new();
        for i in 0..10 {
            let end = 1000 * (i + 1);
            samples.push(sampler.take(&delivery(end, end, end, 1000 + 200 * i)));
            sampler.sent(&sending(10_000 + end, 1000 + 200 * i, false));
        }
        // All of the first window was sent before anything was delivered: its intervals begin with the first sending.
        assert_eq!(samples[0], Sample { rtt_us: 1000, rate_incoming: 1_000_000, ..Sample::default() });
        assert_eq!((samples[9].rtt_us, samples[9].rate_incoming), (1900, 10_000_000_000 / 2800));
        assert_eq!(samples[9].rate_outgoing, 10_000_000_000 / 900);
        // The interval at the sender begins when the data that was delivered last had been sent, in the first window.
        let second = sampler.take(&delivery(15_000, 15_000, 15_000, 1000 + 200 * 14));
        let rate_outgoing = 10_000_000_000 / 1400;
        let expected =
            Sample { rtt_us: 2000, rate_incoming: 5_000_000, rate_outgoing, is_app_limited: false };
        assert_eq!(second, expected);
    }

    #[test]
    fn a_burst_within_the_resolution_is_one_mark_and_a_full_ring_grows_coarser() {
        let mut sampler = Sampler::new(SeqNumber(0), 0, 0);
        for i in 0..400 {
            sampler.sent(&sending(10 * (i + 1), 30 * i, i == 0));
        }
        assert!(usize::from(sampler.count) <= MARKS);
        let mut last = 0;
        for i in 0..400 {
            let end = 10 * (i + 1);
            let rtt = sampler.take(&delivery(end, end, end, 20_000)).rtt_us;
            let exact = 20_000 - 30 * i;
            assert!((exact..=exact + 60 * 4).contains(&rtt), "{i}: {rtt} for {exact}");
            last = rtt;
        }
        assert!(last <= 20_000 - 30 * 399 + 60 && sampler.count == 0);
    }

    #[test]
    fn unknown_data_gives_no_sample() {
        let mut sampler = Sampler::new(SeqNumber(5000), 7, 0);
        sampler.sent(&sending(6000, 100, false));
        assert_eq!(sampler.take(&delivery(5000, 5000, 500, 1100)), Sample::default());
        let sample = sampler.take(&delivery(6000, 6000, 1007, 1200));
        assert_eq!((sample.rtt_us, sample.rate_incoming), (1100, 1_000_000_000 / 1200));
        assert_eq!(sample.rate_outgoing, 10_000_000);
    }

    #[test]
    fn samples_are_marked_until_more_than_what_was_outstanding_is_delivered() {
        let mut sampler = Sampler::new(SeqNumber(0), 0, 0);
        sampler.sent(&sending(1000, 0, true));
        sampler.limit(1000);
        sampler.sent(&sending(2000, 100, false));
        assert!(!sampler.take(&delivery(1000, 1000, 1000, 1000)).is_app_limited);
        sampler.sent(&sending(3000, 1000, false));
        assert!(sampler.take(&delivery(2000, 2000, 2000, 1100)).is_app_limited);
        sampler.sent(&sending(4000, 1200, false));
        assert!(sampler.take(&delivery(3000, 3000, 3000, 2000)).is_app_limited);
        assert!(!sampler.take(&delivery(4000, 4000, 4000, 2200)).is_app_limited);
    }

    /// What Linux keeps of a packet in flight.
    struct Sent {
        end: u32,
        at: u32,
        delivered: u32,
        delivered_at: u32,
        first_sent_at: u32,
        is_limited: bool,
    }

    /// Random bursts, pauses of the application and acknowledgements against Linux's rules, packet by packet: all samples are the same, the marks of those
    /// that the application limits too.
    #[test]
    fn random_flows_have_the_samples_of_each_packets_own_record() {
        let mut counts = [0; 2];
        for seed in 0..20 {
            let mut rng = Seed::new(seed);
            let mut sampler = Sampler::new(SeqNumber(0), 0, 0);
            let mut flight: VecDeque<Sent> = VecDeque::new();
            let (mut now, mut end, mut una) = (0, 0, 0);
            let (mut delivered_at, mut first_sent_at, mut limited_until) = (0, 0, 0);
            for _ in 0..1_000 {
                now += 100 + rng.below(300) as u32;
                for _ in 0..rng.below(4) {
                    let is_first = flight.is_empty();
                    if is_first {
                        (first_sent_at, delivered_at) = (now, now);
                    }
                    end += 1_000;
                    let is_limited = limited_until > 0;
                    flight.push_back(Sent {
                        end,
                        at: now,
                        delivered: una,
                        delivered_at,
                        first_sent_at,
                        is_limited,
                    });
                    sampler.sent(&Sending { resolution_us: 0, ..sending(end, now, is_first) });
                }
                if rng.chance(50_000) {
                    // All bytes delivered are those in order, so what was delivered and is in flight is what was sent.
                    limited_until = end.max(1);
                    sampler.limit(end - una);
                }
                now += 1;
                let Some(last) = (rng.below(6) as usize).min(flight.len()).checked_sub(1) else { continue };
                let sent = flight.drain(..=last).next_back().expect("there is one");
                una = sent.end;
                if una > limited_until {
                    limited_until = 0;
                }
                first_sent_at = sent.at;
                let rate = |us: u32| u64::from(una - sent.delivered) * 1_000_000 / u64::from(us);
                let [sent_us, arrived_us] = [sent.at - sent.first_sent_at, now - sent.delivered_at];
                let expected = Sample {
                    rtt_us: now - sent.at,
                    rate_incoming: rate(arrived_us),
                    rate_outgoing: if sent_us > 0 { rate(sent_us) } else { 0 },
                    is_app_limited: sent.is_limited,
                };
                assert_eq!(sampler.take(&delivery(una, una, una, now)), expected, "seed {seed} at {now}");
                delivered_at = now;
                counts[usize::from(sent.is_limited)] += 1;
            }
        }
        assert!(counts.iter().all(|n| *n > 1_000), "{counts:?}");
    }
}
