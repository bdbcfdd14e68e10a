//! Path MTU: what routers say, what is remembered of it, black holes, and the way back up.

use crate::harness::*;
use flow::{Exception, FlowId, PathProbe, state};
use slowpath::Count;
use wire::{FourTuple, Icmpv4Message, IpParameters, IpProtocol, TcpOptions, code, emit_ip};

/// "Fragmentation needed" from a router, quoting our segment at `seq` to the peer's port `to`.
fn too_big(w: &mut World, to: u16, seq: u32, mtu: u16) {
    let quoted = frame(FourTuple::new(us(80), peer(to)), ACK, seq, 101, TcpOptions::NONE, &[]);
    let (code, quoted) = (code::FRAGMENTATION_NEEDED, &quoted[14..]);
    let message = Icmpv4Message::DestinationUnreachable { code, next_hop_mtu: mtu, quoted };
    let mut bytes = vec![0; 200];
    let len = message.encoded_len();
    let at = emit_ip(&IpParameters::new(PEER_MAC, OUR_MAC), ip(3), ip(2), IpProtocol::ICMP, len, &mut bytes)
        .unwrap();
    let len = message.emit(&mut bytes[at..]).unwrap();
    bytes.truncate(at + len);
    w.raw(&bytes);
}

/// A connection whose ends agreed on 1460 bytes, with `segments` of them in flight.
fn sending(w: &mut World, from: u16, segments: u32) -> (FlowId, u32) {
    let _ = w.slow.listen(us(80), 1, 1000);
    let tuple = FourTuple::new(peer(from), us(80));
    w.segment(tuple, SYN, 100, 0, TcpOptions { mss: Some(1460), ..TcpOptions::NONE }, &[]);
    let answer = w.next();
    w.peer_sends(from, 80, ACK, 101, answer.header.seq.0 + 1);
    let slowpath::Event::Incoming { pending, .. } = w.event() else { panic!() };
    let owner = w.owner();
    let flow = w.slow.accept(w.now, pending, owner).unwrap();
    w.settle();
    w.orders.clear();
    let una = w.edit(flow, |parts| {
        parts.tx.snd_max = parts.tx.snd_una.plus(segments * 1460);
        parts.tx.snd_nxt = parts.tx.snd_max;
        parts.tx.snd_una.0
    });
    (flow, una)
}

fn mss(w: &World, flow: FlowId) -> u16 {
    w.edit(flow, |parts| parts.tx.mss)
}

/// RFC 8201 section 5.4: "the loss of a packet that is too big is not to be taken as a sign of congestion".
#[test]
fn what_was_too_big_is_sent_again_at_once_and_the_window_stays() {
    let mut w = World::new();
    let (flow, una) = sending(&mut w, 9, 10);
    let cwnd = w.edit(flow, |parts| parts.tx.cwnd);
    too_big(&mut w, 9, una.wrapping_add(1460), 1400);
    assert_eq!(w.orders.pop_front(), Some(Order::Transmit(flow)));
    w.edit(flow, |parts| assert_eq!((parts.tx.mss, parts.tx.snd_nxt.0, parts.tx.cwnd), (1360, una, cwnd)));
    // The messages about the other nine say nothing new.
    too_big(&mut w, 9, una.wrapping_add(2920), 1400);
    assert!(w.orders.is_empty());
    assert_eq!((w.count(Count::PathMtuLowered), w.count(Count::StrayIcmp)), (1, 0));
}

#[test]
fn a_new_connection_begins_with_what_is_known_of_the_path_for_ten_minutes() {
    let mut w = World::new();
    let (_, una) = sending(&mut w, 9, 2);
    too_big(&mut w, 9, una, 1400);
    let (flow, _) = sending(&mut w, 10, 0);
    assert_eq!(mss(&w, flow), 1360);
    w.pass(secs(601));
    w.peer_is_there();
    let (later, _) = sending(&mut w, 11, 0);
    assert_eq!(mss(&w, later), 1460);
}

#[test]
fn forged_messages_change_nothing() {
    let mut w = World::new();
    let (flow, una) = sending(&mut w, 9, 2);
    // Not in flight: before, behind; and of no connection.
    too_big(&mut w, 9, una.wrapping_sub(1), 1000);
    too_big(&mut w, 9, una.wrapping_add(2920), 1000);
    too_big(&mut w, 77, una, 1000);
    assert_eq!((mss(&w, flow), w.count(Count::StrayIcmp)), (1460, 3));
    // RFC 1191 knows routers that say 0; below 552 Linux does not go either.
    too_big(&mut w, 9, una, 0);
    assert_eq!(mss(&w, flow), 512);
    let (other, _) = sending(&mut w, 10, 0);
    assert_eq!(mss(&w, other), 512);
}

#[test]
fn messages_are_obeyed_at_a_limited_rate() {
    let mut w = World::with(|config, _| config.path_changes_per_second = 4);
    let (flow, una) = sending(&mut w, 9, 2);
    for mtu in [1400, 1300, 1200, 1100, 1000, 900, 800] {
        too_big(&mut w, 9, una, mtu);
    }
    // Between two and five of them.
    assert!([1260, 1160, 1060, 960].contains(&mss(&w, flow)), "{}", mss(&w, flow));
    w.pass(secs(1));
    too_big(&mut w, 9, una, 800);
    assert_eq!(mss(&w, flow), 760);
}

/// The flow sends and nothing comes back, for `time`; a timer runs.
fn silence(w: &mut World, flow: FlowId, time: base::Duration) {
    w.edit(flow, |parts| parts.rx.set(state::TIMER_ARMED));
    w.exception(Exception::Active { flow });
    let end = w.now.plus(time);
    while w.now < end {
        w.peer_is_there();
        w.pass(ms(50));
    }
}

/// The peer acknowledges everything sent.
fn acknowledge(w: &mut World, flow: FlowId) {
    let now = w.now;
    w.edit(flow, |parts| {
        parts.tx.snd_una = parts.tx.snd_max;
        parts.tx.snd_nxt = parts.tx.snd_max;
        (parts.cold.progress_at, parts.cold.backoff) = (now, 0);
    });
}

/// The core sends what was ordered as a probe, and the path takes segments up to `limit`. The sizes probed.
fn probe(w: &mut World, flow: FlowId, limit: u16, time: base::Duration) -> Vec<u16> {
    let (end, mut sizes) = (w.now.plus(time), Vec::new());
    while w.now < end {
        w.pass(ms(20));
        let now = w.now;
        w.edit(flow, |parts| (parts.cold.progress_at, parts.cold.backoff) = (now, 0));
        while let Some(order) = w.orders.pop_front() {
            let Order::ProbePath(_, len) = order else { continue };
            sizes.push(len);
            w.edit(flow, |parts| {
                parts.tx.snd_max = parts.tx.snd_max.plus(u32::from(len) + 1460);
                let end = parts.tx.snd_max.minus(1460);
                parts.cold.path_probe = PathProbe { end, len, is_lost: len > limit };
                // The loss is repaired, the rest arrives, and more is under way.
                parts.tx.snd_una = end;
                parts.tx.snd_nxt = parts.tx.snd_max;
            });
        }
    }
    sizes
}

#[test]
fn three_timeouts_of_full_segments_are_a_black_hole_and_one_probe_ends_a_mere_outage() {
    let mut w = World::new();
    let (flow, _) = sending(&mut w, 9, 4);
    w.edit(flow, |parts| parts.cold.rto = ms(200));
    silence(&mut w, flow, ms(1300));
    assert_eq!((mss(&w, flow), w.count(Count::BlackHolesSuspected)), (1460, 0), "two timeouts prove nothing");
    silence(&mut w, flow, ms(300));
    assert_eq!((mss(&w, flow), w.count(Count::BlackHolesSuspected)), (1024, 1), "Linux's tcp_base_mss");
    acknowledge(&mut w, flow);
    w.edit(flow, |parts| {
        parts.tx.snd_max = parts.tx.snd_una.plus(1024);
        parts.tx.snd_nxt = parts.tx.snd_max;
    });
    assert_eq!(probe(&mut w, flow, 9000, secs(2)), [1460]);
    assert_eq!((mss(&w, flow), w.count(Count::PathProbesArrived)), (1460, 1));
}

#[test]
fn a_black_hole_is_measured_by_probes_and_remembered() {
    let mut w = World::new();
    let (flow, _) = sending(&mut w, 9, 4);
    w.edit(flow, |parts| parts.cold.rto = ms(200));
    silence(&mut w, flow, ms(1600));
    acknowledge(&mut w, flow);
    w.edit(flow, |parts| parts.tx.snd_max = parts.tx.snd_una.plus(1024));
    let sizes = probe(&mut w, flow, 1200, secs(20));
    assert_eq!(sizes[..2], [1460, 1460], "one loss is no proof");
    let found = mss(&w, flow);
    assert!((1191..=1200).contains(&found), "{found} {sizes:?}");
    w.peer_is_there();
    w.sent.clear();
    let (other, _) = sending(&mut w, 10, 0);
    assert_eq!(mss(&w, other), found);
    // "... a larger PLPMTU SHOULD be tried after 10 minutes" in the words of RFC 8899's PMTU_RAISE_TIMER.
    w.edit(flow, |parts| parts.tx.snd_max = parts.tx.snd_una.plus(1024));
    assert_eq!(probe(&mut w, flow, 9000, secs(620)), [1460]);
    assert_eq!(mss(&w, flow), 1460);
}

/// A lone message, shorter than a full segment and larger than the path takes, is all there is: nothing else would ever show it.
#[test]
fn a_lone_segment_that_is_not_full_is_suspected_too() {
    for (len, expected) in [(1300, 1024), (900, 512)] {
        let mut w = World::new();
        let (flow, una) = sending(&mut w, 9, 0);
        w.edit(flow, |parts| {
            parts.cold.rto = ms(200);
            parts.tx.snd_max = base::SeqNumber(una).plus(len);
            parts.tx.snd_nxt = parts.tx.snd_max;
        });
        silence(&mut w, flow, ms(1600));
        assert_eq!((mss(&w, flow), w.count(Count::BlackHolesSuspected)), (expected, 1));
    }
}

#[test]
fn small_segments_that_time_out_are_no_black_hole() {
    let mut w = World::new();
    let (flow, una) = sending(&mut w, 9, 0);
    w.edit(flow, |parts| {
        parts.cold.rto = ms(200);
        parts.tx.snd_max = base::SeqNumber(una).plus(400);
        parts.tx.snd_nxt = parts.tx.snd_max;
    });
    silence(&mut w, flow, secs(5));
    assert_eq!((mss(&w, flow), w.count(Count::BlackHolesSuspected)), (1460, 0));
}
