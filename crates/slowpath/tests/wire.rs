//! The link and its hostility: ARP, ICMP, floods, malformed frames.

use crate::harness::*;
use proptest::prelude::*;
use slowpath::{Count, Event, errno};
use wire::{
    ArpOperation, ArpPacket, Body, DropReason, Endpoint, FourTuple, Icmpv4Message, IpParameters, IpProtocol,
    MacAddr, TcpOptions, code, emit_ip,
};

const MOVED: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x77]);

fn icmp(message: &Icmpv4Message<'_>) -> Vec<u8> {
    let mut bytes = vec![0; 2000];
    let len = message.encoded_len();
    let parameters = IpParameters::new(PEER_MAC, OUR_MAC);
    let at = emit_ip(&parameters, ip(1), ip(2), IpProtocol::ICMP, len, &mut bytes).unwrap();
    let len = message.emit(&mut bytes[at..]).unwrap();
    bytes.truncate(at + len);
    bytes
}

fn unreachable(code: u8, next_hop_mtu: u16, quoted: &[u8]) -> Vec<u8> {
    icmp(&Icmpv4Message::DestinationUnreachable { code, next_hop_mtu, quoted: &quoted[14..] })
}

#[test]
fn a_syn_waits_for_its_neighbour() {
    let mut w = World::stranger(|_, _| {});
    w.connect(80);
    let Body::Arp(request) = w.next_body() else { panic!() };
    assert_eq!((request.operation, request.target_ip.octets()), (ArpOperation::Request, [10, 0, 0, 1]));
    w.quiet();
    w.connect(81);
    w.quiet();
    w.arp(&request.reply(PEER_MAC));
    let (one, two) = (w.next(), w.next());
    assert_eq!((one.header.dst_port, two.header.dst_port), (80, 81));
}

#[test]
fn beyond_the_link_the_gateway_is_asked() {
    let mut w = World::stranger(|_, _| {});
    let owner = w.owner();
    let remote = Endpoint::new([192, 0, 2, 1].into(), 80);
    let what =
        slowpath::Connect { token: 1, local: None, remote, owner, options: slowpath::FlowOptions::default() };
    w.slow.connect(w.now, &what).unwrap();
    w.settle();
    let Body::Arp(request) = w.next_body() else { panic!() };
    assert_eq!(request.target_ip.octets(), [10, 0, 0, 254]);
}

#[test]
fn nobody_answers() {
    let mut w = World::stranger(|_, _| {});
    let (_, owner) = w.connect(80);
    w.pass(secs(4));
    assert!(matches!(w.event(), Event::ConnectFailed { errno: errno::EHOSTUNREACH, .. }));
    assert_eq!(w.errno(owner), u32::from(errno::EHOSTUNREACH));
    assert_eq!(w.sent.len(), 3, "three questions");
}

#[test]
fn we_answer_for_ourselves_only() {
    let mut w = World::stranger(|_, _| {});
    w.arp(&ArpPacket::request(PEER_MAC, [10, 0, 0, 1].into(), [10, 0, 0, 3].into()));
    w.quiet();
    w.arp(&ArpPacket::request(PEER_MAC, [10, 0, 0, 1].into(), [10, 0, 0, 2].into()));
    let Body::Arp(reply) = w.next_body() else { panic!() };
    assert_eq!(
        (reply.operation, reply.sender_mac, reply.target_mac),
        (ArpOperation::Reply, OUR_MAC, PEER_MAC)
    );
    w.slow.announce(0);
    w.settle();
    let Body::Arp(gratuitous) = w.next_body() else { panic!() };
    assert_eq!(gratuitous.sender_ip, gratuitous.target_ip);
}

#[test]
fn a_neighbour_that_moves_takes_its_flows_along() {
    let mut w = World::new();
    let (flow, _, _) = w.accepted(9);
    w.pass(secs(2));
    w.arp(&ArpPacket::request(MOVED, [10, 0, 0, 1].into(), [10, 0, 0, 1].into()));
    assert_eq!(w.edit(flow, |parts| parts.tx.peer_mac), MOVED.0);
}

#[test]
fn nobody_takes_our_own_address() {
    let mut w = World::new();
    w.arp(&ArpPacket::request(MOVED, [10, 0, 0, 2].into(), [10, 0, 0, 2].into()));
    assert!(w.slow.neighbours().all(|(_, mac)| mac != Some(MOVED)));
}

#[test]
fn echo_is_answered() {
    let mut w = World::new();
    w.raw(&icmp(&Icmpv4Message::EchoRequest { id: 1, seq: 2, payload: b"anybody there" }));
    let frame = w.sent.front().expect("an answer").clone();
    let Body::Icmpv4(ip) = w.next_body() else { panic!() };
    let reply = Icmpv4Message::parse(ip.payload.of(&frame)).unwrap();
    assert_eq!(reply, Icmpv4Message::EchoReply { id: 1, seq: 2, payload: b"anybody there" });
}

#[test]
fn icmp_errors_fail_a_connect_when_they_quote_its_syn() {
    for (code, errno) in [
        (code::PORT_UNREACHABLE, errno::ECONNREFUSED),
        (code::HOST_UNREACHABLE, errno::EHOSTUNREACH),
        (code::NETWORK_UNREACHABLE, errno::ENETUNREACH),
    ] {
        let mut w = World::new();
        let (_, owner) = w.connect(80);
        let syn = w.sent.pop_front().unwrap();
        let mut forged = syn.clone();
        forged[14 + 20 + 4] ^= 1;
        w.raw(&unreachable(code, 0, &forged));
        assert!(w.slow.poll_event().is_none());
        assert_eq!(w.count(Count::StrayIcmp), 1);
        w.raw(&unreachable(code, 0, &syn));
        assert!(matches!(w.event(), Event::ConnectFailed { .. }));
        assert_eq!(w.errno(owner), u32::from(errno));
    }
}

#[test]
fn fragmentation_needed_lowers_the_segment_size() {
    let mut w = World::new();
    let (flow, _, una) = w.accepted(9);
    w.edit(flow, |parts| {
        parts.tx.mss = 1460;
        parts.tx.snd_max = parts.tx.snd_max.plus(3000);
        parts.tx.snd_nxt = parts.tx.snd_max;
    });
    let ours = FourTuple::new(us(80), peer(9));
    let quote = |seq| frame(ours, ACK, seq, 101, TcpOptions::NONE, &[]);
    w.raw(&unreachable(code::FRAGMENTATION_NEEDED, 1400, &quote(una.wrapping_sub(1))));
    assert_eq!(w.edit(flow, |parts| parts.tx.mss), 1460);
    w.raw(&unreachable(code::FRAGMENTATION_NEEDED, 1400, &quote(una)));
    assert_eq!(w.edit(flow, |parts| (parts.tx.mss, parts.tx.snd_nxt.0)), (1360, una));
    assert_eq!(w.orders.pop_front(), Some(Order::Transmit(flow)));
    // A forger cannot make segments tiny, nor larger again.
    w.raw(&unreachable(code::FRAGMENTATION_NEEDED, 68, &quote(una)));
    w.raw(&unreachable(code::FRAGMENTATION_NEEDED, 9000, &quote(una)));
    assert_eq!(w.edit(flow, |parts| parts.tx.mss), 512);
}

#[test]
fn a_zero_length_option_in_a_syn_is_a_counted_drop() {
    let mut w = World::new();
    w.slow.listen(us(80), 1, 5).unwrap();
    let tuple = FourTuple::new(peer(9), us(80));
    let mut bytes = frame(tuple, SYN, 1, 0, options(), &[]);
    bytes[14 + 20 + 20 + 1] = 0;
    w.raw(&bytes);
    w.quiet();
    assert_eq!(w.slow.counters().dropped(DropReason::MalformedOption), 1);
}

#[test]
fn martians_and_foreigners_are_counted() {
    let mut w = World::new();
    for (src, dst, reason) in [
        (ip(2), ip(2), DropReason::LandAttack),
        (ip(255), ip(2), DropReason::MartianSource),
        ([127, 0, 0, 1].into(), ip(2), DropReason::LoopbackOnWire),
        (ip(1), ip(3), DropReason::ForeignAddress),
    ] {
        let tuple = FourTuple::new(Endpoint::new(src, 1), Endpoint::new(dst, 80));
        w.raw(&frame(tuple, SYN, 1, 0, TcpOptions::NONE, &[]));
        assert_eq!(w.slow.counters().dropped(reason), 1, "{reason:?}");
    }
    w.quiet();
}

#[test]
fn tcp_to_a_group_or_from_one_is_not_answered() {
    let mut w = World::new();
    let plain = frame(FourTuple::new(peer(9), us(80)), ACK, 1, 1, TcpOptions::NONE, &[]);
    let mut w_frame = |at: usize, mac: MacAddr| {
        let mut bytes = plain.clone();
        bytes[at..at + 6].copy_from_slice(&mac.0);
        w.raw(&bytes);
        w.quiet();
    };
    w_frame(0, MacAddr::BROADCAST);
    w_frame(0, MOVED);
    w_frame(6, MacAddr::BROADCAST);
    let counters = w.slow.counters();
    let reasons = [DropReason::MartianDestination, DropReason::ForeignMac, DropReason::MartianSource];
    assert_eq!(reasons.map(|reason| counters.dropped(reason)), [1, 1, 1]);
}

#[test]
fn in_all_half_open_connections_are_bounded_too() {
    let mut w = World::with(|config, _| {
        config.half_open_max = 10;
        config.syn_cookies = slowpath::SynCookies::Never;
    });
    w.slow.listen(us(80), 1, 50).unwrap();
    w.slow.listen(us(81), 2, 50).unwrap();
    for port in 0..20 {
        w.peer_sends(1000 + port, 80, SYN, 1, 0);
    }
    w.peer_sends(5000, 81, SYN, 1, 0);
    assert_eq!((w.slow.sizes()[0], w.count(Count::HalfOpenFull)), (10, 11));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any segments to a listener, an opening and a connection, in any order: no panic, and bounded state.
    #[test]
    fn any_segments_do_no_harm(
        segments in proptest::collection::vec(
            (0u8..4, 0u16..0x200, -3i32..4, -3i32..4, 0usize..3, 0u64..3000),
            1..120,
        ),
    ) {
        let mut w = World::with(|config, _| config.half_open_per_listener = 8);
        let (_, _, snd_nxt) = w.accepted(9);
        let (local, _) = w.connect(80);
        for (to, bits, seq, ack, len, wait) in segments {
            let flags = wire::TcpFlags::from_bits(bits);
            let tuple = match to {
                0 => FourTuple::new(peer(9), us(80)),
                1 => FourTuple::new(peer(80), local),
                2 => FourTuple::new(peer(10), us(80)),
                _ => FourTuple::new(peer(11), us(4)),
            };
            let (seq, ack) = (101i32.wrapping_add(seq) as u32, snd_nxt.wrapping_add(ack as u32));
            w.segment(tuple, flags, seq, ack, TcpOptions::NONE, &[0; 8][..len]);
            w.pass(ms(wait));
            while let Some(event) = w.slow.poll_event() {
                if let Event::Incoming { pending, .. } = event {
                    w.slow.refuse(w.now, pending);
                }
            }
            w.sent.clear();
        }
        prop_assert!(w.slow.sizes()[0] <= 8);
    }

    /// Any bytes as a frame.
    #[test]
    fn any_frame_does_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u8..4) {
        let mut w = World::new();
        let mut bytes = bytes;
        if bytes.len() > 14 {
            let ethertype = [[8, 0], [8, 6], [0x86, 0xDD], [0x81, 0]][usize::from(kind)];
            bytes[12..14].copy_from_slice(&ethertype);
        }
        w.raw(&bytes);
    }
}
