//! ARP for IPv4 over Ethernet (RFC 826); no other hardware types or protocols.

use core::net::Ipv4Addr;

use crate::MacAddr;

/// The operation of an ARP packet (bytes 6 and 7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArpOperation {
    /// Asks for the Ethernet address of the target IP address.
    Request,
    /// Tells the Ethernet address of the sender IP address.
    Reply,
}

error_enum! {
    /// Why an ARP packet could not be read or written.
    ArpError {
        /// the packet ends inside its ARP body
        Truncated,
        /// the ARP packet is not about IPv4 over Ethernet
        UnsupportedKind,
        /// the ARP operation is neither request nor reply
        UnknownOperation,
        /// the buffer is too small for an ARP packet
        BufferTooSmall,
    }
}

/// An ARP packet for IPv4 over Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ArpPacket {
    /// Bytes 6 and 7: request (1) or reply (2).
    pub operation: ArpOperation,
    /// Bytes 8 to 13: the sender's Ethernet address.
    pub sender_mac: MacAddr,
    /// Bytes 14 to 17: the sender's IPv4 address.
    pub sender_ip: Ipv4Addr,
    /// Bytes 18 to 23: the target's Ethernet address; not meaningful in a request.
    pub target_mac: MacAddr,
    /// Bytes 24 to 27: the IPv4 address asked for; in a reply, that of the host that asked.
    pub target_ip: Ipv4Addr,
}

/// The first six bytes: hardware type Ethernet (1), protocol IPv4 (0x0800), address lengths 6 and 4.
const KIND: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];

impl ArpPacket {
    /// Length on the wire in bytes, without padding.
    pub const LEN: usize = 28;

    /// A request for the Ethernet address of `target_ip`, to be sent to the broadcast address.
    #[must_use]
    pub const fn request(sender_mac: MacAddr, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> Self {
        Self { operation: ArpOperation::Request, sender_mac, sender_ip, target_mac: MacAddr::ZERO, target_ip }
    }

    /// The reply to this request by the host with the Ethernet address `mac` and the target IP address.
    #[must_use]
    pub const fn reply(&self, mac: MacAddr) -> Self {
        Self {
            operation: ArpOperation::Reply,
            sender_mac: mac,
            sender_ip: self.target_ip,
            target_mac: self.sender_mac,
            target_ip: self.sender_ip,
        }
    }

    /// Reads the packet at the start of `bytes`; ignores padding after it.
    ///
    /// # Errors
    /// Any [`ArpError`] except `BufferTooSmall`.
    pub fn parse(bytes: &[u8]) -> Result<Self, ArpError> {
        let p = bytes.first_chunk::<{ Self::LEN }>().ok_or(ArpError::Truncated)?;
        if p[..6] != KIND {
            return Err(ArpError::UnsupportedKind);
        }
        let operation = match (p[6], p[7]) {
            (0, 1) => ArpOperation::Request,
            (0, 2) => ArpOperation::Reply,
            _ => return Err(ArpError::UnknownOperation),
        };
        Ok(Self {
            operation,
            sender_mac: MacAddr([p[8], p[9], p[10], p[11], p[12], p[13]]),
            sender_ip: Ipv4Addr::new(p[14], p[15], p[16], p[17]),
            target_mac: MacAddr([p[18], p[19], p[20], p[21], p[22], p[23]]),
            target_ip: Ipv4Addr::new(p[24], p[25], p[26], p[27]),
        })
    }

    /// Writes the packet at the start of `buffer` and returns its length.
    ///
    /// # Errors
    /// [`ArpError::BufferTooSmall`] for less than 28 bytes.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, ArpError> {
        let p = buffer.first_chunk_mut::<{ Self::LEN }>().ok_or(ArpError::BufferTooSmall)?;
        p[..6].copy_from_slice(&KIND);
        p[6] = 0;
        p[7] = match self.operation {
            ArpOperation::Request => 1,
            ArpOperation::Reply => 2,
        };
        p[8..14].copy_from_slice(&self.sender_mac.0);
        p[14..18].copy_from_slice(&self.sender_ip.octets());
        p[18..24].copy_from_slice(&self.target_mac.0);
        p[24..28].copy_from_slice(&self.target_ip.octets());
        Ok(Self::LEN)
    }
}
