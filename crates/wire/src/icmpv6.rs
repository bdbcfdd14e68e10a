//! ICMPv6 (RFC 4443): echo, the errors that concern TCP, and neighbour discovery (RFC 4861).

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

/// An ICMPv6 message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Icmpv6Message<'a> {
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
    /// A packet of ours was larger than the next link takes.
    PacketTooBig {
        /// The largest packet that passes.
        mtu: u32,
        /// Our packet from its IPv6 header on: see [`crate::QuotedFlow::parse_v6`].
        quoted: &'a [u8],
    },
    /// A packet of ours did not arrive.
    DestinationUnreachable {
        /// Why: 0 no route, 1 prohibited, 3 address unreachable, 4 port unreachable.
        code: u8,
        /// Our packet from its IPv6 header on.
        quoted: &'a [u8],
    },
    /// A packet of ours travelled too far (code 0) or its fragments came too late (code 1).
    TimeExceeded {
        /// Which of the two.
        code: u8,
        /// Our packet from its IPv6 header on.
        quoted: &'a [u8],
    },
    /// Who has `target`?
    NeighborSolicitation {
        /// The address asked for.
        target: Ipv6Addr,
        /// The asker's Ethernet address; absent in duplicate address detection.
        source_link: Option<MacAddr>,
    },
    /// `target` is at `target_link`.
    NeighborAdvertisement {
        /// The sender is a router.
        router: bool,
        /// This answers a solicitation.
        solicited: bool,
        /// This replaces what was known.
        overrides: bool,
        /// The address spoken of.
        target: Ipv6Addr,
        /// Its Ethernet address; may be absent in an answer to a unicast question.
        target_link: Option<MacAddr>,
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

impl<'a> Icmpv6Message<'a> {
    /// Bytes of the header common to all messages.
    pub const LEN: usize = LEN;

    /// Reads the message that is all of `bytes`, the upper layer of a packet from `src` to `dst`, and checks its checksum.
    /// That a neighbour discovery packet came with hop limit 255 is the caller's to check; [`crate::Packet::parse`] does.
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

    /// True for the messages that are believed only with hop limit 255 (RFC 4861 sections 7.1.1 and 7.1.2).
    #[must_use]
    pub const fn is_neighbor_discovery(&self) -> bool {
        matches!(self, Self::NeighborSolicitation { .. } | Self::NeighborAdvertisement { .. })
    }

    /// Bytes on the wire.
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

    /// Writes the message with its checksum, as sent from `src` to `dst`, at the start of `buffer`; returns its length.
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

    /// Type, code and second word.
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

/// Target and link-layer address of a neighbour discovery message; `wanted` says which option holds the latter.
/// "All included options have a length that is greater than zero", the target is no group (RFC 4861 section 7.1).
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

/// Writes what [`parse_neighbor`] reads into `body`, which [`Icmpv6Message::encoded_len`] has sized.
fn emit_neighbor(body: &mut [u8], target: Ipv6Addr, link: Option<MacAddr>, kind: u8) {
    let Some((address, option)) = body.split_first_chunk_mut::<16>() else { return };
    *address = target.octets();
    if let (Some(MacAddr(mac)), Some(option)) = (link, option.first_chunk_mut::<8>()) {
        option[..2].copy_from_slice(&[kind, 1]);
        option[2..].copy_from_slice(&mac);
    }
}
