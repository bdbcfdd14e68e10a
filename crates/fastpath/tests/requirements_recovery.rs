//! Requirements of RFC 6298, RFC 5681, RFC 8985 and RFC 2018, one test each, for round-trip times and repairs: `specs/` names them.

use crate::harness::{MAC_A, config};
use crate::peer::Got;
use crate::scene::{MSS, Scene, scene, scene_with};
use base::{Duration, Instant};
use congestion::{Algorithm, Window};
use flow::{Cold, state};
use port::Capabilities;

fn segments(got: &[Got]) -> Vec<u32> {
    got.iter().map(|g| g.seq / MSS).collect()
}

fn us(us: u64) -> Duration {
    Duration::from_us(us)
}

impl Scene {
    /// Writes `n` segments, whatever the windows let go of them.
    fn writes(&mut self, n: u32) -> Vec<Got> {
        let bytes = vec![7; (n * MSS) as usize];
        assert_eq!(self.host.send(&mut self.sock, &bytes, 128 << 10), bytes.len());
        self.poll()
    }
}

/// Reno without SACK, `n` segments under way of a window of ten.
fn reno(n: u32) -> Scene {
    let change = |i: &mut flow::Install| {
        i.features &= !state::SACK;
        i.window = Window::new(Algorithm::Reno, 1448, Instant::ZERO);
    };
    let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
    s.peer.ack(0, 0);
    assert_eq!(s.writes(n).len() as u32, n.min(10));
    s
}

/// "A TCP implementation MUST take at least one RTT measurement per RTT" (RFC 6298 section 3).
#[test]
fn every_round_trip_is_measured() {
    let mut s = scene();
    let mut ack = 0;
    for round in 1..=6 {
        let before = s.cold().srtt_us;
        assert_eq!(s.writes(3).len(), 3);
        s.now = s.now.plus(us(1000 * round));
        ack += 3;
        s.reports(ack, &[]);
        s.poll();
        assert_ne!(s.cold().srtt_us, before, "round {round}");
    }
}

/// "RTT samples MUST NOT be made using segments that were retransmitted" (RFC 6298 section 3, Karn's algorithm).
#[test]
fn what_was_sent_twice_is_not_timed() {
    let change = |i: &mut flow::Install| i.features = state::SACK;
    let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
    s.peer.ts = None;
    assert_eq!(s.send(b"lost").len(), 1);
    while s.host.timeouts == 0 {
        s.after(Duration::from_ms(10));
    }
    assert_eq!(s.poll().len(), 1);
    let before = (s.cold().srtt_us, s.cold().rttvar_us);
    s.now = s.now.plus(us(7000));
    s.peer.ack(0, 4);
    s.poll();
    assert_eq!((s.cold().srtt_us, s.cold().rttvar_us), before);
    // What is sent once afterwards is.
    assert_eq!(s.send(b"new").len(), 1);
    s.now = s.now.plus(us(7000));
    s.peer.ack(0, 7);
    s.poll();
    assert_ne!(s.cold().srtt_us, before.0);
}

/// "... if the K*RTTVAR term in the RTO calculation equals zero, the variance term MUST be rounded to G seconds" (RFC 6298 section 4).
#[test]
fn the_timeout_is_never_the_round_trip_alone() {
    let config = config();
    for rtt_us in [1, 5_000_000] {
        let mut cold = Cold::new(Window::new(Algorithm::Reno, 1448, Instant::ZERO), Instant::ZERO);
        (0..200).for_each(|_| cold.sample_rtt(rtt_us, &config));
        assert!(cold.rttvar_us <= 3, "without variation");
        assert!(cold.rto >= us(u64::from(cold.srtt_us)).plus(config.rto_min), "{rtt_us}");
    }
}

/// "On the first and second duplicate ACKs received at a sender, a TCP SHOULD send a segment of previously unsent data ... the TCP sender
/// MUST NOT change cwnd to reflect these two segments"; on the third "the lost segment starting at SND.UNA MUST be retransmitted and
/// cwnd set to ssthresh plus 3*SMSS", where "additional data sent in limited transmit MUST NOT be included" in what is halved; "For each
/// additional duplicate ACK received (after the third), cwnd MUST be incremented by SMSS", and when the next acknowledgement of new data
/// arrives, "a TCP MUST set cwnd to ssthresh" (RFC 5681 section 3.2).
#[test]
fn duplicates_let_new_data_go_then_repair_then_inflate() {
    let mut s = reno(40);
    for n in [10, 11] {
        s.peer.ack(0, 0);
        assert_eq!(segments(&s.poll()), [n], "limited transmit");
        assert_eq!(s.cwnd(), 10);
    }
    s.peer.ack(0, 0);
    assert_eq!(segments(&s.poll()), [0]);
    assert_eq!((s.cold().window.ssthresh() / MSS, s.cwnd()), (5, 8));
    for n in 9..=14 {
        s.peer.ack(0, 0);
        let got = segments(&s.poll());
        assert_eq!((s.cwnd(), got.len()), (n, usize::from(n > 12)), "new data once the window has room");
    }
    s.peer.ack(0, 14 * MSS);
    s.poll();
    // RFC 6582 section 3.2 step 3: less when less is under way, so that no burst follows.
    assert_eq!(s.cwnd(), 2);
}

/// "... a sender using SACK MUST NOT send new data unless the incoming duplicate acknowledgment contains new SACK information" (RFC 5681
/// section 3.2).
#[test]
fn with_sack_a_duplicate_without_news_lets_nothing_go() {
    let mut s = scene();
    s.peer.ack(0, 0);
    assert_eq!(s.writes(40).len(), 10);
    for _ in 0..6 {
        s.reports(0, &[]);
        assert_eq!(s.poll(), []);
    }
    s.now = s.now.plus(us(100));
    s.reports(0, &[(1, 2)]);
    assert_eq!(segments(&s.poll()), [10]);
    s.reports(0, &[(1, 2)]);
    assert_eq!(s.poll(), [], "the same report again");
}

/// "... after all loss in the given window of segments has been successfully retransmitted, cwnd MUST be set to no more than ssthresh"
/// (RFC 5681 section 4.3); loss in a second window lowers it again.
#[test]
fn a_repaired_window_ends_at_the_threshold_and_a_second_loss_lowers_it_again() {
    let mut s = scene_with(
        |i| i.window = Window::new(Algorithm::Reno, 1448, Instant::ZERO),
        Capabilities::plain(1500, MAC_A),
        config(),
    );
    s.peer.ack(0, 0);
    assert_eq!(s.writes(80).len(), 10);
    s.now = s.now.plus(us(200));
    s.reports(0, &[(1, 10)]);
    let mut sent = s.poll();
    let threshold = s.cold().window.ssthresh() / MSS;
    assert_eq!(threshold, 5);
    let out = |sent: &[Got]| segments(sent).into_iter().max().unwrap() + 1;
    s.reports(10, &[]);
    sent.extend(s.poll());
    assert!(s.cwnd() <= threshold + 1, "{}", s.cwnd());
    // The first of the next window is lost as well.
    let end = out(&sent);
    s.now = s.now.plus(us(200));
    s.reports(10, &[(11, end)]);
    s.poll();
    assert!(s.cold().window.ssthresh() / MSS < threshold, "{}", s.cold().window.ssthresh());
}

/// RFC 8985 section 6.2 without DupThresh reports: the reordering window starts "from a small fraction of the round-trip time", a quarter
/// of the least, and a timer goes off at its end; it "SHOULD adaptively increase", and "MUST be bounded, and this bound SHOULD be SRTT".
#[test]
fn a_lone_report_waits_for_the_reordering_window() {
    for (mult, waits) in [(1u8, 2500u64), (2, 5000), (u8::MAX, 10_000)] {
        let change = |i: &mut flow::Install| i.rtt = Some(us(10_000));
        let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
        assert_eq!(s.writes(5).len(), 5);
        {
            let mut guard = s.host.keeper.lock(s.id);
            guard.parts().cold.recovery.reo_mult = mult;
        }
        s.now = s.now.plus(us(10_000));
        s.reports(0, &[(1, 2)]);
        assert_eq!(s.poll(), []);
        assert_eq!(s.after(us(waits - 100)), [], "{mult}");
        assert_eq!(segments(&s.after(us(200))), [0], "{mult}");
    }
}

/// "RACK DSACK-based reordering window adaptation is RECOMMENDED": a report of a duplicate makes the window larger, once a round trip
/// (RFC 8985 section 6.2 step 4).
#[test]
fn duplicates_reported_widen_the_reordering_window() {
    let mut s = scene();
    assert_eq!(s.writes(6).len(), 6);
    s.now = s.now.plus(us(100));
    s.reports(0, &[(1, 5)]);
    assert_eq!(segments(&s.poll()), [0]);
    s.reports(5, &[]);
    s.poll();
    assert_eq!(s.cold().recovery.reo_mult, 1);
    s.reports(5, &[(0, 1)]);
    s.poll();
    s.reports(5, &[(0, 1)]);
    s.poll();
    assert_eq!(s.cold().recovery.reo_mult, 2, "once in a round trip");
}

/// "... the sender SHOULD transmit a previously unsent data segment, if one exists and the receive window allows" (RFC 8985 section
/// 7.3); and "the sender MUST re-arm the RTO timer": the timeout counts from the probe on.
#[test]
fn a_probe_is_new_data_where_there_is_some() {
    let mut s = scene();
    s.peer.ack(0, 0);
    assert_eq!(s.writes(12).len(), 10);
    let probe = s.after(us(2_300));
    assert_eq!(segments(&probe), [10]);
    assert_eq!(s.cold().recovery.restart_at, s.now);
    assert_eq!(s.host.core.counters().tail_probes, 1);
    assert_eq!(s.after(us(2_300)), [], "one at a time");
}

/// "The data sender MUST retransmit the segment at the left edge of the window after a retransmit timeout, whether or not the SACKed bit
/// is on for that segment" (RFC 2018 section 5), and after a second one in a row everything, reported or not.
#[test]
fn timeouts_repeat_the_left_edge_and_then_forget_what_was_reported() {
    let mut s = scene();
    assert_eq!(s.writes(4).len(), 4);
    s.now = s.now.plus(us(100));
    s.reports(0, &[(1, 4)]);
    s.poll();
    for timeouts in 1..=2 {
        while s.host.timeouts < timeouts {
            s.after(Duration::from_ms(10));
        }
        assert_eq!(segments(&s.poll())[0], 0);
        assert_eq!(s.cold().recovery.held, if timeouts == 1 { 3 * MSS } else { 0 });
    }
}
