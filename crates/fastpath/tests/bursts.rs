//! What the ring to the slow path has no room for: what the sender does not repeat is kept in the flow's record, or asked for again.

use crate::harness::{MAC_A, config};
use crate::scene::{Scene, scene_with};
use base::Duration;
use fastpath::Cause;
use flow::{Config, Exception, FrameReason};
use port::{Capabilities, Port};
use wire::{MacAddr, TcpFlags};

/// Frames of each kind of which a ring of eight slots takes all that it takes: four SYNs, and two other segments of no flow.
const CROWD: u32 = 8;
const CROWD_TAKEN: u32 = 6;

fn narrow() -> Scene {
    scene_with(|_| {}, Capabilities::plain(1500, MAC_A), Config { ring_slots: 8, ..config() })
}

/// As many segments of no flow as the ring takes, and more.
fn crowd(s: &mut Scene) {
    let known = s.peer.tuple.src.port;
    s.peer.tuple.src.port = known + 1;
    (0..CROWD).for_each(|i| s.peer.ack(i, 0));
    (0..CROWD).for_each(|i| s.peer.send(i, 0, TcpFlags::SYN, &[]));
    s.peer.tuple.src.port = known;
}

/// "If the RST bit is set and the sequence number exactly matches the next expected sequence number (RCV.NXT), then TCP endpoints MUST
/// reset the connection" (RFC 5961 section 3.2), however many frames wait for the slow path.
#[test]
fn a_reset_is_noted_in_the_record_when_the_ring_is_full() {
    let mut s = narrow();
    crowd(&mut s);
    s.peer.send(0, 0, TcpFlags::RST, &[]);
    s.poll();
    s.poll();
    assert!(matches!(s.host.log[..], [Exception::PeerReset { .. }]), "{:?}", s.host.log);
    assert_eq!(s.drops(Cause::ExceptionLost), u64::from(2 * CROWD - CROWD_TAKEN));
}

/// The same section on what lies in the window but is not exact, and on what lies outside; and a frame for another station's address.
#[test]
fn a_reset_that_is_not_exact_is_challenged_or_dropped() {
    let mut s = narrow();
    s.peer.send(5, 0, TcpFlags::RST, &[]);
    s.peer.send(u32::MAX, 0, TcpFlags::RST, &[]);
    s.poll();
    assert!(matches!(s.host.log[..], [Exception::Challenge { .. }]), "{:?}", s.host.log);
    assert_eq!(s.drops(Cause::Unacceptable), 2);
    let mut frame = s.peer.frame(0, 0, TcpFlags::RST, &[]);
    frame[..6].copy_from_slice(&MacAddr([2; 6]).0);
    s.peer.inject(&frame);
    s.poll();
    assert_eq!(s.host.log.len(), 1);
}

/// A record that the slow path holds cannot be written: the peer is asked instead, and resets the connection again.
#[test]
fn a_peer_is_asked_again_when_its_reset_finds_record_and_ring_busy() {
    let mut s = narrow();
    crowd(&mut s);
    // What belongs to the connection takes the rest.
    (0..CROWD).for_each(|_| s.peer.ack(0, 0));
    s.peer.send(0, 0, TcpFlags::RST, &[]);
    let flows = s.host.keeper.flows().clone();
    let guard = flows.try_lock(s.id).unwrap();
    assert_eq!(s.poll(), []);
    drop(guard);
    let out = s.poll();
    assert_eq!((out.len(), out[0].flags, out[0].ack), (1, TcpFlags::ACK, 0));
    assert_eq!(s.poll(), [], "once");
    assert!(s.host.log.is_empty());
    assert_eq!(count(&s, FrameReason::Busy), 8 - CROWD_TAKEN as usize);
}

/// A reset of a connection that has no flow yet: the slow path hears that one was lost.
#[test]
fn a_lost_reset_of_no_flow_is_remembered() {
    let mut s = narrow();
    let flows = s.host.keeper.flows().clone();
    s.peer.tuple.src.port += 1;
    s.peer.send(0, 0, TcpFlags::RST, &[]);
    s.poll();
    assert_eq!(flows.reset_lost_at(), None, "it had room");
    (0..CROWD).for_each(|i| s.peer.send(i, 0, TcpFlags::RST, &[]));
    s.poll();
    assert_eq!(flows.reset_lost_at(), Some(s.now));
}

/// Frames of the slow path that find the port full of bulk data wait, and go out before what flows have to send, in their order.
#[test]
fn frames_of_the_slow_path_wait_for_a_full_port_and_go_before_bulk() {
    const BULK: usize = 256;
    let mut s = scene_with(|_| {}, Capabilities::plain(1500, MAC_A), Config { ring_slots: 256, ..config() });
    let capacity = std::iter::from_fn(|| {
        let buf = s.port.reserve()?;
        buf.fill(&[0; 60]).then(|| s.port.commit())
    })
    .count();
    assert_eq!(capacity, BULK);
    // More than may wait; and one that is too long.
    let frames: Vec<_> = (0..70u32).map(|i| s.peer.frame(i, 0, TcpFlags::SYN, &[])).collect();
    let long = s.peer.frame(99, 0, TcpFlags::ACK, &[7; 500]);
    for frame in frames.iter().chain([&long]) {
        assert!(s.host.commands.push_frame(frame));
    }
    s.host.send(&mut s.sock, &[7; 100_000], 128 << 10);
    let poll = |s: &mut Scene| {
        s.now = s.now.plus(Duration::from_us(10));
        s.host.poll(s.now, &mut s.port)
    };
    for _ in 0..4 {
        poll(&mut s);
    }
    assert!(poll(&mut s).deadline <= s.now.plus(Duration::from_us(100)), "the core does not sleep on them");
    assert_eq!(s.drops(Cause::FrameLost), 70 - 64 + 1);
    let mut sent = Vec::new();
    for _ in 0..2 {
        sent.extend(s.peer.frames());
        poll(&mut s);
    }
    assert_eq!(sent[BULK..BULK + 64], frames[..64], "in their order, and no data before them");
    assert!(sent.len() > BULK + 64, "and then the data");
}

/// Number of frames that the slow path was handed for this reason.
fn count(s: &Scene, reason: FrameReason) -> usize {
    s.host.frames.iter().filter(|frame| frame.0 == reason).count()
}

/// A flood of SYNs and one of other segments of no flow: whichever comes first, each has its own part of the ring.
#[test]
fn a_flood_of_segments_of_no_flow_takes_no_room_from_syns_nor_they_from_it() {
    for is_syn_first in [true, false] {
        let mut s = narrow();
        s.peer.tuple.src.port += 1;
        for is_syn in [is_syn_first, !is_syn_first] {
            let flags = if is_syn { TcpFlags::SYN } else { TcpFlags::ACK };
            (0..CROWD).for_each(|i| s.peer.send(i, 0, flags, &[]));
        }
        s.poll();
        assert_eq!((count(&s, FrameReason::Syn), count(&s, FrameReason::UnknownFlow)), (4, 2));
        assert_eq!(s.drops(Cause::ExceptionLost), u64::from(2 * CROWD - CROWD_TAKEN));
    }
}
