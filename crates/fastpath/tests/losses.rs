//! Losses and what repairs them, rule by rule: one flow and a peer under the test's hand.

use crate::peer::Got;
use crate::scene::{MSS, Scene, scene};
use base::Duration;
use flow::state;
use port::{Batch, Port};

/// The numbers of the segments in `got`.
fn segments(got: &[Got]) -> Vec<u32> {
    got.iter().map(|g| g.seq / MSS).collect()
}

impl Scene {
    /// A flow of which one round trip is measured, with `n` segments in flight, numbered from 1 on.
    fn in_flight(n: usize) -> Self {
        let mut s = scene();
        s.peer.ack(0, 0);
        assert_eq!(s.send(&[7; MSS as usize]).len(), 1);
        s.now = s.now.plus(Duration::from_us(100));
        s.reports(1, &[]);
        s.poll();
        assert_eq!(s.send(&vec![7; n * MSS as usize]).len(), n);
        s
    }
}

/// "PTO = 2 * SRTT", and 2 ms for the peer, as Linux; "the sender SHOULD NOT send another TLP until the first is acknowledged" (RFC 8985 section 7.3 in short).
#[test]
fn a_tail_loss_probe_goes_once_and_long_before_the_timeout() {
    let mut s = Scene::in_flight(5);
    assert_eq!(s.after(Duration::from_us(2_150)), []);
    assert_eq!(segments(&s.after(Duration::from_us(150))), [5], "the last segment");
    for _ in 0..20 {
        assert_eq!(s.after(Duration::from_ms(5)), []);
    }
    assert_eq!((s.host.timeouts, s.host.core.counters().tail_probes), (0, 1));
}

#[test]
fn a_probe_that_finds_no_room_in_the_port_is_tried_again_after_a_pause() {
    let mut s = Scene::in_flight(5);
    while let Some(buf) = s.port.reserve() {
        assert!(buf.fill(&[0; 60]));
        s.port.commit();
    }
    s.port.flush();
    let before = s.host.core.counters().loss_timers;
    for _ in 0..100 {
        s.now = s.now.plus(Duration::from_us(100));
        s.host.poll(s.now, &mut s.port);
    }
    let counters = s.host.core.counters();
    let fired = counters.loss_timers - before;
    assert!(
        counters.tail_probes == 0 && fired <= 6,
        "{fired} times in 10 ms, of which each is to wait 2.2 ms"
    );
    let mut batch = Batch::new();
    while s.peer.port.receive(&mut batch) > 0 {}
    let sent: Vec<_> = (0..30).flat_map(|_| segments(&s.after(Duration::from_us(100)))).collect();
    assert_eq!((sent, s.host.core.counters().tail_probes), (vec![5], 1));
}

/// What the probe's acknowledgement shows is repaired at once: all that was sent before it is lost (RFC 8985 section 6.2).
#[test]
fn a_lost_tail_is_repaired_without_a_timeout() {
    let mut s = Scene::in_flight(5);
    assert_eq!(segments(&s.after(Duration::from_us(2_300))), [5]);
    s.now = s.now.plus(Duration::from_us(100));
    s.reports(1, &[(5, 6)]);
    assert_eq!(segments(&s.poll()), [1], "a loss is no time for more than one for one: RFC 9937 section 6.2");
    s.now = s.now.plus(Duration::from_us(100));
    s.reports(2, &[(5, 6)]);
    assert_eq!(segments(&s.poll()), [2, 3], "two for one, when nothing more is lost: SafeACK");
    s.now = s.now.plus(Duration::from_us(100));
    s.reports(4, &[(5, 6)]);
    assert_eq!(segments(&s.poll()), [4]);
    s.reports(6, &[]);
    s.poll();
    assert_eq!((s.host.timeouts, s.host.core.counters().recoveries), (0, 1));
}

/// The peer echoes the timestamp of what came before the gap (RFC 7323 section 4.3: "SEG.SEQ <= Last.ACK.sent"), which is older than the probe. Its
/// report shows all the same that the probe has arrived.
#[test]
fn a_lost_tail_is_repaired_without_a_timeout_though_an_older_timestamp_is_echoed() {
    let mut s = Scene::in_flight(5);
    let sent = s.cold().timestamp(s.now);
    s.peer.ts = Some((2, sent));
    assert_eq!(segments(&s.after(Duration::from_us(2_300))), [5]);
    assert!(sent < s.cold().timestamp(s.now), "milliseconds between the two sendings");
    s.now = s.now.plus(Duration::from_us(100));
    s.reports(1, &[(5, 6)]);
    assert_eq!(segments(&s.poll()), [1]);
    assert_eq!((s.host.timeouts, s.host.core.counters().recoveries), (0, 1));
}

/// "RACK_sent_after" (RFC 8985 section 6.2): what was sent after a retransmission is not lost because the retransmission has arrived, though
/// send times are known per burst, and this burst began before the retransmission.
#[test]
fn a_delivered_retransmission_says_nothing_of_the_burst_within_which_it_went() {
    let mut s = Scene::in_flight(5);
    s.now = s.now.plus(Duration::from_us(97));
    assert_eq!(segments(&s.send(&[7; MSS as usize])), [6], "the burst begins");
    s.now = s.now.plus(Duration::from_us(3));
    s.reports(1, &[(2, 6)]);
    assert_eq!(segments(&s.poll()), [1], "the retransmission");
    s.now = s.now.plus(Duration::from_us(1));
    assert_eq!(segments(&s.send(&[7; MSS as usize])), [7], "the burst goes on");
    s.now = s.now.plus(Duration::from_us(99));
    s.reports(6, &[]);
    assert_eq!(segments(&s.poll()), [], "6 and 7 may be on their way");
    s.now = s.now.plus(Duration::from_us(1));
    s.reports(6, &[(7, 8)]);
    assert_eq!(segments(&s.poll()), [6], "7 was sent after 6 and has arrived");
}

/// "The connection MUST use selective acknowledgment (SACK) options" (RFC 8985 section 4): without them what a probe finds could not be
/// told, and the timeout repairs.
#[test]
fn a_peer_without_reports_is_not_probed() {
    let mut s = Scene::in_flight(5);
    s.host.keeper.lock(s.id).parts().rx.clear(state::SACK);
    for _ in 0..39 {
        assert_eq!(s.after(Duration::from_ms(5)), []);
    }
    while s.host.timeouts == 0 {
        s.now = s.now.plus(Duration::from_ms(1));
        s.host.poll(s.now, &mut s.port);
    }
    assert_eq!(segments(&s.poll()), [1]);
    assert_eq!(s.host.core.counters().tail_probes, 0);
}

/// RFC 8985 section 7.3: between two probes a round trip is measured, or the second "MUST" be skipped: on a path whose round trip has grown
/// each request would be sent twice.
#[test]
fn a_probe_in_vain_is_not_followed_by_another_before_something_was_measured() {
    let mut s = Scene::in_flight(5);
    assert_eq!(segments(&s.after(Duration::from_us(2_300))), [5]);
    s.reports(5, &[(5, 6)]);
    s.reports(6, &[(5, 6)]);
    s.poll();
    s.send(&[7; 2 * MSS as usize]);
    for _ in 0..30 {
        assert_eq!(s.after(Duration::from_ms(5)), []);
    }
    s.reports(8, &[]);
    s.poll();
    s.send(&[7; 2 * MSS as usize]);
    assert_eq!(segments(&s.after(Duration::from_ms(150))), [9]);
}

/// RFC 8985 section 7.4.2: a peer that reports no duplicates says it by a bare acknowledgement of what it has acknowledged.
#[test]
fn a_bare_second_acknowledgement_clears_a_probe() {
    let mut s = Scene::in_flight(5);
    assert_eq!(segments(&s.after(Duration::from_us(2_300))), [5]);
    let before = s.cwnd();
    s.reports(6, &[]);
    s.poll();
    s.reports(6, &[]);
    s.poll();
    s.send(&[7; MSS as usize]);
    s.reports(7, &[]);
    s.poll();
    assert!(s.cwnd() >= before);
}

/// The reports may come after the end of what they say was needless: Linux keeps its `undo_marker` that long.
#[test]
fn duplicates_reported_after_the_end_undo_a_repair() {
    for is_all in [false, true] {
        let mut s = Scene::in_flight(8);
        let before = s.cwnd();
        s.reports(1, &[(3, 6)]);
        assert_eq!(segments(&s.poll()), [1, 2], "three held, two missing");
        s.now = s.now.plus(Duration::from_us(50));
        s.reports(9, &[]);
        s.poll();
        assert!(s.cwnd() < before && s.host.core.counters().undone == 0);
        s.reports(9, &[(1, 2)]);
        s.poll();
        assert_eq!(s.host.core.counters().undone, 0, "the other may have been missing");
        if is_all {
            s.reports(9, &[(2, 3)]);
            s.poll();
        }
        assert_eq!((s.cwnd() >= before, s.host.core.counters().undone), (is_all, u64::from(is_all)));
    }
}

#[test]
fn a_peer_that_is_gone_keeps_no_core_awake() {
    let mut s = Scene::in_flight(5);
    let mut soon = 0;
    for step in 0..400 {
        s.now = s.now.plus(Duration::from_ms(5));
        let deadline = s.host.poll(s.now, &mut s.port).deadline;
        soon += u32::from(step >= 100 && deadline < s.now.plus(Duration::from_ms(5)));
    }
    // For one timeout after each repetition at most, while the time between them doubles.
    assert!(s.host.timeouts == 3 && soon <= 2 * 40, "{soon} of 300, {} timeouts", s.host.timeouts);
}

/// "When the FlightSize is one segment, the sender MAY inflate the PTO by TLP.max_ack_delay"; "if the time at which an RTO would fire
/// ... is sooner than the computed time for the PTO, then the sender schedules a TLP to be sent at that RTO time" (RFC 8985
/// section 7.2). "The sender MUST re-arm the RTO timer" after it (section 7.3).
#[test]
fn a_single_segment_is_probed_in_the_place_of_the_timeout_which_then_begins_anew() {
    let mut s = Scene::in_flight(1);
    for _ in 0..39 {
        assert_eq!(s.after(Duration::from_ms(5)), [], "its acknowledgement may be delayed");
    }
    let window = s.cwnd();
    let probes: Vec<u32> = (0..4).flat_map(|_| segments(&s.after(Duration::from_ms(5)))).collect();
    assert_eq!((probes, s.host.timeouts), (vec![1], 0));
    assert_eq!(s.cwnd(), window, "a probe says nothing about the path");
    (0..36).for_each(|_| assert_eq!(s.after(Duration::from_ms(5)), []));
    (0..5).for_each(|_| drop(s.after(Duration::from_ms(5))));
    assert_eq!((s.host.timeouts, s.cwnd()), (1, 1));
}

/// RFC 8985 section 7.4: a loss that the probe repaired reduces the window, a duplicate's report (RFC 2883) clears it.
#[test]
fn a_probe_that_repaired_a_loss_slows_the_flow_down_and_one_in_vain_does_not() {
    for is_in_vain in [false, true] {
        let mut s = Scene::in_flight(5);
        assert_eq!(segments(&s.after(Duration::from_us(2_300))), [5]);
        let before = s.cwnd();
        s.reports(6, if is_in_vain { &[(5, 6)] } else { &[] });
        s.poll();
        s.send(&[7; MSS as usize]);
        s.reports(7, &[]);
        s.poll();
        assert_eq!(s.cwnd() < before, !is_in_vain, "in vain: {is_in_vain}");
    }
}

#[test]
fn a_retransmission_lost_in_its_turn_is_sent_again_when_later_segments_arrive() {
    let mut s = Scene::in_flight(10);
    s.reports(1, &[(2, 5)]);
    assert_eq!(segments(&s.poll()), [1]);
    // Segments sent before it prove nothing.
    s.reports(1, &[(2, 11)]);
    assert_eq!(s.poll(), []);
    // One that was sent after it does.
    s.now = s.now.plus(Duration::from_us(50));
    assert_eq!(segments(&s.send(&[8; 4 * MSS as usize])), [11, 12, 13, 14]);
    s.now = s.now.plus(Duration::from_us(100));
    s.reports(1, &[(2, 12)]);
    assert_eq!(segments(&s.poll()), [1]);
    assert_eq!((s.host.timeouts, s.host.core.counters().recoveries), (0, 1));
}

/// "Otherwise ... RTT < RACK.min_RTT: the ACK is for the original" (RFC 8985 section 6.2 step 2 in short) is a guess, which the echo of the
/// retransmission's own timestamp refutes: when all that was sent before it is lost, it meets an empty queue and is faster than ever.
#[test]
fn a_retransmission_faster_than_ever_is_known_by_its_timestamp() {
    for is_echoed in [true, false] {
        let mut s = scene();
        s.peer.ack(0, 0);
        {
            let mut record = s.host.keeper.lock(s.id);
            let cold = record.parts().cold;
            (cold.rtt_us_min, cold.rtt_us_min_next) = (u32::MAX, u32::MAX);
        }
        assert_eq!(s.send(&[7; MSS as usize]).len(), 1);
        s.now = s.now.plus(Duration::from_ms(40));
        s.reports(1, &[]);
        s.poll();
        assert_eq!(s.send(&[7; 6 * MSS as usize]).len(), 6);
        let first = s.cold().timestamp(s.now);
        // Segment 1 is lost, and 3 to 6, of which no report tells; so the peer is asked after two round trips.
        s.now = s.now.plus(Duration::from_ms(40));
        s.reports(1, &[(2, 3)]);
        s.poll();
        let mut again = Vec::new();
        while again.is_empty() {
            again = segments(&s.after(Duration::from_ms(1)));
        }
        assert_eq!(again[0], 1);
        let second = s.cold().timestamp(s.now);
        assert!(first < second);
        s.now = s.now.plus(Duration::from_ms(39));
        s.peer.ts = Some((2, if is_echoed { second } else { 0 }));
        s.reports(3, &[]);
        assert_eq!(segments(&s.poll()).first(), is_echoed.then_some(&3), "echoed: {is_echoed}");
        assert_eq!(s.cold().rtt_us_min, if is_echoed { 39_000 } else { 40_000 });
    }
}

/// RFC 6675 section 5 step C: as many as the pipe has room for, not one for each batch of acknowledgements.
#[test]
fn one_report_of_many_holes_sends_as_many_segments_as_the_pipe_lets_go() {
    let mut s = Scene::in_flight(10);
    s.reports(1, &[(3, 4), (5, 6), (7, 11)]);
    assert_eq!(segments(&s.poll()), [1, 2, 4, 6]);
    s.reports(11, &[]);
    s.poll();
    assert_eq!((s.host.timeouts, s.host.core.counters().recoveries), (0, 1));
}

#[test]
fn after_a_timeout_what_the_peer_holds_is_not_sent_again() {
    let mut s = Scene::in_flight(6);
    s.reports(1, &[(2, 3)]);
    s.poll();
    // Every repetition is lost until the timer has run out.
    while s.host.timeouts == 0 {
        s.after(Duration::from_ms(10));
    }
    let mut again = segments(&s.poll());
    s.reports(3, &[]);
    again.extend(segments(&s.poll()));
    assert_eq!(again[..2], [1, 3], "{again:?}");
}

/// RFC 2018 section 8: "the data receiver is permitted to discard data in its queue that has not been acknowledged".
#[test]
fn a_peer_that_discards_what_it_has_reported_gets_it_again() {
    let mut s = Scene::in_flight(6);
    s.reports(1, &[(2, 6)]);
    assert_eq!(segments(&s.poll()), [1]);
    s.reports(2, &[]);
    let mut again = segments(&s.poll());
    for ack in 3..7 {
        again.extend((0..80).flat_map(|_| segments(&s.after(Duration::from_ms(5)))));
        s.reports(ack, &[]);
        again.extend(segments(&s.poll()));
    }
    assert!((2..6).all(|n| again.contains(&n)), "{again:?}");
}

/// Acknowledgements of one batch are followed by new data only after the last: the window counts as used for all of them,
/// when it grows as well as when it is cut.
#[test]
fn a_window_that_holds_data_back_counts_as_used_throughout_a_batch() {
    let mut s = Scene::in_flight(8);
    let window = s.cwnd();
    s.host.send(&mut s.sock, &[7; 40 * MSS as usize], 128 << 10);
    s.poll();
    assert!(s.host.keeper.lock(s.id).parts().rx.has(state::CWND_FULL));
    (2..=9).for_each(|n| s.reports(n, &[]));
    s.poll();
    assert_eq!(s.cwnd(), window + 8, "slow start grows by all of it");
    // Six acknowledged and a loss, in one batch: the flight is what the window let go.
    let window = s.cwnd();
    (10..=15).for_each(|n| s.reports(n, &[]));
    s.reports(15, &[(16, 19)]);
    s.poll();
    assert!(s.cwnd() >= window * 7 / 10, "{} of {window}", s.cwnd());
}
