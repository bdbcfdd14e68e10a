//! RFC 9406 section 4.2, one test per sentence.

extern crate std;
use super::*;
use std::vec::Vec;

/// One round of `n` acknowledgements of 1000 bytes; returns the growth that each allows.
fn round(h: &mut HyStart, n: u32, rtt_us: impl Fn(u32) -> u32) -> Vec<Growth> {
    let in_flight = |i| if i + 1 == n { n * 1000 } else { (n - i - 1) * 1000 };
    (0..n).map(|i| h.on_ack(1000, Some(rtt_us(i)), in_flight(i), None)).collect()
}

/// The state after a first acknowledgement and two rounds of ten with a round-trip time of `rtt_us`.
fn started(rtt_us: u32) -> HyStart {
    let mut h = HyStart::NEW;
    assert_eq!(h.on_ack(1000, Some(rtt_us), 10_000, None), Growth::By(1000));
    for _ in 0..2 {
        assert_eq!(round(&mut h, 10, |_| rtt_us), [Growth::By(1000); 10]);
    }
    h
}

#[test]
fn steady_delay_stays_in_slow_start() {
    let mut h = started(50_000);
    assert!((0..20).all(|_| round(&mut h, 10, |_| 50_000) == [Growth::By(1000); 10]));
}

/// "For rounds where at least N_RTT_SAMPLE RTT samples have been obtained": at the eighth sample the window still grows as in slow
/// start, because cwnd is updated first; from the ninth on by a quarter (CSS_GROWTH_DIVISOR).
#[test]
fn the_eighth_sample_slows_the_growth() {
    let mut h = started(50_000);
    let grown = round(&mut h, 10, |_| 60_000);
    assert_eq!(grown[..8], [Growth::By(1000); 8]);
    assert_eq!(grown[8..], [Growth::By(250); 2]);
    let mut few = started(50_000);
    assert_eq!(round(&mut few, 7, |_| 60_000), [Growth::By(1000); 7], "seven are not enough");
}

/// "RttThresh = max(MIN_RTT_THRESH, min(lastRoundMinRTT / MIN_RTT_DIVISOR, MAX_RTT_THRESH))": 4 ms, an eighth, 16 ms.
#[test]
fn the_threshold_is_an_eighth_within_its_bounds() {
    for (rtt_us, threshold_us) in
        [(1_000, 4_000), (32_000, 4_000), (80_000, 10_000), (128_000, 16_000), (900_000, 16_000)]
    {
        for (more, slows) in [(threshold_us - 1, false), (threshold_us, true)] {
            let mut h = started(rtt_us);
            let last = round(&mut h, 10, |_| rtt_us + more).pop();
            assert_eq!(last == Some(Growth::By(250)), slows, "{rtt_us} + {more}");
        }
    }
}

/// The least sample of a round counts: "currentRoundMinRTT = min(currentRoundMinRTT, currRTT)", even if it is the eighth.
#[test]
fn one_low_sample_says_that_there_is_no_queue() {
    for low in [0, 7] {
        let mut h = started(50_000);
        let grown = round(&mut h, 10, |i| if i == low { 51_000 } else { 70_000 });
        assert_eq!(grown, [Growth::By(1000); 10], "{low}");
    }
}

/// "CSS lasts at most CSS_ROUNDS rounds. If the transition into CSS happens in the middle of a round, that partial round counts
/// towards the limit."
#[test]
fn five_rounds_with_the_first_partial_one_end_it() {
    let mut h = started(50_000);
    round(&mut h, 10, |_| 60_000);
    for _ in 0..3 {
        assert_eq!(round(&mut h, 10, |_| 60_000), [Growth::By(250); 10]);
    }
    let last = round(&mut h, 10, |_| 60_000);
    assert_eq!((last[8], last[9]), (Growth::By(250), Growth::Leave));
}

/// "if (currentRoundMinRTT < cssBaselineMinRtt) ... resume slow start including HyStart++": as soon as there are eight samples.
#[test]
fn delay_that_falls_again_resumes_slow_start() {
    let mut h = started(50_000);
    round(&mut h, 10, |_| 60_000);
    let grown = round(&mut h, 10, |_| 59_999);
    assert_eq!((grown[7], grown[8]), (Growth::By(250), Growth::By(1000)));
    let again = round(&mut h, 10, |_| 70_000);
    assert_eq!(again[9], Growth::By(250), "it is still watched");
}

/// One acknowledgement of the whole window ends a round; the next round consists of the segments that it allows to be sent.
#[test]
fn a_round_has_what_its_first_acknowledgement_lets_out() {
    let mut h = HyStart::NEW;
    assert_eq!(h.on_ack(10_000, Some(50_000), 0, Some(10_000)), Growth::By(10_000));
    let grown: Vec<Growth> = (1..=10u32)
        .map(|i| h.on_ack(1000, Some(60_000), 20_000 - i * 1000, Some(20_000 + i * 1000)))
        .collect();
    assert_eq!(grown[..8], [Growth::By(1000); 8]);
    assert_eq!(grown[8..], [Growth::By(250); 2]);
}
