//! The Ethernet II header, with at most one 802.1Q tag.
//!
//! ```text
//!  0        6        12     14            0      2      4
//!  | dst    | src    | type | payload     or, tagged, | 8100 | tci  | type | payload
//! ```
//! A second tag is not read: its EtherType is returned, and the caller refuses it.

use crate::MacAddr;

/// The EtherType: the protocol of the frame's payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4 over Ethernet (RFC 894).
    pub const IPV4: Self = Self(0x0800);
    /// ARP over Ethernet (RFC 826).
    pub const ARP: Self = Self(0x0806);
    /// An 802.1Q tag; the real EtherType follows it.
    pub const VLAN: Self = Self(0x8100);
    /// IPv6 over Ethernet (RFC 2464).
    pub const IPV6: Self = Self(0x86DD);
}

/// The 16-bit content (TCI) of an 802.1Q tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VlanTag(u16);

impl VlanTag {
    /// The tag of VLAN `id` (12 bits) with a priority (3 bits); higher bits are cut off.
    #[must_use]
    pub const fn new(id: u16, priority: u8) -> Self {
        Self(id & 0x0FFF | ((priority & 7) as u16) << 13)
    }

    /// The tag with this tag control information, as on the wire.
    #[must_use]
    pub const fn from_bits(tci: u16) -> Self {
        Self(tci)
    }

    /// The tag control information, as on the wire.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The VLAN identifier, 12 bits; 0: the tag carries only a priority.
    #[must_use]
    pub const fn id(self) -> u16 {
        self.0 & 0x0FFF
    }

    /// The priority code point, 0 to 7.
    #[must_use]
    pub const fn priority(self) -> u8 {
        (self.0 >> 13) as u8
    }

    /// True when the DEI bit is set: the frame may be dropped first.
    #[must_use]
    pub const fn is_drop_eligible(self) -> bool {
        self.0 & 0x1000 != 0
    }
}

error_enum! {
    /// Why an Ethernet header could not be read or written.
    EthernetError {
        /// the frame ends inside its Ethernet header
        Truncated,
        /// the buffer is too small for the Ethernet header
        BufferTooSmall,
    }
}

/// An Ethernet II header, with at most one VLAN tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EthernetHeader {
    /// Bytes 0 to 5: the destination address.
    pub dst: MacAddr,
    /// Bytes 6 to 11: the source address.
    pub src: MacAddr,
    /// The EtherType, from behind the tag if there is one. A value below 0x600 is an 802.3 length.
    pub ethertype: EtherType,
    /// The 802.1Q tag, if there is one.
    pub vlan: Option<VlanTag>,
}

impl EthernetHeader {
    /// Length without a tag, bytes.
    pub const LEN: usize = 14;
    /// Length with a tag, bytes.
    pub const LEN_TAGGED: usize = 18;

    /// Reads the header at the start of `frame`; the payload begins at [`Self::header_len`].
    ///
    /// # Errors
    /// [`EthernetError::Truncated`] for a frame that is too short.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<Self, EthernetError> {
        let h = frame.first_chunk::<{ Self::LEN }>().ok_or(EthernetError::Truncated)?;
        let dst = MacAddr([h[0], h[1], h[2], h[3], h[4], h[5]]);
        let src = MacAddr([h[6], h[7], h[8], h[9], h[10], h[11]]);
        let ethertype = EtherType(u16::from_be_bytes([h[12], h[13]]));
        if ethertype != EtherType::VLAN {
            return Ok(Self { dst, src, ethertype, vlan: None });
        }
        let h = frame.first_chunk::<{ Self::LEN_TAGGED }>().ok_or(EthernetError::Truncated)?;
        let vlan = Some(VlanTag(u16::from_be_bytes([h[14], h[15]])));
        Ok(Self { dst, src, ethertype: EtherType(u16::from_be_bytes([h[16], h[17]])), vlan })
    }

    /// Length on the wire: 14 or 18 bytes.
    #[must_use]
    #[inline]
    pub const fn header_len(&self) -> usize {
        if self.vlan.is_some() { Self::LEN_TAGGED } else { Self::LEN }
    }

    /// Writes the header at the start of `buffer` and returns its length.
    ///
    /// # Errors
    /// [`EthernetError::BufferTooSmall`] for less than [`Self::header_len`] bytes.
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EthernetError> {
        let len = self.header_len();
        let h = buffer.get_mut(..len).ok_or(EthernetError::BufferTooSmall)?;
        h[..6].copy_from_slice(&self.dst.0);
        h[6..12].copy_from_slice(&self.src.0);
        if let Some(tag) = self.vlan {
            h[12..14].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
            h[14..16].copy_from_slice(&tag.0.to_be_bytes());
        }
        h[len - 2..].copy_from_slice(&self.ethertype.0.to_be_bytes());
        Ok(len)
    }
}
