//! The TCP header (RFC 9293 section 3.1). [`TcpOptions`] parses its options separately, only where they are needed.
//!
//! ```text
//!  0          2          4      8      12        13      14       16         18       20
//!  | src port | dst port | seq  | ack  | off, AE | flags | window | checksum | urgent | options
//! ```

use core::ops::{BitAnd, BitOr, BitOrAssign};

use base::SeqNumber;

use crate::{TcpOptions, TcpOptionsError};

/// TCP's control bits, including the ninth (AE of AccECN, RFC 9768).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct TcpFlags(u16);

impl TcpFlags {
    /// The empty set of flags.
    pub const NONE: Self = Self(0);
    /// The sender will send no more data.
    pub const FIN: Self = Self(0x001);
    /// The sequence number is the initial one.
    pub const SYN: Self = Self(0x002);
    /// The connection is reset.
    pub const RST: Self = Self(0x004);
    /// The receiver should pass the data to the application at once.
    pub const PSH: Self = Self(0x008);
    /// The acknowledgement field is valid.
    pub const ACK: Self = Self(0x010);
    /// The urgent pointer is valid.
    pub const URG: Self = Self(0x020);
    /// Echo of a congestion mark (RFC 3168).
    pub const ECE: Self = Self(0x040);
    /// The sender has reduced its congestion window (RFC 3168).
    pub const CWR: Self = Self(0x080);
    /// Accurate ECN (RFC 9768).
    pub const AE: Self = Self(0x100);

    const MASK: u16 = 0x1FF;
    const NAMES: [(Self, &'static str); 9] = [
        (Self::FIN, "FIN"),
        (Self::SYN, "SYN"),
        (Self::RST, "RST"),
        (Self::PSH, "PSH"),
        (Self::ACK, "ACK"),
        (Self::URG, "URG"),
        (Self::ECE, "ECE"),
        (Self::CWR, "CWR"),
        (Self::AE, "AE"),
    ];

    /// The three congestion flags as one number, AE first: the ACE field (RFC 9768 section 3.2.2). In a SYN or
    /// SYN-ACK it is no count: there it negotiates ECN.
    #[must_use]
    #[inline]
    pub const fn ace(self) -> u8 {
        (self.0 >> 6) as u8 & 7
    }

    /// These flags with the ACE field `ace`, of which three bits count.
    #[must_use]
    #[inline]
    pub const fn with_ace(self, ace: u8) -> Self {
        Self(self.0 & !(7 << 6) | (ace as u16 & 7) << 6)
    }

    /// The flags in the low nine bits of `bits`; reserved bits are cut off, because RFC 9293 tells a receiver to ignore them.
    #[must_use]
    #[inline]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & Self::MASK)
    }

    /// The flags as nine bits.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// True when all flags of `other` are set.
    #[must_use]
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True when at least one flag of `other` is set.
    #[must_use]
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// These flags and those of `other`.
    #[must_use]
    #[inline]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These flags without those of `other`.
    #[must_use]
    #[inline]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// True when no flag is set.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for TcpFlags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

impl BitOrAssign for TcpFlags {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        *self = self.with(other);
    }
}

impl BitAnd for TcpFlags {
    type Output = Self;

    #[inline]
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl core::fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut separator = "";
        for (flag, name) in Self::NAMES {
            if self.contains(flag) {
                write!(f, "{separator}{name}")?;
                separator = "|";
            }
        }
        if separator.is_empty() { f.write_str("-") } else { Ok(()) }
    }
}

impl core::fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

error_enum! {
    /// Why a TCP header could not be read or written.
    TcpError {
        /// the packet ends inside its TCP header
        Truncated,
        /// the TCP data offset is below 20 bytes or beyond the segment
        BadLength,
        /// the TCP options do not fit in 40 bytes
        OptionsTooLong,
        /// the buffer is too small for the TCP header
        BufferTooSmall,
    }
}

/// The fields of a TCP header, without options.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TcpHeader {
    /// Bytes 0 and 1: the sender's port.
    pub src_port: u16,
    /// Bytes 2 and 3: the receiver's port.
    pub dst_port: u16,
    /// Bytes 4 to 7: sequence number of the first byte, or of SYN if it is set.
    pub seq: SeqNumber,
    /// Bytes 8 to 11: the next sequence number that the sender expects; valid with ACK.
    pub ack: SeqNumber,
    /// Low nine bits of bytes 12 and 13: control bits.
    pub flags: TcpFlags,
    /// Bytes 14 and 15: the receive window, not scaled.
    pub window: u16,
    /// Bytes 18 and 19: the urgent pointer, relative to `seq`; valid with URG.
    pub urgent: u16,
}

impl TcpHeader {
    /// Length without options, bytes.
    pub const LEN: usize = 20;
    /// Length with the largest possible options, bytes.
    pub const LEN_MAX: usize = 60;
    /// Offset of the checksum in the header, bytes.
    pub const CHECKSUM_OFFSET: usize = 16;

    /// Reads the header at the start of `segment`, the IP payload. Also returns the data offset in bytes, which lies
    /// in `20..=min(60, segment.len())`: the options are `segment[20..offset]`, the payload is `segment[offset..]`.
    ///
    /// # Errors
    /// `Truncated` or `BadLength`.
    #[inline]
    pub fn parse(segment: &[u8]) -> Result<(Self, usize), TcpError> {
        let h = segment.first_chunk::<{ Self::LEN }>().ok_or(TcpError::Truncated)?;
        let offset = (h[12] >> 4) as usize * 4;
        if offset < Self::LEN || offset > segment.len() {
            return Err(TcpError::BadLength);
        }
        let header = Self {
            src_port: u16::from_be_bytes([h[0], h[1]]),
            dst_port: u16::from_be_bytes([h[2], h[3]]),
            seq: SeqNumber(u32::from_be_bytes([h[4], h[5], h[6], h[7]])),
            ack: SeqNumber(u32::from_be_bytes([h[8], h[9], h[10], h[11]])),
            flags: TcpFlags::from_bits(u16::from_be_bytes([h[12], h[13]])),
            window: u16::from_be_bytes([h[14], h[15]]),
            urgent: u16::from_be_bytes([h[18], h[19]]),
        };
        Ok((header, offset))
    }

    /// Writes header and options at the start of `buffer`; returns their length, a multiple of 4.
    /// Writes a zero checksum: [`crate::checksum::fill`] or [`crate::checksum::fill_partial`] completes it.
    ///
    /// # Errors
    /// `OptionsTooLong` or `BufferTooSmall`.
    #[inline]
    pub fn emit(&self, options: &TcpOptions, buffer: &mut [u8]) -> Result<usize, TcpError> {
        let (h, rest) = buffer.split_first_chunk_mut::<{ Self::LEN }>().ok_or(TcpError::BufferTooSmall)?;
        let options_len = options.emit(rest).map_err(|error| match error {
            TcpOptionsError::TooLong => TcpError::OptionsTooLong,
            _ => TcpError::BufferTooSmall,
        })?;
        let len = Self::LEN + options_len;
        h[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        h[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        h[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        h[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        h[12..14].copy_from_slice(&((len as u16 / 4) << 12 | self.flags.bits()).to_be_bytes());
        h[14..16].copy_from_slice(&self.window.to_be_bytes());
        h[16..18].copy_from_slice(&[0, 0]);
        h[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        Ok(len)
    }

    /// Number of sequence numbers in a segment with this header and `payload_len` bytes: SYN and FIN count as one each.
    #[must_use]
    #[inline]
    pub const fn sequence_len(&self, payload_len: usize) -> u32 {
        payload_len as u32
            + self.flags.contains(TcpFlags::SYN) as u32
            + self.flags.contains(TcpFlags::FIN) as u32
    }
}
