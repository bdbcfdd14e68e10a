extern crate std;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::vec::Vec;

use base::SeqNumber;

use super::{Body, Packet, RxChecksum};
use crate::{
    ArpPacket, DropReason, EtherType, EthernetHeader, FourTuple, Icmpv4Message, Icmpv6Message, IpParameters,
    IpProtocol, Ipv6Header, MacAddr, TcpFlags, TcpHeader, TcpOptions, TxChecksum, VlanTag, emit_ip, emit_tcp,
    tcp_headers_len,
};

const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const THEIRS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const V6_A: Ipv6Addr = Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, 1);
const V6_B: Ipv6Addr = Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, 2);

fn v4() -> FourTuple {
    FourTuple { src: end("10.0.0.1:40000"), dst: end("10.0.0.2:80") }
}

fn v6() -> FourTuple {
    FourTuple { src: end("[fe80::1]:40000"), dst: end("[fe80::2]:80") }
}

fn end(text: &str) -> crate::Endpoint {
    text.parse::<core::net::SocketAddr>().expect("an endpoint").into()
}

fn header() -> TcpHeader {
    TcpHeader {
        src_port: 40000,
        dst_port: 80,
        seq: SeqNumber(0xFFFF_FFF0),
        ack: SeqNumber(77),
        flags: TcpFlags::ACK | TcpFlags::PSH | TcpFlags::ECE,
        window: 1024,
        urgent: 0,
    }
}

fn tcp_frame(parameters: &IpParameters, tuple: &FourTuple, payload: &[u8], tx: TxChecksum) -> Vec<u8> {
    let options = TcpOptions::with_timestamps(5, 6);
    let start = tcp_headers_len(parameters, tuple, &options);
    let mut frame = std::vec![0xA5; start + payload.len()];
    frame[start..].copy_from_slice(payload);
    let len = emit_tcp(parameters, tuple, &header(), &options, payload.len(), tx, &mut frame).expect("fits");
    assert_eq!(len, start);
    frame
}

fn parameters() -> IpParameters {
    IpParameters::new(THEIRS, OURS)
}

#[test]
fn tcp_frames_of_both_families_come_back_with_and_without_tag_and_padding() {
    for tuple in [v4(), v6()] {
        for vlan in [None, Some(VlanTag::new(42, 3))] {
            let mut frame =
                tcp_frame(&IpParameters { vlan, ..parameters() }, &tuple, b"hello", TxChecksum::Full);
            frame.extend_from_slice(&[0xEE; 11]);
            let packet = Packet::parse(&frame, RxChecksum::Verify).expect("a good frame");
            let tcp = packet.tcp().expect("TCP");
            assert_eq!(packet.ethernet.vlan, vlan);
            assert_eq!((packet.ethernet.src, packet.ethernet.dst), (THEIRS, OURS));
            assert_eq!(tcp.tuple(), tuple);
            assert_eq!(tcp.header, header());
            assert_eq!(tcp.options, TcpOptions::with_timestamps(5, 6));
            assert_eq!(tcp.payload.of(&frame), b"hello");
        }
    }
}

#[test]
fn partial_checksum_passes_only_where_the_port_says_so() {
    let frame = tcp_frame(&parameters(), &v4(), b"hello", TxChecksum::Partial);
    assert_eq!(Packet::parse(&frame, RxChecksum::Verify), Err(DropReason::BadChecksum));
    assert!(Packet::parse(&frame, RxChecksum::Partial).is_ok());
    assert!(Packet::parse(&frame, RxChecksum::Verified).is_ok());
}

#[test]
fn every_single_bit_error_in_ip_and_tcp_is_seen() {
    for tuple in [v4(), v6()] {
        let good = tcp_frame(&parameters(), &tuple, b"payload", TxChecksum::Full);
        // IPv6 has no header checksum: only its addresses are covered, by TCP's pseudo header.
        let from = if tuple.src.addr.is_ipv4() { 14 } else { 22 };
        for bit in from * 8..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Packet::parse(&bad, RxChecksum::Verify).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn every_cut_is_refused() {
    for tuple in [v4(), v6()] {
        let good = tcp_frame(&parameters(), &tuple, b"payload", TxChecksum::Full);
        for len in 0..good.len() {
            assert_eq!(Packet::parse(&good[..len], RxChecksum::Verify), Err(DropReason::Truncated), "{len}");
        }
    }
}

#[test]
fn drops_are_named() {
    let good = tcp_frame(&parameters(), &v4(), b"x", TxChecksum::Full);
    // Offset of the byte to change, its new value, the expected reason; the IPv4 checksum is corrected afterwards.
    let table = [
        (14, 0x44, DropReason::BadLength),
        (14, 0x65, DropReason::BadVersion),
        (17, 19, DropReason::BadLength),
        (20, 0x20, DropReason::Fragment),
        (21, 0x01, DropReason::Fragment),
        (24, 0x00, DropReason::BadIpChecksum),
        (46, 0x40, DropReason::BadLength),
        (46, 0xF0, DropReason::BadLength),
        (54, 0x02, DropReason::MalformedOption),
    ];
    for (at, value, reason) in table {
        let mut bad = good.clone();
        bad[at] = value;
        if reason != DropReason::BadIpChecksum {
            bad[24..26].fill(0);
            let sum = crate::checksum::of(&bad[14..34]);
            bad[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        assert_eq!(Packet::parse(&bad, RxChecksum::Verified), Err(reason), "byte {at}");
    }
    let huge = std::vec![0; base::limits::FRAME_MAX + 1];
    assert_eq!(Packet::parse(&huge, RxChecksum::Verify), Err(DropReason::Oversized));
}

#[test]
fn arp_is_found() {
    let request = ArpPacket::request(THEIRS, Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let ethernet =
        EthernetHeader { dst: MacAddr::BROADCAST, src: THEIRS, ethertype: EtherType::ARP, vlan: None };
    let mut frame = [0; 60];
    let start = ethernet.emit(&mut frame).expect("fits");
    request.emit(&mut frame[start..]).expect("fits");
    let packet = Packet::parse(&frame, RxChecksum::Verify).expect("a good frame");
    assert_eq!(packet.body, Body::Arp(request));
    let reply = request.reply(OURS);
    assert_eq!((reply.sender_mac, reply.target_mac), (OURS, THEIRS));
    assert_eq!((reply.sender_ip, reply.target_ip), (request.target_ip, request.sender_ip));
    frame[21] = 3;
    assert_eq!(Packet::parse(&frame, RxChecksum::Verify), Err(DropReason::MalformedArp));
}

#[test]
fn icmp_and_other_protocols_are_told_apart() {
    let (src, dst) = (v4().src.addr, v4().dst.addr);
    let echo = Icmpv4Message::EchoRequest { id: 1, seq: 2, payload: b"ping" };
    let mut frame = [0; 64];
    let start =
        emit_ip(&parameters(), src, dst, IpProtocol::ICMP, echo.encoded_len(), &mut frame).expect("fits");
    echo.emit(&mut frame[start..]).expect("fits");
    let packet = Packet::parse(&frame, RxChecksum::Verify).expect("a good frame");
    let Body::Icmpv4(ip) = packet.body else { panic!("{packet:?}") };
    assert_eq!(Icmpv4Message::parse(ip.payload.of(&frame)), Ok(echo));
    frame[start + 8] ^= 1;
    assert_eq!(Packet::parse(&frame, RxChecksum::Verify), Err(DropReason::BadChecksum));

    emit_ip(&parameters(), src, dst, IpProtocol::UDP, 8, &mut frame).expect("fits");
    let packet = Packet::parse(&frame, RxChecksum::Verify).expect("a good frame");
    assert!(matches!(packet.body, Body::OtherIp(ip) if ip.protocol == IpProtocol::UDP));
}

#[test]
fn neighbour_discovery_is_believed_only_from_the_link() {
    let ask = Icmpv6Message::NeighborSolicitation { target: V6_B, source_link: Some(THEIRS) };
    for (hop_limit, expected) in [(255, Ok(())), (64, Err(DropReason::NeighborHopLimit))] {
        let mut frame = [0; 128];
        let parameters = IpParameters { hop_limit, ..parameters() };
        let (src, dst) = (IpAddr::V6(V6_A), IpAddr::V6(V6_B));
        let start =
            emit_ip(&parameters, src, dst, IpProtocol::ICMPV6, ask.encoded_len(), &mut frame).expect("fits");
        ask.emit(&V6_A, &V6_B, &mut frame[start..]).expect("fits");
        assert_eq!(Packet::parse(&frame, RxChecksum::Verify).map(|_| ()), expected);
    }
}

#[test]
fn tcp_is_found_behind_ipv6_extensions() {
    let plain = tcp_frame(&parameters(), &v6(), b"deep", TxChecksum::Full);
    let (head, segment) = plain.split_at(EthernetHeader::LEN + Ipv6Header::LEN);
    let mut frame = head.to_vec();
    // Hop-by-hop with a PadN of 4, then destination options with six Pad1: 8 bytes each.
    frame.extend_from_slice(&[60, 0, 1, 4, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    frame.extend_from_slice(segment);
    frame[18..20].copy_from_slice(&(16 + segment.len() as u16).to_be_bytes());
    frame[20] = IpProtocol::HOP_BY_HOP.0;
    let packet = Packet::parse(&frame, RxChecksum::Verify).expect("a good frame");
    let tcp = packet.tcp().expect("TCP");
    assert_eq!((tcp.tuple(), tcp.payload.of(&frame)), (v6(), &b"deep"[..]));
}
