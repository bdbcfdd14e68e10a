//! What is written is read back unchanged, for every header; and no bytes whatever make a parser panic.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base::SeqNumber;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use wire::{
    ArpOperation, ArpPacket, Body, Ecn, Endpoint, EtherType, EthernetHeader, FourTuple, Icmpv4Message,
    Icmpv6Message, IpParameters, IpProtocol, Ipv4Header, Ipv6Header, MacAddr, Packet, QuotedFlow, RxChecksum,
    SackBlock, SackBlocks, TcpFlags, TcpHeader, TcpOptions, Timestamps, TxChecksum, VlanTag,
};

fn mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(MacAddr)
}

fn v4() -> impl Strategy<Value = Ipv4Addr> {
    any::<[u8; 4]>().prop_map(Ipv4Addr::from)
}

fn v6() -> impl Strategy<Value = Ipv6Addr> {
    any::<[u8; 16]>().prop_map(Ipv6Addr::from)
}

fn ecn() -> impl Strategy<Value = Ecn> {
    any::<u8>().prop_map(Ecn::from_bits)
}

fn seq() -> impl Strategy<Value = SeqNumber> {
    any::<u32>().prop_map(SeqNumber)
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..200)
}

fn ethernet() -> impl Strategy<Value = EthernetHeader> {
    let ethertype = any::<u16>().prop_filter("a tag's type is not a payload's", |t| *t != EtherType::VLAN.0);
    (mac(), mac(), ethertype, option::of(any::<u16>().prop_map(VlanTag::from_bits)))
        .prop_map(|(dst, src, t, vlan)| EthernetHeader { dst, src, ethertype: EtherType(t), vlan })
}

fn arp() -> impl Strategy<Value = ArpPacket> {
    (any::<bool>(), mac(), v4(), mac(), v4()).prop_map(
        |(ask, sender_mac, sender_ip, target_mac, target_ip)| {
            let operation = if ask { ArpOperation::Request } else { ArpOperation::Reply };
            ArpPacket { operation, sender_mac, sender_ip, target_mac, target_ip }
        },
    )
}

fn ipv4() -> impl Strategy<Value = Ipv4Header> {
    let lengths = (0u8..=10, 0u16..200);
    let fragments = (any::<u16>(), any::<bool>(), any::<bool>(), 0u16..0x2000);
    (0u8..64, ecn(), lengths, fragments, any::<u8>(), any::<u8>(), v4(), v4()).prop_map(
        |(dscp, ecn, (words, payload), (identification, dont, more, offset), ttl, protocol, src, dst)| {
            Ipv4Header {
                dscp,
                ecn,
                total_len: 20 + u16::from(words) * 4 + payload,
                identification,
                dont_fragment: dont,
                more_fragments: more,
                fragment_offset: offset,
                ttl,
                protocol: IpProtocol(protocol),
                src,
                dst,
                options_len: words * 4,
            }
        },
    )
}

fn ipv6() -> impl Strategy<Value = Ipv6Header> {
    (0u8..64, ecn(), 0u32..1 << 20, 0u16..200, any::<u8>(), any::<u8>(), v6(), v6()).prop_map(
        |(dscp, ecn, flow_label, payload_len, next_header, hop_limit, src, dst)| Ipv6Header {
            dscp,
            ecn,
            flow_label,
            payload_len,
            next_header: IpProtocol(next_header),
            hop_limit,
            src,
            dst,
        },
    )
}

fn tcp_header() -> impl Strategy<Value = TcpHeader> {
    (any::<u16>(), any::<u16>(), seq(), seq(), any::<u16>(), any::<u16>(), any::<u16>()).prop_map(
        |(src_port, dst_port, seq, ack, flags, window, urgent)| TcpHeader {
            src_port,
            dst_port,
            seq,
            ack,
            flags: TcpFlags::from_bits(flags),
            window,
            urgent,
        },
    )
}

fn sack() -> impl Strategy<Value = SackBlocks> {
    vec((seq(), seq()), 0..=SackBlocks::MAX).prop_map(|pairs| {
        let mut blocks = SackBlocks::EMPTY;
        for (left, right) in pairs {
            assert!(blocks.push(SackBlock { left, right }));
        }
        blocks
    })
}

fn tcp_options() -> impl Strategy<Value = TcpOptions> {
    let timestamps = any::<(u32, u32)>().prop_map(|(value, echo)| Timestamps { value, echo });
    (option::of(any::<u16>()), option::of(0u8..=14), any::<bool>(), option::of(timestamps), sack())
        .prop_map(|(mss, window_scale, sack_permitted, timestamps, sack)| TcpOptions {
            mss,
            window_scale,
            sack_permitted,
            timestamps,
            sack,
        })
        .prop_filter("room in the header", |options| options.encoded_len() <= TcpOptions::LEN_MAX)
}

fn tuple() -> impl Strategy<Value = FourTuple> {
    let addresses = prop_oneof![
        (v4(), v4()).prop_map(|(a, b)| (IpAddr::V4(a), IpAddr::V4(b))),
        (v6(), v6()).prop_map(|(a, b)| (IpAddr::V6(a), IpAddr::V6(b))),
    ];
    (addresses, any::<u16>(), any::<u16>())
        .prop_map(|((a, b), p, q)| FourTuple { src: Endpoint::new(a, p), dst: Endpoint::new(b, q) })
}

fn parameters() -> impl Strategy<Value = IpParameters> {
    let vlan = option::of(any::<u16>().prop_map(VlanTag::from_bits));
    let v4 = (any::<u16>(), any::<bool>());
    (mac(), mac(), vlan, 0u8..64, ecn(), any::<u8>(), v4, 0u32..1 << 20).prop_map(
        |(src_mac, dst_mac, vlan, dscp, ecn, hop_limit, (identification, dont_fragment), flow_label)| {
            IpParameters {
                src_mac,
                dst_mac,
                vlan,
                dscp,
                ecn,
                hop_limit,
                identification,
                dont_fragment,
                flow_label,
            }
        },
    )
}

proptest! {
    #[test]
    fn ethernet_round_trips(header in ethernet(), tail in bytes()) {
        let mut buffer = vec![0; header.header_len()];
        prop_assert_eq!(header.emit(&mut buffer), Ok(header.header_len()));
        prop_assert!(header.emit(&mut buffer[1..]).is_err());
        buffer.extend(tail);
        prop_assert_eq!(EthernetHeader::parse(&buffer), Ok(header));
    }

    #[test]
    fn arp_round_trips(packet in arp(), padding in bytes()) {
        let mut buffer = vec![0; ArpPacket::LEN];
        prop_assert_eq!(packet.emit(&mut buffer), Ok(ArpPacket::LEN));
        prop_assert!(packet.emit(&mut buffer[1..]).is_err());
        buffer.extend(padding);
        prop_assert_eq!(ArpPacket::parse(&buffer), Ok(packet));
    }

    #[test]
    fn ipv4_round_trips(header in ipv4(), padding in bytes()) {
        let mut buffer = vec![0xAA; header.total_len as usize];
        prop_assert_eq!(header.emit(&mut buffer), Ok(header.header_len()));
        prop_assert!(header.emit(&mut buffer[..header.header_len() - 1]).is_err());
        header.emit(&mut buffer).unwrap();
        prop_assert!(Ipv4Header::parse(&buffer[..buffer.len() - 1]).is_err());
        buffer.extend(padding);
        prop_assert_eq!(Ipv4Header::parse(&buffer), Ok(header));
    }

    #[test]
    fn ipv6_round_trips(header in ipv6(), padding in bytes()) {
        let mut buffer = vec![0; Ipv6Header::LEN + header.payload_len as usize];
        prop_assert_eq!(header.emit(&mut buffer), Ok(Ipv6Header::LEN));
        prop_assert!(header.emit(&mut buffer[..39]).is_err());
        prop_assert!(Ipv6Header::parse(&buffer[..buffer.len() - 1]).is_err());
        buffer.extend(padding);
        prop_assert_eq!(Ipv6Header::parse(&buffer), Ok(header));
    }

    #[test]
    fn tcp_options_round_trip(options in tcp_options()) {
        let mut buffer = [0xAA; TcpOptions::LEN_MAX];
        let len = options.emit(&mut buffer).unwrap();
        prop_assert_eq!(len % 4, 0);
        prop_assert_eq!(TcpOptions::parse(&buffer[..len]), Ok(options));
        prop_assert!(len == 0 || options.emit(&mut buffer[..len - 1]).is_err());
    }

    #[test]
    fn tcp_round_trips(header in tcp_header(), options in tcp_options(), payload in bytes()) {
        let mut buffer = vec![0xAA; TcpHeader::LEN_MAX];
        let len = header.emit(&options, &mut buffer).unwrap();
        prop_assert!(header.emit(&options, &mut vec![0; len - 1]).is_err());
        buffer.truncate(len);
        buffer.extend(payload);
        prop_assert_eq!(TcpHeader::parse(&buffer), Ok((header, len)));
        prop_assert_eq!(TcpOptions::parse(&buffer[TcpHeader::LEN..len]), Ok(options));
    }

    #[test]
    fn icmpv4_round_trips(kind in 0u8..5, code: u8, a: u16, b: u16, payload in bytes()) {
        let payload = &payload[..];
        let message = match kind {
            0 => Icmpv4Message::EchoRequest { id: a, seq: b, payload },
            1 => Icmpv4Message::EchoReply { id: a, seq: b, payload },
            2 => Icmpv4Message::DestinationUnreachable { code, next_hop_mtu: a, quoted: payload },
            3 => Icmpv4Message::TimeExceeded { code, quoted: payload },
            _ => Icmpv4Message::Other { kind: 200, code, word: u32::from(b), payload },
        };
        let mut buffer = vec![0; message.encoded_len()];
        prop_assert!(message.emit(&mut buffer[1..]).is_err());
        prop_assert_eq!(message.emit(&mut buffer), Ok(buffer.len()));
        prop_assert_eq!(Icmpv4Message::parse(&buffer), Ok(message));
    }

    #[test]
    fn icmpv6_round_trips(
        kind in 0u8..8, code: u8, word: u32, flags: (bool, bool, bool), payload in bytes(), link in option::of(mac()),
        ends in (v6(), v6(), v6().prop_filter("no group", |target| !target.is_multicast())),
    ) {
        let (payload, (src, dst, target)) = (&payload[..], ends);
        let (id, seq) = ((word >> 16) as u16, word as u16);
        let (router, solicited, overrides) = flags;
        let message = match kind {
            0 => Icmpv6Message::EchoRequest { id, seq, payload },
            1 => Icmpv6Message::EchoReply { id, seq, payload },
            2 => Icmpv6Message::PacketTooBig { mtu: word, quoted: payload },
            3 => Icmpv6Message::DestinationUnreachable { code, quoted: payload },
            4 => Icmpv6Message::TimeExceeded { code, quoted: payload },
            5 => Icmpv6Message::NeighborSolicitation { target, source_link: link },
            6 => Icmpv6Message::NeighborAdvertisement { router, solicited, overrides, target, target_link: link },
            _ => Icmpv6Message::Other { kind: 200, code, word, payload },
        };
        let mut buffer = vec![0; message.encoded_len()];
        prop_assert!(message.emit(&src, &dst, &mut buffer[1..]).is_err());
        prop_assert_eq!(message.emit(&src, &dst, &mut buffer), Ok(buffer.len()));
        prop_assert_eq!(Icmpv6Message::parse(&src, &dst, &buffer), Ok(message));
    }

    #[test]
    fn whole_frames_round_trip(
        parameters in parameters(), tuple in tuple(), header in tcp_header(), options in tcp_options(),
        payload in bytes(), padding in vec(any::<u8>(), 0..30),
    ) {
        let start = wire::tcp_headers_len(&parameters, &tuple, &options);
        let mut frame = vec![0xAA; start];
        frame.extend(&payload);
        let mut short = vec![0; frame.len() - 1];
        let emit = |tx, frame: &mut [u8]| {
            wire::emit_tcp(&parameters, &tuple, &header, &options, payload.len(), tx, frame)
        };
        prop_assert!(emit(TxChecksum::Full, &mut short).is_err());
        prop_assert_eq!(emit(TxChecksum::Full, &mut frame), Ok(start));
        frame.extend(padding);
        let packet = Packet::parse(&frame, RxChecksum::Verify).unwrap();
        let tcp = packet.tcp().unwrap();
        prop_assert_eq!(tcp.tuple(), tuple);
        let expected = TcpHeader { src_port: tuple.src.port, dst_port: tuple.dst.port, ..header };
        prop_assert_eq!((tcp.header, tcp.options), (expected, options));
        prop_assert_eq!(tcp.payload.of(&frame), &payload[..]);
        prop_assert_eq!((tcp.ip.ecn, tcp.ip.hop_limit), (parameters.ecn, parameters.hop_limit));
        prop_assert_eq!(packet.ethernet.vlan, parameters.vlan);

        // An ICMP error that quotes the first 28 (48) bytes of the packet leads back to the flow.
        let ip = &frame[packet.ethernet.header_len()..];
        let quoted = match tuple.src.addr {
            IpAddr::V4(_) => QuotedFlow::parse_v4(&ip[..28]),
            IpAddr::V6(_) => QuotedFlow::parse_v6(&ip[..48]),
        };
        prop_assert_eq!(quoted, Ok(QuotedFlow { tuple, seq: header.seq }));
    }

    #[test]
    fn no_bytes_panic(input in vec(any::<u8>(), 0..300), first: u8, src in v6(), dst in v6()) {
        for rx in [RxChecksum::Verify, RxChecksum::Verified, RxChecksum::Partial] {
            let _ = Packet::parse(&input, rx);
        }
        let _ = EthernetHeader::parse(&input);
        let _ = ArpPacket::parse(&input);
        let _ = Ipv4Header::parse(&input);
        let _ = Ipv4Header::parse_unverified(&input);
        let _ = Ipv6Header::parse(&input);
        let _ = wire::skip_extensions(IpProtocol(first), &input);
        let _ = TcpHeader::parse(&input);
        let _ = TcpOptions::parse(&input);
        let _ = wire::timestamps_only(&input);
        let _ = Icmpv4Message::parse(&input);
        let _ = Icmpv6Message::parse(&src, &dst, &input);
        let _ = QuotedFlow::parse_v4(&input);
        let _ = QuotedFlow::parse_v6(&input);
        let _ = wire::checksum::of(&input);
    }

    /// What an ICMPv6 neighbour message says survives reading whatever bytes claim to be one.
    #[test]
    fn icmpv6_with_a_right_checksum_never_panics(mut input in vec(any::<u8>(), 8..100), src in v6(), dst in v6()) {
        input[0] = if input[0] & 1 == 0 { 135 } else { 136 };
        let pseudo = wire::checksum::pseudo_v6(&src, &dst, IpProtocol::ICMPV6, input.len() as u32);
        prop_assert!(wire::checksum::fill(pseudo, &mut input, 2));
        let _ = Icmpv6Message::parse(&src, &dst, &input);
    }

    /// Options that were understood can be written, and then mean the same.
    #[test]
    fn understood_options_are_stable(input in vec(prop_oneof![0u8..12, any::<u8>()], 0..=40)) {
        if let Ok(options) = TcpOptions::parse(&input) {
            let mut buffer = [0; TcpOptions::LEN_MAX];
            if let Ok(len) = options.emit(&mut buffer) {
                prop_assert_eq!(TcpOptions::parse(&buffer[..len]), Ok(options));
            }
        }
    }

    #[test]
    fn spans_stay_inside_the_frame(input in bytes(), version in any::<bool>()) {
        let mut frame = input;
        if frame.len() > 15 {
            frame[12..14].copy_from_slice(if version { &[0x08, 0x00] } else { &[0x86, 0xDD] });
        }
        if let Ok(Packet { body: Body::OtherIp(ip), .. }) = Packet::parse(&frame, RxChecksum::Verified) {
            prop_assert!(ip.payload.start <= ip.payload.end && ip.payload.end as usize <= frame.len());
        }
    }
}
