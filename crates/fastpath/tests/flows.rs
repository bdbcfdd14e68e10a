//! One flow and a peer under the test's hand: each rule by packets and times.

use crate::harness::{MAC_A, MAC_B, config};
use crate::scene::{Scene, scene, scene_with};
use base::Duration;
use fastpath::Cause;
use flow::{Command, Exception, FrameReason, state};
use port::Capabilities;
use shm::half_flags::{FIN, RELEASED, RESET};
use std::sync::atomic::Ordering::Relaxed;
use wire::{DropReason, Ecn, TcpFlags};

#[test]
fn a_reply_carries_the_acknowledgement() {
    let mut s = scene();
    s.peer.data(0, 0, b"request");
    assert_eq!(s.poll(), []);
    assert_eq!(s.host.news(), [5]);
    assert_eq!(s.recv(), b"request");
    let out = s.send(b"reply");
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].seq, out[0].ack, &out[0].payload[..]), (0, 7, &b"reply"[..]));
    assert_eq!(s.after(Duration::from_ms(100)), [], "nothing is left to acknowledge");
    assert_eq!(s.host.core.counters().pure_acks_out, 0);
}

#[test]
fn an_acknowledgement_waits_for_data_at_most_its_time_or_two_segments() {
    let mut s = scene();
    s.peer.data(0, 0, &[1; 100]);
    assert_eq!(s.poll(), []);
    assert_eq!(s.after(Duration::from_ms(39)), []);
    let late = s.after(Duration::from_ms(1));
    assert_eq!((late.len(), late[0].ack, late[0].payload.len()), (1, 100, 0));
    let mut s = scene();
    s.host.keeper.lock(s.id).parts().cold.quick = 0; // No longer at its beginning.
    s.peer.data(0, 0, &[2; 1448]);
    assert_eq!(s.poll(), []);
    s.peer.data(1448, 0, &[2; 1448]);
    assert_eq!(s.poll().iter().map(|g| g.ack).collect::<Vec<_>>(), [2896]);
}

#[test]
fn who_waited_in_vain_for_a_reply_acknowledges_at_once_until_there_is_one() {
    let mut s = scene();
    s.peer.data(0, 0, b"one");
    assert_eq!((s.poll().len(), s.after(Duration::from_ms(40)).len()), (0, 1));
    s.peer.data(3, 0, b"two");
    assert_eq!(s.poll().len(), 1);
    assert_eq!(s.send(b"reply").len(), 1);
    s.peer.data(6, 5, b"three");
    assert_eq!(s.poll().len(), 0);
}

#[test]
fn a_batch_is_acknowledged_once() {
    let mut s = scene();
    for i in 0..20 {
        s.peer.data(i * 1448, 0, &[i as u8; 1448]);
    }
    assert_eq!(s.poll().iter().map(|g| g.ack).collect::<Vec<_>>(), [20 * 1448]);
    assert_eq!(s.host.news(), [5]);
    assert_eq!(s.recv().len(), 20 * 1448);
}

#[test]
fn out_of_order_data_is_kept_reported_and_delivered_in_order() {
    let mut s = scene();
    let piece = |i: u32| vec![i as u8; 1000];
    // Five gaps, then the pieces between them, last first.
    for i in [1u32, 3, 5, 7, 9] {
        s.peer.data(i * 1000, 0, &piece(i));
        let out = s.poll();
        assert_eq!((out.len(), out[0].ack), (1, 0), "a duplicate at once");
        assert_eq!(out[0].sack[0], (i * 1000, i * 1000 + 1000), "the latest block first");
    }
    for i in [8u32, 6, 4, 2] {
        s.peer.data(i * 1000, 0, &piece(i));
        assert_eq!(s.poll().len(), 1);
    }
    assert_eq!(s.recv(), []);
    s.peer.data(0, 0, &piece(0));
    assert_eq!(s.poll()[0].ack, 10_000);
    let expected: Vec<u8> = (0..10).flat_map(piece).collect();
    assert_eq!(s.recv(), expected);
    assert_eq!(s.host.core.counters().out_of_order, 9);
}

#[test]
fn intervals_agree_with_a_byte_map() {
    for seed in 0..40 {
        let mut s = scene();
        let mut rng = base::Seed::new(seed);
        let stream: Vec<u8> = (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut got = Vec::new();
        while got.len() < stream.len() {
            for _ in 0..rng.below(6) {
                let at = rng.below(stream.len() as u64 - 1) as usize;
                // Mostly near the left edge, so that it gets there.
                let at = if rng.chance(700_000) { got.len() + at % 3000 } else { at }.min(stream.len() - 1);
                let end = (at + 1 + rng.below(1400) as usize).min(stream.len());
                s.peer.data(at as u32, 0, &stream[at..end]);
            }
            let end = (got.len() + 700).min(stream.len());
            s.peer.data(got.len() as u32, 0, &stream[got.len()..end]);
            s.now = s.now.plus(Duration::from_us(50));
            s.poll();
            got.extend(s.recv());
            assert_eq!(got, stream[..got.len()], "seed {seed}");
        }
    }
}

#[test]
fn three_duplicates_send_the_segment_again_and_partial_acknowledgements_the_next_hole() {
    let change = |i: &mut flow::Install| i.features &= !state::SACK;
    let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
    s.peer.ack(0, 0);
    let out = s.send(&[7; 8 * 1448]);
    assert_eq!(out.len(), 8);
    for n in 0..2 {
        s.peer.ack(0, 0);
        assert_eq!(s.poll(), [], "duplicate {n}");
    }
    s.peer.ack(0, 0);
    let again = s.poll();
    assert_eq!((again.len(), again[0].seq, again[0].payload.len()), (1, 0, 1448));
    // The first hole is closed, another shows.
    s.peer.ack(0, 3 * 1448);
    let again = s.poll();
    assert_eq!(again[0].seq, 3 * 1448);
    s.peer.ack(0, 8 * 1448);
    assert_eq!(s.poll(), []);
    assert_eq!(s.host.core.counters().recoveries, 1);
    assert_eq!(s.host.timeouts, 0);
}

/// "For the first partial ACK that arrives during fast recovery, also reset the retransmit timer" (RFC 6582 section 3.2), and for no
/// later one: after a loss of many segments the timeout ends the repair of one segment in a round trip.
#[test]
fn only_the_first_partial_acknowledgement_puts_the_timeout_off() {
    let change = |i: &mut flow::Install| i.features &= !state::SACK;
    let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
    s.peer.ack(0, 0);
    assert_eq!(s.send(&[7; 10 * 1448]).len(), 10);
    for _ in 0..3 {
        s.peer.ack(0, 0);
        s.poll();
    }
    s.now = s.now.plus(Duration::from_ms(90));
    s.peer.ack(0, 1448);
    assert_eq!(s.poll()[0].seq, 1448, "the first partial acknowledgement");
    let due = s.now.plus(s.cold().rto);
    let mut acked = 1;
    while s.now.plus(Duration::from_ms(60)) < due {
        s.now = s.now.plus(Duration::from_ms(60));
        acked += 1;
        s.peer.ack(0, acked * 1448);
        assert_eq!(s.poll()[0].seq, acked * 1448);
    }
    assert!(acked > 3 && acked < 8, "several after the first: {acked}");
    assert_eq!(s.host.timeouts, 0);
    s.now = due;
    s.poll();
    assert_eq!(s.host.timeouts, 1);
}

#[test]
fn selective_acknowledgements_show_every_hole_within_one_round_trip() {
    let mut s = scene();
    s.peer.ack(0, 0);
    assert_eq!(s.send(&[7; 10 * 1448]).len(), 10);
    let seg = |n: u32| n * 1448;
    // Segments 0, 3 and 5 are lost; the others arrive one by one.
    let mut again = Vec::new();
    for (right, blocks) in [
        (2, vec![(1, 2)]),
        (3, vec![(1, 3)]),
        (5, vec![(4, 5), (1, 3)]),
        (7, vec![(6, 7), (4, 5), (1, 3)]),
        (8, vec![(6, 8), (4, 5), (1, 3)]),
        (9, vec![(6, 9), (4, 5), (1, 3)]),
        (10, vec![(6, 10), (4, 5), (1, 3)]),
    ] {
        assert_eq!(blocks[0].1, right);
        s.peer.sack = blocks.into_iter().map(|(l, r)| (seg(l), seg(r))).collect();
        s.peer.ack(0, 0);
        again.extend(s.poll().iter().map(|g| g.seq / 1448));
    }
    assert_eq!(again, [0, 3, 5]);
    // Garbage in the option is ignored.
    s.peer.sack = vec![(seg(4), seg(2)), (seg(40), seg(50)), (0, seg(1))];
    s.peer.ack(0, seg(10));
    assert_eq!(s.poll(), []);
    assert_eq!((s.host.timeouts, s.host.core.counters().recoveries), (0, 1));
}

#[test]
fn an_acknowledgement_frees_the_ring_of_the_application() {
    let mut s = scene();
    s.host.send(&mut s.sock, &[1; 4096], 4096);
    assert_eq!(s.poll().len(), 3);
    assert_eq!(s.host.send(&mut s.sock, b"more", 4096), 0);
    s.peer.ack(0, 4096);
    s.poll();
    assert_eq!(s.host.send(&mut s.sock, b"more", 4096), 4);
}

#[test]
fn a_timeout_sends_again_from_the_oldest_byte() {
    let mut s = scene();
    assert_eq!(s.send(b"lost").len(), 1);
    assert!(matches!(s.host.log[..], []));
    assert_eq!(s.after(Duration::from_ms(150)), []);
    // A probe goes in the place of the first timeout (RFC 8985 section 7.2).
    let probe = s.after(Duration::from_ms(60));
    assert_eq!((probe.len(), probe[0].seq, s.host.timeouts), (1, 0, 0));
    assert_eq!(s.after(Duration::from_ms(150)), []);
    s.after(Duration::from_ms(60));
    let again = s.poll();
    assert_eq!((again.len(), again[0].seq, &again[0].payload[..]), (1, 0, &b"lost"[..]));
    s.peer.ack(0, 4);
    s.poll();
    assert_eq!(s.host.timeouts, 1);
    s.after(Duration::from_secs(5));
    assert_eq!(s.host.timeouts, 1);
}

#[test]
fn windows_are_scaled_both_ways() {
    let mut s = scene();
    s.peer.data(0, 0, &[0; 1448]);
    s.peer.data(1448, 0, &[0; 1448]);
    let out = s.poll();
    // What the handshake promised, less what is unread, in units of 128.
    assert_eq!(u32::from(out[0].window), (65_408u32 - 2896).div_ceil(128));
    s.peer.window = 2; // 256 bytes
    s.peer.ack(2896, 0);
    s.poll();
    assert_eq!(s.send(&[9; 1000]), [], "a sliver of a window is used when its time has come");
    s.after(Duration::from_ms(250));
    let out = s.poll();
    assert_eq!((out.len(), out[0].payload.len()), (1, 256));
}

#[test]
fn without_options_everything_works_with_plain_windows() {
    let change = |i: &mut flow::Install| (i.features, i.shifts, i.mss, i.rcv_wnd) = (0, (0, 0), 1460, 65_535);
    let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
    (s.peer.ts, s.peer.window) = (None, 3000);
    s.peer.data(0, 0, &[0; 1460]);
    s.peer.data(1460, 0, &[0; 1460]);
    let out = s.poll();
    assert_eq!((out[0].ack, out[0].window), (2920, 65_535 - 2920));
    assert_eq!(s.send(&[1; 5000]).iter().map(|g| g.payload.len()).collect::<Vec<_>>(), [1460, 1460]);
}

#[test]
fn a_full_window_closes_and_reopens_with_one_update() {
    let mut s = scene();
    let (mut seq, mut edge) = (0, 65_408);
    while seq < edge {
        let n = (edge - seq).min(1448);
        s.peer.data(seq, 0, &vec![3; n as usize]);
        seq += n;
        for out in s.after(Duration::from_ms(50)) {
            edge = out.ack + u32::from(out.window) * 128;
        }
    }
    // A probe at the edge is answered; its bytes are taken as far as rounding hid that there is room, and no further.
    s.peer.data(seq, 0, &[3; 200]);
    let out = s.poll();
    assert_eq!((out.len(), out[0].window), (1, 0));
    assert!(out[0].ack - seq < 128);
    seq = out[0].ack;
    s.peer.data(seq, 0, &[3]);
    let out = s.poll();
    assert_eq!((out[0].ack, out[0].window), (seq, 0));
    let got = s.recv();
    assert_eq!(got.len(), seq as usize);
    let out = s.poll();
    assert_eq!((out.len(), out[0].ack), (1, seq));
    assert!(u32::from(out[0].window) * 128 > 60_000);
    assert_eq!(s.poll(), []);
}

#[test]
fn the_right_edge_never_moves_left_by_more_than_rounding_and_what_it_promised_is_taken() {
    for shift in [0u8, 7, 12] {
        let change = |i: &mut flow::Install| i.shifts = (7, shift);
        let config = flow::Config { receive_buffer_initial: 128 << 10, ..config() };
        let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config);
        let (mut seq, mut edge, mut rng) = (0u32, 0u32, base::Seed::new(4));
        for _ in 0..3000 {
            // Up to the furthest edge ever said.
            let n = (1 + rng.below(1448) as u32).min(edge.saturating_sub(seq).max(1));
            s.peer.data(seq, 0, &vec![3; n as usize]);
            for out in s.after(Duration::from_ms(rng.below(60))) {
                let now = out.ack + (u32::from(out.window) << shift);
                assert!(now + (1 << shift) > edge, "shift {shift}: {now} after {edge}");
                edge = edge.max(now);
                seq = seq.max(out.ack);
            }
            if rng.chance(300_000) {
                s.host.recv(&mut s.sock, rng.below(9000) as usize);
            }
        }
        assert_eq!(s.drops(Cause::NoMemory), 0);
    }
}

#[test]
fn our_own_blocked_sender_probes_and_goes_on_when_the_window_opens() {
    let mut s = scene();
    s.send(b"x");
    s.peer.window = 0;
    s.peer.ack(0, 1);
    s.poll();
    assert_eq!(s.send(b"waiting"), []);
    s.after(Duration::from_ms(250));
    let probe = s.poll();
    assert_eq!((probe.len(), probe[0].seq, probe[0].payload.len()), (1, 0, 0));
    s.peer.window = 100;
    s.peer.ack(0, 1);
    assert_eq!(s.poll()[0].payload, b"waiting");
}

#[test]
fn segments_with_old_timestamps_are_dropped_and_answered() {
    let mut s = scene();
    s.peer.ts = Some((1000, 0));
    s.peer.data(0, 0, b"new");
    s.after(Duration::from_ms(50));
    s.peer.ts = Some((999, 0));
    s.peer.data(3, 0, b"old");
    let out = s.poll();
    assert_eq!((out.len(), out[0].ack, s.drops(Cause::Paws)), (1, 3, 1));
    assert_eq!(s.recv(), b"new");
}

/// As when the slow path returns what came before the flow was there: "Paws" is kept for what would have told something.
#[test]
fn what_was_overtaken_by_its_own_retransmission_is_a_duplicate() {
    let mut s = scene();
    s.peer.ts = Some((1000, 0));
    s.peer.data(0, 0, b"said");
    s.after(Duration::from_ms(50));
    s.peer.ts = Some((999, 0));
    s.peer.data(0, 0, b"said");
    let out = s.poll();
    assert_eq!((out.len(), out[0].ack), (1, 4));
    s.peer.ack(4, 0);
    s.poll();
    assert_eq!((s.drops(Cause::Paws), s.drops(Cause::Duplicate), s.recv()), (0, 2, b"said".to_vec()));
}

#[test]
fn wrong_checksums_are_counted_and_nothing_else_happens() {
    let mut s = scene();
    let mut frame = s.peer.frame(0, 0, TcpFlags::ACK, b"damaged");
    *frame.last_mut().unwrap() ^= 1;
    s.peer.inject(&frame);
    assert_eq!(s.poll(), []);
    assert_eq!(s.host.core.counters().dropped(DropReason::BadChecksum), 1);
    assert_eq!(s.recv(), []);
}

#[test]
fn the_peers_fin_is_told_acknowledged_and_reported() {
    let mut s = scene();
    s.peer.send(4, 0, TcpFlags::ACK.with(TcpFlags::FIN), b"end");
    assert_eq!(s.poll()[0].ack, 0, "ahead of a gap it waits");
    s.peer.data(0, 0, b"the ");
    assert_eq!(s.poll()[0].ack, 8);
    assert_eq!(s.recv(), b"the end");
    assert!(s.host.is_eof(&s.sock));
    assert!(matches!(s.host.log[..], [Exception::FinReceived { .. }]));
    // Sent again because our acknowledgement was lost: acknowledged again.
    s.peer.send(4, 0, TcpFlags::ACK.with(TcpFlags::FIN), b"end");
    assert_eq!(s.poll()[0].ack, 8);
}

#[test]
fn our_fin_follows_the_last_byte_and_its_acknowledgement_is_reported() {
    let mut s = scene_with(|i| i.snd_wnd = 1024, Capabilities::plain(1500, MAC_A), config());
    s.peer.window = 8;
    s.peer.ack(0, 0);
    s.poll();
    s.host.send(&mut s.sock, &[1; 1500], 4096);
    s.host.raise(&s.sock, FIN | RELEASED);
    let out = s.poll();
    assert_eq!(
        (out.len(), out[0].flags.contains(TcpFlags::FIN)),
        (1, false),
        "the window ends before the data"
    );
    s.peer.ack(0, 1024);
    let out = s.poll();
    assert_eq!((out[0].payload.len(), out[0].flags.contains(TcpFlags::FIN)), (476, true));
    s.peer.ack(0, 1501);
    s.poll();
    assert!(
        matches!(s.host.log[..], [Exception::AppClosed { .. }, Exception::FinAcked { .. }]),
        "{:?}",
        s.host.log
    );
    // Nobody reads any more.
    s.peer.data(0, 1501, b"late");
    s.poll();
    assert!(matches!(s.host.log.last(), Some(Exception::LateData { .. })), "{:?}", s.host.log);
}

#[test]
fn a_bare_fin_is_sent_and_sent_again() {
    let mut s = scene();
    s.host.raise(&s.sock, FIN);
    let out = s.poll();
    assert_eq!((out.len(), out[0].flags.contains(TcpFlags::FIN), out[0].seq), (1, true, 0));
    // "the highest-sequence segment sent so far" (RFC 8985 section 7.3), then the timeout.
    let probe = s.after(Duration::from_ms(300));
    assert!(probe.len() == 1 && probe[0].flags.contains(TcpFlags::FIN) && probe[0].payload.is_empty());
    s.after(Duration::from_ms(300));
    assert!(s.poll()[0].flags.contains(TcpFlags::FIN));
    s.peer.ack(0, 1);
    s.poll();
    assert!(matches!(s.host.log[..], [Exception::FinAcked { .. }]));
}

#[test]
fn what_is_not_the_fast_paths_business_becomes_an_exception() {
    let mut s = scene();
    s.peer.tuple.src.port = 4;
    s.peer.data(0, 0, b"stranger");
    s.peer.send(0, 0, TcpFlags::SYN, &[]);
    // "Gratuitous" ARP: a neighbour says where it is.
    let mut arp = [0; 42];
    arp[..6].fill(0xFF);
    arp[6..12].copy_from_slice(&MAC_B);
    arp[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    arp[22..28].copy_from_slice(&MAC_B);
    arp[28..32].copy_from_slice(&[10, 0, 0, 2]);
    arp[38..42].copy_from_slice(&[10, 0, 0, 2]);
    s.peer.inject(&arp);
    s.poll();
    let reasons: Vec<_> = s.host.frames.iter().map(|f| f.0).collect();
    assert_eq!(reasons, [FrameReason::UnknownFlow, FrameReason::Syn, FrameReason::NotTcp]);
    s.host.raise(&s.sock, RESET);
    s.poll();
    assert!(matches!(s.host.log[..], [Exception::AppReset { .. }]));
}

#[test]
fn small_segments_wait_for_each_other_unless_told_not_to() {
    let mut s = scene();
    let (_, own) = s.host.region.halves(5).unwrap();
    own.extra.store(0, Relaxed);
    assert_eq!(s.send(b"a").len(), 1);
    assert_eq!(s.send(b"b"), []);
    assert_eq!(s.send(&[7; 1448]).len(), 1, "a full segment does not wait");
    s.peer.ack(0, 1449);
    assert_eq!(s.poll()[0].payload, [7]);
}

#[test]
fn marks_are_echoed_until_the_peer_has_reduced() {
    let change = |i: &mut flow::Install| i.features |= state::ECN;
    let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
    s.peer.ecn = Ecn::Ce;
    s.peer.data(0, 0, b"x");
    assert!(s.poll()[0].flags.contains(TcpFlags::ECE), "at once");
    s.peer.ecn = Ecn::Ect0;
    s.peer.data(1, 0, b"y");
    assert!(s.poll().is_empty());
    assert!(s.after(Duration::from_ms(50))[0].flags.contains(TcpFlags::ECE));
    s.peer.send(2, 0, TcpFlags::ACK.with(TcpFlags::CWR), b"z");
    assert!(!s.poll()[0].flags.contains(TcpFlags::ECE));
    let out = s.send(b"data");
    assert_eq!(out[0].ecn, Ecn::Ect0);
    s.peer.send(3, 4, TcpFlags::ACK.with(TcpFlags::ECE), &[]);
    s.poll();
    assert!(s.send(b"more")[0].flags.contains(TcpFlags::CWR));
}

/// "... reduces its congestion window for any reason (because of a retransmit timeout, a Fast Retransmit, ...)" (RFC 3168 section 6.1.2).
#[test]
fn new_data_after_a_loss_says_that_the_window_was_reduced() {
    let change = |i: &mut flow::Install| i.features |= state::ECN;
    let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
    s.peer.ack(0, 0);
    assert_eq!(s.send(&[7; 8 * 1448]).len(), 8);
    for held in 2..=5 {
        s.peer.sack = vec![(1448, held * 1448)];
        s.peer.ack(0, 0);
        let out = s.poll();
        assert!(out.iter().all(|g| !g.flags.contains(TcpFlags::CWR)), "only new data says so");
    }
    s.peer.sack.clear();
    s.peer.ack(0, 8 * 1448);
    s.poll();
    assert!(s.send(b"new")[0].flags.contains(TcpFlags::CWR));
    assert!(!s.send(b"once")[0].flags.contains(TcpFlags::CWR));
}

#[test]
fn idle_flows_own_nothing_and_large_rings_come_and_go() {
    let mut s = scene();
    let lent = |s: &Scene| s.host.region.lent();
    s.peer.data(0, 0, b"ping");
    s.poll();
    assert_eq!(lent(&s), 4096);
    s.recv();
    s.send(b"pong"); // The ring is back in the pool, warm, lent to nobody.
    s.peer.data(4, 4, &[1; 1448]);
    s.poll();
    assert_eq!(lent(&s), 4096);
    for i in 0..12 {
        s.peer.data(1452 + i * 1448, 4, &[1; 1448]);
    }
    s.poll();
    assert!(lent(&s) > 65_536);
    s.recv();
    s.after(Duration::from_ms(11));
    s.after(Duration::from_ms(11));
    // A ring of 64 KiB is still of a size that pools keep warm.
    assert!(lent(&s) <= 4096 + 65_536);
    let mut guard = s.host.keeper.lock(s.id);
    assert_eq!(guard.parts().rx.sender(0).ring, None);
}

#[test]
fn a_packet_for_a_record_that_the_slow_path_holds_comes_again_by_it() {
    let mut s = scene();
    s.peer.data(0, 0, b"late");
    let flows = s.host.keeper.flows().clone();
    let guard = flows.try_lock(s.id).unwrap();
    s.poll();
    drop(guard);
    let [(FrameReason::Busy, frame)] = &s.host.frames[..] else { panic!("{:?}", s.host.frames) };
    let frame = frame.clone();
    assert!(s.host.commands.push_received(&frame));
    s.poll();
    assert_eq!((s.recv(), s.host.core.counters().of(Cause::Busy)), (b"late".to_vec(), 0));
}

#[test]
fn a_closed_flow_keeps_its_ring_until_the_application_has_read() {
    let mut s = scene();
    s.peer.send(0, 0, TcpFlags::ACK.with(TcpFlags::FIN), b"last words");
    s.poll();
    assert!(s.host.keeper.remove(s.id));
    s.host.commands.push(Command::Drop { flow: s.id }).unwrap();
    s.poll();
    assert!(!s.host.log.iter().any(|e| matches!(e, Exception::Dropped { .. })));
    s.peer.data(11, 0, b"x");
    s.poll();
    assert!(matches!(s.host.frames[..], [(FrameReason::UnknownFlow, _)]));
    assert_eq!(s.recv(), b"last words");
    s.poll();
    assert!(s.host.log.iter().any(|e| matches!(e, Exception::Dropped { .. })));
    assert_eq!(
        s.host.region.flow_of(s.sock.slot),
        Some(s.id),
        "its slot is free when the slow path has heard so"
    );
    s.host.keeper.release(s.id);
    assert_eq!(s.host.keeper.live(), 0);
    s.host.commands.push(Command::RemoveRegion { index: 0 }).unwrap();
    s.poll();
    assert!(matches!(s.host.log.last(), Some(Exception::Drained { .. })));
    assert_eq!(s.host.region.lent(), 0);
}

#[test]
fn memory_shortage_is_reported_and_what_does_not_fit_is_dropped_not_lost() {
    let mut s = scene();
    s.host.region.set_watermark(0);
    s.peer.data(0, 0, b"no room");
    let out = s.poll();
    assert_eq!(out[0].ack, 0);
    assert!(matches!(s.host.log[..], [Exception::MemoryShort { region: 0 }]));
    s.host.region.set_watermark(1 << 20);
    s.peer.data(0, 0, b"no room");
    s.poll();
    assert_eq!(s.recv(), b"no room");
}

#[test]
fn a_core_sleeps_and_any_ring_wakes_it() {
    let mut s = scene();
    s.poll();
    assert!(s.host.core.prepare_sleep());
    s.host.commands.push(Command::Ack { flow: s.id }).unwrap();
    assert!(s.host.commands.must_wake());
    s.host.core.awake();
    assert!(!s.host.core.prepare_sleep(), "a command waits");
    assert_eq!(s.poll().len(), 1);
    assert!(s.host.core.prepare_sleep());
}
