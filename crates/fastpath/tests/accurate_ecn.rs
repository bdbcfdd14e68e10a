//! Accurate ECN of established flows (RFC 9768 section 3.2): what is counted, told and heard.

use crate::harness::{MAC_A, config};
use crate::peer::Got;
use crate::scene::{MSS, Scene, scene_with};
use base::{Duration, Instant};
use flow::{AccurateEcn, state};
use port::Capabilities;
use wire::{Ecn, TcpFlags};

fn agreed(accurate: AccurateEcn, capabilities: Capabilities) -> Scene {
    let change = |i: &mut flow::Install| {
        i.features |= state::ECN;
        i.accurate = accurate;
        i.window = congestion::Window::new(congestion::Algorithm::Reno, 1448, Instant::ZERO);
    };
    scene_with(change, capabilities, config())
}

/// A server of which the handshake is over.
fn server() -> Scene {
    let end = AccurateEcn::server(Ecn::NotEct).established(false);
    agreed(end, Capabilities::plain(1500, MAC_A))
}

fn counts(got: &[Got]) -> Vec<(u32, u8)> {
    got.iter().map(|g| (g.ack, g.flags.ace())).collect()
}

fn with_ace(ace: u8) -> TcpFlags {
    TcpFlags::ACK.with_ace(ace)
}

/// "The Data Receiver MUST increment the CE packet counter (r.cep), for every Acceptable packet that it receives with the CE code point";
/// "MUST encode the least significant 3 bits of its r.cep counter into the ACE field" (sections 3.2 and 3.2.2.2).
#[test]
fn each_marked_packet_is_counted_and_each_segment_tells_the_count() {
    let mut s = server();
    assert_eq!(s.send(b"hi")[0].flags.ace(), 5, "on data, too");
    s.peer.ecn = Ecn::Ect0;
    s.peer.send(0, 2, with_ace(5), &[1; MSS as usize]);
    assert_eq!(counts(&s.poll()), [(MSS, 5)], "not marked");
    s.peer.ecn = Ecn::Ce;
    s.peer.send(MSS, 2, with_ace(5), &[1; 100]);
    assert_eq!(counts(&s.poll()), [(MSS + 100, 6)], "a change is told at once");
    s.peer.send(MSS + 100, 2, with_ace(5), &[1; 100]);
    s.peer.send(MSS + 200, 2, with_ace(5), &[1; 100]);
    assert_eq!(counts(&s.poll()), [(MSS + 300, 0)], "two marks, modulo 8");
    // A pure acknowledgement counts; without unacknowledged data the third of them is told.
    for n in 0..3 {
        s.peer.ts = Some((2 + n, 0));
        s.peer.send(MSS + 300, 2, with_ace(5), &[]);
    }
    assert_eq!(counts(&s.poll()), [(MSS + 300, 3)]);
    // What is not acceptable does not count.
    s.peer.send(0, 2, with_ace(5), &[1; 100]);
    assert_eq!(counts(&s.poll()), [(MSS + 300, 3)], "a duplicate");
    assert_eq!(s.cold().accurate.received(), 6);
    assert_eq!(s.recv().len(), MSS as usize + 300);
}

/// "both the above rules SHOULD be interpreted as requiring multiple ACKs ... either rule can be interpreted as requiring just a single ACK at
/// the end of the whole receive event" (section 3.2.2.5.1).
#[test]
fn a_super_frame_counts_by_its_segments() {
    let end = AccurateEcn::server(Ecn::NotEct).established(false);
    let mut s = agreed(end, Capabilities::plain(1500, MAC_A).with_tso());
    s.peer.ecn = Ecn::Ce;
    s.peer.data(0, 0, &vec![1; 9 * MSS as usize + 5]);
    assert_eq!(counts(&s.poll()), [(9 * MSS + 5, (5 + 10) % 8)]);
}

/// Section 3.2.2.1: the client's first pure acknowledgement says how the SYN-ACK arrived, and those that answer it again.
#[test]
fn a_client_greets_once_and_again_when_the_syn_ack_comes_again() {
    let client = AccurateEcn::client(Ecn::Ce, 2).established(true);
    let mut s = agreed(client, Capabilities::plain(1500, MAC_A));
    assert_eq!(s.send(b"data")[0].flags.ace(), 6, "data tells the count");
    s.peer.data(0, 0, &[1; MSS as usize]);
    s.peer.data(MSS, 0, &[1; MSS as usize]);
    assert_eq!(counts(&s.poll()), [(2 * MSS, 6)], "the greeting of CE");
    s.peer.ecn = Ecn::Ect0;
    s.peer.data(2 * MSS, 0, &[1; MSS as usize]);
    s.peer.data(3 * MSS, 0, &[1; MSS as usize]);
    assert_eq!(counts(&s.poll()), [(4 * MSS, 6)], "now the count: one mark");

    let client = AccurateEcn::client(Ecn::NotEct, 2).established(true);
    let mut s = agreed(client, Capabilities::plain(1500, MAC_A));
    s.host.keeper.lock(s.id).parts().cold.accurate.tell(true);
    s.peer.ecn = Ecn::Ect1;
    s.peer.send(u32::MAX, 0, TcpFlags::SYN.with(TcpFlags::ACK).with_ace(2), &[]);
    s.poll();
    s.host.commands.push(flow::Command::Ack { flow: s.id }).unwrap();
    assert_eq!(counts(&s.poll()), [(0, 0b011)], "the slow path has asked for the challenge");
}

/// "Data Sender in AccECN mode SHOULD set an ECT codepoint"; a server that got a SYN without ECN "MUST NOT set ECT on any packet", and still
/// feeds back (section 3.1.5).
#[test]
fn data_says_that_it_can_be_marked_unless_the_path_or_the_handshake_forbids() {
    assert_eq!(server().send(b"x")[0].ecn, Ecn::Ect0);
    let mut end = AccurateEcn::server(Ecn::NotEct).established(false);
    end.forbid_marks();
    let mut s = agreed(end, Capabilities::plain(1500, MAC_A));
    let got = s.send(b"x");
    assert_eq!((got[0].ecn, got[0].flags.ace()), (Ecn::NotEct, 5));
    s.peer.ecn = Ecn::Ce;
    s.peer.data(0, 0, b"y");
    assert_eq!(counts(&s.poll()), [(1, 6)]);
}

/// "it first checks whether it has already been superseded by another ACK in which case it ignores the ECN feedback" (section 3.2.2.2); and
/// "MUST NOT set CWR to indicate that it has received and responded to indications of congestion" (section 3.1.5).
#[test]
fn what_is_heard_reduces_the_window_once_and_is_counted_exactly() {
    let mut s = server();
    let got = s.send(&vec![1; 8 * MSS as usize]);
    assert_eq!(got.len(), 8);
    let before = s.cwnd();
    s.peer.send(0, 2 * MSS, with_ace(6), &[]);
    s.poll();
    let after = s.cwnd();
    assert!(after <= before / 2 + 1, "{before} -> {after}");
    assert_eq!((s.cold().accurate.heard(), s.cold().counters.marked_bytes), (1, u64::from(MSS)));
    // Overtaken by the one before: same acknowledgement, same time stamp.
    s.peer.send(0, 2 * MSS, with_ace(5), &[]);
    s.poll();
    assert_eq!(s.cold().accurate.heard(), 1);
    // Another mark in the same window of data: counted, no further reduction.
    s.peer.send(0, 4 * MSS, with_ace(0), &[]);
    s.poll();
    assert_eq!((s.cwnd(), s.cold().accurate.heard()), (after, 3));
    assert_eq!(s.cold().counters.marked_bytes, 3 * u64::from(MSS));
    assert!(s.send(b"new").iter().all(|g| g.flags.ace() == 5), "no CWR");
    // A later time stamp alone makes a count count.
    s.peer.ts = Some((9, 0));
    s.peer.send(0, 4 * MSS, with_ace(1), &[]);
    s.poll();
    assert_eq!(s.cold().accurate.heard(), 4);
}

/// The CWR bit of an ACE field belongs to each segment, but ports that cut super-frames clear it in all but the first.
#[test]
fn a_count_with_the_cwr_bit_goes_in_segments_of_their_own() {
    let capabilities = Capabilities::plain(1500, MAC_A).with_tso();
    for (marks, is_cut) in [(0, false), (1, true), (2, true), (3, false)] {
        let end = AccurateEcn::server(Ecn::NotEct).established(false);
        let mut s = agreed(end, capabilities);
        s.peer.ecn = Ecn::Ce;
        (0..marks).for_each(|n| s.peer.data(n, 0, b"y"));
        s.poll();
        s.after(Duration::from_ms(50));
        let got = s.send(&vec![1; 4 * MSS as usize]);
        assert!(got.iter().all(|g| g.flags.ace() == (5 + marks as u8) % 8));
        assert_eq!(got.len() > 1, is_cut, "{marks} marks: {} frames", got.len());
    }
}
