//! What a frame is: one pass from Ethernet to TCP, ICMP or ARP, or the reason it goes no further.
//!
//! A [`Packet`] borrows nothing: it holds offsets into its frame, so that a batch of them can lie beside a batch of frames.

use core::net::IpAddr;

use base::limits::FRAME_MAX;

use crate::{
    ArpPacket, DropReason, Ecn, Endpoint, EtherType, EthernetHeader, FourTuple, Icmpv4Message, Icmpv6Message,
    IpProtocol, Ipv4Header, Ipv6Header, TcpHeader, TcpOptions, checksum, skip_extensions,
};

/// What the port already knows about an upper-layer checksum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RxChecksum {
    /// Nothing: it is computed and compared here.
    #[default]
    Verify,
    /// It was found right.
    Verified,
    /// It was never completed: the packet comes from this host and the field holds the pseudo header's sum.
    Partial,
}

/// A piece of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Span {
    /// Its first byte.
    pub start: u32,
    /// The byte after its last.
    pub end: u32,
}

impl Span {
    /// From `start` up to `end`. Offsets are those of a frame, at most [`FRAME_MAX`].
    #[must_use]
    #[inline]
    const fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// Bytes in it.
    #[must_use]
    #[inline]
    pub const fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// True when it holds no byte.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.end == self.start
    }

    /// The bytes, out of the frame they were found in; none when `frame` is a shorter one.
    #[must_use]
    #[inline]
    pub fn of(self, frame: &[u8]) -> &[u8] {
        frame.get(self.start as usize..self.end as usize).unwrap_or(&[])
    }
}

/// What matters of an IP packet of either version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IpPacket {
    /// Where it comes from.
    pub src: IpAddr,
    /// Where it goes.
    pub dst: IpAddr,
    /// What it carries, behind any extension headers.
    pub protocol: IpProtocol,
    /// Congestion notification.
    pub ecn: Ecn,
    /// Time to live, or hop limit.
    pub hop_limit: u8,
    /// The upper layer: padding excluded.
    pub payload: Span,
}

/// A TCP segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpPacket {
    /// The packet around it.
    pub ip: IpPacket,
    /// Its header.
    pub header: TcpHeader,
    /// Its options.
    pub options: TcpOptions,
    /// Its data.
    pub payload: Span,
}

impl TcpPacket {
    /// Who talks to whom.
    #[must_use]
    #[inline]
    pub const fn tuple(&self) -> FourTuple {
        FourTuple {
            src: Endpoint::new(self.ip.src, self.header.src_port),
            dst: Endpoint::new(self.ip.dst, self.header.dst_port),
        }
    }
}

/// What an Ethernet frame carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    /// ARP.
    Arp(ArpPacket),
    /// TCP over IPv4 or IPv6, its checksum right or vouched for.
    Tcp(TcpPacket),
    /// ICMP, well formed: read it with [`Icmpv4Message::parse`].
    Icmpv4(IpPacket),
    /// ICMPv6, well formed: read it with [`Icmpv6Message::parse`].
    Icmpv6(IpPacket),
    /// Another IP protocol, not looked into.
    OtherIp(IpPacket),
    /// Another EtherType, not looked into.
    Other,
}

/// A frame that made sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Its Ethernet header.
    pub ethernet: EthernetHeader,
    /// What it carries.
    pub body: Body,
}

impl Packet {
    /// Classifies `frame`. The IPv4 header checksum is always checked; `rx` says what to do about TCP's. Whether the
    /// addresses are possible ([`crate::check_tcp_addresses`]) and ours is for the caller to ask.
    ///
    /// # Errors
    /// The reason why the frame goes no further.
    #[inline]
    pub fn parse(frame: &[u8], rx: RxChecksum) -> Result<Self, DropReason> {
        if frame.len() > FRAME_MAX {
            return Err(DropReason::Oversized);
        }
        let ethernet = EthernetHeader::parse(frame)?;
        let start = ethernet.header_len();
        let body = match ethernet.ethertype {
            EtherType::IPV4 => parse_ip(frame, parse_ipv4(frame, start)?, rx)?,
            EtherType::IPV6 => parse_ip(frame, parse_ipv6(frame, start)?, rx)?,
            EtherType::ARP => Body::Arp(ArpPacket::parse(frame.get(start..).unwrap_or(&[]))?),
            _ => Body::Other,
        };
        Ok(Self { ethernet, body })
    }

    /// The TCP segment, if it is one.
    #[must_use]
    #[inline]
    pub const fn tcp(&self) -> Option<&TcpPacket> {
        match &self.body {
            Body::Tcp(tcp) => Some(tcp),
            _ => None,
        }
    }
}

#[inline]
fn parse_ipv4(frame: &[u8], start: usize) -> Result<IpPacket, DropReason> {
    let header = Ipv4Header::parse(frame.get(start..).unwrap_or(&[]))?;
    if header.is_fragment() {
        return Err(DropReason::Fragment);
    }
    Ok(IpPacket {
        src: IpAddr::V4(header.src),
        dst: IpAddr::V4(header.dst),
        protocol: header.protocol,
        ecn: header.ecn,
        hop_limit: header.ttl,
        payload: Span::new(start + header.header_len(), start + header.total_len as usize),
    })
}

#[inline]
fn parse_ipv6(frame: &[u8], start: usize) -> Result<IpPacket, DropReason> {
    let header = Ipv6Header::parse(frame.get(start..).unwrap_or(&[]))?;
    let payload = Span::new(start + Ipv6Header::LEN, start + Ipv6Header::LEN + header.payload_len as usize);
    let upper = skip_extensions(header.next_header, payload.of(frame))?;
    Ok(IpPacket {
        src: IpAddr::V6(header.src),
        dst: IpAddr::V6(header.dst),
        protocol: upper.protocol,
        ecn: header.ecn,
        hop_limit: header.hop_limit,
        payload: Span { start: payload.start + upper.offset as u32, ..payload },
    })
}

#[inline]
fn parse_ip(frame: &[u8], ip: IpPacket, rx: RxChecksum) -> Result<Body, DropReason> {
    match (ip.protocol, ip.src, ip.dst) {
        (IpProtocol::TCP, ..) => Ok(Body::Tcp(parse_tcp(frame, ip, rx)?)),
        (IpProtocol::ICMP, IpAddr::V4(_), _) => {
            Icmpv4Message::parse(ip.payload.of(frame))?;
            Ok(Body::Icmpv4(ip))
        }
        (IpProtocol::ICMPV6, IpAddr::V6(src), IpAddr::V6(dst)) => {
            let message = Icmpv6Message::parse(&src, &dst, ip.payload.of(frame))?;
            // "The IP Hop Limit field has a value of 255, i.e., the packet could not possibly have been forwarded by a
            // router" (RFC 4861 section 7.1.1).
            if message.is_neighbor_discovery() && ip.hop_limit != 255 {
                return Err(DropReason::NeighborHopLimit);
            }
            Ok(Body::Icmpv6(ip))
        }
        _ => Ok(Body::OtherIp(ip)),
    }
}

#[inline]
fn parse_tcp(frame: &[u8], ip: IpPacket, rx: RxChecksum) -> Result<TcpPacket, DropReason> {
    let segment = ip.payload.of(frame);
    let (header, offset) = TcpHeader::parse(segment)?;
    if rx == RxChecksum::Verify {
        let pseudo = checksum::pseudo(ip.src, ip.dst, IpProtocol::TCP, segment.len());
        if !pseudo.is_some_and(|pseudo| checksum::verify(pseudo, segment)) {
            return Err(DropReason::BadChecksum);
        }
    }
    let options = TcpOptions::parse(segment.get(TcpHeader::LEN..offset).unwrap_or(&[]))?;
    let payload = Span { start: ip.payload.start + offset as u32, ..ip.payload };
    Ok(TcpPacket { ip, header, options, payload })
}

#[cfg(test)]
mod tests;
