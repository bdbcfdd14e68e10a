//! Classifies a frame in one pass from Ethernet to TCP, ICMP or ARP, or gives the reason to drop it.
//!
//! A [`Packet`] borrows nothing: it holds offsets into its frame, so a batch of packets can be stored beside a batch of frames.

use core::net::IpAddr;

use base::limits::FRAME_MAX;

use crate::{
    ArpPacket, DropReason, Ecn, Endpoint, EtherType, EthernetHeader, FourTuple, Icmpv4Message, Icmpv6Message,
    IpProtocol, Ipv4Header, Ipv6Header, Sum, TcpHeader, TcpOptions, Timestamps, checksum, skip_extensions,
    timestamps_only,
};

/// What the port knows about an upper-layer checksum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RxChecksum {
    /// Not checked by the port: `parse` verifies it.
    #[default]
    Verify,
    /// The port has verified the checksum.
    Verified,
    /// Never completed: the packet comes from this host, and the field holds the pseudo header's sum.
    Partial,
}

/// A range of bytes in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Span {
    /// Offset of its first byte.
    pub start: u32,
    /// Offset behind its last byte.
    pub end: u32,
}

impl Span {
    /// The range from `start` to `end`. Both are offsets into a frame, at most [`FRAME_MAX`].
    #[must_use]
    #[inline]
    const fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// Number of bytes in the range.
    #[must_use]
    #[inline]
    pub const fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// True when the range has no bytes.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.end == self.start
    }

    /// The bytes of the range in `frame`, the frame that was parsed; empty when `frame` is shorter.
    #[must_use]
    #[inline]
    pub fn of(self, frame: &[u8]) -> &[u8] {
        frame.get(self.start as usize..self.end as usize).unwrap_or(&[])
    }
}

/// The fields of an IP packet that are the same in both versions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IpPacket {
    /// The sender's IP address.
    pub src: IpAddr,
    /// The receiver's IP address.
    pub dst: IpAddr,
    /// The protocol of the payload, behind any extension headers.
    pub protocol: IpProtocol,
    /// The ECN field of the header.
    pub ecn: Ecn,
    /// Time to live (IPv4) or hop limit (IPv6), hops.
    pub hop_limit: u8,
    /// The upper-layer packet, without padding.
    pub payload: Span,
}

/// A parsed TCP segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpPacket {
    /// The IP packet that carries it.
    pub ip: IpPacket,
    /// The TCP header without options.
    pub header: TcpHeader,
    /// The options of the segment.
    pub options: TcpOptions,
    /// The payload of the segment.
    pub payload: Span,
}

impl TcpPacket {
    /// Both endpoints of the segment, the sender first.
    #[must_use]
    #[inline]
    pub const fn tuple(&self) -> FourTuple {
        FourTuple {
            src: Endpoint::new(self.ip.src, self.header.src_port),
            dst: Endpoint::new(self.ip.dst, self.header.dst_port),
        }
    }
}

/// The content of an Ethernet frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    /// ARP for IPv4 over Ethernet.
    Arp(ArpPacket),
    /// TCP over IPv4 or IPv6; its checksum was verified here or by the port.
    Tcp(TcpPacket),
    /// Well-formed ICMP; [`Icmpv4Message::parse`] reads it.
    Icmpv4(IpPacket),
    /// Well-formed ICMPv6; [`Icmpv6Message::parse`] reads it.
    Icmpv6(IpPacket),
    /// Another IP protocol; its payload is not checked.
    OtherIp(IpPacket),
    /// Another EtherType; the payload is not checked.
    Other,
}

/// A frame that was parsed without error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// The Ethernet header of the frame.
    pub ethernet: EthernetHeader,
    /// The content behind the Ethernet header.
    pub body: Body,
}

impl Packet {
    /// Parses and classifies `frame`. The IPv4 header checksum is always verified; `rx` says whether TCP's is. The caller checks
    /// the addresses: whether they are valid ([`crate::check_tcp_addresses`]), and whether they are ours.
    ///
    /// # Errors
    /// The reason to drop the frame.
    #[inline]
    pub fn parse(frame: &[u8], rx: RxChecksum) -> Result<Self, DropReason> {
        if frame.len() > FRAME_MAX {
            return Err(DropReason::Oversized);
        }
        let ethernet = EthernetHeader::parse(frame)?;
        let rest = frame.get(ethernet.header_len()..).unwrap_or(&[]);
        match ethernet.ethertype {
            EtherType::IPV4 => parse_ipv4(frame, rest, ethernet, rx),
            EtherType::IPV6 => parse_ipv6(frame, rest, ethernet, rx),
            EtherType::ARP => Ok(Self { ethernet, body: Body::Arp(ArpPacket::parse(rest)?) }),
            _ => Ok(Self { ethernet, body: Body::Other }),
        }
    }

    /// The TCP segment; `None` if the frame is not TCP.
    #[must_use]
    #[inline]
    pub const fn tcp(&self) -> Option<&TcpPacket> {
        match &self.body {
            Body::Tcp(tcp) => Some(tcp),
            _ => None,
        }
    }
}

// Inlined by force, with each result built in one expression: an address is 17 unaligned bytes, and a copy made right after
// it was written in parts waits for those stores. Five such copies took 25 of 41 ns.
#[inline(always)]
fn parse_ipv4(
    frame: &[u8],
    rest: &[u8],
    ethernet: EthernetHeader,
    rx: RxChecksum,
) -> Result<Packet, DropReason> {
    let header = Ipv4Header::parse(rest)?;
    if header.is_fragment() {
        return Err(DropReason::Fragment);
    }
    let start = ethernet.header_len();
    let payload = Span::new(start + header.header_len(), start + header.total_len as usize);
    let ip = || IpPacket {
        src: IpAddr::V4(header.src),
        dst: IpAddr::V4(header.dst),
        protocol: header.protocol,
        ecn: header.ecn,
        hop_limit: header.ttl,
        payload,
    };
    if header.protocol != IpProtocol::TCP {
        return parse_other(frame, ethernet, &ip());
    }
    let len = header.payload_len() as u16;
    let pseudo = || checksum::pseudo_v4(header.src, header.dst, IpProtocol::TCP, len);
    parse_tcp(frame, ethernet, ip, payload, rx, pseudo)
}

#[inline(always)]
fn parse_ipv6(
    frame: &[u8],
    rest: &[u8],
    ethernet: EthernetHeader,
    rx: RxChecksum,
) -> Result<Packet, DropReason> {
    let header = Ipv6Header::parse(rest)?;
    let start = ethernet.header_len() + Ipv6Header::LEN;
    let whole = Span::new(start, start + header.payload_len as usize);
    let upper = skip_extensions(header.next_header, whole.of(frame))?;
    let payload = Span { start: whole.start + upper.offset as u32, ..whole };
    let ip = || IpPacket {
        src: IpAddr::V6(header.src),
        dst: IpAddr::V6(header.dst),
        protocol: upper.protocol,
        ecn: header.ecn,
        hop_limit: header.hop_limit,
        payload,
    };
    if upper.protocol != IpProtocol::TCP {
        return parse_other(frame, ethernet, &ip());
    }
    let pseudo = || checksum::pseudo_v6(&header.src, &header.dst, IpProtocol::TCP, payload.len() as u32);
    parse_tcp(frame, ethernet, ip, payload, rx, pseudo)
}

#[inline(always)]
fn parse_tcp(
    frame: &[u8],
    ethernet: EthernetHeader,
    ip: impl Fn() -> IpPacket,
    within: Span,
    rx: RxChecksum,
    pseudo: impl Fn() -> Sum,
) -> Result<Packet, DropReason> {
    let segment = within.of(frame);
    let (header, offset) = TcpHeader::parse(segment)?;
    if rx == RxChecksum::Verify && !checksum::verify(pseudo(), segment) {
        return Err(DropReason::BadChecksum);
    }
    let payload = Span { start: within.start + offset as u32, ..within };
    let packet =
        |options| Packet { ethernet, body: Body::Tcp(TcpPacket { ip: ip(), header, options, payload }) };
    let bytes = segment.get(TcpHeader::LEN..offset).unwrap_or(&[]);
    match timestamps_only(bytes) {
        Some(Timestamps { value, echo }) => Ok(packet(TcpOptions::with_timestamps(value, echo))),
        None if bytes.is_empty() => Ok(packet(TcpOptions::NONE)),
        None => Ok(packet(TcpOptions::parse(bytes)?)),
    }
}

/// Parses packets other than TCP, which the slow path handles.
#[cold]
fn parse_other(frame: &[u8], ethernet: EthernetHeader, ip: &IpPacket) -> Result<Packet, DropReason> {
    let body = match (ip.protocol, ip.src, ip.dst) {
        (IpProtocol::ICMP, IpAddr::V4(_), _) => {
            Icmpv4Message::parse(ip.payload.of(frame))?;
            Body::Icmpv4(*ip)
        }
        (IpProtocol::ICMPV6, IpAddr::V6(src), IpAddr::V6(dst)) => {
            let message = Icmpv6Message::parse(&src, &dst, ip.payload.of(frame))?;
            // "The IP Hop Limit field has a value of 255, i.e., the packet could not possibly have been forwarded by a
            // router" (RFC 4861 section 7.1.1).
            if message.is_neighbor_discovery() && ip.hop_limit != 255 {
                return Err(DropReason::NeighborHopLimit);
            }
            Body::Icmpv6(*ip)
        }
        _ => Body::OtherIp(*ip),
    };
    Ok(Packet { ethernet, body })
}

#[cfg(test)]
mod tests;
