//! The common segment of an established connection, read and written in one step: Ethernet without a VLAN tag, IPv4, and TCP with the
//! timestamps option only. [`Packet::parse`](crate::Packet::parse) and [`emit_tcp`](crate::emit_tcp) handle all other segments; for a
//! common segment they give the same result.
//!
//! ```text
//!   0          14       34       54           66
//!   | Ethernet | IPv4   | TCP    | timestamps | payload
//! ```

use core::net::{IpAddr, Ipv4Addr};

use base::SeqNumber;
use base::limits::FRAME_MAX;

use crate::packet::Span;
use crate::tcp_options::TIMESTAMPS_PREFIX;
use crate::{
    Ecn, EthernetHeader, IpPacket, IpProtocol, Ipv4Header, RxChecksum, TcpFlags, TcpHeader, TcpOptions,
    TcpPacket, Timestamps, checksum,
};

const IP: usize = EthernetHeader::LEN;
const TCP: usize = IP + Ipv4Header::LEN;
/// The data offset of a common TCP header (32 bytes), in its place in bytes 12 and 13.
const DATA_OFFSET: u16 = 8 << 12;
/// The DF bit in bytes 6 and 7 of the IPv4 header.
const DONT_FRAGMENT: u16 = 1 << 14;

/// The header fields of a common segment that differ between segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommonHeaders {
    /// Ethernet source: our address.
    pub src_mac: [u8; 6],
    /// Ethernet destination: the next hop's address.
    pub dst_mac: [u8; 6],
    /// IPv4 source: our address.
    pub src: [u8; 4],
    /// IPv4 destination: the peer's address.
    pub dst: [u8; 4],
    /// Differentiated services code point, 6 bits.
    pub dscp: u8,
    /// The ECN field of the IP header.
    pub ecn: Ecn,
    /// Time to live, hops.
    pub hop_limit: u8,
    /// Identification of the IPv4 packet.
    pub identification: u16,
    /// The DF bit: routers must not fragment the packet.
    pub dont_fragment: bool,
    /// The TCP header, without its options.
    pub tcp: TcpHeader,
    /// The values of the timestamps option.
    pub timestamps: Timestamps,
}

impl CommonHeaders {
    /// Length of all headers in bytes, and so the offset of the payload.
    pub const LEN: usize = TCP + TcpHeader::LEN + 12;
    /// The longest payload that IPv4's total length allows, bytes.
    pub const PAYLOAD_MAX: usize = 0xFFFF - (Self::LEN - IP);

    /// Writes the headers of a segment of `payload_len` bytes. The checksum field gets the pseudo header's sum (see
    /// [`TxChecksum::Partial`](crate::TxChecksum::Partial)); the port adds the rest, or [`complete`](Self::complete) does.
    /// A payload longer than [`PAYLOAD_MAX`](Self::PAYLOAD_MAX) counts as that long.
    #[inline(always)]
    pub fn emit(&self, payload_len: usize, h: &mut [u8; Self::LEN]) {
        let segment_len = (payload_len.min(Self::PAYLOAD_MAX) + Self::LEN - TCP) as u32;
        let total_len = segment_len + Ipv4Header::LEN as u32;
        let word = |bytes: [u8; 4]| u64::from(u32::from_be_bytes(bytes));
        let first =
            0x4500_0000 | u32::from(self.dscp & 63) << 18 | u32::from(self.ecn.bits()) << 16 | total_len;
        let fragment = if self.dont_fragment { DONT_FRAGMENT } else { 0 };
        let second = u32::from(self.identification) << 16 | u32::from(fragment);
        let third = u32::from(self.hop_limit) << 24 | u32::from(IpProtocol::TCP.0) << 16;
        let addresses = word(self.src) + word(self.dst);
        let ip_sum = !fold(addresses + u64::from(first) + u64::from(second) + u64::from(third));
        let tcp = &self.tcp;
        h[..6].copy_from_slice(&self.dst_mac);
        h[6..12].copy_from_slice(&self.src_mac);
        h[12..14].copy_from_slice(&[8, 0]);
        put(h, IP, first);
        put(h, IP + 4, second);
        put(h, IP + 8, third | u32::from(ip_sum));
        h[IP + 12..IP + 16].copy_from_slice(&self.src);
        h[IP + 16..TCP].copy_from_slice(&self.dst);
        put(h, TCP, u32::from(tcp.src_port) << 16 | u32::from(tcp.dst_port));
        put(h, TCP + 4, tcp.seq.0);
        put(h, TCP + 8, tcp.ack.0);
        put(h, TCP + 12, u32::from(DATA_OFFSET | tcp.flags.bits()) << 16 | u32::from(tcp.window));
        let pseudo = fold(addresses + u64::from(IpProtocol::TCP.0) + u64::from(segment_len));
        put(h, TCP + 16, u32::from(pseudo) << 16 | u32::from(tcp.urgent));
        put(h, TCP + 20, TIMESTAMPS_PREFIX);
        put(h, TCP + 24, self.timestamps.value);
        put(h, TCP + 28, self.timestamps.echo);
    }

    /// Completes the TCP checksum of `frame`: headers that [`emit`](Self::emit) has written, with their payload.
    #[inline]
    pub fn complete(frame: &mut [u8]) {
        let Some(segment) = frame.get_mut(TCP..) else { return };
        // The checksum field already contains the pseudo header's sum.
        let checksum = checksum::of(segment);
        if let Some(field) = segment.get_mut(TcpHeader::CHECKSUM_OFFSET..TcpHeader::CHECKSUM_OFFSET + 2) {
            field.copy_from_slice(&checksum.to_be_bytes());
        }
    }
}

impl TcpPacket {
    /// A packet without content, as a place for [`read_common`](Self::read_common) to fill.
    pub const EMPTY: Self = {
        let (none, seq) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), SeqNumber(0));
        let payload = Span { start: 0, end: 0 };
        let (protocol, flags) = (IpProtocol::TCP, TcpFlags::NONE);
        Self {
            ip: IpPacket { src: none, dst: none, protocol, ecn: Ecn::NotEct, hop_limit: 0, payload },
            header: TcpHeader { src_port: 0, dst_port: 0, seq, ack: seq, flags, window: 0, urgent: 0 },
            options: TcpOptions::NONE,
            payload,
        }
    };

    /// Reads a common segment into `self`, in place, because a packet is large and most of its fields stay unused. Returns false and
    /// changes nothing if the segment is not common; it may still be valid: see [`Packet::parse`](crate::Packet::parse).
    #[inline]
    #[must_use]
    pub fn read_common(&mut self, frame: &[u8], rx: RxChecksum) -> bool {
        let segment = CommonSegment::read(frame, rx);
        segment.map(|segment| self.take_common(&segment)).is_some()
    }

    /// Takes the contents of `segment`.
    #[inline]
    pub fn take_common(&mut self, segment: &CommonSegment<'_>) {
        let h = segment.h;
        let address = |at: usize| IpAddr::V4(Ipv4Addr::from_bits(word(h, at)));
        let (ip, tcp, options) = (&mut self.ip, &mut self.header, &mut self.options);
        let end = (CommonHeaders::LEN + segment.payload.len()) as u32;
        (ip.src, ip.dst, ip.protocol) = (address(IP + 12), address(IP + 16), IpProtocol::TCP);
        (ip.ecn, ip.hop_limit) = (Ecn::from_bits(h[IP + 1]), h[IP + 8]);
        ip.payload = Span { start: TCP as u32, end };
        (tcp.src_port, tcp.dst_port) = (half(h, TCP), half(h, TCP + 2));
        (tcp.seq, tcp.ack) = (segment.seq(), segment.ack());
        tcp.flags = TcpFlags::from_bits(half(h, TCP + 12));
        (tcp.window, tcp.urgent) = (segment.window(), half(h, TCP + 18));
        options.begin_with(segment.timestamps());
        self.payload = Span { start: CommonHeaders::LEN as u32, end };
    }
}

/// A common segment, borrowed from its frame; its methods read single fields.
#[derive(Clone, Copy, Debug)]
pub struct CommonSegment<'a> {
    h: &'a [u8; CommonHeaders::LEN],
    /// The payload of the segment.
    pub payload: &'a [u8],
}

impl<'a> CommonSegment<'a> {
    /// Reads a common segment. `None` if the segment is not common; it may still be valid: see [`Packet::parse`](crate::Packet::parse).
    #[inline]
    #[must_use]
    pub fn read(frame: &'a [u8], rx: RxChecksum) -> Option<Self> {
        let segment = Self::again(frame)?;
        let h = segment.h;
        let (first, second, third) = (word(h, IP), word(h, IP + 4), word(h, IP + 8));
        let is_common = half(h, 12) == 0x0800
            && first >> 24 == 0x45
            // The packet is not a fragment.
            && second & 0x3FFF == 0
            && (third >> 16) as u8 == IpProtocol::TCP.0
            && h[TCP + 12] >> 4 == 8
            && word(h, TCP + 20) == TIMESTAMPS_PREFIX
            && frame.len() <= FRAME_MAX;
        if !is_common {
            return None;
        }
        let addresses = u64::from(word(h, IP + 12)) + u64::from(word(h, IP + 16));
        if fold(addresses + u64::from(first) + u64::from(second) + u64::from(third)) != 0xFFFF {
            return None;
        }
        (rx != RxChecksum::Verify || is_intact(frame, first & 0xFFFF)).then_some(segment)
    }

    /// Reads a segment again from a frame that [`read`](Self::read) has checked before; checks only the length.
    #[inline]
    #[must_use]
    pub fn again(frame: &'a [u8]) -> Option<Self> {
        let h = frame.first_chunk::<{ CommonHeaders::LEN }>()?;
        let end = IP + usize::from(half(h, IP + 2));
        let payload = frame.get(CommonHeaders::LEN..end)?;
        Some(Self { h, payload })
    }

    /// Bytes 26 to 37 of the frame: source and destination address, source and destination port, big-endian.
    #[inline]
    #[must_use]
    pub fn tuple(&self) -> &'a [u8; 12] {
        self.h[IP + 12..].first_chunk().unwrap_or(&[0; 12])
    }

    /// The source IPv4 address.
    #[inline]
    #[must_use]
    pub fn src(&self) -> [u8; 4] {
        word(self.h, IP + 12).to_be_bytes()
    }

    /// The destination IPv4 address.
    #[inline]
    #[must_use]
    pub fn dst(&self) -> [u8; 4] {
        word(self.h, IP + 16).to_be_bytes()
    }

    /// Source port and destination port.
    #[inline]
    #[must_use]
    pub fn ports(&self) -> (u16, u16) {
        (half(self.h, TCP), half(self.h, TCP + 2))
    }

    /// True for a segment with ACK, perhaps PSH, and no other flag, that no router has marked (ECN CE).
    #[inline]
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let flags = half(self.h, TCP + 12) & 0x1FF & !TcpFlags::PSH.bits();
        flags == TcpFlags::ACK.bits() && Ecn::from_bits(self.h[IP + 1]) != Ecn::Ce
    }

    /// The sequence number of the segment.
    #[inline]
    #[must_use]
    pub fn seq(&self) -> SeqNumber {
        SeqNumber(word(self.h, TCP + 4))
    }

    /// The acknowledgement number of the segment.
    #[inline]
    #[must_use]
    pub fn ack(&self) -> SeqNumber {
        SeqNumber(word(self.h, TCP + 8))
    }

    /// The window field, not scaled.
    #[inline]
    #[must_use]
    pub fn window(&self) -> u16 {
        half(self.h, TCP + 14)
    }

    /// The values of the timestamps option.
    #[inline]
    #[must_use]
    pub fn timestamps(&self) -> Timestamps {
        Timestamps { value: word(self.h, TCP + 24), echo: word(self.h, TCP + 28) }
    }
}

/// True when the TCP checksum of a common segment is right. `total_len` must end within the frame.
#[inline(never)]
fn is_intact(frame: &[u8], total_len: u32) -> bool {
    let (src, dst) = (word(frame, IP + 12), word(frame, IP + 16));
    let len = (total_len as usize - Ipv4Header::LEN) as u16;
    let (src, dst) = (Ipv4Addr::from_bits(src), Ipv4Addr::from_bits(dst));
    let segment = frame.get(TCP..IP + total_len as usize).unwrap_or(&[]);
    checksum::verify(checksum::pseudo_v4(src, dst, IpProtocol::TCP, len), segment)
}

/// Folds a sum of 32-bit words in host order to 16 bits (RFC 1071).
#[inline]
const fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xFFFF) + ((sum >> 16) & 0xFFFF) + (sum >> 32);
    let sum = (sum & 0xFFFF) + (sum >> 16);
    ((sum & 0xFFFF) + (sum >> 16)) as u16
}

#[inline]
fn put(h: &mut [u8; CommonHeaders::LEN], at: usize, value: u32) {
    h[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

#[inline]
fn word(h: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]])
}

#[inline]
fn half(h: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([h[at], h[at + 1]])
}

#[cfg(test)]
mod tests;
