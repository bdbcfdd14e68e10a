//! One flow over a link with a queue, packet by packet, and the rules of the draft one by one.

extern crate std;
use super::*;
use base::Duration;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec::Vec;

const MSS: u32 = 1_448;

fn at(us: u64) -> Instant {
    Instant::ZERO.plus(Duration::from_us(us))
}

/// A segment on its way, or its acknowledgement.
struct Segment {
    ack_us: u64,
    sent_us: u64,
    is_lost: bool,
}

/// A flow that always has data to send, over a link of `kbit` with a least round trip of `trip_us` and a queue without a bound.
struct Path {
    law: Bbr,
    kbit: u64,
    trip_us: u64,
    /// One in so many segments is lost; 0: none.
    lost_one_in: u64,
    now_us: u64,
    free_us: u64,
    send_us: u64,
    sent: u64,
    delivered: u64,
    in_flight: VecDeque<Segment>,
    decision: Decision,
    /// Segments sent when the repair under way began, if one is.
    repairs: Option<u64>,
}

impl Path {
    fn new(kbit: u64, trip_us: u64) -> Self {
        let law = Bbr::new(MSS as u16, at(0));
        let decision = Decision { cwnd: law.cwnd, pace_rate: 0, is_echo_answered: false };
        let in_flight = VecDeque::new();
        Self {
            law,
            kbit,
            trip_us,
            lost_one_in: 0,
            now_us: 0,
            free_us: 0,
            send_us: 0,
            sent: 0,
            delivered: 0,
            in_flight,
            decision,
            repairs: None,
        }
    }

    fn bytes_in_flight(&self) -> u32 {
        self.in_flight.len() as u32 * MSS
    }

    /// Time that a segment sent now would wait in the queue, microseconds.
    fn queue_us(&self) -> u64 {
        self.free_us.saturating_sub(self.now_us + self.trip_us / 2)
    }

    /// The next event: a segment is sent, or acknowledged. True if it was an acknowledgement.
    fn step(&mut self) -> bool {
        let ack_us = self.in_flight.front().map_or(u64::MAX, |s| s.ack_us);
        let has_room = self.bytes_in_flight() + MSS <= self.decision.cwnd;
        if has_room && self.send_us.max(self.now_us) <= ack_us {
            self.send();
            return false;
        }
        let segment = self.in_flight.pop_front().expect("a window of a segment at least");
        self.now_us = ack_us;
        self.acknowledge(&segment);
        true
    }

    fn send(&mut self) {
        self.now_us = self.send_us.max(self.now_us);
        let start = self.free_us.max(self.now_us + self.trip_us / 2);
        self.free_us = start + u64::from(MSS) * 8_000 / self.kbit;
        self.sent += 1;
        let is_lost = self.lost_one_in > 0 && self.sent.is_multiple_of(self.lost_one_in);
        let ack_us = self.free_us + self.trip_us / 2;
        self.in_flight.push_back(Segment { ack_us, sent_us: self.now_us, is_lost });
        let gap_us = (u64::from(MSS) * 1_000_000).checked_div(self.decision.pace_rate);
        self.send_us = self.now_us + gap_us.unwrap_or(0);
    }

    fn acknowledge(&mut self, segment: &Segment) {
        let acked = if segment.is_lost { 0 } else { MSS };
        self.delivered += u64::from(acked);
        let rtt_us = self.now_us - segment.sent_us;
        let s = Signals {
            acked_bytes: acked,
            in_flight: self.bytes_in_flight(),
            rtt_us: (acked > 0).then_some(rtt_us as u32),
            srtt_us: rtt_us as u32,
            ..Signals::at(at(self.now_us))
        };
        let acknowledged = self.sent - self.in_flight.len() as u64;
        self.decision = match self.repairs {
            _ if segment.is_lost && self.repairs.is_none() => {
                self.repairs = Some(self.sent);
                self.law.on(Event::Lost, &s)
            }
            Some(end) if end <= acknowledged => {
                self.repairs = None;
                self.law.on(Event::Recovered { is_inflated: false }, &s)
            }
            _ => self.law.on(Event::Ack, &s),
        };
    }

    /// Steps until `us`, and calls `look` after each acknowledgement.
    fn run(&mut self, us: u64, mut look: impl FnMut(&Self)) {
        while self.now_us < us {
            if self.step() {
                look(self);
            }
        }
    }

    /// Share of the link in percent that `bytes` in `us` use.
    fn percent(&self, bytes: u64, us: u64) -> u64 {
        bytes * 8_000 * 100 / (self.kbit * us)
    }
}

/// Section 4.3.2: the rate doubles each round, and startup ends three rounds after the bandwidth has stopped to rise; then the queue drains.
#[test]
fn startup_finds_the_bandwidth_and_drain_empties_the_queue() {
    let mut path = Path::new(48_000, 20_000);
    let mut modes: Vec<Mode> = Vec::new();
    path.run(2_000_000, |p| {
        let mode = if let Mode::ProbeBandwidth { .. } = p.law.mode {
            Mode::ProbeBandwidth { phase: 0, since: Stamp::of(at(0)) }
        } else {
            p.law.mode
        };
        if modes.last() != Some(&mode) {
            modes.push(mode);
            if modes.len() == 3 {
                assert!(p.bytes_in_flight() <= p.law.inflight(ONE));
            }
        }
    });
    assert_eq!(
        modes,
        [Mode::Startup, Mode::Drain, Mode::ProbeBandwidth { phase: 0, since: Stamp::of(at(0)) }]
    );
    let kbit = path.law.model.bandwidth().kbit();
    assert!((47_000..=49_000).contains(&kbit), "{kbit}");
    let trip = path.law.model.round_trip_us();
    assert!((20_000..=20_300).contains(&trip), "{trip}");
}

/// 48 Mbit/s, 20 ms, 30 s: the link is used; after startup the queue lasts half a round trip on average and always less than a whole one,
/// so that the window, twice the product, is never the limit; each ten seconds the pipe is emptied to four segments for 200 ms.
#[test]
fn the_link_is_used_with_a_short_queue_and_probed_every_ten_seconds() {
    let mut path = Path::new(48_000, 20_000);
    let mut probes: Vec<(u64, u64)> = Vec::new();
    let (mut queue_us_max, mut queue_us_sum, mut count) = (0, 0, 0);
    path.run(30_000_000, |p| {
        if let Mode::ProbeRoundTrip { since: Some(_), .. } = p.law.mode {
            assert!(p.bytes_in_flight() <= 4 * MSS);
            match probes.last_mut() {
                Some((_, end)) if *end + 1_000_000 > p.now_us => *end = p.now_us,
                _ => probes.push((p.now_us, p.now_us)),
            }
        }
        if p.now_us > 2_000_000 {
            queue_us_max = queue_us_max.max(p.queue_us());
            (queue_us_sum, count) = (queue_us_sum + p.queue_us(), count + 1);
        }
    });
    assert!(path.percent(path.delivered, 30_000_000) >= 93, "{}", path.percent(path.delivered, 30_000_000));
    assert!(queue_us_max < 20_000, "{queue_us_max}");
    assert!(queue_us_sum / count < 10_000, "{}", queue_us_sum / count);
    assert_eq!(probes.len(), 2, "{probes:?}");
    for pair in probes.windows(2) {
        assert!((10_000_000..10_500_000).contains(&(pair[1].0 - pair[0].0)), "{probes:?}");
    }
    assert!(probes.iter().all(|(from, to)| (180_000..260_000).contains(&(to - from))), "{probes:?}");
}

/// Section 4.3.4.2: phases of 5/4, 3/4 and six of 1, each about a least round trip long: eight round trips in all.
#[test]
fn the_rate_goes_through_a_cycle_of_eight_round_trips() {
    let mut path = Path::new(48_000, 20_000);
    let mut begins: Vec<(u8, u64)> = Vec::new();
    path.run(9_000_000, |p| {
        let Mode::ProbeBandwidth { phase, .. } = p.law.mode else { return };
        let want = p.law.paced(GAINS_CYCLE[usize::from(phase)]);
        assert_eq!(p.decision.pace_rate, want.bytes_per_second());
        if begins.last().is_none_or(|(last, _)| *last != phase) {
            begins.push((phase, p.now_us));
        }
    });
    let cycles: Vec<u64> = begins.iter().filter(|(phase, _)| *phase == 0).map(|(_, us)| *us).collect();
    assert!(cycles.len() > 40, "{}", cycles.len());
    let mean = (cycles[40] - cycles[5]) / 35;
    assert!((140_000..=180_000).contains(&mean), "{mean} us for eight round trips of 20 ms");
}

/// One segment in a hundred is lost: no sign of a full pipe, so the rate stays.
#[test]
fn losses_at_random_do_not_lower_the_rate() {
    let mut path = Path::new(48_000, 20_000);
    path.lost_one_in = 100;
    path.run(30_000_000, |_| {});
    assert!(path.percent(path.delivered, 30_000_000) >= 90, "{}", path.percent(path.delivered, 30_000_000));
}

/// The bandwidth is the largest of ten rounds: a faster sample is forgotten after them, and a slower path is found.
#[test]
fn a_link_that_becomes_slower_is_found_within_ten_rounds() {
    let mut path = Path::new(48_000, 20_000);
    path.run(3_000_000, |_| {});
    path.kbit = 12_000;
    path.run(6_000_000, |_| {});
    let kbit = path.law.model.bandwidth().kbit();
    assert!((11_000..=13_000).contains(&kbit), "{kbit}");
    path.kbit = 48_000;
    path.run(9_000_000, |_| {});
    let kbit = path.law.model.bandwidth().kbit();
    assert!((46_000..=49_000).contains(&kbit), "{kbit}: probing by 5/4 finds more");
}

#[test]
fn a_timeout_leaves_one_segment_and_its_end_brings_the_window_back() {
    let mut path = Path::new(48_000, 20_000);
    path.run(2_000_000, |_| {});
    let before = path.decision.cwnd;
    let s = Signals { srtt_us: 20_000, ..Signals::at(at(path.now_us)) };
    assert_eq!(path.law.on(Event::Timeout { is_reduced: false }, &s).cwnd, MSS);
    assert_eq!(path.law.on(Event::Recovered { is_inflated: false }, &s).cwnd, before);
    let decision = path.law.on(Event::Lost, &Signals { in_flight: 50_000, acked_bytes: 1_448, ..s });
    assert_eq!(decision.cwnd, 51_448, "packet conservation");
}

/// Section 4.1.1.3: a sample while the application was the limit says at least how much the path has, never how little.
#[test]
fn samples_of_an_idle_application_do_not_lower_the_bandwidth() {
    let mut law = Bbr::new(MSS as u16, at(0));
    let mut ack = |us: u64, acked_bytes: u32, is_app_limited: bool| {
        let s = Signals {
            acked_bytes,
            rtt_us: Some(1_000),
            srtt_us: 1_000,
            is_app_limited,
            in_flight: acked_bytes,
            ..Signals::at(at(us))
        };
        law.on(Event::Ack, &s);
        law.model.bandwidth().kbit()
    };
    assert_eq!(ack(1_000, 1_000, false), 8_000);
    assert_eq!(ack(1_500, 100, true), 8_000, "a sample lasts a round trip");
    assert_eq!(ack(2_000, 100, true), 8_000);
    assert_eq!(ack(3_000, 2_000, true), 16_000);
    // Ten rounds of a slower path replace the larger one.
    let slower: Vec<u32> = (4..=14).map(|ms| ack(ms * 1_000, 1_000, false)).collect();
    assert_eq!((slower[8], slower[10]), (16_000, 8_000), "{slower:?}");
}

proptest! {
    #[test]
    fn any_order_of_events_keeps_the_bounds(
        mss: u16,
        inputs in proptest::collection::vec(
            (0u8..10, any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<bool>()),
            1..200,
        ),
    ) {
        let mut law = Bbr::new(mss, at(0));
        for (kind, acked_bytes, in_flight, rtt_us, delivery_rate, ns, is_app_limited) in inputs {
            let s = Signals {
                acked_bytes,
                in_flight,
                rtt_us: Some(rtt_us),
                srtt_us: rtt_us,
                delivery_rate,
                is_app_limited,
                ..Signals::at(Instant::from_ns(ns))
            };
            let event = match kind {
                0..=3 => Event::Ack,
                4 => Event::Lost,
                5 => Event::Timeout { is_reduced: is_app_limited },
                6 => Event::Recovered { is_inflated: false },
                7 => Event::Idle { rto: Duration::from_ms(200) },
                8 => Event::Mtu { mss },
                _ => Event::Partial,
            };
            let decision = law.on(event, &s);
            prop_assert!(decision.cwnd >= u32::from(mss.max(1)) && decision.cwnd <= CWND_MAX);
        }
    }
}
