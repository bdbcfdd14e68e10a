//! Neighbour discovery (RFC 4861), and ICMPv6.

use crate::harness::*;
use slowpath::{Connect, Count, Event, FlowOptions, errno};
use std::net::Ipv6Addr;
use wire::{
    Body, DropReason, Endpoint, Icmpv6Message, IpParameters, IpProtocol, MacAddr, Packet, RxChecksum, emit_ip,
};

const OURS: Ipv6Addr = Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, 2);
const PEER: Ipv6Addr = Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, 1);
const OUR_GROUP: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 1, 0xFF00, 2);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);
const MOVED: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x77]);

fn icmp(from: MacAddr, ends: (Ipv6Addr, Ipv6Addr), hop_limit: u8, message: &Icmpv6Message<'_>) -> Vec<u8> {
    let (src, dst) = ends;
    let last = dst.octets();
    let group = MacAddr([0x33, 0x33, last[12], last[13], last[14], last[15]]);
    let to = if dst.is_multicast() { group } else { OUR_MAC };
    let mut bytes = vec![0; 2000];
    let parameters = IpParameters { hop_limit, ..IpParameters::new(from, to) };
    let len = message.encoded_len();
    let at = emit_ip(&parameters, src.into(), dst.into(), IpProtocol::ICMPV6, len, &mut bytes).unwrap();
    let len = message.emit(&src, &dst, &mut bytes[at..]).unwrap();
    bytes.truncate(at + len);
    bytes
}

/// The next message sent: to whom, by which Ethernet address, with which hop limit, and what.
fn next<R>(w: &mut World, see: impl FnOnce(&Packet, Ipv6Addr, Icmpv6Message<'_>) -> R) -> R {
    let frame = w.sent.pop_front().expect("a frame was sent");
    let packet = Packet::parse(&frame, RxChecksum::Verify).unwrap();
    let Body::Icmpv6(ip) = packet.body else { panic!("{packet:?}") };
    let (std::net::IpAddr::V6(src), std::net::IpAddr::V6(dst)) = (ip.src, ip.dst) else { panic!() };
    let message = Icmpv6Message::parse(&src, &dst, ip.payload.of(&frame)).unwrap();
    assert_eq!(ip.hop_limit == 255, message.is_neighbor_discovery(), "RFC 4861 section 4.3");
    see(&packet, dst, message)
}

fn solicit(w: &mut World, src: Ipv6Addr, dst: Ipv6Addr, link: Option<MacAddr>) {
    let message = Icmpv6Message::NeighborSolicitation { target: OURS, source_link: link };
    w.raw(&icmp(PEER_MAC, (src, dst), 255, &message));
}

fn advertise(w: &mut World, mac: MacAddr, overrides: bool) {
    let message = Icmpv6Message::NeighborAdvertisement {
        router: false,
        solicited: true,
        overrides,
        target: PEER,
        target_link: Some(mac),
    };
    w.raw(&icmp(mac, (PEER, OURS), 255, &message));
}

fn connect(w: &mut World) -> slowpath::Owner {
    let owner = w.owner();
    let remote = Endpoint::new(PEER.into(), 80);
    let what = Connect { token: 7, local: None, remote, owner, options: FlowOptions::default() };
    w.slow.connect(w.now, &what).unwrap();
    w.settle();
    owner
}

fn known(w: &World) -> Option<MacAddr> {
    w.slow.neighbours().find(|(addr, _)| *addr == PEER).and_then(|(_, mac)| mac)
}

#[test]
fn a_syn_waits_for_the_answer_to_a_solicitation_of_the_group() {
    let mut w = World::stranger(|_, _| {});
    connect(&mut w);
    next(&mut w, |packet, dst, message| {
        assert_eq!(dst, Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 1, 0xFF00, 1));
        assert_eq!(packet.ethernet.dst, MacAddr([0x33, 0x33, 0xFF, 0, 0, 1]));
        assert_eq!(message, Icmpv6Message::NeighborSolicitation { target: PEER, source_link: Some(OUR_MAC) });
    });
    w.quiet();
    advertise(&mut w, PEER_MAC, true);
    let frame = w.sent.front().unwrap();
    assert_eq!(frame[..6], PEER_MAC.0);
    assert_eq!(w.next().header.flags, SYN);
}

#[test]
fn nobody_answers_three_solicitations() {
    let mut w = World::stranger(|_, _| {});
    let owner = connect(&mut w);
    w.pass(secs(4));
    assert!(matches!(w.event(), Event::ConnectFailed { errno: errno::EHOSTUNREACH, .. }));
    assert_eq!((w.errno(owner), w.sent.len()), (u32::from(errno::EHOSTUNREACH), 3));
}

#[test]
fn we_answer_solicitations_for_ourselves_with_or_without_their_option() {
    for link in [Some(PEER_MAC), None] {
        let mut w = World::stranger(|_, _| {});
        solicit(&mut w, PEER, OUR_GROUP, link);
        next(&mut w, |packet, dst, message| {
            assert_eq!((packet.ethernet.dst, dst), (PEER_MAC, PEER));
            let Icmpv6Message::NeighborAdvertisement { solicited, target, target_link, .. } = message else {
                panic!()
            };
            assert!(solicited && target == OURS && target_link == Some(OUR_MAC));
        });
        assert_eq!(known(&w), link, "who asks with its address will be spoken to");
    }
    let mut w = World::stranger(|_, _| {});
    let other = Icmpv6Message::NeighborSolicitation { target: PEER, source_link: Some(PEER_MAC) };
    w.raw(&icmp(PEER_MAC, (PEER, OUR_GROUP), 255, &other));
    w.quiet();
}

/// "If the source of the solicitation is the unspecified address, the node MUST set the Solicited flag to zero and multicast
/// the advertisement to the all-nodes address" (RFC 4861 section 7.2.4).
#[test]
fn who_tries_whether_our_address_is_free_is_told_that_it_is_not() {
    let mut w = World::stranger(|_, _| {});
    solicit(&mut w, Ipv6Addr::UNSPECIFIED, OUR_GROUP, None);
    next(&mut w, |packet, dst, message| {
        assert_eq!((packet.ethernet.dst, dst), (MacAddr([0x33, 0x33, 0, 0, 0, 1]), ALL_NODES));
        assert!(matches!(
            message,
            Icmpv6Message::NeighborAdvertisement { solicited: false, target: OURS, .. }
        ));
    });
    // Section 7.1.1: not with an option, and not to another group.
    solicit(&mut w, Ipv6Addr::UNSPECIFIED, OUR_GROUP, Some(MOVED));
    solicit(&mut w, Ipv6Addr::UNSPECIFIED, ALL_NODES, None);
    w.quiet();
    assert_eq!(w.slow.neighbours().count(), 0);
}

#[test]
fn what_a_router_has_forwarded_is_not_believed() {
    let mut w = World::stranger(|_, _| {});
    let message = Icmpv6Message::NeighborSolicitation { target: OURS, source_link: Some(MOVED) };
    w.raw(&icmp(PEER_MAC, (PEER, OURS), 254, &message));
    w.quiet();
    assert_eq!((known(&w), w.slow.counters().dropped(DropReason::NeighborHopLimit)), (None, 1));
}

#[test]
fn strangers_beyond_the_link_are_no_neighbours() {
    let mut w = World::stranger(|_, _| {});
    solicit(&mut w, "2001:db8::1".parse().unwrap(), OURS, Some(MOVED));
    assert_eq!(w.slow.neighbours().count(), 0);
}

/// RFC 4861 section 7.2.5.
#[test]
fn only_an_overriding_advertisement_moves_a_neighbour() {
    let mut w = World::stranger(|_, _| {});
    advertise(&mut w, PEER_MAC, true);
    assert_eq!(known(&w), None, "nobody asked");
    solicit(&mut w, PEER, OURS, Some(PEER_MAC));
    w.sent.clear();
    w.pass(secs(2));
    advertise(&mut w, MOVED, false);
    assert_eq!(known(&w), Some(PEER_MAC));
    next(&mut w, |packet, dst, message| {
        assert_eq!((packet.ethernet.dst, dst), (PEER_MAC, PEER), "it is asked at its old place");
        assert!(matches!(message, Icmpv6Message::NeighborSolicitation { target: PEER, .. }));
    });
    advertise(&mut w, MOVED, true);
    assert_eq!(known(&w), Some(MOVED));
}

#[test]
fn our_addresses_are_announced() {
    let mut w = World::stranger(|_, _| {});
    w.slow.announce(0);
    w.settle();
    assert!(matches!(w.next_body(), Body::Arp(_)));
    next(&mut w, |_, dst, message| {
        assert_eq!(dst, ALL_NODES);
        assert!(matches!(
            message,
            Icmpv6Message::NeighborAdvertisement { solicited: false, target: OURS, .. }
        ));
    });
}

#[test]
fn echo_is_answered_to_us_and_not_to_groups() {
    let mut w = World::stranger(|_, _| {});
    let request = Icmpv6Message::EchoRequest { id: 1, seq: 2, payload: b"anybody there" };
    w.raw(&icmp(PEER_MAC, (PEER, OURS), 64, &request));
    next(&mut w, |packet, dst, message| {
        assert_eq!((packet.ethernet.dst, dst), (PEER_MAC, PEER));
        assert_eq!(message, Icmpv6Message::EchoReply { id: 1, seq: 2, payload: b"anybody there" });
    });
    w.raw(&icmp(PEER_MAC, (PEER, ALL_NODES), 64, &request));
    w.quiet();
    assert_eq!(w.count(Count::Echoes), 1);
}

/// RFC 4443 section 3.1, and Linux's errors for it.
#[test]
fn icmpv6_errors_fail_a_connect_when_they_quote_its_syn() {
    for (code, errno) in [(0, errno::ENETUNREACH), (3, errno::EHOSTUNREACH), (4, errno::ECONNREFUSED)] {
        let mut w = World::stranger(|_, _| {});
        solicit(&mut w, PEER, OURS, Some(PEER_MAC));
        w.sent.clear();
        let owner = connect(&mut w);
        let syn = w.sent.pop_front().unwrap();
        let mut forged = syn.clone();
        forged[14 + 40 + 4] ^= 1;
        for (quoted, wanted) in [(&forged, 0), (&syn, u32::from(errno))] {
            let message = Icmpv6Message::DestinationUnreachable { code, quoted: &quoted[14..] };
            w.raw(&icmp(PEER_MAC, (PEER, OURS), 64, &message));
            assert_eq!(w.errno(owner), wanted);
        }
        assert_eq!(w.count(Count::StrayIcmp), 1);
    }
}
