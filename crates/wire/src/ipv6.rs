//! The IPv6 header, and the parser that skips its extension headers (RFC 8200).
//!
//! Hop-by-hop and destination options are skipped; a routing header only with no segments left; a fragment header only if the
//! packet is a whole one (RFC 6946). The number of headers is limited.

use core::net::Ipv6Addr;

use crate::{Ecn, IpProtocol};

error_enum! {
    /// Why an IPv6 header could not be read or written.
    Ipv6Error {
        /// the packet ends before its IPv6 header or its payload length does
        Truncated,
        /// the IP version is not 6
        WrongVersion,
        /// an IPv6 extension header runs past the end of the packet
        BadLength,
        /// the packet is a fragment
        Fragment,
        /// an IPv6 extension header asks for what is not done here: routing, or an option that must be understood
        UnsupportedExtension,
        /// the packet has more extension headers than anyone needs
        TooManyExtensions,
        /// a field of the IPv6 header does not fit its bits
        FieldOutOfRange,
        /// the buffer is too small for the IPv6 header
        BufferTooSmall,
    }
}

/// The fixed IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ipv6Header {
    /// Differentiated services code point, 6 bits.
    pub dscp: u8,
    /// The ECN field, low two bits of the traffic class.
    pub ecn: Ecn,
    /// Flow label, 20 bits; 0: none.
    pub flow_label: u32,
    /// Bytes 4 and 5: bytes behind this header, extension headers included.
    pub payload_len: u16,
    /// Byte 6: the protocol of the next header.
    pub next_header: IpProtocol,
    /// Byte 7: hop limit, hops.
    pub hop_limit: u8,
    /// Bytes 8 to 23: the source address.
    pub src: Ipv6Addr,
    /// Bytes 24 to 39: the destination address.
    pub dst: Ipv6Addr,
}

/// The position of the upper layer behind the extension headers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UpperLayer {
    /// The protocol of the upper layer.
    pub protocol: IpProtocol,
    /// Offset of the upper layer from the start of the IPv6 payload, bytes.
    pub offset: usize,
}

impl Ipv6Header {
    /// Length of the header in bytes.
    pub const LEN: usize = 40;

    /// A header for `payload_len` bytes; a payload longer than 65,535 bytes counts as that long, as in [`crate::Ipv4Header::new`].
    #[must_use]
    #[inline]
    pub const fn new(src: Ipv6Addr, dst: Ipv6Addr, next_header: IpProtocol, payload_len: usize) -> Self {
        Self {
            dscp: 0,
            ecn: Ecn::NotEct,
            flow_label: 0,
            payload_len: if payload_len <= 0xFFFF { payload_len as u16 } else { 0xFFFF },
            next_header,
            hop_limit: 64,
            src,
            dst,
        }
    }

    /// Reads the header at the start of `bytes` and checks its length against `bytes`.
    /// The payload is `bytes[40..40 + payload_len]`; bytes behind it are Ethernet padding.
    ///
    /// # Errors
    /// `Truncated` or `WrongVersion`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, Ipv6Error> {
        let header = Self::parse_quoted(bytes)?;
        if Self::LEN + header.payload_len as usize > bytes.len() {
            return Err(Ipv6Error::Truncated);
        }
        Ok(header)
    }

    /// Reads a header quoted in an ICMPv6 error: its packet may be cut short.
    ///
    /// # Errors
    /// `Truncated` when the header itself is cut short, or `WrongVersion`.
    #[inline]
    pub fn parse_quoted(bytes: &[u8]) -> Result<Self, Ipv6Error> {
        let (h, rest) = bytes.split_first_chunk::<8>().ok_or(Ipv6Error::Truncated)?;
        let (src, rest) = rest.split_first_chunk::<16>().ok_or(Ipv6Error::Truncated)?;
        let (dst, _) = rest.split_first_chunk::<16>().ok_or(Ipv6Error::Truncated)?;
        let word = u32::from_be_bytes([h[0], h[1], h[2], h[3]]);
        if word >> 28 != 6 {
            return Err(Ipv6Error::WrongVersion);
        }
        Ok(Self {
            dscp: ((word >> 22) & 0x3F) as u8,
            ecn: Ecn::from_bits((word >> 20) as u8),
            flow_label: word & 0xF_FFFF,
            payload_len: u16::from_be_bytes([h[4], h[5]]),
            next_header: IpProtocol(h[6]),
            hop_limit: h[7],
            src: Ipv6Addr::from(*src),
            dst: Ipv6Addr::from(*dst),
        })
    }

    /// Writes the header at the start of `buffer` and returns its length.
    ///
    /// # Errors
    /// `FieldOutOfRange` or `BufferTooSmall`.
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, Ipv6Error> {
        if self.dscp > 63 || self.flow_label > 0xF_FFFF {
            return Err(Ipv6Error::FieldOutOfRange);
        }
        let h = buffer.first_chunk_mut::<{ Self::LEN }>().ok_or(Ipv6Error::BufferTooSmall)?;
        let class = u32::from(self.dscp << 2 | self.ecn.bits());
        h[0..4].copy_from_slice(&(6 << 28 | class << 20 | self.flow_label).to_be_bytes());
        h[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        h[6] = self.next_header.0;
        h[7] = self.hop_limit;
        h[8..24].copy_from_slice(&self.src.octets());
        h[24..40].copy_from_slice(&self.dst.octets());
        Ok(Self::LEN)
    }
}

/// Largest number of extension headers that are skipped; RFC 8200 section 4.1 recommends an order with six.
const EXTENSIONS_MAX: usize = 8;

/// Finds the upper layer in `payload`, an IPv6 payload that begins with `next_header`.
///
/// # Errors
/// `BadLength`, `Fragment`, `UnsupportedExtension` or `TooManyExtensions`.
#[inline]
pub fn skip_extensions(next_header: IpProtocol, payload: &[u8]) -> Result<UpperLayer, Ipv6Error> {
    let mut upper = UpperLayer { protocol: next_header, offset: 0 };
    for position in 0..=EXTENSIONS_MAX {
        let rest = payload.get(upper.offset..).ok_or(Ipv6Error::BadLength)?;
        let len = match upper.protocol {
            // "The Hop-by-Hop Options header [...] is restricted to appear immediately after an IPv6 header only"
            // (RFC 8200 section 4.1).
            IpProtocol::HOP_BY_HOP if position > 0 => return Err(Ipv6Error::UnsupportedExtension),
            IpProtocol::HOP_BY_HOP | IpProtocol::DESTINATION_OPTIONS => options_len(rest)?,
            IpProtocol::ROUTING => routing_len(rest)?,
            IpProtocol::FRAGMENT => atomic_fragment_len(rest)?,
            _ => return Ok(upper),
        };
        upper = UpperLayer { protocol: IpProtocol(rest[0]), offset: upper.offset + len };
    }
    Err(Ipv6Error::TooManyExtensions)
}

/// Returns the whole extension header at the start of `rest`; its second byte is its length in units of 8 bytes, less one.
fn extension(rest: &[u8]) -> Result<&[u8], Ipv6Error> {
    let len = 8 * (1 + *rest.get(1).ok_or(Ipv6Error::BadLength)? as usize);
    rest.get(..len).ok_or(Ipv6Error::BadLength)
}

/// Skips an options header, unless it contains an option that we must understand: if the two highest bits of an
/// unrecognised option's type are not 00, the packet must be discarded (RFC 8200 section 4.2).
fn options_len(rest: &[u8]) -> Result<usize, Ipv6Error> {
    const PAD_1: u8 = 0;
    let whole = extension(rest)?;
    let mut options = &whole[2..];
    while let [kind, tail @ ..] = options {
        options = if *kind == PAD_1 {
            tail
        } else if kind >> 6 != 0 {
            return Err(Ipv6Error::UnsupportedExtension);
        } else {
            let len = *tail.first().ok_or(Ipv6Error::BadLength)? as usize;
            tail.get(1 + len..).ok_or(Ipv6Error::BadLength)?
        };
    }
    Ok(whole.len())
}

/// Skips a routing header; an unrecognised one is ignored when its segments-left field is zero (RFC 8200 section 4.4).
fn routing_len(rest: &[u8]) -> Result<usize, Ipv6Error> {
    let whole = extension(rest)?;
    if whole[3] == 0 { Ok(whole.len()) } else { Err(Ipv6Error::UnsupportedExtension) }
}

/// Skips a fragment header with offset 0 and no more fragments: the packet is whole (RFC 6946).
fn atomic_fragment_len(rest: &[u8]) -> Result<usize, Ipv6Error> {
    let h = rest.first_chunk::<8>().ok_or(Ipv6Error::BadLength)?;
    if u16::from_be_bytes([h[2], h[3]]) & 0xFFF9 == 0 { Ok(8) } else { Err(Ipv6Error::Fragment) }
}

#[cfg(test)]
mod tests;
