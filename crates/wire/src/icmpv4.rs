//! ICMP for IPv4 (RFC 792): echo, and the errors that concern TCP.

use crate::checksum;

const ECHO_REPLY: u8 = 0;
const DESTINATION_UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;

/// Codes of "destination unreachable".
pub mod code {
    /// No route to the network.
    pub const NETWORK_UNREACHABLE: u8 = 0;
    /// No answer from the host.
    pub const HOST_UNREACHABLE: u8 = 1;
    /// The host does not speak the protocol.
    pub const PROTOCOL_UNREACHABLE: u8 = 2;
    /// Nobody listens on the port.
    pub const PORT_UNREACHABLE: u8 = 3;
    /// The packet is larger than the next link takes, and may not be fragmented (RFC 1191).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Forbidden by an administrator.
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

/// An ICMP message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Icmpv4Message<'a> {
    /// Are you there?
    EchoRequest {
        /// Tells askers apart.
        id: u16,
        /// Tells questions apart.
        seq: u16,
        /// Comes back unchanged.
        payload: &'a [u8],
    },
    /// I am.
    EchoReply {
        /// From the request.
        id: u16,
        /// From the request.
        seq: u16,
        /// From the request.
        payload: &'a [u8],
    },
    /// A packet of ours did not arrive.
    DestinationUnreachable {
        /// Why: one of [`code`].
        code: u8,
        /// With [`code::FRAGMENTATION_NEEDED`] the largest packet that passes; 0 from routers older than RFC 1191.
        next_hop_mtu: u16,
        /// Our packet from its IP header on: see [`crate::QuotedFlow::parse_v4`].
        quoted: &'a [u8],
    },
    /// A packet of ours travelled too far (code 0) or its fragments came too late (code 1).
    TimeExceeded {
        /// Which of the two.
        code: u8,
        /// Our packet from its IP header on.
        quoted: &'a [u8],
    },
    /// Anything else.
    Other {
        /// Its type: none of those above.
        kind: u8,
        /// Its code.
        code: u8,
        /// The second word of the header.
        word: u32,
        /// What follows the eight-byte header.
        payload: &'a [u8],
    },
}

impl<'a> Icmpv4Message<'a> {
    /// Bytes of header on the wire.
    pub const LEN: usize = LEN;

    /// Reads the message that is all of `bytes`, the IP payload, and checks its checksum.
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

    /// Bytes on the wire.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        Self::LEN + self.body().len()
    }

    /// Writes the message with its checksum at the start of `buffer` and returns its length.
    ///
    /// # Errors
    /// `BufferTooSmall`.
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
