//! ICMPv6 (RFC 4443): echo, the error messages that concern TCP, and neighbour discovery (RFC 4861).

use core::net::Ipv6Addr;

use crate::{IpProtocol, MacAddr, checksum};

const DESTINATION_UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;

const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;

const ROUTER: u32 = 1 << 31;
const SOLICITED: u32 = 1 << 30;
const OVERRIDE: u32 = 1 << 29;

const LEN: usize = 8;

error_enum! {
    /// Why an ICMPv6 message could not be read or written.
    Icmpv6Error {
        /// the packet ends inside its ICMPv6 message
        Truncated,
        /// the ICMPv6 checksum is wrong
        BadChecksum,
        /// a neighbour discovery message has a code, a target or an option that it must not have
        Malformed,
        /// the message is too long for ICMPv6
        TooLong,
        /// the buffer is too small for the ICMPv6 message
        BufferTooSmall,
    }
}

/// An ICMPv6 message, borrowed from its packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Icmpv6Message<'a> {
    /// Type 128: asks the receiver for an echo reply.
    EchoRequest {
        /// Bytes 4 and 5: identifies the sender, big-endian.
        id: u16,
        /// Bytes 6 and 7: number of the request, big-endian.
        seq: u16,
        /// From byte 8: data that the reply repeats.
        payload: &'a [u8],
    },
    /// Type 129: the answer to an echo request.
    EchoReply {
        /// Copied from the request.
        id: u16,
        /// Copied from the request.
        seq: u16,
        /// Copied from the request.
        payload: &'a [u8],
    },
    /// Type 2: a packet of ours is larger than the MTU of a link.
    PacketTooBig {
        /// Bytes 4 to 7: MTU of that link in bytes, big-endian.
        mtu: u32,
        /// From byte 8: our packet, from its IPv6 header on: see [`crate::QuotedFlow::parse_v6`].
        quoted: &'a [u8],
    },
    /// Type 1: a packet of ours was not delivered.
    DestinationUnreachable {
        /// The reason: 0 no route, 1 prohibited, 3 address unreachable, 4 port unreachable.
        code: u8,
        /// From byte 8: our packet, from its IPv6 header on.
        quoted: &'a [u8],
    },
    /// Type 3: the hop limit of a packet of ours ended (code 0), or its fragments came too late (code 1).
    TimeExceeded {
        /// The code: 0 or 1.
        code: u8,
        /// From byte 8: our packet, from its IPv6 header on.
        quoted: &'a [u8],
    },
    /// Type 135: asks for the Ethernet address of `target` (RFC 4861 section 4.3).
    NeighborSolicitation {
        /// Bytes 8 to 23: the IPv6 address asked for.
        target: Ipv6Addr,
        /// Option 1: the sender's Ethernet address; absent in duplicate address detection.
        source_link: Option<MacAddr>,
    },
    /// Type 136: tells the Ethernet address of `target` (RFC 4861 section 4.4).
    NeighborAdvertisement {
        /// R flag: the sender is a router.
        router: bool,
        /// S flag: the message answers a solicitation.
        solicited: bool,
        /// O flag: the address replaces the one in the receiver's cache.
        overrides: bool,
        /// Bytes 8 to 23: the IPv6 address that the message is about.
        target: Ipv6Addr,
        /// Option 2: the Ethernet address of `target`; may be absent in an answer to a unicast solicitation.
        target_link: Option<MacAddr>,
    },
    /// Any other ICMPv6 message.
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

impl<'a> Icmpv6Message<'a> {
    /// Length in bytes of the header that all messages have.
    pub const LEN: usize = LEN;

    /// Reads a message that fills all of `bytes`, the upper layer of a packet from `src` to `dst`, and verifies its checksum.
    /// The caller checks that a neighbour discovery packet has hop limit 255; [`crate::Packet::parse`] does.
    ///
    /// # Errors
    /// `Truncated`, `BadChecksum` or `Malformed`.
    pub fn parse(src: &Ipv6Addr, dst: &Ipv6Addr, bytes: &'a [u8]) -> Result<Self, Icmpv6Error> {
        let (h, payload) = bytes.split_first_chunk::<LEN>().ok_or(Icmpv6Error::Truncated)?;
        let len = u32::try_from(bytes.len()).map_err(|_| Icmpv6Error::TooLong)?;
        if !checksum::verify(checksum::pseudo_v6(src, dst, IpProtocol::ICMPV6, len), bytes) {
            return Err(Icmpv6Error::BadChecksum);
        }
        let code = h[1];
        let word = u32::from_be_bytes([h[4], h[5], h[6], h[7]]);
        let (id, seq) = ((word >> 16) as u16, word as u16);
        Ok(match h[0] {
            ECHO_REQUEST if code == 0 => Self::EchoRequest { id, seq, payload },
            ECHO_REPLY if code == 0 => Self::EchoReply { id, seq, payload },
            // "Code: Set to 0 (zero) by the originator and ignored by the receiver" (RFC 4443 section 3.2).
            PACKET_TOO_BIG => Self::PacketTooBig { mtu: word, quoted: payload },
            DESTINATION_UNREACHABLE => Self::DestinationUnreachable { code, quoted: payload },
            TIME_EXCEEDED => Self::TimeExceeded { code, quoted: payload },
            NEIGHBOR_SOLICITATION => {
                let (target, source_link) = parse_neighbor(code, payload, SOURCE_LINK_ADDRESS)?;
                Self::NeighborSolicitation { target, source_link }
            }
            NEIGHBOR_ADVERTISEMENT => {
                let (target, target_link) = parse_neighbor(code, payload, TARGET_LINK_ADDRESS)?;
                Self::NeighborAdvertisement {
                    router: word & ROUTER != 0,
                    solicited: word & SOLICITED != 0,
                    overrides: word & OVERRIDE != 0,
                    target,
                    target_link,
                }
            }
            kind => Self::Other { kind, code, word, payload },
        })
    }

    /// True for messages that are accepted only with hop limit 255 (RFC 4861 sections 7.1.1 and 7.1.2).
    #[must_use]
    pub const fn is_neighbor_discovery(&self) -> bool {
        matches!(self, Self::NeighborSolicitation { .. } | Self::NeighborAdvertisement { .. })
    }

    /// Length of the message in bytes.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        Self::LEN
            + match *self {
                Self::NeighborSolicitation { source_link: link, .. }
                | Self::NeighborAdvertisement { target_link: link, .. } => {
                    if link.is_some() {
                        24
                    } else {
                        16
                    }
                }
                Self::EchoRequest { payload, .. }
                | Self::EchoReply { payload, .. }
                | Self::Other { payload, .. } => payload.len(),
                Self::PacketTooBig { quoted, .. }
                | Self::DestinationUnreachable { quoted, .. }
                | Self::TimeExceeded { quoted, .. } => quoted.len(),
            }
    }

    /// Writes the message at the start of `buffer`, with its checksum for a packet from `src` to `dst`; returns its length.
    ///
    /// # Errors
    /// `BufferTooSmall` or `TooLong`.
    pub fn emit(&self, src: &Ipv6Addr, dst: &Ipv6Addr, buffer: &mut [u8]) -> Result<usize, Icmpv6Error> {
        let len = self.encoded_len();
        let pseudo_len = u32::try_from(len).map_err(|_| Icmpv6Error::TooLong)?;
        let whole = buffer.get_mut(..len).ok_or(Icmpv6Error::BufferTooSmall)?;
        let (h, body) = whole.split_first_chunk_mut::<LEN>().ok_or(Icmpv6Error::BufferTooSmall)?;
        let (kind, code, word) = self.head();
        h[..4].copy_from_slice(&[kind, code, 0, 0]);
        h[4..].copy_from_slice(&word.to_be_bytes());
        match *self {
            Self::NeighborSolicitation { target, source_link } => {
                emit_neighbor(body, target, source_link, SOURCE_LINK_ADDRESS);
            }
            Self::NeighborAdvertisement { target, target_link, .. } => {
                emit_neighbor(body, target, target_link, TARGET_LINK_ADDRESS);
            }
            Self::EchoRequest { payload, .. }
            | Self::EchoReply { payload, .. }
            | Self::Other { payload, .. } => {
                body.copy_from_slice(payload);
            }
            Self::PacketTooBig { quoted, .. }
            | Self::DestinationUnreachable { quoted, .. }
            | Self::TimeExceeded { quoted, .. } => body.copy_from_slice(quoted),
        }
        let pseudo = checksum::pseudo_v6(src, dst, IpProtocol::ICMPV6, pseudo_len);
        if checksum::fill(pseudo, whole, 2) { Ok(len) } else { Err(Icmpv6Error::BufferTooSmall) }
    }

    /// Type, code, and bytes 4 to 7 of the message.
    fn head(&self) -> (u8, u8, u32) {
        match *self {
            Self::EchoRequest { id, seq, .. } => (ECHO_REQUEST, 0, u32::from(id) << 16 | u32::from(seq)),
            Self::EchoReply { id, seq, .. } => (ECHO_REPLY, 0, u32::from(id) << 16 | u32::from(seq)),
            Self::PacketTooBig { mtu, .. } => (PACKET_TOO_BIG, 0, mtu),
            Self::DestinationUnreachable { code, .. } => (DESTINATION_UNREACHABLE, code, 0),
            Self::TimeExceeded { code, .. } => (TIME_EXCEEDED, code, 0),
            Self::NeighborSolicitation { .. } => (NEIGHBOR_SOLICITATION, 0, 0),
            Self::NeighborAdvertisement { router, solicited, overrides, .. } => {
                let bit = |set: bool, mask: u32| if set { mask } else { 0 };
                let word = bit(router, ROUTER) | bit(solicited, SOLICITED) | bit(overrides, OVERRIDE);
                (NEIGHBOR_ADVERTISEMENT, 0, word)
            }
            Self::Other { kind, code, word, .. } => (kind, code, word),
        }
    }
}

/// Reads the target and the link-layer address of a neighbour discovery message; `wanted` is the option with the latter.
/// "All included options have a length that is greater than zero", and the target is not multicast (RFC 4861 section 7.1).
fn parse_neighbor(code: u8, payload: &[u8], wanted: u8) -> Result<(Ipv6Addr, Option<MacAddr>), Icmpv6Error> {
    let (target, mut options) = payload.split_first_chunk::<16>().ok_or(Icmpv6Error::Truncated)?;
    let target = Ipv6Addr::from(*target);
    if code != 0 || target.is_multicast() {
        return Err(Icmpv6Error::Malformed);
    }
    let mut link = None;
    while let [kind, units, ..] = *options {
        let len = 8 * units as usize;
        if len == 0 || len > options.len() {
            return Err(Icmpv6Error::Malformed);
        }
        if let (true, [_, _, a, b, c, d, e, f]) = (kind == wanted, &options[..len]) {
            link = Some(MacAddr([*a, *b, *c, *d, *e, *f]));
        }
        options = &options[len..];
    }
    if options.is_empty() { Ok((target, link)) } else { Err(Icmpv6Error::Malformed) }
}

/// Writes target and link-layer address into `body`, which is as long as [`Icmpv6Message::encoded_len`] says.
fn emit_neighbor(body: &mut [u8], target: Ipv6Addr, link: Option<MacAddr>, kind: u8) {
    let Some((address, option)) = body.split_first_chunk_mut::<16>() else { return };
    *address = target.octets();
    if let (Some(MacAddr(mac)), Some(option)) = (link, option.first_chunk_mut::<8>()) {
        option[..2].copy_from_slice(&[kind, 1]);
        option[2..].copy_from_slice(&mac);
    }
}
