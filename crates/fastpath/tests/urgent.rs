//! Urgent data (RFC 9293 section 3.8.5) on the wire: URG and the pointer as they go and as they come.

use crate::harness::{MAC_A, config};
use crate::peer::Got;
use crate::scene::{Scene, scene, scene_with};
use base::{Duration, Seed};
use core::sync::atomic::Ordering::Relaxed;
use fastpath::Cause;
use flow::Exception;
use port::Capabilities;
use queue::urgent;
use shm::Side;
use shm::application_flags::{CORK, URGENT};
use wire::TcpFlags;

const MSS: usize = 1448;
const URG: TcpFlags = TcpFlags::ACK.with(TcpFlags::URG);

/// The application's half says `flags`.
fn say(s: &Scene, flags: u64) {
    let (_, own) = s.host.region.halves(5).unwrap();
    own.extra.store(flags, Relaxed);
}

/// Publishes `len` bytes, the last of them urgent, without a turn for the core.
fn write_urgent(s: &mut Scene, len: usize) {
    urgent::announce(s.host.region.region(), Side::One, 5, s.sock.tx.head + len as u64);
    let (_, own) = s.host.region.halves(5).unwrap();
    own.extra.fetch_or(URGENT, Relaxed);
    write(s, len);
}

fn write(s: &mut Scene, len: usize) {
    assert_eq!(s.host.send(&mut s.sock, &vec![7; len], 256 << 10), len);
}

/// First byte, payload bytes, and the pointer of those with URG.
fn said(all: &[Got]) -> Vec<(u32, usize, Option<u16>)> {
    let pointer = |got: &Got| got.flags.contains(TcpFlags::URG).then_some(got.urgent);
    all.iter().map(|got| (got.seq, got.payload.len(), pointer(got))).collect()
}

fn sent(s: &mut Scene) -> Vec<(u32, usize, Option<u16>)> {
    said(&s.poll())
}

/// Up to where the application is told that its peer's stream is urgent.
fn told(s: &Scene) -> Option<u64> {
    urgent::up(s.host.region.region(), Side::Zero, 5)
}

/// A segment with URG; what came of it in between.
fn receive(s: &mut Scene, seq: u32, len: usize, pointer: u16) -> Option<u64> {
    s.peer.urgent = pointer;
    s.peer.send(seq, 0, URG, &vec![b'x'; len]);
    s.poll();
    told(s)
}

/// MUST-62: "The urgent pointer MUST point to the sequence number of the octet following the urgent data."
#[test]
fn segments_before_the_end_of_urgent_data_point_behind_it() {
    let mut s = scene();
    write(&mut s, 10);
    assert_eq!(sent(&mut s), [(0, 10, None)]);
    write_urgent(&mut s, 2 * MSS + 3);
    write(&mut s, 4);
    let all = sent(&mut s);
    let mss = MSS as u32;
    assert_eq!(all[..2], [(10, MSS, Some(2 * MSS as u16 + 3)), (10 + mss, MSS, Some(MSS as u16 + 3))]);
    assert_eq!(all[2..], [(10 + 2 * mss, 7, Some(3))], "what follows is in the same segment, and not urgent");
    write(&mut s, 5);
    assert_eq!(sent(&mut s), [(17 + 2 * mss, 5, None)]);
}

#[test]
fn a_super_frame_is_cut_where_it_is_urgent() {
    let mut s = scene_with(|_| {}, Capabilities::plain(1500, MAC_A).with_tso(), config());
    write_urgent(&mut s, 2 * MSS);
    let mss = MSS as u32;
    assert_eq!(sent(&mut s), [(0, MSS, Some(2 * MSS as u16)), (mss, MSS, Some(MSS as u16))]);
    s.peer.ack(0, 2 * mss);
    s.poll();
    write(&mut s, 2 * MSS);
    assert_eq!(sent(&mut s), [(2 * mss, 2 * MSS, None)]);
}

/// MUST-31: "A TCP implementation MUST support a sequence of urgent data of any length."
#[test]
fn urgent_data_beyond_the_fields_reach_is_pointed_at_as_far_as_it_goes() {
    let mut s = scene();
    s.peer.window = 4096;
    s.peer.ack(0, 0);
    write_urgent(&mut s, 80_000);
    let mut all = sent(&mut s);
    for _ in 0..30 {
        let end = all.last().map(|(seq, len, _)| seq + *len as u32).unwrap();
        s.peer.ack(0, end);
        let more = s.after(Duration::from_us(100));
        all.extend(said(&more).into_iter().filter(|one| one.1 > 0));
    }
    let bytes: usize = all.iter().map(|one| one.1).sum();
    assert_eq!(bytes, 80_000);
    for (seq, _, pointer) in all {
        assert_eq!(pointer, Some((80_000 - seq).min(0xFFFF) as u16), "at {seq}");
    }
}

#[test]
fn what_is_urgent_is_so_when_it_is_sent_again() {
    let mut s = scene();
    write_urgent(&mut s, 100);
    assert_eq!(sent(&mut s), [(0, 100, Some(100))]);
    let again = s.after(Duration::from_ms(300));
    assert_eq!(said(&again), [(0, 100, Some(100))]);
    s.peer.ack(0, 100);
    s.poll();
    write(&mut s, 1);
    assert_eq!(sent(&mut s), [(100, 1, None)]);
}

/// As Linux, which does not use "the nagle rule for urgent data".
#[test]
fn what_is_urgent_waits_neither_for_acknowledgements_nor_for_the_cork() {
    for held in [0, CORK] {
        let mut s = scene();
        say(&s, 0);
        write(&mut s, 10);
        assert_eq!(sent(&mut s), [(0, 10, None)]);
        say(&s, held);
        write(&mut s, 10);
        assert_eq!(sent(&mut s), []);
        write_urgent(&mut s, 1);
        assert_eq!(sent(&mut s), [(10, 11, Some(11))]);
        s.peer.ack(0, 21);
        s.poll();
        write(&mut s, 10);
        let plain = sent(&mut s);
        assert_eq!(plain.is_empty(), held != 0, "the rule holds again");
    }
}

#[test]
fn a_closed_window_lets_the_pointer_through() {
    let mut s = scene();
    s.send(b"x");
    s.peer.window = 0;
    s.peer.ack(0, 1);
    s.poll();
    write_urgent(&mut s, 5);
    assert_eq!(sent(&mut s), []);
    s.after(Duration::from_ms(250));
    assert_eq!(sent(&mut s), [(1, 0, Some(5)), (0, 0, Some(6))], "as Linux: besides the probe");
    s.peer.window = 100;
    s.peer.ack(0, 1);
    assert_eq!(sent(&mut s), [(1, 5, Some(5))]);
}

/// MUST-32: "... inform the application layer asynchronously whenever it receives an urgent pointer and there was previously no pending
/// urgent data, or whenever the urgent pointer advances in the data stream."
#[test]
fn the_application_hears_of_a_pointer_and_of_its_advance() {
    let mut s = scene();
    assert_eq!(told(&s), None);
    assert_eq!(receive(&mut s, 0, 10, 10), Some(10));
    assert_eq!(s.host.news(), [5]);
    // Of data that is yet to come.
    assert_eq!(receive(&mut s, 10, 0, 300), Some(310));
    assert_eq!(s.host.news(), [5]);
    // Never back.
    assert_eq!(receive(&mut s, 10, 5, 7), Some(310));
    s.host.news();
    assert_eq!(receive(&mut s, 15, 0, 295), Some(310));
    assert_eq!(s.host.news(), [0; 0], "the same pointer is no news");
    assert_eq!(receive(&mut s, 15, 1, 500), Some(515));
    assert_eq!(s.recv().len(), 16);
}

#[test]
fn a_pointer_of_zero_means_the_segments_first_byte() {
    let mut s = scene();
    assert_eq!(receive(&mut s, 0, 3, 0), Some(1));
}

#[test]
fn a_pointer_to_what_has_come_already_says_nothing() {
    let mut s = scene();
    s.peer.data(0, 0, b"0123456789");
    s.poll();
    assert_eq!(receive(&mut s, 0, 12, 10), None);
    assert_eq!(s.recv(), b"0123456789xx");
    assert_eq!(receive(&mut s, 12, 4, 4), Some(16));
}

/// MUST-66: "A TCP receiver MUST process the RST and URG fields of all incoming segments, even when the receive window is zero."
#[test]
fn urgent_is_heard_with_a_closed_window() {
    let mut s = scene();
    let mut seq = 0;
    loop {
        s.peer.data(seq, 0, &[1; MSS]);
        let all = s.poll();
        let Some(last) = all.last() else { continue };
        if last.ack < seq + MSS as u32 || last.window == 0 {
            seq = last.ack;
            break;
        }
        seq = last.ack;
    }
    s.host.news();
    assert_eq!(receive(&mut s, seq, 0, 9), Some(u64::from(seq) + 9));
    assert_eq!(s.host.news(), [5]);
}

#[test]
fn segments_that_are_not_acceptable_mark_nothing() {
    let mut s = scene();
    s.peer.data(0, 0, b"0123456789");
    s.poll();
    assert_eq!(receive(&mut s, 70_000_000, 5, 5), None);
    s.peer.ts = Some((u32::MAX, 0));
    assert_eq!(receive(&mut s, 10, 5, 5), None);
    assert_eq!((s.drops(Cause::Paws), s.drops(Cause::Unacceptable)), (1, 1));
    s.peer.ts = Some((1, 0));
    for flag in [TcpFlags::SYN, TcpFlags::RST] {
        s.peer.send(10, 0, URG.with(flag), b"x");
        s.poll();
        assert_eq!(told(&s), None);
    }
    assert!(matches!(s.host.log[..], [Exception::Challenge { .. }, Exception::PeerReset { .. }]));
}

/// Pointers anywhere, on every segment: the stream is what it was, and the table's word only grows.
#[test]
fn hostile_pointers_move_one_word_and_nothing_else() {
    for seed in 0..40 {
        let (mut rng, mut s, mut seq, mut before) = (Seed::new(seed), scene(), 0, 0);
        for _ in 0..500 {
            let len = rng.below(MSS as u64) as usize;
            let ahead = if rng.chance(200_000) { rng.below(3000) as u32 } else { 0 };
            let now = receive(&mut s, seq + ahead, len, rng.next_u64() as u16);
            let now = now.unwrap_or(0);
            assert!(before <= now && now <= u64::from(seq) + (1 << 17), "seed {seed}");
            before = now;
            seq += s.recv().len() as u32;
        }
        assert_eq!((s.host.core.counters().violations, s.host.log.len()), (0, 0));
    }
}
