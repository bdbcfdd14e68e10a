//! One test for each rule of the RFCs, and one that calls the inputs in any order.

extern crate std;
use super::*;
use proptest::prelude::*;

const MSS: u16 = 1000;

fn at(ms: u64) -> Instant {
    Instant::from_ns(ms * 1_000_000)
}

/// Passes in one acknowledgement. True when it reduced the window for an echo.
fn ack(w: &mut Window, ms: u64, acked: u32, rtt_us: Option<u32>, echo: bool, in_flight: u32) -> bool {
    let marked_bytes = if echo { acked } else { 0 };
    let is_app_limited = true; // `is_used`, the window's own rule, decides.
    let s = Signals {
        acked_bytes: acked,
        marked_bytes,
        in_flight,
        flight_max: in_flight.saturating_add(acked),
        rtt_us,
        is_app_limited,
        ..Signals::at(at(ms))
    };
    let decision = w.on(Event::Ack, &s);
    assert_eq!(decision.cwnd, w.cwnd());
    decision.is_echo_answered
}

/// The signals of an event other than an acknowledgement.
fn seen(ms: u64, in_flight: u32) -> Signals {
    Signals { in_flight, ..Signals::at(at(ms)) }
}

/// A loss that is found without a timeout.
fn lost(w: &mut Window, ms: u64, in_flight: u32) {
    assert_eq!(w.on(Event::Lost, &seen(ms, in_flight)).cwnd, w.cwnd());
}

fn timeout(w: &mut Window, ms: u64, in_flight: u32, is_reduced: bool) {
    w.on(Event::Timeout { is_reduced }, &seen(ms, in_flight));
}

/// Sends after a pause, as a flow does: true when the window restarts.
fn resume(w: &mut Window, ms: u64, rto: Duration) -> bool {
    let is_due = w.is_restart_due(at(ms), rto);
    if is_due {
        w.on(Event::Idle { rto }, &seen(ms, 0));
    }
    is_due
}

/// One round trip of `rtt_ms`: everything the window allows is sent and acknowledged in pairs of segments.
fn round(w: &mut Window, start_ms: u64, rtt_ms: u64) {
    round_by(w, start_ms + rtt_ms, rtt_ms as u32 * 1000);
}

/// One round trip of `rtt_us` microseconds that ends at `end_ms`.
fn round_by(w: &mut Window, end_ms: u64, rtt_us: u32) {
    let mut left = w.cwnd();
    while left > 0 {
        let acked = left.min(2 * u32::from(MSS));
        left -= acked;
        ack(w, end_ms, acked, Some(rtt_us), false, w.cwnd() - acked);
    }
}

#[test]
fn initial_window_is_ten_segments() {
    for algorithm in [Algorithm::Reno, Algorithm::Cubic, Algorithm::Dctcp] {
        let w = Window::new(algorithm, MSS, at(0));
        assert_eq!((w.cwnd(), w.ssthresh(), w.algorithm()), (10_000, u32::MAX, algorithm));
    }
}

#[test]
fn slow_start_doubles_each_round_trip() {
    for algorithm in [Algorithm::Reno, Algorithm::Cubic, Algorithm::Dctcp] {
        let mut w = Window::new(algorithm, MSS, at(0));
        for i in 0..5 {
            round(&mut w, i * 50, 50);
            assert_eq!(w.cwnd(), 10_000 << (i + 1), "{algorithm}");
        }
    }
}

#[test]
fn reno_halves_and_then_adds_one_segment_each_round_trip() {
    let mut w = Window::new(Algorithm::Reno, MSS, at(0));
    (0..3).for_each(|i| round(&mut w, i * 50, 50));
    lost(&mut w, 200, 80_000);
    assert_eq!((w.cwnd(), w.ssthresh()), (40_000, 40_000));
    for i in 1..=5 {
        round(&mut w, 200 + i * 50, 50);
        assert_eq!(w.cwnd(), 40_000 + i as u32 * 1000);
    }
}

#[test]
fn timeout_falls_to_one_segment_and_repeats_keep_the_threshold() {
    for algorithm in [Algorithm::Reno, Algorithm::Cubic, Algorithm::Dctcp] {
        let mut w = Window::new(algorithm, MSS, at(0));
        (0..3).for_each(|i| round(&mut w, i * 50, 50));
        timeout(&mut w, 400, 80_000, false);
        let threshold = w.ssthresh();
        assert_eq!(w.cwnd(), 1000);
        assert_eq!(threshold, if algorithm == Algorithm::Cubic { 56_000 } else { 40_000 });
        timeout(&mut w, 800, 1000, false);
        assert_eq!((w.cwnd(), w.ssthresh()), (1000, threshold));
    }
}

#[test]
fn never_below_two_segments_of_threshold() {
    for algorithm in [Algorithm::Reno, Algorithm::Cubic, Algorithm::Dctcp] {
        let mut w = Window::new(algorithm, MSS, at(0));
        for i in 0..20 {
            lost(&mut w, i, 0);
            assert!(w.cwnd() == w.ssthresh() && w.cwnd() >= 2000);
        }
        assert_eq!(w.cwnd(), 2000);
    }
}

#[test]
fn cubic_returns_to_its_maximum_at_k_and_grows_past_it() {
    let mut w = Window::new(Algorithm::Cubic, MSS, at(0));
    (0..5).for_each(|i| round(&mut w, i * 100, 100));
    lost(&mut w, 500, 320_000);
    assert_eq!(w.cwnd(), 224_000);
    // K = cbrt(96 / 0.4) = 6.2 s
    let mut ms = 500;
    while ms < 6_700 {
        round(&mut w, ms, 100);
        ms += 100;
    }
    assert!((310_000..330_000).contains(&w.cwnd()), "{}", w.cwnd());
    while ms < 11_700 {
        round(&mut w, ms, 100);
        ms += 100;
    }
    // 0.4 * 5^3 = 50 segments above the maximum, five seconds after K
    assert!((360_000..385_000).contains(&w.cwnd()), "{}", w.cwnd());
}

#[test]
fn cubic_is_never_slower_than_reno_on_short_paths() {
    let mut cubic = Window::new(Algorithm::Cubic, MSS, at(0));
    lost(&mut cubic, 0, 10_000);
    let before = cubic.cwnd();
    (0..100).for_each(|i| round(&mut cubic, i * 2, 2));
    assert!(cubic.cwnd() >= before + 50_000, "{}", cubic.cwnd());
}

/// RFC 9438 section 4.8: after a timeout K is 0 and the curve begins at the window that slow start has reached; section 4.3: W_est
/// grows by 9/17 of a segment a round trip until it has reached the window before the reduction.
#[test]
fn cubic_after_a_timeout_grows_gently_up_to_the_window_before() {
    let mut w = Window::new(Algorithm::Cubic, MSS, at(0));
    (0..2).for_each(|i| round(&mut w, i * 10, 10));
    assert_eq!(w.cwnd(), 40_000);
    timeout(&mut w, 300, 40_000, false);
    assert_eq!((w.cwnd(), w.ssthresh()), (1000, 28_000));
    let mut ms = 300;
    while w.cwnd() < w.ssthresh() {
        round(&mut w, ms, 10);
        ms += 10;
    }
    // The first round of congestion avoidance begins the epoch.
    round(&mut w, ms, 10);
    let begun = w.cwnd();
    for i in 1..=17 {
        round(&mut w, ms + i * 10, 10);
    }
    // Nine segments more in 17 round trips, except for rounding; with Reno's step it would be 17.
    assert!((begun + 8_000..=begun + 9_500).contains(&w.cwnd()), "{} of {begun}", w.cwnd());
    for i in 18..40 {
        round(&mut w, ms + i * 10, 10);
    }
    let past = w.cwnd();
    assert!(past > 40_000, "{past}");
    round(&mut w, ms + 400, 10);
    assert!(
        (past + 900..=past + 1_100).contains(&w.cwnd()),
        "{} of {past}: one segment a round trip",
        w.cwnd()
    );
}

/// Below a millisecond W_est grows by a segment a round trip, as in Linux; from a millisecond on as in RFC 9438 section 4.3.
#[test]
fn cubic_grows_by_a_whole_segment_on_the_shortest_paths() {
    for (rtt_us, grown) in [(150, 10_000), (999, 10_000), (1_000, 5_300)] {
        let mut w = Window::new(Algorithm::Cubic, MSS, at(0));
        (0..2).for_each(|i| round(&mut w, i, 1));
        lost(&mut w, 2, 40_000);
        let begun = w.cwnd();
        (0..10).for_each(|_| round_by(&mut w, 2, rtt_us));
        let by = w.cwnd() - begun;
        assert!((grown - 300..=grown + 100).contains(&by), "{by} in ten round trips of {rtt_us} us");
    }
}

/// "Implementations that use cwnd MUST use other measures to prevent cwnd from growing when the volume of bytes in flight is
/// smaller than cwnd" (RFC 9438 section 4.6 in short).
#[test]
fn the_window_grows_only_when_it_was_used_up_in_the_last_round_trip() {
    for algorithm in [Algorithm::Reno, Algorithm::Cubic] {
        let mut w = Window::new(algorithm, MSS, at(0));
        // Nine of ten segments are used, in slow start: the window doubles, though few are in flight at the last acknowledgements.
        let signals = |flight_max, acked_bytes| Signals {
            flight_max,
            acked_bytes,
            is_app_limited: true,
            ..Signals::at(at(1))
        };
        let seen = [2_000; 5].map(|acked| w.on(Event::Ack, &signals(9_000, acked)).cwnd);
        assert_eq!(seen, [12_000, 14_000, 16_000, 18_000, 18_000]);
        // Half of the window is used.
        assert_eq!(w.on(Event::Ack, &signals(9_000, 1_000)).cwnd, 18_000);
        lost(&mut w, 2, 18_000);
        let before = w.cwnd();
        for _ in 0..1000 {
            w.on(Event::Ack, &signals(before - 1_000, before));
        }
        assert_eq!(w.cwnd(), before, "{algorithm:?}");
        for _ in 0..1000 {
            w.on(Event::Ack, &signals(before, before));
        }
        assert!(w.cwnd() > before, "{algorithm:?}");
    }
}

/// RFC 5681 section 3.1: the threshold is not lowered twice for losses of the same window.
#[test]
fn a_timeout_within_a_recovery_keeps_the_threshold() {
    for algorithm in [Algorithm::Reno, Algorithm::Cubic] {
        let mut w = Window::new(algorithm, MSS, at(0));
        lost(&mut w, 1, 10_000);
        let threshold = w.ssthresh();
        timeout(&mut w, 2, 10_000, true);
        assert_eq!((w.cwnd(), w.ssthresh()), (1000, threshold));
    }
}

#[test]
fn an_echo_reduces_once_per_window() {
    let mut w = Window::new(Algorithm::Reno, MSS, at(0));
    assert!(ack(&mut w, 1, 1000, None, true, 9000));
    assert_eq!(w.cwnd(), 5000);
    for left in (0..9).rev() {
        assert!(!ack(&mut w, 2, 1000, None, true, left * 1000));
    }
    assert_eq!(w.cwnd(), 5000);
    assert!(ack(&mut w, 3, 1000, None, true, 4000));
}

#[test]
fn dctcp_gives_way_in_proportion() {
    let mut w = Window::new(Algorithm::Dctcp, MSS, at(0));
    (0..4).for_each(|i| round(&mut w, i, 1));
    lost(&mut w, 10, 160_000);
    (0..200).for_each(|i| round(&mut w, 10 + i, 1));
    let before = w.cwnd();
    assert!(ack(&mut w, 300, 1000, None, true, before - 1000));
    assert!(w.cwnd() > before / 10 * 9, "a first mark after a quiet time is mild: {} of {before}", w.cwnd());
}

#[test]
fn recovery_inflates_and_deflates() {
    let mut w = Window::new(Algorithm::Reno, MSS, at(0));
    lost(&mut w, 1, 10_000);
    let mut tell = |event, s: Signals| w.on(event, &s).cwnd;
    assert_eq!(tell(Event::Duplicate { segments: 3 }, seen(2, 10_000)), 8000);
    assert_eq!(tell(Event::Partial, Signals { acked_bytes: 3000, ..seen(3, 7_000) }), 6000);
    assert_eq!(
        tell(Event::Recovered { is_inflated: false }, seen(4, 1_000)),
        6000,
        "the flow counted for itself"
    );
    assert_eq!(tell(Event::Recovered { is_inflated: true }, seen(4, 1_000)), 2000);
    assert_eq!(tell(Event::Recovered { is_inflated: true }, seen(4, 50_000)), 5000);
}

#[test]
fn an_unused_window_does_not_grow() {
    let mut w = Window::new(Algorithm::Reno, MSS, at(0));
    for i in 0..100 {
        ack(&mut w, i, 1000, None, false, 0);
    }
    assert_eq!(w.cwnd(), 10_000);
}

/// "It is required that t in Figure 1 not include application-limited periods" (RFC 9438 section 5.8).
#[test]
fn cubics_curve_stands_still_while_the_window_is_not_used() {
    for is_half_used in [true, false] {
        let mut w = Window::new(Algorithm::Cubic, MSS, at(0));
        (0..5).for_each(|i| round(&mut w, i * 100, 100));
        lost(&mut w, 500, 320_000);
        // A minute in which a bit more than a half of the window, or a quarter, is in flight.
        for ms in (600..=60_500).step_by(100) {
            if is_half_used {
                ack(&mut w, ms, 2_000, Some(100_000), false, 120_000);
            } else {
                assert!(w.on_ack_unused(at(ms), 56_000, Some(100_000), 100_000).is_some());
            }
        }
        assert_eq!(w.cwnd(), 224_000);
        round(&mut w, 60_500, 100);
        assert!((224_000..236_000).contains(&w.cwnd()), "{} bytes a round trip later", w.cwnd());
    }
}

#[test]
fn a_pause_restarts_from_the_initial_window() {
    let mut w = Window::new(Algorithm::Cubic, MSS, at(0));
    (0..5).for_each(|i| round(&mut w, i * 10, 10));
    let rto = Duration::from_ms(200);
    assert_eq!((resume(&mut w, 150, rto), w.cwnd()), (false, 320_000));
    assert_eq!((resume(&mut w, 50 + 400, rto), w.cwnd()), (true, 80_000));
    assert_eq!((resume(&mut w, 60_000, rto), w.cwnd()), (true, 10_000));
}

#[test]
fn constant_is_constant() {
    let mut w = Window::new(Algorithm::Constant(50_000), MSS, at(0));
    lost(&mut w, 1, 50_000);
    timeout(&mut w, 2, 50_000, false);
    ack(&mut w, 3, 50_000, Some(1), true, 0);
    resume(&mut w, 100_000, Duration::from_ms(200));
    assert_eq!((w.cwnd(), w.algorithm()), (50_000, Algorithm::Constant(50_000)));
}

proptest! {
    #[test]
    fn any_order_of_inputs_keeps_the_bounds(
        which in 0usize..4,
        mss: u16,
        inputs in proptest::collection::vec((0u8..11, any::<u32>(), any::<u32>(), any::<u64>(), any::<bool>()), 1..200),
    ) {
        let algorithm = [Algorithm::Reno, Algorithm::Cubic, Algorithm::Dctcp, Algorithm::Constant(1 << 20)][which];
        let mut w = Window::new(algorithm, mss, at(0));
        let mut before = w;
        let (mut mss, mut mss_min) = (mss.max(1), mss.max(1));
        for (kind, a, b, now, is_so) in inputs {
            let s = Signals {
                acked_bytes: a,
                marked_bytes: if is_so { a } else { 0 },
                in_flight: b,
                rtt_us: Some(b),
                srtt_us: b,
                ..Signals::at(Instant::from_ns(now))
            };
            let event = match kind {
                0..=2 => Event::Ack,
                3 => Event::Lost,
                4 => Event::Timeout { is_reduced: is_so },
                5 => Event::Duplicate { segments: a },
                6 => Event::Partial,
                7 => Event::Recovered { is_inflated: is_so },
                8 => Event::Undo { before: &before },
                9 => {
                    mss = (a as u16).max(1);
                    mss_min = mss_min.min(mss);
                    Event::Mtu { mss }
                }
                _ => Event::Idle { rto: Duration::from_ns(u64::from(a)) },
            };
            let decision = w.on(event, &s);
            prop_assert_eq!((decision.cwnd, decision.pace_rate), (w.cwnd(), w.pace_rate(b)));
            prop_assert!(w.cwnd() >= u32::from(mss) && w.cwnd() <= CWND_MAX.max(2 * u32::from(mss)));
            prop_assert!(w.ssthresh() >= 2 * u32::from(mss_min));
            if kind == 0 {
                before = w;
            }
        }
    }
}

/// RFC 4015 section 3.3: window and curve are as before, the threshold is at least what it was; an algorithm that was chosen in between stays.
#[test]
fn undo_restores_the_window_but_not_an_algorithm_that_was_left() {
    for algorithm in [Algorithm::Reno, Algorithm::Cubic, Algorithm::Dctcp, Algorithm::Constant(20_000)] {
        let mut w = Window::new(Algorithm::Cubic, MSS, at(0));
        lost(&mut w, 1, 10_000);
        (0..50).for_each(|i| round(&mut w, 1 + i * 100, 100));
        let before = w;
        timeout(&mut w, 5_001, before.cwnd(), false);
        let mut same = w;
        same.on(Event::Undo { before: &before }, &seen(5_002, 1_000));
        assert!(same.ssthresh() >= before.ssthresh());
        assert_eq!(same, Window { ssthresh: same.ssthresh, ..before });
        w.switch(algorithm, at(5_002));
        w.on(Event::Undo { before: &before }, &seen(5_003, 1_000));
        assert_eq!(w.algorithm(), algorithm);
        let is_constant = algorithm == Algorithm::Constant(20_000);
        assert_eq!(w.cwnd(), if is_constant { 20_000 } else { before.cwnd() });
    }
}

/// A constant window is nothing to return to.
#[test]
fn undo_does_not_bring_a_constant_window_back() {
    let before = Window::new(Algorithm::Constant(1 << 20), MSS, at(0));
    let mut w = before;
    w.switch(Algorithm::Reno, at(1));
    lost(&mut w, 2, 10_000);
    w.on(Event::Undo { before: &before }, &seen(3, 1_000));
    assert_eq!((w.cwnd(), w.algorithm()), (5_000, Algorithm::Reno));
}

/// "... beta_ecn ... cwnd = cwnd * beta" with 0.8 for Reno and 0.85 for Cubic, in congestion avoidance only (RFC 8511 section 3).
#[test]
fn an_echo_in_congestion_avoidance_backs_off_less_than_a_loss() {
    for (algorithm, after_loss, after_echo) in
        [(Algorithm::Reno, 50_000, 80_000), (Algorithm::Cubic, 70_000, 85_000)]
    {
        let avoiding = |w: &mut Window| {
            lost(w, 1, 200_000);
            (w.cwnd, w.ssthresh) = (100_000, 50_000);
        };
        let mut w = Window::new(algorithm, MSS, at(0));
        w.cwnd = 200_000;
        avoiding(&mut w);
        assert!(ack(&mut w, 100, 1000, None, true, 99_000));
        assert_eq!(w.cwnd(), after_echo, "{algorithm}");
        avoiding(&mut w);
        lost(&mut w, 200, 100_000);
        assert_eq!(w.cwnd(), after_loss, "{algorithm}");
    }
}

/// "TCP should not react to congestion indications more than once every window of data" (RFC 3168 section 6.1.2): but it reacts to
/// those of the next window, even if one acknowledgement covers each window.
#[test]
fn an_echo_is_answered_anew_when_nothing_is_left_of_the_window_before() {
    let mut w = Window::new(Algorithm::Reno, MSS, at(0));
    lost(&mut w, 1, 200_000);
    (w.cwnd, w.ssthresh) = (100_000, 50_000);
    assert!(ack(&mut w, 100, 100_000, None, true, 0));
    assert!(ack(&mut w, 200, 80_000, None, true, 0), "the window before is gone");
    assert!(ack(&mut w, 300, 1000, None, true, 50_000));
    assert!(!ack(&mut w, 310, 1000, None, true, 49_000), "the same window");
    assert!(!ack(&mut w, 320, 49_000, None, true, 0), "its last acknowledgement");
    assert!(ack(&mut w, 400, 40_000, None, true, 0));
}

/// "A DCTCP sender MUST react to loss episodes in the same way as conventional TCP" (RFC 8257 section 3.4).
#[test]
fn dctcp_halves_for_a_loss_however_small_its_estimate() {
    let mut w = Window::new(Algorithm::Dctcp, MSS, at(0));
    (0..4).for_each(|i| round(&mut w, i, 1));
    lost(&mut w, 10, 160_000);
    (0..200).for_each(|i| round(&mut w, 10 + i, 1));
    let before = w.cwnd();
    lost(&mut w, 500, before);
    assert_eq!(w.cwnd(), before / 2);
}

#[test]
fn only_large_windows_on_long_paths_are_paced() {
    let mut w = Window::new(Algorithm::Cubic, MSS, at(0));
    assert_eq!(w.pace_rate(100_000), 0, "the initial window goes at once");
    (0..4).for_each(|i| round(&mut w, i * 100, 100));
    assert_eq!(w.cwnd(), 160_000);
    assert_eq!((w.pace_rate(0), w.pace_rate(1_999)), (0, 0), "short paths are not paced");
    assert_eq!(w.pace_rate(100_000), 2 * 1_600_000, "in slow start the window may double");
    lost(&mut w, 500, 160_000);
    assert_eq!(w.pace_rate(100_000), u64::from(w.cwnd()) * 12);
    assert_eq!(Window::new(Algorithm::Constant(1 << 20), MSS, at(0)).pace_rate(100_000), 0);
}

/// "... the initial window is also used as the restart window" after a pause (RFC 5681 section 4.1), and "byte counting": one
/// acknowledgement of many segments grows the window by all of them.
#[test]
fn growth_counts_bytes_not_acknowledgements() {
    for pieces in [1u32, 10] {
        let mut w = Window::new(Algorithm::Reno, MSS, at(0));
        for _ in 0..pieces {
            let in_flight = w.cwnd();
            ack(&mut w, 50, 10_000 / pieces, Some(50_000), false, in_flight);
        }
        assert_eq!(w.cwnd(), 20_000, "{pieces}");
    }
}

/// "We define the restart window (RW) to be equal to min(IW,cwnd)" (RFC 5681 section 4.1); what is in flight the path carries now. After a
/// timeout "cwnd MUST be set to no more than the loss window, LW, which equals 1 full-sized segment" (section 3.1).
#[test]
fn what_a_program_leaves_is_what_is_in_flight_or_a_restart_window_and_never_more_than_its_own() {
    const IW: u32 = INITIAL_SEGMENTS * MSS as u32;
    let cases = [
        // The program's window, bytes in flight, timeouts without an answer: the window that is left.
        (400_000, 0, false, IW),
        (400_000, 2_000, false, IW),
        (400_000, 70_000, false, 70_000),
        (4_000, 0, false, 4_000),
        (4_000, 3_000, false, 4_000),
        (30_000, 70_000, false, 30_000),
        (1, 0, false, 1_000),
        (400_000, 0, true, 1_000),
        (400_000, 3_000, true, 3_000),
    ];
    for (programmed, in_flight, is_unheard, left) in cases {
        for algorithm in [Algorithm::Reno, Algorithm::Cubic, Algorithm::Dctcp, Algorithm::Bbr] {
            let mut w = Window::new(algorithm, MSS, at(0));
            w.give_to_program();
            w.set_programmed(programmed);
            w.take_from_program(at(1), in_flight, is_unheard);
            assert_eq!((w.cwnd(), w.algorithm()), (left, algorithm), "{programmed} {in_flight} {is_unheard}");
        }
    }
}
