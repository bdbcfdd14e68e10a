//! What the ring to the slow path has no room for: what the sender does not repeat is kept in the flow's record, or asked for again.

use crate::harness::{MAC_A, config};
use crate::scene::{Scene, scene_with};
use fastpath::Cause;
use flow::{Config, Exception, FrameReason};
use port::Capabilities;
use wire::{MacAddr, TcpFlags};

/// Frames of which a ring of eight slots takes all that it takes.
const CROWD: u32 = 12;

fn narrow() -> Scene {
    scene_with(|_| {}, Capabilities::plain(1500, MAC_A), Config { ring_slots: 8, ..config() })
}

/// As many segments of no flow as the ring takes, and more.
fn crowd(s: &mut Scene) {
    let known = s.peer.tuple.src.port;
    s.peer.tuple.src.port = known + 1;
    (0..CROWD).for_each(|i| s.peer.ack(i, 0));
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
    assert_eq!(s.drops(Cause::ExceptionLost), u64::from(CROWD) - 7);
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
    s.peer.send(0, 0, TcpFlags::RST, &[]);
    let flows = s.host.keeper.flows().clone();
    let guard = flows.try_lock(s.id).unwrap();
    assert_eq!(s.poll(), []);
    drop(guard);
    let out = s.poll();
    assert_eq!((out.len(), out[0].flags, out[0].ack), (1, TcpFlags::ACK, 0));
    assert_eq!(s.poll(), [], "once");
    assert!(s.host.log.is_empty() && s.host.frames.iter().all(|f| f.0 == FrameReason::UnknownFlow));
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

/// A flood of SYNs leaves half of the ring to the segments of connections.
#[test]
fn syns_leave_half_of_the_ring() {
    let mut s = narrow();
    s.peer.tuple.src.port += 1;
    (0..CROWD).for_each(|i| s.peer.send(i, 0, TcpFlags::SYN, &[]));
    (0..CROWD).for_each(|i| s.peer.ack(i, 0));
    s.poll();
    let of = |reason| s.host.frames.iter().filter(|f| f.0 == reason).count();
    assert_eq!((of(FrameReason::Syn), of(FrameReason::UnknownFlow)), (4, 3));
}
