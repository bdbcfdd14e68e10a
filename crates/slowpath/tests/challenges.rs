//! How often a segment that is not acceptable is answered (RFC 5961 section 7): each connection has its own limit in each of its states, and what
//! is sent in the name of one peer changes nothing for another (the kind of CVE-2016-5696).

use crate::ends::in_time_wait;
use crate::harness::*;
use slowpath::{Config, Count};
use wire::{Endpoint, FourTuple, TcpOptions};

/// Segments of an attacker in one burst.
const MANY: u16 = 100;
/// The attacker's own address; the peer's is `ip(1)`.
const ATTACKER: u8 = 3;

fn narrow(config: &mut Config) {
    (config.challenges_per_second, config.resets_per_second) = (8, 8);
}

/// A segment from a port of that host to our port `to`.
fn sends(w: &mut World, from: (u8, u16), to: u16, flags: wire::TcpFlags, seq: u32) {
    let tuple = FourTuple::new(Endpoint::new(ip(from.0), from.1), us(to));
    w.segment(tuple, flags, seq, 7, TcpOptions::NONE, &[]);
}

/// Commands to acknowledge on a flow, since the last call.
fn acks(w: &mut World) -> usize {
    w.orders.drain(..).filter(|order| matches!(order, Order::Ack(_))).count()
}

/// Frames sent, since the last call.
fn sent(w: &mut World) -> usize {
    w.sent.drain(..).count()
}

/// A burst at time 0, one half a second later, and one a moment before that: how many answers each gets.
fn bursts(w: &mut World, mut burst: impl FnMut(&mut World) -> usize) -> [usize; 3] {
    let first = burst(w);
    w.pass(ms(499));
    let between = burst(w);
    w.pass(ms(1));
    [first, between, burst(w)]
}

#[test]
fn a_flow_is_challenged_once_in_half_a_second() {
    let mut w = World::new();
    w.accepted(9);
    let answers = bursts(&mut w, |w| {
        for i in 0..MANY {
            w.peer_sends(9, 80, SYN, 7 + u32::from(i), 0);
            w.peer_sends(9, 80, RST, 102 + u32::from(i), 0);
        }
        acks(w)
    });
    assert_eq!(answers, [1, 0, 1]);
    assert_eq!(w.count(Count::Challenges), 2);
}

#[test]
fn a_connection_in_its_handshake_is_challenged_once_in_half_a_second() {
    let mut w = World::new();
    w.slow.listen(us(80), 1, 9).unwrap();
    w.peer_sends(9, 80, SYN, 100, 0);
    let iss = w.next().header.seq.0;
    let answers = bursts(&mut w, |w| {
        for i in 0..u32::from(MANY) {
            w.peer_sends(9, 80, RST, 102 + i, 0);
            w.peer_sends(9, 80, SYN, 777 + i, 0);
            w.peer_sends(9, 80, ACK, 90 - i % 9, iss + 1);
        }
        sent(w)
    });
    assert_eq!(answers, [1, 0, 1]);

    // SYNs have crossed.
    let mut w = World::new();
    let (local, _) = w.connect(80);
    w.next();
    let tuple = FourTuple::new(peer(80), local);
    w.segment(tuple, SYN, 500, 0, options(), &[]);
    assert_eq!(w.next().header.flags, SYN_ACK);
    let answers = bursts(&mut w, |w| {
        for i in 0..u32::from(MANY) {
            w.segment(tuple, RST, 502 + i, 0, TcpOptions::NONE, &[]);
            w.segment(tuple, ACK, 400 - i, 0, TcpOptions::NONE, &[]);
        }
        sent(w)
    });
    assert_eq!(answers, [1, 0, 1]);
}

/// "[If] a connection is in the SYN-RECEIVED state and was initiated by a passive OPEN", its SYN may come again because our SYN-ACK was lost.
#[test]
fn a_syn_that_comes_again_is_answered_once_in_half_a_second() {
    let mut w = World::new();
    w.slow.listen(us(80), 1, 9).unwrap();
    w.peer_sends(9, 80, SYN, 100, 0);
    let iss = w.next().header.seq;
    let answers = bursts(&mut w, |w| {
        (0..MANY).for_each(|_| w.peer_sends(9, 80, SYN, 100, 0));
        let frames: Vec<_> = std::iter::from_fn(|| (!w.sent.is_empty()).then(|| w.next().header)).collect();
        assert!(frames.iter().all(|header| (header.flags, header.seq) == (SYN_ACK, iss)));
        frames.len()
    });
    assert_eq!(answers, [1, 0, 1]);
    assert_eq!(w.count(Count::ChallengeLimited), 3 * u64::from(MANY) - 2);
}

#[test]
fn a_syn_that_comes_again_and_again_keeps_no_connection_half_open() {
    let mut w = World::new();
    w.slow.listen(us(80), 1, 9).unwrap();
    w.peer_sends(9, 80, SYN, 100, 0);
    let mut answers = 0;
    while w.count(Count::HalfOpenExpired) == 0 {
        w.pass(ms(400));
        w.peer_sends(9, 80, SYN, 100, 0);
        answers += sent(&mut w);
        assert!(answers < 200, "it ends as if its SYN had come once");
    }
}

#[test]
fn a_connection_in_time_wait_is_challenged_once_in_half_a_second() {
    let mut w = World::new();
    in_time_wait(&mut w, false);
    let answers = bursts(&mut w, |w| {
        for i in 0..u32::from(MANY) {
            w.peer_sends(9, 80, SYN, 50 - i % 50, 0);
            w.peer_sends(9, 80, ACK, 900 + i, 0);
            // A FIN is none that comes again, if it is not the peer's.
            w.peer_sends(9, 80, FIN_ACK, 900 + i, 0);
        }
        sent(w)
    });
    assert_eq!(answers, [1, 0, 1]);
    // The peer's own FIN is answered each time: each answer may have been lost. It does not make another challenge due.
    w.peer_sends(9, 80, FIN_ACK, 101, 0);
    w.peer_sends(9, 80, FIN_ACK, 101, 0);
    assert_eq!(sent(&mut w), 2);
    w.peer_sends(9, 80, ACK, 900, 0);
    assert_eq!(sent(&mut w), 0);
}

/// The challenges that an attacker counts at connections of its own, half-open as it has left them, after it has sent segments in the name of the
/// peer to `probed` of the peer's ports.
fn challenges_seen(mut w: World, probed: u16) -> (usize, usize) {
    for port in 0..MANY {
        sends(&mut w, (ATTACKER, 1000 + port), 80, SYN, 100);
    }
    sent(&mut w);
    for port in 0..probed {
        sends(&mut w, (1, 1000 + port), 80, SYN, 7);
    }
    let at_peer = sent(&mut w) + acks(&mut w);
    for port in 0..MANY {
        sends(&mut w, (ATTACKER, 1000 + port), 80, RST, 102);
    }
    (at_peer, sent(&mut w))
}

#[test]
fn an_attackers_own_challenges_do_not_tell_whether_another_peer_has_connections() {
    let world = || {
        let mut w = World::with(|config, _| narrow(config));
        w.slow.listen(us(80), 1, 1000).unwrap();
        w
    };
    let (_, alone) = challenges_seen(world(), 0);
    assert!((4..12).contains(&alone), "the limit is reached: {alone}");
    // The peer has established connections, and some in their handshake.
    let mut w = world();
    (0..MANY / 2).for_each(|port| _ = w.accepted(1000 + port));
    for port in MANY / 2..MANY {
        sends(&mut w, (1, 1000 + port), 80, SYN, 100);
    }
    let (at_peer, seen) = challenges_seen(w, MANY);
    assert!(at_peer >= 4, "segments in the peer's name are answered: {at_peer}");
    assert_eq!(seen, alone);
}

#[test]
fn an_attackers_own_challenges_do_not_tell_of_a_connection_in_time_wait() {
    let seen = |is_probed: bool| {
        let mut w = World::with(|config, _| narrow(config));
        in_time_wait(&mut w, false);
        w.sent.clear();
        for i in 0..if is_probed { MANY } else { 0 } {
            w.peer_sends(9, 80, ACK, 900 + u32::from(i), 0);
        }
        let at_peer = sent(&mut w);
        (at_peer, challenges_seen(w, 0).1)
    };
    let (_, alone) = seen(false);
    assert_eq!(seen(true), (1, alone));
}

/// A RST is sent for a port pair without a connection only. With one counter for all an attacker would learn from the RSTs left for itself
/// whether the segments in the name of a peer have met a connection.
#[test]
fn an_attackers_own_resets_do_not_tell_whether_another_peer_has_a_connection() {
    let seen = |has_connection: bool| {
        let mut w = World::with(|config, _| narrow(config));
        if has_connection {
            in_time_wait(&mut w, false);
        }
        w.sent.clear();
        (0..MANY).for_each(|_| w.peer_sends(9, 80, ACK, 102, 7));
        let at_peer = sent(&mut w);
        (0..MANY).for_each(|port| sends(&mut w, (ATTACKER, 1000 + port), 81, ACK, 500));
        (at_peer, sent(&mut w))
    };
    let ((none, with), (some, without)) = (seen(true), seen(false));
    assert_eq!((none, with), (0, without));
    assert!(some >= 4 && (4..12).contains(&with), "{some} and {with}");
}

/// A peer that floods takes its own answers only.
#[test]
fn a_peer_that_floods_leaves_the_others_their_answers() {
    let mut w = World::with(|config, _| narrow(config));
    for host in 3..250 {
        (0..MANY).for_each(|port| sends(&mut w, (host, 1000 + port), 81, ACK, 500));
    }
    assert!(w.count(Count::ResetLimited) > 20_000);
    sent(&mut w);
    w.peer_sends(9, 81, ACK, 500, 7);
    assert_eq!(w.next().header.flags, RST);
}
