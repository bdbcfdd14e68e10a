//! What a handshake makes of accurate ECN (RFC 9768 section 3.1): as client, as server, with repeated SYNs, crossed SYNs and cookies.

use crate::harness::*;
use flow::{FlowId, state};
use slowpath::{Count, Event, SynCookies};
use wire::{Ecn, FourTuple};

/// A listener on port 80 in a world that speaks ECN, accurately if so.
fn world(is_accurate: bool) -> World {
    let mut w = World::with(|_, shared| (shared.ecn, shared.accurate_ecn) = (true, is_accurate));
    w.slow.listen(us(80), 1, 100).unwrap();
    w
}

fn ends(from: u16) -> FourTuple {
    FourTuple::new(peer(from), us(80))
}

/// The form of ECN that the flow uses, and whether its data may be marked.
fn form(w: &World, flow: FlowId) -> (bool, bool, bool) {
    w.edit(flow, |parts| {
        let accurate = parts.cold.accurate;
        (parts.rx.has(state::ECN), accurate.is_agreed(), accurate.may_mark())
    })
}

const NONE: (bool, bool, bool) = (false, false, false);
const CLASSIC: (bool, bool, bool) = (true, false, false);
const ACCURATE: (bool, bool, bool) = (true, true, true);
const SILENT: (bool, bool, bool) = (true, true, false);

/// Our open, answered by a SYN-ACK with this ACE field after so many repeated SYNs.
fn opened(w: &mut World, repeats: usize, ace: u8) -> (Vec<u8>, FlowId) {
    let (local, _) = w.connect(80);
    let mut said = vec![];
    let mut seq = 0;
    for n in 0..=repeats {
        if n > 0 {
            w.pass(secs(1 << (n - 1)));
            w.peer_is_there();
        }
        let syn = w.next();
        seq = syn.header.seq.0;
        said.push(syn.header.flags.ace());
    }
    w.segment(FourTuple::new(peer(80), local), SYN_ACK.with_ace(ace), 1, seq.wrapping_add(1), options(), &[]);
    let Event::Established { flow, .. } = w.event() else { panic!("not established") };
    (said, flow)
}

/// RFC 9768 table 2, the client's side.
#[test]
fn a_client_takes_the_mode_that_the_syn_ack_tells() {
    let expected = [NONE, CLASSIC, ACCURATE, SILENT, SILENT, ACCURATE, SILENT, NONE];
    for (ace, expected) in expected.into_iter().enumerate() {
        let mut w = world(true);
        let (said, flow) = opened(&mut w, 0, ace as u8);
        assert_eq!((said, form(&w, flow)), (vec![7], expected), "answer {ace:03b}");
        let first = w.orders.iter().position(|order| *order == Order::Ack(flow));
        let data = w.orders.iter().position(|order| *order == Order::Transmit(flow));
        let is_first = first.is_some() && first < data;
        assert_eq!(is_first, expected.1, "with accurate ECN a pure acknowledgement goes before data");
    }
}

/// A client that asks for classic ECN, or for nothing, does not take an answer that it did not ask for.
#[test]
fn a_client_takes_no_more_than_it_asked_for() {
    for ace in 0..8 {
        let mut w = world(false);
        let (said, flow) = opened(&mut w, 0, ace);
        assert_eq!((said, form(&w, flow)), (vec![3], if ace == 1 { CLASSIC } else { NONE }), "{ace:03b}");
        let mut w = World::with(|_, shared| shared.accurate_ecn = true);
        let (said, flow) = opened(&mut w, 0, ace);
        assert_eq!((said, form(&w, flow)), (vec![0], NONE), "{ace:03b}");
    }
}

/// "it SHOULD attempt to negotiate the use of AccECN at least one more time ... subsequent retransmissions of the SYN with the three TCP-ECN
/// flags cleared" (RFC 9768 section 3.1.4.1); "it is still allowed to set ECT", with accurate ECN only.
#[test]
fn a_repeated_syn_asks_once_more_and_then_for_nothing() {
    for (repeats, said, ace, expected) in [
        (1, vec![7, 7], 2, ACCURATE),
        (1, vec![7, 7], 1, CLASSIC),
        (2, vec![7, 7, 0], 2, ACCURATE),
        (3, vec![7, 7, 0, 0], 0, NONE),
        (2, vec![7, 7, 0], 1, NONE),
    ] {
        let mut w = world(true);
        let (syns, flow) = opened(&mut w, repeats, ace);
        assert_eq!((syns, form(&w, flow)), (said, expected));
    }
}

/// A SYN with this ACE and ECN field, and the answer's ACE field.
fn syn(w: &mut World, from: u16, ace: u8, ecn: Ecn) -> (u8, u32) {
    w.ecn = ecn;
    w.segment(ends(from), SYN.with_ace(ace), 100, 0, options(), &[]);
    w.ecn = Ecn::NotEct;
    let answer = w.next();
    assert_eq!(answer.header.flags.with_ace(0), SYN_ACK);
    (answer.header.flags.ace(), answer.header.seq.0)
}

fn last_step(w: &mut World, from: u16, seq: u32, ace: u8) -> FlowId {
    w.segment(ends(from), ACK.with_ace(ace), 101, seq.wrapping_add(1), options_of_data(), &[]);
    let Event::Incoming { pending, .. } = w.event() else { panic!("no connection") };
    let owner = w.owner();
    w.slow.accept(w.now, pending, owner).expect("accepted")
}

fn options_of_data() -> wire::TcpOptions {
    wire::TcpOptions::with_timestamps(1001, 0)
}

/// RFC 9768 table 2, the server's side, and section 3.1.3: "any combination other than (0,0,0), (0,1,1) or (1,1,1)" counts as the last.
#[test]
fn a_server_answers_how_the_syn_arrived() {
    for ace in 0..8 {
        for (ecn, seen) in [(Ecn::NotEct, 2), (Ecn::Ect1, 3), (Ecn::Ect0, 4), (Ecn::Ce, 6)] {
            let mut w = world(true);
            let (answer, seq) = syn(&mut w, 9, ace, ecn);
            let expected = match ace {
                0 => (0, NONE),
                3 => (1, CLASSIC),
                _ => (seen, ACCURATE),
            };
            let flow = last_step(&mut w, 9, seq, if expected.1 == ACCURATE { 2 } else { 0 });
            assert_eq!((answer, form(&w, flow)), expected, "SYN {ace:03b}");
            // A server of RFC 3168 alone does not know AE.
            let mut w = world(false);
            let (answer, _) = syn(&mut w, 9, ace, ecn);
            assert_eq!(answer, u8::from(matches!(ace, 3 | 7)), "SYN {ace:03b}");
        }
    }
}

/// RFC 9768 table 4: what the last step of the handshake says; and data in it is no greeting.
#[test]
fn the_last_step_says_how_our_syn_ack_arrived() {
    for ace in 0..8 {
        let mut w = world(true);
        let (_, seq) = syn(&mut w, 9, 7, Ecn::NotEct);
        let flow = last_step(&mut w, 9, seq, ace);
        let may_mark = matches!(ace, 1 | 2 | 5 | 7);
        assert_eq!(form(&w, flow), (true, true, may_mark), "ACK {ace:03b}");
        let (heard, cwnd) = w.edit(flow, |p| (p.cold.accurate.heard(), p.tx.cwnd / u32::from(p.tx.mss)));
        assert_eq!((heard, cwnd == 1), (u32::from(ace == 6), ace == 6), "marked: a window of one segment");
    }
    let mut w = world(true);
    let (_, seq) = syn(&mut w, 9, 7, Ecn::NotEct);
    w.segment(ends(9), ACK.with_ace(0), 101, seq + 1, options_of_data(), b"data");
    let Event::Incoming { pending, .. } = w.event() else { panic!("no connection") };
    let owner = w.owner();
    let flow = w.slow.accept(w.now, pending, owner).expect("accepted");
    assert_eq!(form(&w, flow), ACCURATE);
}

/// "MUST feed back the IP-ECN field on the latest valid SYN"; "SHOULD acknowledge a valid SYN arriving with (0,0,0) by emitting an AccECN
/// SYN/ACK", but then "MUST NOT set ECT on any packet" (section 3.1.5).
#[test]
fn a_repeated_syn_is_answered_by_how_it_arrived() {
    let mut w = world(true);
    let (_, seq) = syn(&mut w, 9, 7, Ecn::NotEct);
    assert_eq!(syn(&mut w, 9, 7, Ecn::Ce), (6, seq));
    w.pass(ms(500));
    assert_eq!(syn(&mut w, 9, 0, Ecn::NotEct), (2, seq));
    let flow = last_step(&mut w, 9, seq, 2);
    assert_eq!(form(&w, flow), SILENT);
    // "SHOULD respond to any subsequent valid SYN using a SYN/ACK with (0,0,0)".
    let (_, seq) = syn(&mut w, 10, 0, Ecn::NotEct);
    assert_eq!(syn(&mut w, 10, 7, Ecn::NotEct), (0, seq));
    let flow = last_step(&mut w, 10, seq, 0);
    assert_eq!(form(&w, flow), NONE);
}

/// "MUST reset the connection with a RST packet, if it receives a 'Classic' ECN-setup SYN ... and a SYN requesting AccECN feedback during
/// the same handshake" (section 3.1.5).
#[test]
fn syns_that_contradict_each_other_end_the_handshake() {
    for (first, second) in [(7, 3), (3, 7)] {
        let mut w = world(true);
        syn(&mut w, 9, first, Ecn::NotEct);
        w.segment(ends(9), SYN.with_ace(second), 100, 0, options(), &[]);
        assert!(w.next().header.flags.contains(RST));
        assert_eq!((w.slow.sizes(), w.count(Count::EcnContradictions)), ([0; 4], 1));
    }
}

/// "If this retransmission times out, ... the TCP Server SHOULD retransmit the SYN/ACK with (AE,CWR,ECE) = (0,0,0)" (section 3.2.3.2.2).
#[test]
fn an_answer_that_times_out_twice_says_nothing_of_ecn() {
    let mut w = world(true);
    let (_, seq) = syn(&mut w, 9, 7, Ecn::NotEct);
    let mut said = vec![];
    for s in [1, 2, 4] {
        w.pass(secs(s));
        w.peer_is_there();
        said.push(w.next().header.flags.ace());
    }
    assert_eq!(said, [2, 0, 0]);
    let flow = last_step(&mut w, 9, seq, 0);
    assert_eq!(form(&w, flow), SILENT, "the mode stays, and feedback goes on");
}

/// "Host A MUST then enter the same feedback mode as it would have entered had it been a responding host" (section 3.1.2).
#[test]
fn crossed_syns_agree_as_a_server_would() {
    for (ace, answer, expected) in [(7, 2, ACCURATE), (3, 1, CLASSIC), (0, 0, NONE)] {
        let mut w = world(true);
        let (local, _) = w.connect(80);
        let ours = w.next().header.seq.0;
        w.segment(FourTuple::new(peer(80), local), SYN.with_ace(ace), 500, 0, options(), &[]);
        assert_eq!(w.next().header.flags, SYN_ACK.with_ace(answer));
        let ace = if ace == 7 { 2 } else { 0 };
        w.segment(FourTuple::new(peer(80), local), ACK.with_ace(ace), 501, ours + 1, options_of_data(), &[]);
        let Event::Established { flow, .. } = w.event() else { panic!("not established") };
        assert_eq!(form(&w, flow), expected);
    }
}

/// A SYN cookie has no room for the mode: "The values 0b000 or 0b001 will remind it that it did not enter AccECN mode" (section 3.2.2.1).
#[test]
fn a_cookie_remembers_the_mode_by_the_last_step() {
    for (asks, answer, last, expected) in
        [(7, 2, 2, ACCURATE), (7, 2, 6, SILENT), (3, 1, 0, CLASSIC), (0, 0, 0, NONE)]
    {
        let mut w = World::with(|config, shared| {
            config.syn_cookies = SynCookies::Always;
            (shared.ecn, shared.accurate_ecn) = (true, true);
        });
        w.slow.listen(us(80), 1, 100).unwrap();
        w.segment(ends(9), SYN.with_ace(asks), 100, 0, options(), &[]);
        let syn_ack = w.next();
        assert_eq!(syn_ack.header.flags, SYN_ACK.with_ace(answer));
        let echo = syn_ack.options.timestamps.expect("offered").value;
        let times = wire::TcpOptions::with_timestamps(1001, echo);
        w.segment(ends(9), ACK.with_ace(last), 101, syn_ack.header.seq.0.wrapping_add(1), times, &[]);
        let Event::Incoming { pending, .. } = w.event() else { panic!("no connection") };
        let owner = w.owner();
        let flow = w.slow.accept(w.now, pending, owner).expect("accepted");
        assert_eq!(form(&w, flow), expected, "{asks:03b} {last:03b}");
    }
}

/// An algorithm that ignores marks speaks no ECN, one that needs it speaks the accurate form where that is on, and keeps it over repeated SYNs.
#[test]
fn the_algorithm_decides_whether_and_the_peers_in_which_form() {
    let mut w = World::with(|config, shared| {
        config.algorithm = congestion::Algorithm::Dctcp;
        shared.accurate_ecn = true;
    });
    let (said, flow) = opened(&mut w, 2, 2);
    assert_eq!((said, form(&w, flow)), (vec![7, 7, 7], ACCURATE));
    let mut w = World::with(|config, _| config.algorithm = congestion::Algorithm::Dctcp);
    let (said, flow) = opened(&mut w, 2, 1);
    assert_eq!((said, form(&w, flow)), (vec![3, 3, 3], CLASSIC), "each SYN has asked");
}
