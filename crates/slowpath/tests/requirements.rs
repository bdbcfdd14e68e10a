//! Requirements of RFC 9293 and RFC 7323, one test each, for opening, patience and errors: `specs/` names them.

use crate::harness::*;
use base::Duration;
use flow::{Exception, FlowId, state};
use shm::half_flags;
use slowpath::{Connect, ConnectError, Count, Event, FlowOptions, How, Keepalive, ListenError, errno};
use wire::{Endpoint, FourTuple, Icmpv4Message, IpParameters, IpProtocol, TcpOptions, code, emit_ip};

fn connect(w: &mut World, local: Option<Endpoint>, remote: Endpoint) -> Result<Endpoint, ConnectError> {
    let owner = w.owner();
    let what = Connect { token: 7, local, remote, owner, options: FlowOptions::default() };
    let begun = w.slow.connect(w.now, &what);
    w.settle();
    begun
}

/// The core has sent `bytes` just now.
fn sends(w: &mut World, flow: FlowId, bytes: u32) {
    let now = w.now;
    w.edit(flow, |parts| {
        parts.tx.snd_max = parts.tx.snd_max.plus(bytes);
        parts.tx.snd_nxt = parts.tx.snd_max;
        parts.cold.progress_at = now;
        parts.rx.set(state::TIMER_ARMED);
    });
    w.exception(Exception::Active { flow });
}

/// Times, in milliseconds from now, at which `wanted` was ordered, until `end`. The peer says something after each when it `answers`.
fn ordered(w: &mut World, flow: FlowId, end: Duration, wanted: &Order, answers: bool) -> Vec<u64> {
    let start = w.now;
    let mut times = Vec::new();
    while w.now.since(start) < end {
        w.peer_is_there();
        w.pass(ms(10));
        let before = times.len();
        while let Some(order) = w.orders.pop_front() {
            if order == *wanted {
                times.push(w.now.since(start).as_ms() / 10 * 10);
            }
        }
        if answers && times.len() > before {
            let now = w.now.plus(ms(1));
            w.edit(flow, |parts| parts.cold.heard_at = now);
        }
    }
    times
}

fn closed(w: &mut World) -> Option<How> {
    std::iter::from_fn(|| w.slow.poll_event()).find_map(|event| match event {
        Event::Closed { how, .. } => Some(how),
        _ => None,
    })
}

fn with_icmp(w: &mut World, message: &Icmpv4Message<'_>) {
    let mut bytes = vec![0; 400];
    let len = message.encoded_len();
    let parameters = IpParameters::new(PEER_MAC, OUR_MAC);
    let at = emit_ip(&parameters, ip(3), ip(2), IpProtocol::ICMP, len, &mut bytes).unwrap();
    let len = message.emit(&mut bytes[at..]).unwrap();
    w.raw(&bytes[..at + len]);
}

/// "A TCP implementation MUST keep track of whether a connection has reached SYN-RECEIVED state as the result of a passive OPEN or an
/// active OPEN" (RFC 9293 section 3.5, MUST-11): a reset sends the one back to LISTEN in silence and is told to the other.
#[test]
fn a_reset_in_syn_received_is_told_to_who_opened_actively() {
    let mut w = World::new();
    let (local, owner) = w.connect(80);
    w.sent.clear();
    let tuple = FourTuple::new(peer(80), local);
    w.segment(tuple, SYN, 300, 0, options(), &[]);
    assert_eq!(w.next().header.flags, SYN_ACK);
    w.segment(tuple, RST, 301, 0, TcpOptions::NONE, &[]);
    assert!(matches!(w.event(), Event::ConnectFailed { errno: errno::ECONNREFUSED, .. }));
    assert_eq!(w.errno(owner), u32::from(errno::ECONNREFUSED));

    w.slow.listen(us(80), 1, 9).unwrap();
    w.peer_sends(9, 80, SYN, 100, 0);
    assert_eq!(w.next().header.flags, SYN_ACK);
    w.peer_sends(9, 80, RST, 101, 0);
    assert!(w.slow.poll_event().is_none());
    w.peer_sends(9, 80, SYN, 500, 0);
    assert_eq!((w.next().header.flags, w.slow.sizes()[0]), (SYN_ACK, 1), "it listens as before");
}

/// "Every passive OPEN call either creates a new connection record in LISTEN state, or it returns an error; it MUST NOT affect any
/// previously created connection record" (RFC 9293 section 3.9.1.1, MUST-41), and it must be possible "to LISTEN on a port while a
/// connection block with the same local port is in SYN-SENT or SYN-RECEIVED state" (MUST-42).
#[test]
fn listening_affects_no_connection_on_the_same_port() {
    let mut w = World::new();
    assert_eq!(connect(&mut w, Some(us(5000)), peer(80)), Ok(us(5000)));
    let iss = w.next().header.seq;
    w.slow.listen(us(5000), 1, 9).unwrap();
    w.peer_sends(9, 5000, SYN, 100, 0);
    let answer = w.next();
    assert_eq!(w.slow.listen(us(5000), 2, 9), Err(ListenError::InUse));
    w.peer_sends(9, 5000, ACK, 101, answer.header.seq.plus(1).0);
    assert!(matches!(w.event(), Event::Incoming { token: 1, .. }), "the first listener's");
    w.peer_sends(80, 5000, SYN_ACK, 300, iss.plus(1).0);
    assert!(matches!(w.event(), Event::Established { token: 7, .. }));
}

/// "At all other times, a previous segment has either been sent or received on this connection, and TCP implementations MUST use the
/// same local address that was used in those previous segments" (RFC 9293 section 3.9.1.1, MUST-45).
#[test]
fn a_connection_keeps_the_address_that_was_addressed() {
    let second = slowpath::OwnAddress { addr: ip(5), prefix_len: 24 };
    let mut w = World::with(|config, _| config.addresses.push(second));
    w.slow.listen(Endpoint::new([0, 0, 0, 0].into(), 80), 1, 9).unwrap();
    let tuple = FourTuple::new(peer(9), Endpoint::new(ip(5), 80));
    w.segment(tuple, SYN, 100, 0, TcpOptions::NONE, &[]);
    let answer = w.next();
    assert_eq!(answer.ip.src, ip(5));
    w.segment(tuple, ACK, 101, answer.header.seq.plus(1).0, TcpOptions::NONE, &[]);
    let Event::Incoming { pending, local, .. } = w.event() else { panic!() };
    let owner = w.owner();
    let flow = w.slow.accept(w.now, pending, owner).unwrap();
    assert_eq!((local.addr, w.edit(flow, |parts| parts.tx.local_v4)), (ip(5), [10, 0, 0, 5]));
    w.slow.abort(w.now, flow);
    w.settle();
    assert_eq!(w.next().ip.src, ip(5));
}

/// "A TCP implementation MUST reject as an error a local OPEN call for an invalid remote IP address (e.g., a broadcast or multicast
/// address)" (RFC 9293 section 3.9.1.1, MUST-46).
#[test]
fn nobody_connects_to_a_group() {
    let mut w = World::new();
    for addr in ["10.0.0.255", "255.255.255.255", "224.0.0.1", "ff02::1", "0.0.0.0"] {
        let remote = Endpoint::new(addr.parse().unwrap(), 80);
        assert_eq!(connect(&mut w, None, remote), Err(ConnectError::NoRoute), "{addr}");
    }
    w.quiet();
}

/// "The TTL value used to send TCP segments MUST be configurable" (RFC 9293 section 3.9.2, MUST-49).
#[test]
fn control_segments_take_as_many_hops_as_configured() {
    let mut w = World::with(|_, shared| shared.hop_limit = 9);
    w.connect(80);
    assert_eq!(w.sent[0][14 + 8], 9);
}

/// "When received options are passed up to TCP from the IP layer, a TCP implementation MUST ignore options that it does not
/// understand" (RFC 9293 section 3.9.2, MUST-50).
#[test]
fn unknown_ip_options_are_ignored() {
    let mut w = World::new();
    w.slow.listen(us(80), 1, 9).unwrap();
    let mut bytes = frame(FourTuple::new(peer(9), us(80)), SYN, 100, 0, TcpOptions::NONE, &[]);
    // Kind 0x9E is nobody's; the header grows by a word.
    bytes.splice(34..34, [0x9E, 4, 1, 2]);
    bytes[14] += 1;
    bytes[17] += 4;
    bytes[24..26].fill(0);
    let sum = wire::checksum::of(&bytes[14..38]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    w.raw(&bytes);
    assert_eq!((w.next().header.flags, w.slow.sizes()[0]), (SYN_ACK, 1));
}

/// "Since these Unreachable messages indicate soft error conditions, a TCP implementation MUST NOT abort the connection (MUST-56), and
/// it SHOULD make the information available to the application (SHLD-25)"; "There MUST be a mechanism for reporting soft TCP error
/// conditions" (MUST-47): the error of a connection that is given up is the one that ICMP told.
#[test]
fn a_soft_error_ends_no_connection_and_is_told_when_it_is_given_up() {
    let mut w = World::with(|config, _| config.retries = 2);
    let (flow, owner, una) = w.accepted(9);
    sends(&mut w, flow, 1000);
    let quoted = frame(FourTuple::new(us(80), peer(9)), ACK, una, 101, TcpOptions::NONE, &[]);
    for code in [code::NETWORK_UNREACHABLE, code::HOST_UNREACHABLE, 5] {
        let quoted = &quoted[14..];
        with_icmp(&mut w, &Icmpv4Message::DestinationUnreachable { code, next_hop_mtu: 0, quoted });
    }
    assert_eq!((w.flags(owner), w.count(Count::StrayIcmp)), (half_flags::OPEN, 0));
    w.pass(secs(60));
    assert_eq!(closed(&mut w), Some(How::TimedOut(errno::EHOSTUNREACH)));
    assert_eq!(w.errno(owner), u32::from(errno::EHOSTUNREACH));
}

/// "TCP implementations MUST silently discard any received ICMP Source Quench messages" (RFC 9293 section 3.9.2.2, MUST-55).
#[test]
fn source_quench_is_discarded() {
    let mut w = World::new();
    let (flow, _, una) = w.accepted(9);
    sends(&mut w, flow, 1000);
    let before = w.edit(flow, |parts| (parts.tx.cwnd, parts.tx.snd_nxt, parts.cold.soft_error));
    let quoted = frame(FourTuple::new(us(80), peer(9)), ACK, una, 101, TcpOptions::NONE, &[]);
    with_icmp(&mut w, &Icmpv4Message::Other { kind: 4, code: 0, word: 0, payload: &quoted[14..] });
    let after = w.edit(flow, |parts| (parts.tx.cwnd, parts.tx.snd_nxt, parts.cold.soft_error));
    assert_eq!((after, w.orders.len(), w.count(Count::OtherIcmp)), (before, 0, 1));
    w.quiet();
}

/// "TCP implementations SHOULD allow a received RST segment to include data" (RFC 9293 section 3.5.3, SHLD-2); and resets are obeyed
/// "even when the receive window is zero" (MUST-66, as far as it concerns RST).
#[test]
fn a_reset_may_carry_data_and_needs_no_window() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    w.edit(flow, |parts| parts.rx.rcv_edge = parts.rx.rcv_nxt);
    w.segment(FourTuple::new(peer(9), us(80)), RST, 101, 0, TcpOptions::NONE, b"go away");
    assert_eq!(closed(&mut w), Some(How::ResetByPeer));
}

/// "The value of R2 SHOULD correspond to at least 100 seconds" (RFC 9293 section 3.8.3, SHLD-11); R1 to "at least 3 retransmissions"
/// (SHLD-10): then the next hop is asked whether it is still there.
#[test]
fn a_silent_peer_is_given_up_after_no_less_than_100_seconds() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    w.edit(flow, |parts| parts.cold.rto = ms(200));
    sends(&mut w, flow, 1000);
    let asked = |w: &mut World| w.sent.drain(..).count();
    w.pass(ms(1300));
    assert_eq!((w.count(Count::Timeouts), asked(&mut w)), (2, 0));
    w.pass(ms(200));
    assert_eq!((w.count(Count::Timeouts), asked(&mut w)), (3, 1));
    // Linux's time for 15 timeouts: 924.6 s, found out by the timeout after it.
    let times = ordered(&mut w, flow, secs(1050), &Order::Transmit(flow), false);
    assert!(times.last().unwrap() > &100_000, "{times:?}");
    assert_eq!(closed(&mut w), Some(How::TimedOut(errno::ETIMEDOUT)));
}

/// "If keep-alives are included, the application MUST be able to turn them on or off for each TCP connection (MUST-24), and they MUST
/// default to off (MUST-25)"; the interval "MUST default to no less than two hours" (MUST-28).
#[test]
fn keepalive_is_off_until_asked_for_and_waits_two_hours_by_default() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    w.pass(secs(100_000));
    assert_eq!(w.count(Count::KeepaliveProbes), 0);
    let now = w.now;
    w.edit(flow, |parts| parts.cold.heard_at = now);
    let asked = |keepalive| FlowOptions { keepalive, ..FlowOptions::default() };
    w.slow.set_options(w.now, flow, &asked(Some(Keepalive::default())));
    w.pass(secs(7199));
    assert_eq!(w.count(Count::KeepaliveProbes), 0);
    w.pass(secs(2));
    assert_eq!(w.count(Count::KeepaliveProbes), 1);
    w.slow.set_options(w.now, flow, &asked(None));
    w.pass(secs(100_000));
    assert_eq!((w.count(Count::KeepaliveProbes), closed(&mut w)), (1, None));
}

/// "Keep-alive packets MUST only be sent when no sent data is outstanding, and no data or acknowledgment packets have been received
/// for the connection within an interval" (RFC 9293 section 3.8.4, MUST-26).
#[test]
fn keepalive_waits_while_data_is_outstanding_or_anything_was_heard() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    let keepalive = Some(Keepalive { idle: secs(10), interval: secs(2), count: 3 });
    w.slow.set_options(w.now, flow, &FlowOptions { keepalive, ..FlowOptions::default() });
    for _ in 0..5 {
        w.pass(secs(9));
        let now = w.now;
        w.edit(flow, |parts| parts.cold.heard_at = now);
    }
    assert_eq!(w.count(Count::KeepaliveProbes), 0);
    sends(&mut w, flow, 1000);
    w.pass(secs(40));
    assert_eq!((w.count(Count::KeepaliveProbes), closed(&mut w)), (0, None));
    assert!(w.count(Count::Timeouts) > 3, "repeating it finds out the same");
}

/// "The transmitting host SHOULD send the first zero-window probe when a zero window has existed for the retransmission timeout period
/// (SHLD-29), and SHOULD increase exponentially the interval between successive probes (SHLD-30)" (RFC 9293 section 3.8.6.1).
#[test]
fn a_closed_window_is_probed_after_a_timeout_and_ever_more_rarely() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    w.edit(flow, |parts| {
        parts.cold.rto = ms(300);
        parts.tx.snd_wnd = 0;
        parts.rx.set(state::BLOCKED);
    });
    sends(&mut w, flow, 0);
    let times = ordered(&mut w, flow, secs(20), &Order::Probe(flow), true);
    assert_eq!(times, [300, 900, 2100, 4500, 9300, 18_900]);
}

/// The peer has closed its window behind data that is under way, and answers: "SHOULD NOT time out the connection if data beyond the
/// right window edge is not acknowledged" (RFC 9293 section 3.8.6, SHLD-17). One that falls silent is given up.
#[test]
fn data_beyond_a_window_that_has_closed_times_nobody_out() {
    let mut w = World::with(|config, shared| {
        config.retries = 3;
        shared.rto_max = secs(2);
    });
    let (flow, _, _) = w.accepted(9);
    w.edit(flow, |parts| {
        parts.cold.rto = ms(500);
        parts.tx.snd_wnd = 0;
    });
    sends(&mut w, flow, 1000);
    let times = ordered(&mut w, flow, secs(60), &Order::Transmit(flow), true);
    assert!((25..40).contains(&times.len()), "{times:?}");
    assert_eq!(closed(&mut w), None);
    w.pass(secs(20));
    assert_eq!(closed(&mut w), Some(How::TimedOut(errno::ETIMEDOUT)));
}

/// "If the SYN or SYN/ACK is lost, the initial window ... MUST be one segment" (RFC 5681 section 3.1), which RFC 6928 section 2 limits to
/// "more than one SYN or SYN/ACK retransmissions"; and "the SYN/ACK and the acknowledgment of the SYN/ACK MUST NOT increase the size of
/// the congestion window".
#[test]
fn handshakes_lost_more_than_once_begin_with_one_segment() {
    for (wait, segments) in [(0, 10), (1500, 10), (3500, 1)] {
        let mut w = World::new();
        let (local, _) = w.connect(80);
        let iss = w.next().header.seq;
        w.pass(ms(wait));
        w.segment(FourTuple::new(peer(80), local), SYN_ACK, 1, iss.plus(1).0, options(), &[]);
        let Event::Established { flow, .. } = w.event() else { panic!() };
        assert_eq!(w.edit(flow, |parts| parts.tx.cwnd / u32::from(parts.tx.mss)), segments, "{wait} ms");
    }
}

/// "Once TSopt has been successfully negotiated ... the TSopt MUST be sent in every non-<RST> segment" (RFC 7323 section 3.2): in a
/// challenge in SYN-RECEIVED, too; "If an <RST> is being generated because of a user abort, and Snd.TS.OK is set, then a Timestamps
/// option SHOULD be included in the <RST>" (section 5.2).
#[test]
fn challenges_and_aborts_carry_timestamps_where_they_were_agreed_on() {
    for stamped in [true, false] {
        let mut w = World::new();
        w.slow.listen(us(80), 1, 9).unwrap();
        let tuple = FourTuple::new(peer(9), us(80));
        let offer = if stamped { options() } else { TcpOptions::NONE };
        w.segment(tuple, SYN, 100, 0, offer, &[]);
        let answer = w.next();
        w.peer_sends(9, 80, RST, 105, 0);
        let challenge = w.next();
        let echo = stamped.then_some(1000);
        assert_eq!(challenge.header.flags, ACK);
        assert_eq!(challenge.options.timestamps.map(|t| t.echo), echo);
        let later = if stamped { TcpOptions::with_timestamps(1001, 0) } else { TcpOptions::NONE };
        w.segment(tuple, ACK, 101, answer.header.seq.plus(1).0, later, &[]);
        let Event::Incoming { pending, .. } = w.event() else { panic!() };
        let owner = w.owner();
        let flow = w.slow.accept(w.now, pending, owner).unwrap();
        w.slow.abort(w.now, flow);
        w.settle();
        let reset = w.next();
        assert_eq!(reset.header.flags, RST.with(ACK));
        assert_eq!(reset.options.timestamps.map(|t| t.echo), echo.map(|echo| echo + 1));
    }
}

/// "If the ACK bit is not set in the outgoing TCP header, the sender of that segment SHOULD set the TSecr field to zero. ... When the
/// ACK bit is not set, the receiver MUST ignore the value of the TSecr field" (RFC 7323 section 3.2).
#[test]
fn a_syn_echoes_nothing_and_its_echo_is_ignored() {
    let mut w = World::new();
    w.connect(80);
    assert_eq!(w.next().options.timestamps.map(|t| t.echo), Some(0));
    for echo in [0, 1, 77, u32::MAX] {
        let mut w = World::new();
        w.slow.listen(us(80), 1, 9).unwrap();
        let tuple = FourTuple::new(peer(9), us(80));
        let mut offer = options();
        offer.timestamps = Some(wire::Timestamps { value: 1000, echo });
        w.segment(tuple, SYN, 100, 0, offer, &[]);
        let answer = w.next();
        assert_eq!(answer.options.timestamps.map(|t| t.echo), Some(1000));
        w.now = w.now.plus(ms(30));
        let later = TcpOptions::with_timestamps(1001, answer.options.timestamps.unwrap().value);
        w.segment(tuple, ACK, 101, answer.header.seq.plus(1).0, later, &[]);
        let Event::Incoming { pending, .. } = w.event() else { panic!() };
        let owner = w.owner();
        let flow = w.slow.accept(w.now, pending, owner).unwrap();
        assert_eq!(w.edit(flow, |parts| parts.cold.srtt_us), 30_000, "the handshake's round trip");
    }
}
