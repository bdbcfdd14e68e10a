//! Handshakes: active, passive, simultaneous, with and without options, lost and refused.

use crate::harness::*;
use flow::state;
use shm::half_flags;
use slowpath::{AcceptError, Connect, ConnectError, Count, Event, ListenError, errno};
use wire::{Endpoint, FourTuple, TcpFlags, TcpOptions};

#[test]
fn active_open_with_all_options() {
    let mut w = World::new();
    let (local, owner) = w.connect(80);
    let syn = w.next();
    assert_eq!((syn.header.flags, syn.ip.src, syn.header.dst_port), (SYN, ip(2), 80));
    assert_eq!((syn.options.mss, syn.options.sack_permitted), (Some(1460), true));
    assert!(syn.options.window_scale.is_some() && syn.options.timestamps.is_some());
    assert_eq!(w.flags(owner), 0);

    w.now = w.now.plus(ms(30));
    let back = FourTuple::new(peer(80), local);
    w.segment(back, SYN_ACK, 500, syn.header.seq.0.wrapping_add(1), options(), &[]);
    let Event::Established { token: 7, flow } = w.event() else { panic!() };
    assert_eq!(w.flags(owner), half_flags::OPEN);
    assert!(w.orders.contains(&Order::Ack(flow)));
    w.edit(flow, |parts| {
        assert_eq!(parts.rx.rcv_nxt.0, 501);
        assert_eq!(parts.tx.snd_nxt, syn.header.seq.plus(1));
        assert_eq!((parts.tx.mss, parts.tx.snd_shift, parts.tx.snd_wnd), (1448, 7, 5000));
        assert!(parts.rx.has(state::TIMESTAMPS | state::SACK) && !parts.rx.has(state::ECN));
        assert_eq!((parts.rx.ts_recent, parts.cold.srtt_us), (1000, 30_000));
        assert_eq!(parts.tx.peer_mac, PEER_MAC.0);
    });
    w.quiet();
}

#[test]
fn a_peer_without_options_gets_the_defaults() {
    let mut w = World::new();
    let (local, _) = w.connect(80);
    let iss = w.next().header.seq.0;
    w.segment(FourTuple::new(peer(80), local), SYN_ACK, 500, iss.wrapping_add(1), TcpOptions::NONE, &[]);
    let Event::Established { flow, .. } = w.event() else { panic!() };
    w.edit(flow, |parts| {
        assert_eq!((parts.tx.mss, parts.tx.snd_shift, parts.rx.rcv_shift), (536, 0, 0));
        assert!(!parts.rx.has(state::TIMESTAMPS) && !parts.rx.has(state::SACK));
    });
}

#[test]
fn switches_keep_options_out_of_our_syn() {
    let mut w = World::with(|_, shared| {
        (shared.sack, shared.timestamps, shared.window_scaling) = (false, false, false);
    });
    w.connect(80);
    let only_mss = TcpOptions { mss: Some(1460), ..TcpOptions::NONE };
    assert_eq!(w.next().options, only_mss);
    w.slow.listen(us(80), 1, 5).unwrap();
    w.segment(FourTuple::new(peer(9), us(80)), SYN, 1, 0, options(), &[]);
    assert_eq!(w.next().options, only_mss);
}

#[test]
fn congestion_notification_is_agreed_on() {
    let mut w = World::with(|_, shared| shared.ecn = true);
    let asks = SYN.with(TcpFlags::ECE).with(TcpFlags::CWR);
    let (local, _) = w.connect(80);
    let syn = w.next();
    assert_eq!(syn.header.flags, asks);
    let ack = syn.header.seq.0.wrapping_add(1);
    w.segment(FourTuple::new(peer(80), local), SYN_ACK.with(TcpFlags::ECE), 1, ack, options(), &[]);
    let Event::Established { flow, .. } = w.event() else { panic!() };
    assert!(w.edit(flow, |parts| parts.rx.has(state::ECN)));
    w.slow.listen(us(80), 1, 5).unwrap();
    w.peer_sends(9, 80, asks, 1, 0);
    assert_eq!(w.next().header.flags, SYN_ACK.with(TcpFlags::ECE));
    w.peer_sends(10, 80, SYN, 1, 0);
    assert_eq!(w.next().header.flags, SYN_ACK);
}

/// "... resend the SYN and any subsequent SYN retransmissions with CWR and ECE cleared" (RFC 3168 section 6.1.1.1), and then "MUST NOT
/// set ECT on data packets" (section 6.1.1), whatever the answer says.
#[test]
fn host_that_never_asks_for_ecn_agrees_to_it_all_the_same() {
    let mut w = World::with(|config, shared| {
        shared.ecn = true;
        config.asks_ecn = false;
    });
    w.connect(80);
    assert_eq!(w.next().header.flags, SYN);
    w.slow.listen(us(80), 1, 5).unwrap();
    w.peer_sends(9, 80, SYN.with(TcpFlags::ECE).with(TcpFlags::CWR), 1, 0);
    assert_eq!(w.next().header.flags, SYN_ACK.with(TcpFlags::ECE));
}

#[test]
fn a_syn_that_asks_for_ecn_in_vain_is_repeated_without_and_then_there_is_none() {
    let mut w = World::with(|_, shared| shared.ecn = true);
    let (local, _) = w.connect(80);
    let syn = w.next();
    assert!(syn.header.flags.contains(TcpFlags::ECE.with(TcpFlags::CWR)));
    w.pass(ms(1001));
    w.peer_is_there();
    let again = w.next();
    assert_eq!((again.header.flags, again.header.seq), (SYN, syn.header.seq));
    let ack = syn.header.seq.0.wrapping_add(1);
    w.segment(FourTuple::new(peer(80), local), SYN_ACK.with(TcpFlags::ECE), 1, ack, options(), &[]);
    let Event::Established { flow, .. } = w.event() else { panic!() };
    assert!(!w.edit(flow, |parts| parts.rx.has(state::ECN)));
}

/// A SYN-ACK with ECE and CWR is "not ... an ECN-setup SYN-ACK packet" (RFC 3168 section 6.1.1), nor is one without.
#[test]
fn a_peer_that_refuses_or_reflects_the_request_gets_no_ecn() {
    for answer in [SYN_ACK, SYN_ACK.with(TcpFlags::ECE).with(TcpFlags::CWR), SYN_ACK.with(TcpFlags::CWR)] {
        let mut w = World::with(|_, shared| shared.ecn = true);
        let (local, _) = w.connect(80);
        let ack = w.next().header.seq.0.wrapping_add(1);
        w.segment(FourTuple::new(peer(80), local), answer, 1, ack, options(), &[]);
        let Event::Established { flow, .. } = w.event() else { panic!() };
        assert!(!w.edit(flow, |parts| parts.rx.has(state::ECN)), "{answer:?}");
    }
}

#[test]
fn both_ends_of_a_simultaneous_open_may_agree_on_ecn() {
    let mut w = World::with(|_, shared| shared.ecn = true);
    let (local, _) = w.connect(80);
    let syn = w.next();
    let asks = SYN.with(TcpFlags::ECE).with(TcpFlags::CWR);
    w.segment(FourTuple::new(peer(80), local), asks, 500, 0, options(), &[]);
    assert_eq!(w.next().header.flags, SYN_ACK.with(TcpFlags::ECE));
    let ack = syn.header.seq.0.wrapping_add(1);
    w.segment(FourTuple::new(peer(80), local), ACK, 501, ack, options(), &[]);
    let Event::Established { flow, .. } = w.event() else { panic!() };
    assert!(w.edit(flow, |parts| parts.rx.has(state::ECN)));
}

#[test]
fn dctcp_asks_for_ecn_by_itself_and_what_it_does_not_get_is_counted() {
    for (answer, without) in [(SYN_ACK, 1), (SYN_ACK.with(TcpFlags::ECE), 0)] {
        let mut w = World::with(|config, _| config.algorithm = congestion::Algorithm::Dctcp);
        let (local, _) = w.connect(80);
        let syn = w.next();
        assert!(syn.header.flags.contains(TcpFlags::ECE.with(TcpFlags::CWR)));
        let ack = syn.header.seq.0.wrapping_add(1);
        w.segment(FourTuple::new(peer(80), local), answer, 1, ack, options(), &[]);
        assert!(matches!(w.event(), Event::Established { .. }));
        assert_eq!(w.count(Count::WithoutEcn), without);
    }
}

#[test]
fn syn_is_repeated_with_backoff_and_given_up() {
    let mut w = World::new();
    let start = w.now;
    let (_, owner) = w.connect(80);
    let first = w.next();
    let mut times = Vec::new();
    for _ in 0..130 {
        w.pass(secs(1));
        w.peer_is_there();
        if !w.sent.is_empty() {
            times.push(w.now.since(start).as_ms() / 1000);
            assert_eq!(w.next().header.seq, first.header.seq);
        }
    }
    assert_eq!(times, [1, 3, 7, 15, 31, 63]);
    assert!(matches!(w.event(), Event::ConnectFailed { token: 7, errno: errno::ETIMEDOUT }));
    assert_eq!(w.errno(owner), u32::from(errno::ETIMEDOUT));
}

#[test]
fn a_lost_syn_is_not_timed() {
    let mut w = World::new();
    let (local, _) = w.connect(80);
    let iss = w.next().header.seq.0;
    w.pass(ms(1500));
    w.segment(FourTuple::new(peer(80), local), SYN_ACK, 1, iss.wrapping_add(1), options(), &[]);
    let Event::Established { flow, .. } = w.event() else { panic!() };
    assert_eq!(w.edit(flow, |parts| (parts.cold.srtt_us, parts.cold.rto)), (0, secs(3)));
}

#[test]
fn refused_by_reset() {
    let mut w = World::new();
    let (local, owner) = w.connect(80);
    let iss = w.next().header.seq.0;
    // RFC 5961 section 3.2 holds for SYN-SENT by the acknowledgement: a blind reset has none.
    w.peer_sends(80, local.port, RST, 0, 0);
    w.peer_sends(80, local.port, RST.with(ACK), 0, iss);
    assert!(w.slow.poll_event().is_none());
    w.peer_sends(80, local.port, RST.with(ACK), 0, iss.wrapping_add(1));
    assert!(matches!(w.event(), Event::ConnectFailed { errno: errno::ECONNREFUSED, .. }));
    assert_eq!(w.errno(owner), u32::from(errno::ECONNREFUSED));
    w.quiet();
}

#[test]
fn an_old_syn_ack_is_reset_and_the_open_goes_on() {
    let mut w = World::new();
    let (local, _) = w.connect(80);
    let iss = w.next().header.seq.0;
    w.peer_sends(80, local.port, SYN_ACK, 900, iss.wrapping_sub(77));
    let reset = w.next();
    assert_eq!((reset.header.flags, reset.header.seq.0), (RST, iss.wrapping_sub(77)));
    w.peer_sends(80, local.port, SYN_ACK, 900, iss.wrapping_add(1));
    assert!(matches!(w.event(), Event::Established { .. }));
}

#[test]
fn simultaneous_open() {
    let mut w = World::new();
    let (local, owner) = w.connect(80);
    let iss = w.next().header.seq;
    w.segment(FourTuple::new(peer(80), local), SYN, 300, 0, options(), &[]);
    let answer = w.next();
    assert_eq!((answer.header.flags, answer.header.seq, answer.header.ack.0), (SYN_ACK, iss, 301));
    assert_eq!(w.flags(owner), 0);
    // The SYN-ACK of the other end crosses ours.
    w.segment(FourTuple::new(peer(80), local), SYN_ACK, 300, iss.plus(1).0, options(), &[]);
    let Event::Established { flow, .. } = w.event() else { panic!() };
    assert_eq!(w.edit(flow, |parts| (parts.rx.rcv_nxt.0, parts.tx.snd_una)), (301, iss.plus(1)));
}

/// RFC 5961 section 4.2. Its window, never scaled (RFC 7323 section 2.2), would be taken for a scaled one besides.
#[test]
fn another_syn_ack_after_crossing_syns_is_challenged() {
    let mut w = World::new();
    let (local, owner) = w.connect(80);
    let iss = w.next().header.seq;
    w.segment(FourTuple::new(peer(80), local), SYN, 300, 0, options(), &[]);
    w.next();
    for (flags, seq) in [(SYN_ACK, 301), (ACK, 299)] {
        w.segment(FourTuple::new(peer(80), local), flags, seq, iss.plus(1).0, options(), &[]);
        let challenge = w.next();
        assert_eq!((challenge.header.flags, challenge.header.ack.0, w.flags(owner)), (ACK, 301, 0));
        w.pass(ms(500));
    }
    w.peer_sends(80, local.port, ACK, 301, iss.plus(1).0);
    assert!(matches!(w.event(), Event::Established { .. }));
}

#[test]
fn passive_open_and_data_that_came_early() {
    let mut w = World::new();
    w.slow.listen(Endpoint::new([0, 0, 0, 0].into(), 80), 5, 10).unwrap();
    let tuple = FourTuple::new(peer(4000), us(80));
    w.segment(tuple, SYN, 100, 0, options(), &[]);
    let answer = w.next();
    assert_eq!((answer.header.flags, answer.header.ack.0), (SYN_ACK, 101));
    assert_eq!(answer.options.timestamps.map(|t| t.echo), Some(1000));
    assert!(answer.options.sack_permitted && answer.options.window_scale.is_some());
    let ack = answer.header.seq.0.wrapping_add(1);
    let later = TcpOptions::with_timestamps(1001, 0);
    w.segment(tuple, ACK, 101, ack, later, &[]);
    let Event::Incoming { token: 5, local, remote, pending } = w.event() else { panic!() };
    assert_eq!((local, remote), (us(80), peer(4000)));
    w.segment(tuple, ACK, 101, ack, later, b"GET /");
    let owner = w.owner();
    let flow = w.slow.accept(w.now, pending, owner).unwrap();
    w.settle();
    assert_eq!(w.orders.pop_front(), Some(Order::Transmit(flow)));
    let early = frame(tuple, ACK, 101, ack, later, b"GET /");
    assert_eq!(w.orders.pop_front(), Some(Order::Receive(early)));
    assert_eq!(w.flags(owner), half_flags::OPEN);
    assert_eq!(w.edit(flow, |parts| parts.tx.snd_wnd), 5000 << 7);
    // What a core took for a stranger's before it saw the flow comes back to it.
    let late = frame(tuple, ACK, 106, ack, later, b"more");
    w.raw(&late);
    assert_eq!(w.orders.pop_front(), Some(Order::Receive(late)));
    assert_eq!(w.slow.accept(w.now, pending, owner), Err(AcceptError::Gone));
}

#[test]
fn syn_ack_is_repeated_and_given_up() {
    let mut w = World::new();
    w.slow.listen(us(80), 1, 10).unwrap();
    w.peer_sends(9, 80, SYN, 100, 0);
    let first = w.next();
    w.peer_sends(9, 80, SYN, 100, 0);
    assert_eq!(w.next().header, first.header);
    w.pass(secs(100));
    assert_eq!(w.sent.len(), 4);
    assert_eq!(w.slow.sizes(), [0, 0, 0, 0]);
    assert_eq!(w.count(Count::HalfOpenExpired), 1);
}

#[test]
fn a_full_accept_queue_drops_and_forgets() {
    let mut w = World::new();
    w.slow.listen(us(80), 1, 0).unwrap();
    w.peer_sends(1, 80, SYN, 100, 0);
    w.peer_sends(2, 80, SYN, 100, 0);
    let (one, two) = (w.next().header.seq.0, w.next().header.seq.0);
    w.peer_sends(1, 80, ACK, 101, one.wrapping_add(1));
    assert!(matches!(w.event(), Event::Incoming { .. }));
    // Backlog 0 takes one connection; the second's final acknowledgement is forgotten, a third SYN is dropped.
    w.peer_sends(2, 80, ACK, 101, two.wrapping_add(1));
    w.peer_sends(3, 80, SYN, 100, 0);
    assert!(w.slow.poll_event().is_none() && w.sent.is_empty());
    assert_eq!(w.count(Count::AcceptQueueFull), 2);
    w.slow.set_accept_room(1, 1);
    w.peer_sends(2, 80, ACK, 101, two.wrapping_add(1));
    assert!(matches!(w.event(), Event::Incoming { .. }));
}

#[test]
fn postponed_and_refused() {
    let mut w = World::new();
    let pending = w.offered(7);
    w.slow.postpone(w.now, pending);
    w.pass(ms(1100));
    let again = w.next();
    assert_eq!(again.header.flags, SYN_ACK);
    w.peer_sends(7, 80, ACK, 101, again.header.seq.0.wrapping_add(1));
    let Event::Incoming { pending, .. } = w.event() else { panic!() };
    w.slow.refuse(w.now, pending);
    w.settle();
    let reset = w.next();
    assert_eq!((reset.header.flags, reset.header.seq), (RST.with(ACK), again.header.seq.plus(1)));
    assert_eq!(w.slow.sizes(), [0, 0, 0, 0]);
}

#[test]
fn unlisten_resets_what_is_half_open() {
    let mut w = World::new();
    w.slow.listen(us(80), 1, 10).unwrap();
    assert_eq!(w.slow.listen(us(80), 2, 10), Err(ListenError::InUse));
    assert_eq!(w.slow.listen(Endpoint::new(ip(77), 80), 2, 10), Err(ListenError::NotOurs));
    w.peer_sends(9, 80, SYN, 100, 0);
    w.sent.clear();
    assert!(w.slow.unlisten(w.now, us(80)));
    w.settle();
    assert_eq!(w.next().header.flags, RST.with(ACK));
    w.peer_sends(9, 80, SYN, 100, 0);
    let refusal = w.next();
    assert_eq!((refusal.header.flags, refusal.header.ack.0), (RST.with(ACK), 101));
}

#[test]
fn refusals_of_connect() {
    let mut w = World::new();
    let owner = w.owner();
    let mut ask = |local: Option<Endpoint>, remote: Endpoint| {
        let what = Connect { token: 1, local, remote, owner, options: slowpath::FlowOptions::default() };
        w.slow.connect(w.now, &what)
    };
    assert_eq!(ask(None, us(80)), Err(ConnectError::Ourselves));
    assert_eq!(ask(Some(Endpoint::new(ip(9), 0)), peer(80)), Err(ConnectError::NotOurs));
    assert_eq!(ask(None, Endpoint::new("2001:db8::1".parse().unwrap(), 80)), Err(ConnectError::NoRoute));
    assert_eq!(ask(None, peer(0)), Err(ConnectError::Malformed));
    assert_eq!(ask(Some(us(5000)), peer(80)), Ok(us(5000)));
    assert_eq!(ask(Some(us(5000)), peer(80)), Err(ConnectError::InUse));
    assert_eq!(ask(Some(us(5000)), peer(81)), Ok(us(5000)));
}

#[test]
fn ports_run_out_and_come_back() {
    let mut w = World::with(|config, _| config.ephemeral = 40_000..=40_003);
    let owner = w.owner();
    let connect = |w: &mut World| {
        let what = Connect {
            token: 1,
            local: None,
            remote: peer(80),
            owner,
            options: slowpath::FlowOptions::default(),
        };
        w.slow.connect(w.now, &what)
    };
    let mut ports: Vec<u16> = (0..4).map(|_| connect(&mut w).unwrap().port).collect();
    ports.sort_unstable();
    assert_eq!(ports, [40_000, 40_001, 40_002, 40_003]);
    assert_eq!(connect(&mut w), Err(ConnectError::NoPort));
    assert!(w.slow.cancel_connect(1));
    assert!(connect(&mut w).is_ok());
}

#[test]
fn ipv6_handshake_asks_by_neighbour_discovery() {
    let mut w = World::new();
    let remote = Endpoint::new("fd00::1".parse().unwrap(), 80);
    let owner = w.owner();
    let what = Connect { token: 1, local: None, remote, owner, options: slowpath::FlowOptions::default() };
    let local = w.slow.connect(w.now, &what).unwrap();
    w.settle();
    assert!(matches!(w.next_body(), wire::Body::Icmpv6(_)));
    let target = "fd00::1".parse().unwrap();
    let answer = wire::Icmpv6Message::NeighborAdvertisement {
        router: false,
        solicited: true,
        overrides: true,
        target,
        target_link: Some(PEER_MAC),
    };
    let dst: std::net::Ipv6Addr = "fd00::2".parse().unwrap();
    let mut bytes = [0; 128];
    let parameters = wire::IpParameters { hop_limit: 255, ..wire::IpParameters::new(PEER_MAC, OUR_MAC) };
    let protocol = wire::IpProtocol::ICMPV6;
    let len = answer.encoded_len();
    let at = wire::emit_ip(&parameters, target.into(), dst.into(), protocol, len, &mut bytes).unwrap();
    let len = answer.emit(&target, &dst, &mut bytes[at..]).unwrap();
    w.raw(&bytes[..at + len]);
    let syn = w.next();
    assert_eq!((syn.header.flags, syn.options.mss), (SYN, Some(1440)));
    let ack = syn.header.seq.0.wrapping_add(1);
    w.segment(FourTuple::new(remote, local), SYN_ACK, 1, ack, options(), &[]);
    let Event::Established { flow, .. } = w.event() else { panic!() };
    assert!(w.edit(flow, |parts| parts.rx.has(state::V6)));
}
