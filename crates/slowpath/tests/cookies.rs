//! SYN cookies (RFC 4987) and the limits of half-open connections.

use crate::harness::*;
use slowpath::{Count, Event, FlowOptions, SynCookies};
use wire::{Endpoint, FourTuple, TcpFlags, TcpOptions, TcpPacket, Timestamps};

fn always() -> World {
    let mut w = World::with(|config, shared| {
        config.syn_cookies = SynCookies::Always;
        shared.ecn = true;
    });
    w.slow.listen(us(80), 1, 100).unwrap();
    w
}

fn ends(from: u16) -> FourTuple {
    FourTuple::new(peer(from), us(80))
}

/// A SYN from the peer's port, and the answer.
fn syn(w: &mut World, from: u16, flags: TcpFlags, options: TcpOptions) -> TcpPacket {
    w.segment(ends(from), flags, 100, 0, options, &[]);
    let answer = w.next();
    assert!(answer.header.flags.contains(SYN_ACK) && answer.header.ack.0 == 101);
    assert_eq!(w.slow.sizes(), [0; 4], "nothing is kept of a SYN");
    answer
}

/// The echo of the answer's timestamp.
fn echo(answer: &TcpPacket) -> TcpOptions {
    let times = answer.options.timestamps;
    times.map_or(TcpOptions::NONE, |t| TcpOptions::with_timestamps(1001, t.value))
}

fn ack(w: &mut World, from: u16, answer: &TcpPacket, payload: &[u8]) {
    w.segment(ends(from), ACK, 101, answer.header.seq.0.wrapping_add(1), echo(answer), payload);
}

fn accept(w: &mut World) -> flow::FlowId {
    let Event::Incoming { pending, .. } = w.event() else { panic!("no connection") };
    let owner = w.owner();
    let flow = w.slow.accept(w.now, pending, owner).expect("accepted");
    w.settle();
    flow
}

/// RFC 4987 section 3.6: "the state is encoded into the sequence number"; and with timestamps the options survive.
#[test]
fn a_cookie_carries_window_scaling_sack_ecn_and_the_segment_size() {
    let ecn = TcpFlags::ECE.with(TcpFlags::CWR);
    for (mss, taken) in [(1460, 1448), (1459, 1428), (1200, 524), (536, 524), (100, 76)] {
        for (shift, sack, has_ecn) in [(Some(0), true, true), (Some(14), false, false), (None, true, false)] {
            let mut w = always();
            let offer = TcpOptions { mss: Some(mss), window_scale: shift, sack_permitted: sack, ..options() };
            let flags = if has_ecn { SYN.with(ecn) } else { SYN };
            let answer = syn(&mut w, 9, flags, offer);
            assert_eq!(answer.options.window_scale.is_some(), shift.is_some());
            assert_eq!(answer.options.sack_permitted, sack);
            assert_eq!(answer.header.flags.contains(TcpFlags::ECE), has_ecn);
            ack(&mut w, 9, &answer, &[]);
            let flow = accept(&mut w);
            w.edit(flow, |parts| {
                assert_eq!(parts.tx.mss, taken, "never more than the peer takes");
                assert_eq!(parts.tx.snd_shift, shift.unwrap_or(0));
                assert_eq!(parts.tx.snd_wnd, 5000 << shift.unwrap_or(0));
                assert!(parts.rx.has(flow::state::TIMESTAMPS));
                assert_eq!(parts.rx.has(flow::state::SACK), sack);
                assert_eq!(parts.rx.has(flow::state::ECN), has_ecn);
                assert_eq!(parts.rx.ts_recent, 1001);
                assert_eq!(parts.tx.snd_nxt, answer.header.seq.plus(1));
                assert_eq!(parts.rx.rcv_nxt.0, 101);
            });
        }
    }
}

/// ECN that is agreed to only because the listener's algorithm needs it outlives the cookie, with that algorithm's form of the echo. A
/// listener that has gone over to another algorithm meanwhile does without.
#[test]
fn a_cookie_carries_ecn_of_a_listener_whose_algorithm_needs_it() {
    for stays in [true, false] {
        let mut w = World::with(|config, shared| {
            config.syn_cookies = SynCookies::Always;
            shared.ecn = false;
        });
        w.slow.listen(us(80), 1, 100).unwrap();
        let asked = |algorithm| FlowOptions { algorithm: Some(algorithm), ..FlowOptions::default() };
        w.slow.set_listener_options(1, &asked(congestion::Algorithm::Dctcp));
        let answer = syn(&mut w, 9, SYN.with(TcpFlags::ECE).with(TcpFlags::CWR), options());
        assert!(answer.header.flags.contains(TcpFlags::ECE));
        if !stays {
            w.slow.set_listener_options(1, &asked(congestion::Algorithm::Cubic));
        }
        ack(&mut w, 9, &answer, &[]);
        let flow = accept(&mut w);
        w.edit(flow, |parts| {
            let has = |flag| parts.rx.has(flag);
            assert_eq!((has(flow::state::ECN), has(flow::state::EXACT_ECN)), (stays, stays));
        });
    }
}

/// Without timestamps there is no place for them, so they are not agreed on.
#[test]
fn without_timestamps_a_cookie_agrees_on_the_segment_size_alone() {
    let mut w = always();
    let offer = TcpOptions { timestamps: None, ..options() };
    let answer = syn(&mut w, 9, SYN.with(TcpFlags::ECE).with(TcpFlags::CWR), offer);
    assert_eq!((answer.options.window_scale, answer.options.sack_permitted), (None, false));
    assert!(!answer.header.flags.contains(TcpFlags::ECE));
    ack(&mut w, 9, &answer, &[]);
    let flow = accept(&mut w);
    let all = flow::state::TIMESTAMPS | flow::state::SACK | flow::state::ECN;
    w.edit(flow, |parts| assert_eq!((parts.tx.mss, parts.rx.flags & all, parts.tx.snd_shift), (1460, 0, 0)));
}

#[test]
fn the_timestamp_of_a_cookie_is_never_ahead_of_the_clock() {
    let mut w = always();
    for step in 0..200 {
        let offer = TcpOptions { window_scale: Some((step % 15) as u8), ..options() };
        let value = syn(&mut w, 9, SYN, offer).options.timestamps.unwrap().value;
        let mut plain = World::new();
        plain.now = w.now;
        plain.slow.listen(us(80), 1, 100).unwrap();
        plain.segment(ends(9), SYN, 100, 0, options(), &[]);
        let clock = plain.next().options.timestamps.unwrap().value;
        assert!(clock.wrapping_sub(value) < 128, "{clock} {value}");
        w.pass(ms(1));
    }
}

#[test]
fn a_cookie_is_good_for_a_minute_and_no_longer_than_two() {
    for (wait, is_good) in [(0, true), (59, true), (119, false), (121, false)] {
        let mut w = always();
        let answer = syn(&mut w, 9, SYN, options());
        w.pass(secs(wait));
        // Cookies are still being sent.
        syn(&mut w, 10, SYN, options());
        ack(&mut w, 9, &answer, &[]);
        assert_eq!(w.slow.poll_event().is_some(), is_good, "{wait} s");
        if !is_good {
            assert_eq!(w.next().header.flags, RST);
            assert_eq!(w.count(Count::CookiesRefused), 1);
        }
    }
}

/// Any other number than the cookie, from any other end, to any other end, is answered as RFC 9293 section 3.10.7.2 says:
/// "Any acknowledgment is bad if it arrives on a connection still in the LISTEN state".
#[test]
fn a_forged_cookie_opens_nothing() {
    let mut w = always();
    let answer = syn(&mut w, 9, SYN, options());
    let good = answer.header.seq.0.wrapping_add(1);
    for (from, seq, number) in
        [(9, 101, good ^ 1), (9, 101, good ^ 8), (9, 101, good ^ (1 << 31)), (9, 102, good), (10, 101, good)]
    {
        w.segment(ends(from), ACK, seq, number, echo(&answer), &[]);
        assert!(w.slow.poll_event().is_none());
        assert_eq!((w.next().header.flags, w.slow.sizes()[0]), (RST, 0));
    }
    // With a feature that we do not have.
    let mut plain = World::with(|config, shared| {
        (config.syn_cookies, shared.sack) = (SynCookies::Always, false);
    });
    plain.slow.listen(us(80), 1, 100).unwrap();
    plain.segment(ends(9), SYN, 100, 0, options(), &[]);
    let answer = plain.next();
    let echo = answer.options.timestamps.map(|t| Timestamps { value: 1001, echo: t.value | 16 });
    let number = answer.header.seq.0.wrapping_add(1);
    plain.segment(ends(9), ACK, 101, number, TcpOptions { timestamps: echo, ..TcpOptions::NONE }, &[]);
    assert_eq!((plain.slow.sizes()[0], plain.count(Count::CookiesRefused)), (0, 1));
}

#[test]
fn acknowledgements_are_not_looked_at_when_no_cookie_was_sent() {
    let mut w = World::new();
    w.slow.listen(us(80), 1, 100).unwrap();
    w.peer_sends(9, 80, ACK, 101, 5000);
    assert_eq!((w.next().header.flags, w.count(Count::CookiesRefused)), (RST, 0));
}

/// The final acknowledgement was lost: the first data brings the cookie back, and is not lost.
#[test]
fn data_with_a_cookie_opens_and_arrives() {
    let mut w = always();
    let answer = syn(&mut w, 9, SYN, options());
    ack(&mut w, 9, &answer, b"hello");
    accept(&mut w);
    assert!(w.orders.iter().any(|order| matches!(order, Order::Receive(frame) if frame.ends_with(b"hello"))));
}

/// 200,000 SYNs from everywhere: half-open connections stay within the backlog, each SYN gets at most one packet, ever,
/// and a peer that answers gets in.
#[test]
fn a_syn_flood_keeps_nothing_and_is_never_amplified() {
    let mut w = World::new();
    w.slow.listen(us(80), 1, 50).unwrap();
    let (mut came, mut sent) = (0, 0);
    for i in 0..20_000u32 {
        let from = Endpoint::new(std::net::IpAddr::from([10, 0, 0, 10 + (i % 200) as u8]), 1000 + i as u16);
        w.segment(FourTuple::new(from, us(80)), SYN, i, 0, options(), &[]);
        came += 1;
        sent += w.sent.len();
        w.sent.clear();
        w.pass(base::Duration::from_us(50));
        sent += w.sent.len();
        w.sent.clear();
    }
    assert_eq!(w.slow.sizes(), [50, 0, 0, 0]);
    assert_eq!(w.count(Count::CookiesSent), 20_000 - 50);
    w.offered(7);
    assert_eq!(w.count(Count::CookiesTaken), 1);
    w.pass(secs(200));
    assert_eq!(w.slow.sizes()[0], 1, "the offered one");
    assert_eq!(w.slow.neighbours().count(), 1, "false sources are not asked for");
    sent += w.sent.len();
    assert!(sent <= came, "{sent} packets for {came}");
}

#[test]
fn without_cookies_syns_beyond_the_backlog_are_dropped() {
    let mut w = World::with(|config, _| config.syn_cookies = SynCookies::Never);
    w.slow.listen(us(80), 1, 10).unwrap();
    for port in 0..20 {
        w.peer_sends(1000 + port, 80, SYN, 1, 0);
    }
    assert_eq!((w.sent.len(), w.slow.sizes()[0], w.count(Count::HalfOpenFull)), (10, 10, 10));
}

/// `TCP_MAXSEG` of the listener holds for a connection by cookie, too.
#[test]
fn a_cookie_respects_the_listeners_segment_size() {
    let mut w = always();
    w.slow.set_listener_options(1, &FlowOptions { max_segment: Some(1000), ..FlowOptions::default() });
    let answer = syn(&mut w, 9, SYN, options());
    assert_eq!(answer.options.mss, Some(1000));
    ack(&mut w, 9, &answer, &[]);
    let flow = accept(&mut w);
    w.edit(flow, |parts| assert_eq!(parts.tx.mss, 536 - 12));
}

#[test]
fn a_full_accept_queue_forgets_the_cookie_and_takes_it_again() {
    let mut w = always();
    let answer = syn(&mut w, 9, SYN, options());
    w.slow.set_accept_room(1, 0);
    ack(&mut w, 9, &answer, &[]);
    w.quiet();
    assert!(w.slow.poll_event().is_none());
    assert_eq!((w.slow.sizes()[0], w.count(Count::AcceptQueueFull)), (0, 1));
    w.slow.set_accept_room(1, 1);
    ack(&mut w, 9, &answer, b"again");
    accept(&mut w);
}
