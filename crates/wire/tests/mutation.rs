//! Fuzzing that needs no special compiler: good frames, damaged at random from a seed, through every parser.
//!
//! A failure names its seed. Run one seed alone with `WIRE_SEED=<n> cargo test -p towpath-wire --test all mutation::`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base::{Seed, SeqNumber};
use wire::{
    ArpPacket, Body, DropReason, EtherType, EthernetHeader, FourTuple, Icmpv4Message, Icmpv6Message,
    IpParameters, IpProtocol, MacAddr, Packet, QuotedFlow, RxChecksum, SackBlock, Span, TcpFlags, TcpHeader,
    TcpOptions, TxChecksum, VlanTag,
};

/// Frames per run: about a second of one core in the unoptimised profile.
const ROUNDS: u64 = 400_000;

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

fn tuple(v6: bool) -> FourTuple {
    let end = |host: u8, port| {
        let addr = if v6 {
            IpAddr::V6(Ipv6Addr::from([0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]))
        } else {
            IpAddr::V4(Ipv4Addr::new(10, 0, 0, host))
        };
        wire::Endpoint { addr, port }
    };
    FourTuple { src: end(1, 40_000), dst: end(2, 80) }
}

fn tcp(v6: bool, vlan: Option<VlanTag>, options: &TcpOptions, payload: &[u8]) -> Vec<u8> {
    let parameters = IpParameters { vlan, ..IpParameters::new(A, B) };
    let tuple = tuple(v6);
    let start = wire::tcp_headers_len(&parameters, &tuple, options);
    let mut frame = vec![0; start];
    frame.extend_from_slice(payload);
    let header = TcpHeader {
        src_port: 0,
        dst_port: 0,
        seq: SeqNumber(1),
        ack: SeqNumber(2),
        flags: TcpFlags::ACK,
        window: 3,
        urgent: 0,
    };
    wire::emit_tcp(&parameters, &tuple, &header, options, payload.len(), TxChecksum::Full, &mut frame)
        .expect("the buffer was sized for it");
    frame
}

fn icmp(v6: bool) -> Vec<u8> {
    let inner = tcp(v6, None, &TcpOptions::NONE, b"");
    let quoted = &inner[EthernetHeader::LEN..];
    let FourTuple { src, dst } = tuple(v6);
    let mut frame = vec![0; 300];
    let parameters = IpParameters { hop_limit: 255, ..IpParameters::new(A, B) };
    let len = match (src.addr, dst.addr) {
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let message = Icmpv6Message::NeighborSolicitation { target: dst, source_link: Some(A) };
            let len = message.encoded_len();
            let start =
                wire::emit_ip(&parameters, src.into(), dst.into(), IpProtocol::ICMPV6, len, &mut frame)
                    .expect("fits");
            start + message.emit(&src, &dst, &mut frame[start..]).expect("fits")
        }
        (src, dst) => {
            let message = Icmpv4Message::DestinationUnreachable { code: 4, next_hop_mtu: 1400, quoted };
            let len = message.encoded_len();
            let start =
                wire::emit_ip(&parameters, src, dst, IpProtocol::ICMP, len, &mut frame).expect("fits");
            start + message.emit(&mut frame[start..]).expect("fits")
        }
    };
    frame.truncate(len);
    frame
}

fn arp() -> Vec<u8> {
    let mut frame = vec![0; 60];
    let ethernet = EthernetHeader { dst: MacAddr::BROADCAST, src: A, ethertype: EtherType::ARP, vlan: None };
    let start = ethernet.emit(&mut frame).expect("fits");
    let request = ArpPacket::request(A, Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    request.emit(&mut frame[start..]).expect("fits");
    frame
}

fn extended() -> Vec<u8> {
    let plain = tcp(true, None, &TcpOptions::with_timestamps(1, 2), b"behind extensions");
    let mut frame = plain[..54].to_vec();
    frame.extend_from_slice(&[60, 0, 1, 4, 0, 0, 0, 0, 44, 0, 1, 4, 0, 0, 0, 0, 6, 0, 0, 0, 9, 9, 9, 9]);
    frame.extend_from_slice(&plain[54..]);
    let len = (frame.len() - 54) as u16;
    frame[18..20].copy_from_slice(&len.to_be_bytes());
    frame[20] = 0;
    frame
}

fn corpus() -> Vec<Vec<u8>> {
    let syn = TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        ..TcpOptions::with_timestamps(1, 0)
    };
    let mut sack = TcpOptions::NONE;
    while sack.sack.push(SackBlock { left: SeqNumber(5), right: SeqNumber(9) }) {}
    let frames = vec![
        tcp(false, None, &TcpOptions::NONE, b"plain"),
        tcp(false, Some(VlanTag::new(7, 1)), &TcpOptions::with_timestamps(1, 2), b"tagged"),
        tcp(true, None, &TcpOptions::with_timestamps(1, 2), &[7; 600]),
        tcp(false, None, &syn, b""),
        tcp(true, None, &sack, b""),
        icmp(false),
        icmp(true),
        arp(),
        extended(),
    ];
    for frame in &frames {
        assert!(Packet::parse(frame, RxChecksum::Verify).is_ok(), "the corpus is good: {frame:x?}");
    }
    frames
}

/// Damages `frame`: bits, bytes, telling values, cuts, growth, pieces copied over others.
fn mutate(frame: &mut Vec<u8>, seed: &mut Seed) {
    const TELLING: [u8; 8] = [0, 1, 2, 4, 0x7F, 0x80, 0xFE, 0xFF];
    for _ in 0..=seed.below(6) {
        let Some(last) = (frame.len() as u64).checked_sub(1) else { return };
        let at = seed.below(last + 1) as usize;
        match seed.below(7) {
            0 | 1 => frame[at] ^= 1 << seed.below(8),
            2 => frame[at] = seed.next_u64() as u8,
            3 => frame[at] = TELLING[seed.below(8) as usize],
            4 => frame.truncate(at),
            5 => frame.resize(frame.len() + seed.below(64) as usize, seed.next_u64() as u8),
            _ => {
                let from = seed.below(last + 1) as usize;
                let len = (frame.len() - from.max(at)).min(seed.below(16) as usize);
                frame.copy_within(from..from + len, at);
            }
        }
    }
}

/// Makes the IPv4 header checksum right again, so that the damage reaches the code behind it.
fn repair(frame: &mut [u8]) {
    if frame.len() >= 34 && frame[12..14] == [8, 0] {
        let end = (14 + usize::from(frame[14] & 15) * 4).min(frame.len()).max(34);
        frame[24..26].fill(0);
        let sum = wire::checksum::of(&frame[14..end]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
}

fn assert_inside(span: Span, frame: &[u8]) {
    assert!(span.start <= span.end && span.end as usize <= frame.len());
}

/// Reads the frame as a user would, and everything in it that is read later.
fn digest(frame: &[u8], rx: RxChecksum) -> Result<(), DropReason> {
    let packet = Packet::parse(frame, rx)?;
    match packet.body {
        Body::Tcp(tcp) => {
            assert_inside(tcp.ip.payload, frame);
            assert_inside(tcp.payload, frame);
            assert_eq!(tcp.payload.end, tcp.ip.payload.end);
            let mut room = [0; TcpOptions::LEN_MAX];
            if let Ok(len) = tcp.options.emit(&mut room) {
                assert_eq!(TcpOptions::parse(&room[..len]), Ok(tcp.options));
            }
            let _ = wire::check_tcp_addresses(tcp.ip.src, tcp.ip.dst);
        }
        Body::Icmpv4(ip) => {
            assert_inside(ip.payload, frame);
            let message = Icmpv4Message::parse(ip.payload.of(frame)).expect("Packet::parse read it before");
            if let Icmpv4Message::DestinationUnreachable { quoted, .. } = message {
                let _ = QuotedFlow::parse_v4(quoted);
            }
        }
        Body::Icmpv6(ip) | Body::OtherIp(ip) => {
            assert_inside(ip.payload, frame);
            let _ = QuotedFlow::parse_v6(ip.payload.of(frame));
            let _ = wire::check_addresses(ip.src, ip.dst);
        }
        Body::Arp(arp) => {
            let mut room = [0; ArpPacket::LEN];
            arp.emit(&mut room).expect("fits");
            assert_eq!(ArpPacket::parse(&room), Ok(arp));
        }
        Body::Other => {}
    }
    Ok(())
}

#[test]
fn damaged_frames_are_read_or_dropped_by_name() {
    let first = std::env::var("WIRE_SEED").ok().and_then(|text| text.parse().ok());
    let corpus = corpus();
    let mut counts = [0u64; DropReason::COUNT];
    let (from, to) = first.map_or((0, ROUNDS), |n| (n, n + 1));
    for n in from..to {
        let mut seed = Seed::new(n);
        let mut frame = corpus[seed.below(corpus.len() as u64) as usize].clone();
        mutate(&mut frame, &mut seed);
        if seed.chance(900_000) {
            repair(&mut frame);
        }
        let rx = if seed.chance(800_000) { RxChecksum::Verified } else { RxChecksum::Verify };
        match std::panic::catch_unwind(|| digest(&frame, rx)) {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => counts[reason.index()] += 1,
            Err(_) => panic!("replay with WIRE_SEED={n}: {frame:x?}"),
        }
    }
    if first.is_none() {
        assert_every_reason_was_met(&counts);
    }
}

/// The damage is wild enough to meet every reason that `Packet::parse` can give.
fn assert_every_reason_was_met(counts: &[u64; DropReason::COUNT]) {
    use DropReason as R;
    for reason in [
        R::Truncated,
        R::BadLength,
        R::BadVersion,
        R::BadIpChecksum,
        R::BadChecksum,
        R::Fragment,
        R::UnsupportedExtension,
        R::MalformedOption,
        R::MalformedArp,
    ] {
        assert!(counts[reason.index()] > 0, "{}: never met", reason.name());
    }
}
