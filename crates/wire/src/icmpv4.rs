//! ICMP for IPv4 (RFC 792): echo, and the error messages that concern TCP.

use crate::checksum;

const ECHO_REPLY: u8 = 0;
const DESTINATION_UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;

/// Codes of "destination unreachable" (type 3).
pub mod code {
    /// A router has no route to the network.
    pub const NETWORK_UNREACHABLE: u8 = 0;
    /// The host does not answer its last router.
    pub const HOST_UNREACHABLE: u8 = 1;
    /// The host does not implement the protocol.
    pub const PROTOCOL_UNREACHABLE: u8 = 2;
    /// No socket is open on the port.
    pub const PORT_UNREACHABLE: u8 = 3;
    /// The packet is larger than the next link's MTU, and DF forbids fragmentation (RFC 1191).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// An administrator has forbidden the communication (RFC 1812).
    pub const ADMINISTRATIVELY_PROHIBITED: u8 = 13;
}

const LEN: usize = 8;

error_enum! {
    /// Why an ICMP message could not be read or written.
    Icmpv4Error {
        /// the packet ends inside its ICMP header
        Truncated,
        /// the ICMP checksum is wrong
        BadChecksum,
        /// the buffer is too small for the ICMP message
        BufferTooSmall,
    }
}

/// An ICMP message, borrowed from its packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Icmpv4Message<'a> {
    /// Type 8: asks the receiver for an echo reply.
    EchoRequest {
        /// Bytes 4 and 5: identifies the sender, big-endian.
        id: u16,
        /// Bytes 6 and 7: number of the request, big-endian.
        seq: u16,
        /// From byte 8: data that the reply repeats.
        payload: &'a [u8],
    },
    /// Type 0: the answer to an echo request.
    EchoReply {
        /// Copied from the request.
        id: u16,
        /// Copied from the request.
        seq: u16,
        /// Copied from the request.
        payload: &'a [u8],
    },
    /// Type 3: a packet of ours was not delivered.
    DestinationUnreachable {
        /// The reason: one of [`code`].
        code: u8,
        /// Bytes 6 and 7: with [`code::FRAGMENTATION_NEEDED`], the MTU of the next link in bytes; 0 from routers older than RFC 1191.
        next_hop_mtu: u16,
        /// From byte 8: our packet, from its IP header on: see [`crate::QuotedFlow::parse_v4`].
        quoted: &'a [u8],
    },
    /// Type 11: the time to live of a packet of ours ended (code 0), or its fragments came too late (code 1).
    TimeExceeded {
        /// The code: 0 or 1.
        code: u8,
        /// From byte 8: our packet, from its IP header on.
        quoted: &'a [u8],
    },
    /// Any other ICMP message.
    Other {
        /// The type; none of the above.
        kind: u8,
        /// The code of the message.
        code: u8,
        /// Bytes 4 to 7, big-endian.
        word: u32,
        /// The bytes from byte 8 on.
        payload: &'a [u8],
    },
}

impl<'a> Icmpv4Message<'a> {
    /// Length of the header in bytes.
    pub const LEN: usize = LEN;

    /// Reads a message that fills all of `bytes` (the IP payload), and verifies its checksum.
    ///
    /// # Errors
    /// `Truncated` or `BadChecksum`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Icmpv4Error> {
        let (h, payload) = bytes.split_first_chunk::<LEN>().ok_or(Icmpv4Error::Truncated)?;
        if !checksum::verify(checksum::Sum::ZERO, bytes) {
            return Err(Icmpv4Error::BadChecksum);
        }
        let code = h[1];
        let (high, low) = (u16::from_be_bytes([h[4], h[5]]), u16::from_be_bytes([h[6], h[7]]));
        Ok(match h[0] {
            ECHO_REQUEST if code == 0 => Self::EchoRequest { id: high, seq: low, payload },
            ECHO_REPLY if code == 0 => Self::EchoReply { id: high, seq: low, payload },
            DESTINATION_UNREACHABLE => {
                Self::DestinationUnreachable { code, next_hop_mtu: low, quoted: payload }
            }
            TIME_EXCEEDED => Self::TimeExceeded { code, quoted: payload },
            kind => Self::Other { kind, code, word: u32::from(high) << 16 | u32::from(low), payload },
        })
    }

    /// Length of the message in bytes.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        Self::LEN + self.body().len()
    }

    /// Writes the message with its checksum at the start of `buffer` and returns its length.
    ///
    /// # Errors
    /// `BufferTooSmall` for less than [`Self::encoded_len`] bytes.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, Icmpv4Error> {
        let len = self.encoded_len();
        let whole = buffer.get_mut(..len).ok_or(Icmpv4Error::BufferTooSmall)?;
        let (h, body) = whole.split_first_chunk_mut::<LEN>().ok_or(Icmpv4Error::BufferTooSmall)?;
        let (kind, code, word) = match *self {
            Self::EchoRequest { id, seq, .. } => (ECHO_REQUEST, 0, u32::from(id) << 16 | u32::from(seq)),
            Self::EchoReply { id, seq, .. } => (ECHO_REPLY, 0, u32::from(id) << 16 | u32::from(seq)),
            Self::DestinationUnreachable { code, next_hop_mtu, .. } => {
                (DESTINATION_UNREACHABLE, code, u32::from(next_hop_mtu))
            }
            Self::TimeExceeded { code, .. } => (TIME_EXCEEDED, code, 0),
            Self::Other { kind, code, word, .. } => (kind, code, word),
        };
        h[..4].copy_from_slice(&[kind, code, 0, 0]);
        h[4..].copy_from_slice(&word.to_be_bytes());
        body.copy_from_slice(self.body());
        if checksum::fill(checksum::Sum::ZERO, whole, 2) { Ok(len) } else { Err(Icmpv4Error::BufferTooSmall) }
    }

    const fn body(&self) -> &'a [u8] {
        match *self {
            Self::EchoRequest { payload, .. }
            | Self::EchoReply { payload, .. }
            | Self::Other { payload, .. } => payload,
            Self::DestinationUnreachable { quoted, .. } | Self::TimeExceeded { quoted, .. } => quoted,
        }
    }
}
