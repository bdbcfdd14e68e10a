//! The IPv4 header (RFC 791). Options are skipped by their length and have no effect.
//!
//! ```text
//!  0        1        2               4               6               8    9     10        12    16    20
//!  | 4,ihl  | dscp,e | total length  | identification| flags, offset | ttl| prot| checksum| src | dst | options
//! ```

use core::net::Ipv4Addr;

use crate::{Ecn, IpProtocol, Sum};

error_enum! {
    /// Why an IPv4 header could not be read or written.
    Ipv4Error {
        /// the packet ends before its IPv4 header or its total length does
        Truncated,
        /// the IP version is not 4
        WrongVersion,
        /// the IPv4 header length is below 20 bytes or beyond the total length
        BadLength,
        /// the IPv4 header checksum is wrong
        BadChecksum,
        /// a field of the IPv4 header does not fit its bits
        FieldOutOfRange,
        /// the buffer is too small for the IPv4 header
        BufferTooSmall,
    }
}

/// The fields of an IPv4 header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ipv4Header {
    /// Differentiated services code point, 6 bits.
    pub dscp: u8,
    /// The ECN field, low two bits of byte 1.
    pub ecn: Ecn,
    /// Bytes 2 and 3: length of header and payload in bytes.
    pub total_len: u16,
    /// Bytes 4 and 5: fragments of one packet have the same value.
    pub identification: u16,
    /// DF: routers must not fragment the packet.
    pub dont_fragment: bool,
    /// MF: this is not the last fragment.
    pub more_fragments: bool,
    /// Offset of the fragment in the packet, in units of 8 bytes, 13 bits.
    pub fragment_offset: u16,
    /// Byte 8: time to live, hops.
    pub ttl: u8,
    /// Byte 9: the protocol of the payload.
    pub protocol: IpProtocol,
    /// Bytes 12 to 15: the source address.
    pub src: Ipv4Addr,
    /// Bytes 16 to 19: the destination address.
    pub dst: Ipv4Addr,
    /// Length of the options in bytes: a multiple of 4, at most 40. `parse` skips them; `emit` writes "end of list" bytes.
    pub options_len: u8,
}

impl Ipv4Header {
    /// Length without options, bytes.
    pub const LEN: usize = 20;

    /// A header without options and with DF, for a payload of `payload_len` bytes (its identification has no meaning: RFC 6864).
    /// A payload longer than 65,515 bytes counts as that long; the caller's segments are shorter.
    #[must_use]
    #[inline]
    pub const fn new(src: Ipv4Addr, dst: Ipv4Addr, protocol: IpProtocol, payload_len: usize) -> Self {
        let total = payload_len.saturating_add(Self::LEN);
        Self {
            dscp: 0,
            ecn: Ecn::NotEct,
            total_len: if total <= 0xFFFF { total as u16 } else { 0xFFFF },
            identification: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol,
            src,
            dst,
            options_len: 0,
        }
    }

    /// Reads the header at the start of `bytes`; checks its lengths against `bytes`, and its checksum.
    /// The payload is `bytes[header_len()..total_len]`; bytes behind it are Ethernet padding.
    ///
    /// # Errors
    /// `Truncated`, `WrongVersion`, `BadLength` or `BadChecksum`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, Ipv4Error> {
        let header = Self::parse_unverified(bytes)?;
        if header.total_len as usize > bytes.len() {
            return Err(Ipv4Error::Truncated);
        }
        let octets = bytes.get(..header.header_len()).ok_or(Ipv4Error::Truncated)?;
        if !Sum::ZERO.add_bytes(octets).is_valid() {
            return Err(Ipv4Error::BadChecksum);
        }
        Ok(header)
    }

    /// Reads a header quoted in an ICMP error: its packet may be cut short and its checksum may be out of date.
    ///
    /// # Errors
    /// `Truncated` when the header itself is cut short, `WrongVersion` or `BadLength`.
    #[inline]
    pub fn parse_unverified(bytes: &[u8]) -> Result<Self, Ipv4Error> {
        let h = bytes.first_chunk::<{ Self::LEN }>().ok_or(Ipv4Error::Truncated)?;
        if h[0] >> 4 != 4 {
            return Err(Ipv4Error::WrongVersion);
        }
        let header_len = (h[0] & 0x0F) * 4;
        let total_len = u16::from_be_bytes([h[2], h[3]]);
        if (header_len as usize) < Self::LEN || total_len < u16::from(header_len) {
            return Err(Ipv4Error::BadLength);
        }
        if header_len as usize > bytes.len() {
            return Err(Ipv4Error::Truncated);
        }
        let fragment = u16::from_be_bytes([h[6], h[7]]);
        Ok(Self {
            dscp: h[1] >> 2,
            ecn: Ecn::from_bits(h[1]),
            total_len,
            identification: u16::from_be_bytes([h[4], h[5]]),
            dont_fragment: fragment & 0x4000 != 0,
            more_fragments: fragment & 0x2000 != 0,
            fragment_offset: fragment & 0x1FFF,
            ttl: h[8],
            protocol: IpProtocol(h[9]),
            src: Ipv4Addr::new(h[12], h[13], h[14], h[15]),
            dst: Ipv4Addr::new(h[16], h[17], h[18], h[19]),
            options_len: header_len - Self::LEN as u8,
        })
    }

    /// Length of the header in bytes, options included.
    #[must_use]
    #[inline]
    pub const fn header_len(&self) -> usize {
        Self::LEN + self.options_len as usize
    }

    /// Length of the payload in bytes.
    #[must_use]
    #[inline]
    pub const fn payload_len(&self) -> usize {
        (self.total_len as usize).saturating_sub(self.header_len())
    }

    /// True when the packet is a fragment.
    #[must_use]
    #[inline]
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// Writes the header with its checksum at the start of `buffer` and returns its length.
    /// Does not check that the payload fits behind it: the payload may lie elsewhere.
    ///
    /// # Errors
    /// `BufferTooSmall`, `BadLength` (total length below the header's) or `FieldOutOfRange`.
    // Inlined into `emit_ip`, where most fields are constants, most of this code disappears: 75 instructions fewer.
    #[expect(clippy::inline_always, reason = "for the constants")]
    #[inline(always)]
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, Ipv4Error> {
        let len = self.header_len();
        if self.dscp > 63
            || self.fragment_offset > 0x1FFF
            || self.options_len > 40
            || !self.options_len.is_multiple_of(4)
        {
            return Err(Ipv4Error::FieldOutOfRange);
        }
        if (self.total_len as usize) < len {
            return Err(Ipv4Error::BadLength);
        }
        let whole = buffer.get_mut(..len).ok_or(Ipv4Error::BufferTooSmall)?;
        let (h, options) = whole.split_first_chunk_mut::<{ Self::LEN }>().ok_or(Ipv4Error::BufferTooSmall)?;
        let flags = u16::from(self.dont_fragment) << 14 | u16::from(self.more_fragments) << 13;
        let words = [
            0x4000 | (len as u16 / 4) << 8 | u16::from(self.dscp << 2 | self.ecn.bits()),
            self.total_len,
            self.identification,
            flags | self.fragment_offset,
            u16::from(self.ttl) << 8 | u16::from(self.protocol.0),
        ];
        // Summed from the fields: reading back the bytes just written in parts would wait for those stores.
        // Options are zeros and do not change the sum.
        let addresses = Sum::ZERO.add_u32(self.src.to_bits()).add_u32(self.dst.to_bits());
        let sum = words.iter().fold(addresses, |sum, word| sum.add_u16(*word)).finish();
        for (field, word) in h.chunks_exact_mut(2).zip(words.into_iter().chain([sum])) {
            field.copy_from_slice(&word.to_be_bytes());
        }
        h[12..16].copy_from_slice(&self.src.octets());
        h[16..20].copy_from_slice(&self.dst.octets());
        options.fill(0);
        Ok(len)
    }
}
