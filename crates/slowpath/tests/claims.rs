//! Addresses that another station has: asked about before the service is ready, defended afterwards.

use crate::harness::*;
use base::Instant;
use slowpath::{Claim, Count, Event, Taken};
use std::net::{IpAddr, Ipv6Addr};
use wire::{
    ArpPacket, Body, EtherType, EthernetHeader, Icmpv6Message, IpParameters, IpProtocol, MacAddr, Packet,
    RxChecksum, emit_ip,
};

const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x77]);
const ALL_NODES: &str = "ff02::1";

fn own_v6() -> Ipv6Addr {
    "fd00::2".parse().unwrap()
}

fn begin() -> Instant {
    Instant::from_ns(1_000_000_000)
}

fn claim() -> Claim {
    Claim::new(OUR_MAC, vec![ip(2), own_v6().into()], begin())
}

fn arp_frame(packet: &ArpPacket) -> Vec<u8> {
    let mut frame = vec![0; 42];
    let (dst, src) = (MacAddr::BROADCAST, packet.sender_mac);
    EthernetHeader { dst, src, ethertype: EtherType::ARP, vlan: None }.emit(&mut frame).unwrap();
    packet.emit(&mut frame[14..]).unwrap();
    frame
}

fn discovery(from: MacAddr, src: &str, dst: &str, message: &Icmpv6Message<'_>) -> Vec<u8> {
    let (src, dst): (Ipv6Addr, Ipv6Addr) = (src.parse().unwrap(), dst.parse().unwrap());
    let mut frame = vec![0; 200];
    let to = MacAddr([0x33, 0x33, 0, 0, 0, 1]);
    let parameters = IpParameters { hop_limit: 255, ..IpParameters::new(from, to) };
    let len = message.encoded_len();
    let at = emit_ip(&parameters, src.into(), dst.into(), IpProtocol::ICMPV6, len, &mut frame).unwrap();
    let len = message.emit(&src, &dst, &mut frame[at..]).unwrap();
    frame.truncate(at + len);
    frame
}

fn advertisement(link: MacAddr) -> Icmpv6Message<'static> {
    Icmpv6Message::NeighborAdvertisement {
        router: false,
        solicited: false,
        overrides: true,
        target: own_v6(),
        target_link: Some(link),
    }
}

const fn solicitation(target: Ipv6Addr) -> Icmpv6Message<'static> {
    Icmpv6Message::NeighborSolicitation { target, source_link: None }
}

/// The times at which a claim that hears nothing sends, in milliseconds, and when it is over.
#[test]
fn three_probes_go_out_and_the_time_for_answers_ends_within_a_tenth_of_a_second() {
    let mut claim = claim();
    let mut sent = Vec::new();
    let mut now = begin();
    while !claim.is_over(now) {
        sent.extend(claim.poll_frames(now).into_iter().map(|frame| (now.since(begin()), frame)));
        assert!(claim.poll_frames(now).is_empty(), "once");
        now = claim.next_deadline();
    }
    assert_eq!(now.since(begin()), ms(75));
    assert_eq!(sent.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 0, 25, 25, 50, 50].map(ms));
}

/// "The sender IP address field MUST be set to all zeroes" (RFC 5227 section 2.1.1); the solicitation goes from the unspecified address to
/// the solicited-node group (RFC 4862 section 5.4.2).
#[test]
fn probes_say_nothing_of_an_address_that_is_not_ours_yet() {
    let frames = claim().poll_frames(begin());
    let packets: Vec<Packet> =
        frames.iter().map(|frame| Packet::parse(frame, RxChecksum::Verify).unwrap()).collect();
    let Body::Arp(arp) = packets[0].body else { panic!("{packets:?}") };
    assert_eq!((arp.sender_ip.octets(), IpAddr::from(arp.target_ip)), ([0; 4], ip(2)));
    let Body::Icmpv6(discovery) = packets[1].body else { panic!("{packets:?}") };
    assert_eq!(discovery.src, IpAddr::from(Ipv6Addr::UNSPECIFIED));
    assert_eq!(discovery.dst, "ff02::1:ff00:2".parse::<IpAddr>().unwrap());
    assert!(
        packets.iter().all(|packet| packet.ethernet.dst.is_multicast() && packet.ethernet.src == OUR_MAC)
    );
}

#[test]
fn an_address_that_answers_or_is_probed_by_another_station_is_taken() {
    let claim = claim();
    let taken = |addr| Err(Taken { addr, by: OTHER });
    let ask = |mac, from: [u8; 4], about: [u8; 4]| ArpPacket::request(mac, from.into(), about.into());
    let answer = ask(OUR_MAC, [0; 4], [10, 0, 0, 2]).reply(OTHER);
    assert_eq!(claim.handle_frame(&arp_frame(&answer)), taken(ip(2)));
    // It says something to another host; it probes at the same time.
    assert_eq!(claim.handle_frame(&arp_frame(&ask(OTHER, [10, 0, 0, 2], [10, 0, 0, 9]))), taken(ip(2)));
    assert_eq!(claim.handle_frame(&arp_frame(&ask(OTHER, [0; 4], [10, 0, 0, 2]))), taken(ip(2)));
    let frame = discovery(OTHER, "fd00::2", ALL_NODES, &advertisement(OTHER));
    assert_eq!(claim.handle_frame(&frame), taken(own_v6().into()));
    let frame = discovery(OTHER, "::", "ff02::1:ff00:2", &solicitation(own_v6()));
    assert_eq!(claim.handle_frame(&frame), taken(own_v6().into()));
}

#[test]
fn questions_from_neighbours_echoes_of_our_own_and_other_addresses_are_no_answer() {
    let claim = claim();
    let ask =
        |mac, from: [u8; 4], about: [u8; 4]| arp_frame(&ArpPacket::request(mac, from.into(), about.into()));
    assert_eq!(claim.handle_frame(&ask(OTHER, [10, 0, 0, 1], [10, 0, 0, 2])), Ok(()));
    assert_eq!(claim.handle_frame(&ask(OTHER, [0; 4], [10, 0, 0, 3])), Ok(()));
    assert_eq!(claim.handle_frame(&ask(OUR_MAC, [0; 4], [10, 0, 0, 2])), Ok(()));
    let frame = discovery(OTHER, "fd00::1", "ff02::1:ff00:2", &solicitation(own_v6()));
    assert_eq!(claim.handle_frame(&frame), Ok(()));
    let frame = discovery(OUR_MAC, "::", "ff02::1:ff00:2", &solicitation(own_v6()));
    assert_eq!(claim.handle_frame(&frame), Ok(()));
    assert_eq!(claim.handle_frame(&[0; 20]), Ok(()));
}

#[test]
fn without_addresses_nothing_is_asked() {
    let mut claim = Claim::new(OUR_MAC, Vec::new(), begin());
    assert!(claim.is_over(begin()) && claim.poll_frames(begin()).is_empty());
}

fn conflicts(w: &mut World) -> usize {
    std::iter::from_fn(|| w.slow.poll_event())
        .filter(|e| matches!(e, Event::AddressConflict { by: OTHER, .. }))
        .count()
}

/// RFC 5227 section 2.4 (c): the address is kept, and defended by one announcement in ten seconds.
#[test]
fn an_address_is_defended_once_in_ten_seconds_and_kept() {
    let mut w = World::new();
    let claimed = ArpPacket::request(OTHER, [10, 0, 0, 2].into(), [10, 0, 0, 9].into());
    w.arp(&claimed);
    let Body::Arp(announcement) = w.next_body() else { panic!() };
    assert_eq!(
        (announcement.sender_ip, announcement.target_ip),
        ([10, 0, 0, 2].into(), [10, 0, 0, 2].into())
    );
    assert_eq!(announcement.sender_mac, OUR_MAC);
    w.pass(secs(9));
    w.arp(&claimed);
    w.quiet();
    assert_eq!((conflicts(&mut w), w.count(Count::AddressConflicts)), (1, 2));
    w.pass(secs(1));
    w.arp(&claimed);
    assert_eq!((w.sent.len(), conflicts(&mut w)), (1, 1));
    assert!(w.slow.routes().owns(ip(2)) && w.slow.neighbours().all(|(_, mac)| mac != Some(OTHER)));
}

#[test]
fn addresses_of_both_families_are_defended_each_for_itself() {
    let mut w = World::new();
    w.raw(&discovery(OTHER, "fd00::2", ALL_NODES, &advertisement(OTHER)));
    w.arp(&ArpPacket::request(OTHER, [10, 0, 0, 2].into(), [10, 0, 0, 2].into()));
    assert_eq!((w.sent.len(), conflicts(&mut w)), (2, 2));
    // What comes back of our own says nothing.
    w.arp(&ArpPacket::request(OUR_MAC, [10, 0, 0, 2].into(), [10, 0, 0, 2].into()));
    assert_eq!((conflicts(&mut w), w.count(Count::AddressConflicts)), (0, 2));
}
