//! The receiver's rules, one by one: what is taken, what is answered, when, and what the answer reports.

use crate::harness::{MAC_A, config};
use crate::peer::Got;
use crate::scene::{MSS, Scene, scene, scene_with};
use base::Duration;
use fastpath::Cause;
use flow::{Exception, state};
use port::Capabilities;
use wire::{Ecn, TcpFlags};

fn marked(exact: bool) -> Scene {
    let change = |i: &mut flow::Install| {
        i.features |= state::ECN;
        let algorithm = if exact { congestion::Algorithm::Dctcp } else { congestion::Algorithm::Cubic };
        i.window = congestion::Window::new(algorithm, 1448, base::Instant::ZERO);
    };
    scene_with(change, Capabilities::plain(1500, MAC_A), config())
}

fn echoes(got: &[Got]) -> Vec<(u32, bool)> {
    got.iter().map(|g| (g.ack, g.flags.contains(TcpFlags::ECE))).collect()
}

/// "If the CE codepoint is set and DCTCP.CE is false, set DCTCP.CE to true and send an immediate ACK. If the CE codepoint is not set
/// and DCTCP.CE is true, set DCTCP.CE to false and send an immediate ACK" (RFC 8257 section 3.2): the acknowledgement of what came
/// before the change carries the state before it.
#[test]
fn dctcp_feedback_tells_exactly_which_bytes_were_marked() {
    let mut s = marked(true);
    // All in one batch: three clean, two marked, one clean, one marked.
    for (n, ce) in [false, false, false, true, true, false, true].into_iter().enumerate() {
        s.peer.ecn = if ce { Ecn::Ce } else { Ecn::Ect0 };
        s.peer.data(n as u32 * MSS, 0, &[1; MSS as usize]);
    }
    let said = echoes(&s.poll());
    assert_eq!(said, [(3 * MSS, false), (5 * MSS, true), (6 * MSS, false), (7 * MSS, true)]);
    // No change: acknowledgements may wait as ever, and still say so.
    s.peer.data(7 * MSS, 0, &[1; 100]);
    assert_eq!(s.poll(), []);
    assert_eq!(echoes(&s.after(Duration::from_ms(40))), [(7 * MSS + 100, true)]);
    // The last unmarked byte waits for nobody when a mark comes.
    s.peer.ecn = Ecn::Ect0;
    s.peer.data(7 * MSS + 100, 0, &[1; 100]);
    assert_eq!(echoes(&s.poll()), [(7 * MSS + 200, false)]);
}

/// "... continues to set the ECN-Echo flag ... until it receives a CWR packet" (RFC 3168 section 6.1.3).
#[test]
fn a_classic_echo_is_latched_until_cwr_and_begins_again_with_a_mark_on_the_same_segment() {
    let mut s = marked(false);
    s.peer.ecn = Ecn::Ce;
    s.peer.data(0, 0, &[1; 100]);
    assert_eq!(echoes(&s.poll()), [(100, true)]);
    s.peer.ecn = Ecn::Ect0;
    s.peer.data(100, 0, &[1; 2 * MSS as usize][..MSS as usize]);
    s.peer.data(100 + MSS, 0, &[1; MSS as usize]);
    assert_eq!(echoes(&s.poll()), [(100 + 2 * MSS, true)]);
    s.peer.ecn = Ecn::Ce;
    s.peer.send(100 + 2 * MSS, 0, TcpFlags::ACK.with(TcpFlags::CWR), &[1; 100]);
    assert_eq!(echoes(&s.poll()), [(200 + 2 * MSS, true)], "CWR and a new mark");
}

/// "ECT MUST NOT be set in" pure acknowledgements, retransmissions and probes (RFC 3168 sections 6.1.4 to 6.1.6).
#[test]
fn only_new_data_is_sent_ecn_capable() {
    let mut s = marked(false);
    s.peer.data(0, 0, &[1; 2 * MSS as usize][..MSS as usize]);
    s.peer.data(MSS, 0, &[1; MSS as usize]);
    assert_eq!(s.poll()[0].ecn, Ecn::NotEct, "a pure acknowledgement");
    assert_eq!(s.send(b"new")[0].ecn, Ecn::Ect0);
    let probe = s.after(Duration::from_ms(210));
    assert_eq!((probe[0].seq, probe[0].ecn), (0, Ecn::NotEct), "a tail loss probe");
    s.after(Duration::from_ms(220));
    let again = s.poll();
    assert_eq!((again[0].seq, &again[0].payload[..], again[0].ecn), (0, &b"new"[..], Ecn::NotEct));
}

/// RFC 2883 section 4: "the first block ... reports a duplicate ... segment", below the cumulative acknowledgement, in part, and
/// above it, where "the second SACK block SHOULD specify that (possibly larger) block".
#[test]
fn duplicates_are_reported_once_and_first() {
    let mut s = scene();
    s.peer.data(0, 0, &[1; 1000]);
    s.peer.data(1000, 0, &[1; 1000]);
    s.poll();
    s.after(Duration::from_ms(50));
    s.peer.data(500, 0, &[1; 400]);
    let got = s.poll();
    assert_eq!((got[0].ack, &got[0].sack[..]), (2000, &[(500, 900)][..]));
    // In part: what is new is taken, what is old is reported.
    s.peer.data(1500, 0, &[1; 1000]);
    let got = s.poll();
    assert_eq!((got[0].ack, &got[0].sack[..]), (2500, &[(1500, 2000)][..]));
    // Above: the block it lies in comes second.
    s.peer.data(3000, 0, &[1; 1000]);
    s.peer.data(5000, 0, &[1; 1000]);
    assert_eq!(s.poll()[0].sack, [(5000, 6000), (3000, 4000)]);
    s.peer.data(3200, 0, &[1; 300]);
    assert_eq!(s.poll()[0].sack, [(3200, 3500), (3000, 4000), (5000, 6000)]);
    // Only once.
    s.peer.data(7000, 0, &[1; 1000]);
    assert_eq!(s.poll()[0].sack, [(7000, 8000), (3000, 4000), (5000, 6000)]);
}

/// "... a D-SACK block is only used to report a duplicate contiguous sequence of data received by the receiver in the most recent packet"
/// (RFC 2883 section 4): of one that fills a gap, too, and of several pieces the first.
#[test]
fn what_a_gap_filler_repeats_is_reported() {
    let mut s = scene();
    s.peer.data(100, 0, &[1; 100]);
    s.poll();
    s.peer.data(0, 0, &[1; 200]);
    let got = s.poll();
    assert_eq!((got[0].ack, &got[0].sack[..]), (200, &[(100, 200)][..]));
    s.peer.data(600, 0, &[1; 100]);
    s.peer.data(400, 0, &[1; 100]);
    s.peer.data(900, 0, &[1; 100]);
    s.poll();
    s.peer.data(200, 0, &[1; 450]);
    let got = s.poll();
    assert_eq!((got[0].ack, &got[0].sack[..]), (700, &[(400, 500), (900, 1000)][..]));
}

/// Without timestamps there is room for four blocks, with them for three (RFC 2018 section 3).
#[test]
fn as_many_blocks_are_reported_as_the_header_holds() {
    for (features, room) in [(state::SACK, 4), (state::SACK | state::TIMESTAMPS, 3)] {
        let change = |i: &mut flow::Install| i.features = features;
        let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
        if features == state::SACK {
            s.peer.ts = None;
        }
        for n in [5u32, 1, 3, 7, 9] {
            s.peer.data(n * 1000, 0, &[1; 1000]);
        }
        let all = [(9000, 10_000), (7000, 8000), (3000, 4000), (1000, 2000)];
        assert_eq!(s.poll()[0].sack, all[..room]);
    }
}

/// "... an ACK SHOULD be generated for at least every second full-sized segment" (RFC 5681 section 4.2); at the beginning each is,
/// for the sender's slow start, as on Linux; a request is not.
#[test]
fn lone_full_segments_are_acknowledged_at_once_at_the_beginning_only() {
    let mut s = scene();
    s.peer.data(0, 0, &[1; 600]);
    assert_eq!(s.poll(), [], "a request may carry its answer");
    s.send(b"reply");
    let mut seq = 600;
    let mut at_once = 0;
    for _ in 0..20 {
        s.peer.data(seq, 5, &[1; MSS as usize]);
        seq += MSS;
        let got = s.poll().len();
        at_once += got;
        if got == 0 {
            s.send(b"r"); // Keeps the flow out of the mode of those that wait in vain.
        }
        s.recv();
    }
    assert_eq!(at_once, 16);
}

/// The table of RFC 9293 section 3.10.7.4 with its text: what is taken, and whether it is answered.
#[test]
fn every_row_of_the_acceptability_table() {
    struct Row {
        closed: bool,
        at: i64,
        len: usize,
        taken: u32,
        answered: bool,
    }
    let row = |closed, at, len, taken, answered| Row { closed, at, len, taken, answered };
    // `at` counts from RCV.NXT; beyond a million it counts from the window's edge.
    const EDGE: i64 = 1_000_000;
    let rows = [
        // Length 0, window > 0: "RCV.NXT =< SEG.SEQ < RCV.NXT+RCV.WND".
        row(false, 0, 0, 0, false),
        row(false, 1, 0, 0, false),
        row(false, EDGE - 1, 0, 0, false),
        row(false, -1, 0, 0, true),
        row(false, EDGE + 1, 0, 0, true),
        // Length > 0, window > 0: the beginning or the end lies in the window; the rest is trimmed.
        row(false, 0, 100, 100, false),
        row(false, -50, 100, 50, true),
        row(false, -100, 100, 0, true),
        row(false, -200, 100, 0, true),
        row(false, 10, 100, 0, true),
        row(false, EDGE - 10, 100, 0, true),
        row(false, EDGE + 1, 100, 0, true),
        // Length 0, window 0: "SEG.SEQ = RCV.NXT".
        row(true, 0, 0, 0, false),
        row(true, 1, 0, 0, true),
        row(true, -1, 0, 0, true),
        // Length > 0, window 0: "not acceptable".
        row(true, 0, 1, 0, true),
        row(true, 5, 100, 0, true),
        row(true, -1, 1, 0, true),
    ];
    for Row { closed, at, len, taken, answered } in rows {
        let change = |i: &mut flow::Install| (i.shifts, i.rcv_wnd) = ((7, 0), 65_535);
        let mut s = scene_with(change, Capabilities::plain(1500, MAC_A), config());
        let mut seq = 0u32;
        while closed && seq < 65_535 {
            let n = (65_535 - seq).min(MSS);
            s.peer.data(seq, 0, &vec![7; n as usize]);
            seq += n;
            s.poll();
        }
        s.after(Duration::from_secs(1));
        let edge = 65_535;
        let from = if at > EDGE / 2 { i64::from(edge) + at - EDGE } else { i64::from(seq) + at };
        let before = s.host.keeper.lock(s.id).parts().rx.rcv_nxt;
        let flags = TcpFlags::ACK;
        s.peer.send(from as u32, 0, flags, &vec![9; len]);
        let got = s.poll();
        let after = s.host.keeper.lock(s.id).parts().rx.rcv_nxt;
        assert_eq!((after.since(before), !got.is_empty()), (taken, answered), "{closed} {at} {len}");
        assert!(got.iter().all(|g| g.payload.is_empty() && g.flags == TcpFlags::ACK));
    }
}

/// Without data unacceptable segments are answered seldom (RFC 5961 section 7): two ends out of step must not echo for ever.
#[test]
fn answers_to_unacceptable_segments_without_data_are_limited() {
    let mut s = scene();
    let mut answers = 0;
    for _ in 0..100 {
        s.peer.ack(u32::MAX - 5000, 0);
        answers += s.after(Duration::from_ms(1)).len();
    }
    assert!((1..=2).contains(&answers), "{answers}");
    s.peer.ts = Some((100, 0));
    s.peer.ack(0, 0);
    s.after(Duration::from_secs(1));
    s.peer.ts = Some((99, 0));
    let mut answers = 0;
    for _ in 0..100 {
        s.peer.ack(0, 0);
        answers += s.after(Duration::from_ms(1)).len();
    }
    assert!((1..=2).contains(&answers), "PAWS: {answers}");
}

/// "If ... the connection has been idle more than 24 days" the timestamp is no reason to drop (RFC 7323 section 5.5); and "the PAWS
/// check ... MUST NOT" concern RST (section 5.2).
#[test]
fn old_timestamps_count_for_24_days_and_never_against_a_reset() {
    let mut s = scene();
    s.peer.ts = Some((1_000_000, 0));
    s.peer.data(0, 0, b"a");
    s.poll();
    s.peer.ts = Some((999_999, 0));
    s.peer.send(1, 0, TcpFlags::RST, b"");
    s.poll();
    assert!(matches!(s.host.log[..], [Exception::PeerReset { .. }]));
    s.now = s.now.plus(Duration::from_secs(24 * 24 * 3600 - 10));
    s.peer.data(1, 0, b"b");
    s.poll();
    assert_eq!((s.drops(Cause::Paws), s.recv()), (1, b"a".to_vec()));
    s.now = s.now.plus(Duration::from_secs(20));
    s.peer.data(1, 0, b"b");
    s.poll();
    assert_eq!(s.recv(), b"b");
    assert_eq!(s.host.keeper.lock(s.id).parts().rx.ts_recent, 999_999);
}

/// "If SEG.TSval >= TS.Recent and SEG.SEQ <= Last.ACK.sent" (RFC 7323 section 4.3): of segments whose acknowledgement waits, the
/// first one's timestamp is echoed; one ahead of a gap does not count.
#[test]
fn the_timestamp_echoed_is_the_first_unacknowledged_segments() {
    let mut s = scene();
    let recent = |s: &Scene| s.host.keeper.lock(s.id).parts().rx.ts_recent;
    s.peer.ts = Some((100, 0));
    s.peer.data(0, 0, &[1; 100]);
    s.peer.ts = Some((101, 0));
    s.peer.data(100, 0, &[1; 100]);
    s.poll();
    assert_eq!(recent(&s), 100);
    s.after(Duration::from_ms(50));
    s.peer.ts = Some((102, 0));
    s.peer.data(1000, 0, &[1; 100]);
    s.poll();
    assert_eq!(recent(&s), 100, "ahead of a gap");
    s.peer.ts = Some((103, 0));
    s.peer.data(200, 0, &[1; 800]);
    s.poll();
    assert_eq!(recent(&s), 103);
}
