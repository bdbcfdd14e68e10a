//! Any frame: the first byte says what the port knows of checksums and whether to make them right, so that the fuzzer
//! need not guess them; the rest is the frame.
//!
//! What is read must lie inside the frame, and what is understood must be writable and mean the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::{
    ArpPacket, Body, EthernetHeader, Icmpv4Message, Icmpv6Message, IpProtocol, Ipv4Header, Ipv6Header,
    Packet, QuotedFlow, RxChecksum, Span, Sum, TcpHeader, TcpPacket, checksum,
};

fn assert_inside(span: Span, frame: &[u8]) {
    assert!(span.start <= span.end && span.end as usize <= frame.len());
}

fn assert_tcp(tcp: &TcpPacket, frame: &[u8]) {
    assert_inside(tcp.ip.payload, frame);
    assert_inside(tcp.payload, frame);
    assert_eq!(tcp.payload.end, tcp.ip.payload.end);
    let mut room = [0; TcpHeader::LEN_MAX];
    // A header may have held options that exclude each other in ours: a repeated one, say.
    if let Ok(len) = tcp.header.emit(&tcp.options, &mut room) {
        assert_eq!(TcpHeader::parse(&room), Ok((tcp.header, len)));
    }
    let _ = wire::check_tcp_addresses(tcp.ip.src, tcp.ip.dst);
}

/// Makes the IPv4 header checksum and that of ICMP and ICMPv6 right, where the lengths allow it.
fn repair(frame: &mut [u8]) -> Option<()> {
    let start = EthernetHeader::parse(frame).ok()?.header_len();
    let ip = frame.get_mut(start..)?;
    if ip.first()? >> 4 == 6 {
        let header = Ipv6Header::parse(ip).ok()?;
        let upper = wire::skip_extensions(header.next_header, ip.get(Ipv6Header::LEN..)?).ok()?;
        let end = Ipv6Header::LEN + header.payload_len as usize;
        let message = ip.get_mut(Ipv6Header::LEN + upper.offset..end)?;
        let pseudo = checksum::pseudo_v6(&header.src, &header.dst, IpProtocol::ICMPV6, message.len() as u32);
        return (upper.protocol == IpProtocol::ICMPV6 && checksum::fill(pseudo, message, 2)).then_some(());
    }
    let header = Ipv4Header::parse_unverified(ip).ok()?;
    let _ = checksum::fill(Sum::ZERO, ip.get_mut(..header.header_len())?, 10);
    let message = ip.get_mut(header.header_len()..header.total_len as usize)?;
    (header.protocol == IpProtocol::ICMP && checksum::fill(Sum::ZERO, message, 2)).then_some(())
}

fuzz_target!(|data: &[u8]| {
    let Some((mode, frame)) = data.split_first() else { return };
    let mut frame = frame.to_vec();
    if mode & 0x80 == 0 {
        let _ = repair(&mut frame);
    }
    let frame = &frame[..];
    let rx = match mode % 3 {
        0 => RxChecksum::Verify,
        1 => RxChecksum::Verified,
        _ => RxChecksum::Partial,
    };
    let Ok(packet) = Packet::parse(frame, rx) else { return };
    let mut room = [0; EthernetHeader::LEN_TAGGED];
    let len = packet.ethernet.emit(&mut room).expect("there is room");
    assert_eq!(room[..len], frame[..len]);
    match packet.body {
        Body::Tcp(tcp) => assert_tcp(&tcp, frame),
        Body::Icmpv4(ip) => {
            let bytes = ip.payload.of(frame);
            let message = Icmpv4Message::parse(bytes).expect("Packet::parse read it before");
            if let Icmpv4Message::DestinationUnreachable { quoted, .. } = message {
                let _ = QuotedFlow::parse_v4(quoted);
            }
            let mut room = vec![0; message.encoded_len()];
            message.emit(&mut room).expect("there is room");
            assert_eq!(Icmpv4Message::parse(&room), Ok(message));
        }
        Body::Icmpv6(ip) => {
            let (std::net::IpAddr::V6(src), std::net::IpAddr::V6(dst)) = (ip.src, ip.dst) else {
                unreachable!()
            };
            let message = Icmpv6Message::parse(&src, &dst, ip.payload.of(frame)).expect("read before");
            if let Icmpv6Message::PacketTooBig { quoted, .. } = message {
                let _ = QuotedFlow::parse_v6(quoted);
            }
            let mut room = vec![0; message.encoded_len()];
            message.emit(&src, &dst, &mut room).expect("there is room");
            assert_eq!(Icmpv6Message::parse(&src, &dst, &room), Ok(message));
        }
        Body::Arp(arp) => {
            let mut room = [0; ArpPacket::LEN];
            arp.emit(&mut room).expect("there is room");
            assert_eq!(ArpPacket::parse(&room), Ok(arp));
        }
        Body::OtherIp(ip) => assert_inside(ip.payload, frame),
        Body::Other => {}
    }
});
