//! The common segment of an established connection, read and written in one go: Ethernet without a tag, IPv4 and TCP without options but
//! timestamps. Whatever is different is for [`Packet::parse`](crate::Packet::parse) and [`emit_tcp`](crate::emit_tcp), which mean the
//! same by the same bytes.
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
/// What the TCP header says of its length: 32 bytes.
const DATA_OFFSET: u16 = 8 << 12;
/// IPv4's DF.
const DONT_FRAGMENT: u16 = 1 << 14;

/// The headers of a common segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommonHeaders {
    /// Our Ethernet address.
    pub src_mac: [u8; 6],
    /// The next hop's.
    pub dst_mac: [u8; 6],
    /// Our address.
    pub src: [u8; 4],
    /// The peer's.
    pub dst: [u8; 4],
    /// Differentiated services code point, 6 bits.
    pub dscp: u8,
    /// Congestion notification.
    pub ecn: Ecn,
    /// Time to live.
    pub hop_limit: u8,
    /// IPv4's identification.
    pub identification: u16,
    /// IPv4's DF.
    pub dont_fragment: bool,
    /// TCP's header.
    pub tcp: TcpHeader,
    /// TCP's option.
    pub timestamps: Timestamps,
}

impl CommonHeaders {
    /// Their bytes: the place of the payload.
    pub const LEN: usize = TCP + TcpHeader::LEN + 12;
    /// The longest payload that IPv4 can say.
    pub const PAYLOAD_MAX: usize = 0xFFFF - (Self::LEN - IP);

    /// Writes the headers of a segment of `payload_len` bytes. The checksum is that of the pseudo header (see
    /// [`TxChecksum::Partial`](crate::TxChecksum::Partial)): the port sums the rest, or [`complete`](Self::complete) does.
    /// A payload longer than [`PAYLOAD_MAX`](Self::PAYLOAD_MAX) saturates.
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

    /// Sums all of `frame`, headers that [`emit`](Self::emit) wrote with their payload.
    #[inline]
    pub fn complete(frame: &mut [u8]) {
        let Some(segment) = frame.get_mut(TCP..) else { return };
        // The pseudo header's sum stands in the field already.
        let checksum = checksum::of(segment);
        if let Some(field) = segment.get_mut(TcpHeader::CHECKSUM_OFFSET..TcpHeader::CHECKSUM_OFFSET + 2) {
            field.copy_from_slice(&checksum.to_be_bytes());
        }
    }
}

impl TcpPacket {
    /// Of nothing: to be read over.
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

    /// Reads a common segment over whatever `self` was: in place, because a packet is long and most of it is not there. False, and
    /// nothing changed, says nothing against the frame: ask [`Packet::parse`](crate::Packet::parse).
    #[inline]
    #[must_use]
    pub fn read_common(&mut self, frame: &[u8], rx: RxChecksum) -> bool {
        let segment = CommonSegment::read(frame, rx);
        segment.map(|segment| self.take_common(&segment)).is_some()
    }

    /// Becomes `segment`.
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

/// A common segment where it stands in its frame: what is asked of it is read then.
#[derive(Clone, Copy, Debug)]
pub struct CommonSegment<'a> {
    h: &'a [u8; CommonHeaders::LEN],
    /// Its data.
    pub payload: &'a [u8],
}

impl<'a> CommonSegment<'a> {
    /// None says nothing against the frame: ask [`Packet::parse`](crate::Packet::parse).
    #[inline]
    #[must_use]
    pub fn read(frame: &'a [u8], rx: RxChecksum) -> Option<Self> {
        let segment = Self::again(frame)?;
        let h = segment.h;
        let (first, second, third) = (word(h, IP), word(h, IP + 4), word(h, IP + 8));
        let is_common = half(h, 12) == 0x0800
            && first >> 24 == 0x45
            // No piece of a packet.
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

    /// Once more, out of a frame that was [read](Self::read) before: only its length is looked at.
    #[inline]
    #[must_use]
    pub fn again(frame: &'a [u8]) -> Option<Self> {
        let h = frame.first_chunk::<{ CommonHeaders::LEN }>()?;
        let end = IP + usize::from(half(h, IP + 2));
        let payload = frame.get(CommonHeaders::LEN..end)?;
        Some(Self { h, payload })
    }

    /// Both addresses, the sender's first, and both ports: as they stand there.
    #[inline]
    #[must_use]
    pub fn tuple(&self) -> &'a [u8; 12] {
        self.h[IP + 12..].first_chunk().unwrap_or(&[0; 12])
    }

    /// The sender's address.
    #[inline]
    #[must_use]
    pub fn src(&self) -> [u8; 4] {
        word(self.h, IP + 12).to_be_bytes()
    }

    /// The receiver's address.
    #[inline]
    #[must_use]
    pub fn dst(&self) -> [u8; 4] {
        word(self.h, IP + 16).to_be_bytes()
    }

    /// The sender's port and the receiver's.
    #[inline]
    #[must_use]
    pub fn ports(&self) -> (u16, u16) {
        (half(self.h, TCP), half(self.h, TCP + 2))
    }

    /// Nothing but an acknowledgement, perhaps with data, perhaps pushed; and no router has marked it.
    #[inline]
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let flags = half(self.h, TCP + 12) & 0x1FF & !TcpFlags::PSH.bits();
        flags == TcpFlags::ACK.bits() && Ecn::from_bits(self.h[IP + 1]) != Ecn::Ce
    }

    /// The sequence number.
    #[inline]
    #[must_use]
    pub fn seq(&self) -> SeqNumber {
        SeqNumber(word(self.h, TCP + 4))
    }

    /// The acknowledgement number.
    #[inline]
    #[must_use]
    pub fn ack(&self) -> SeqNumber {
        SeqNumber(word(self.h, TCP + 8))
    }

    /// The window field.
    #[inline]
    #[must_use]
    pub fn window(&self) -> u16 {
        half(self.h, TCP + 14)
    }

    /// The option.
    #[inline]
    #[must_use]
    pub fn timestamps(&self) -> Timestamps {
        Timestamps { value: word(self.h, TCP + 24), echo: word(self.h, TCP + 28) }
    }
}

/// Is the checksum of a common segment right? `total_len` is within the frame.
#[inline(never)]
fn is_intact(frame: &[u8], total_len: u32) -> bool {
    let (src, dst) = (word(frame, IP + 12), word(frame, IP + 16));
    let len = (total_len as usize - Ipv4Header::LEN) as u16;
    let (src, dst) = (Ipv4Addr::from_bits(src), Ipv4Addr::from_bits(dst));
    let segment = frame.get(TCP..IP + total_len as usize).unwrap_or(&[]);
    checksum::verify(checksum::pseudo_v4(src, dst, IpProtocol::TCP, len), segment)
}

/// A sum of 32-bit words in host order as 16 bits (RFC 1071).
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
