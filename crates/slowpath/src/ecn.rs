//! What the ends of a connection agree on about ECN in the handshake (RFC 3168 section 6.1.1, RFC 9768 section 3.1). How marks are fed back
//! later is `flow`'s and the fast path's.
//!
//! ```text
//!   AE CWR ECE     in a SYN               in the SYN-ACK to 111        in the SYN-ACK to 011
//!    0  0  0       no ECN                 no ECN                       no ECN
//!    0  0  1       (accurate)             classic ECN                  classic ECN
//!    0  1  1       classic ECN            accurate, SYN had ECT(1)     broken: no ECN
//!    1  1  1       accurate ECN           broken: no ECN               broken: no ECN
//!    others        (accurate)             accurate ECN                 no ECN
//! ```

use crate::handshake::Negotiated;
use crate::{FlowOptions, SlowPath};
use flow::{AccurateEcn, state};
use wire::{TcpFlags, TcpPacket};

/// ACE values of a handshake: no ECN, classic ECN in a SYN-ACK and in a SYN, accurate ECN in a SYN.
const NOTHING: u8 = 0b000;
const CLASSIC_ANSWER: u8 = 0b001;
const CLASSIC: u8 = 0b011;
const ACCURATE: u8 = 0b111;

/// Timeouts after which a SYN-ACK says nothing of ECN any more: "If this retransmission times out, to expedite connection setup, the TCP
/// Server SHOULD retransmit the SYN/ACK with (AE,CWR,ECE) = (0,0,0)" (RFC 9768 section 3.2.3.2.2).
const ACCURATE_ANSWERS: u8 = 2;

/// SYNs that ask for accurate ECN before one asks for nothing: "it SHOULD attempt to negotiate the use of AccECN at least one more time"
/// (RFC 9768 section 3.1.4.1).
const ACCURATE_TRIES: u8 = 2;
/// SYNs that ask for ECN when the algorithm needs it: most lost SYNs were lost by chance.
const NEEDED_TRIES: u8 = 3;

/// How the ends of a connection feed congestion marks back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feedback {
    /// They have not agreed on ECN.
    None,
    /// An echo until the sender answers it (RFC 3168).
    Classic,
    /// An echo of each change, because our own algorithm is DCTCP and expects the same of the peer (RFC 8257).
    Dctcp,
    /// Counts of marked packets (RFC 9768).
    Accurate,
}

impl Feedback {
    /// The word that reports show.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Classic => "classic",
            Self::Dctcp => "dctcp",
            Self::Accurate => "accurate",
        }
    }
}

/// What our SYN asks for. It stays the same for a connection, because "MUST NOT send a 'Classic' ECN-setup SYN ... and a SYN with
/// (AE,CWR,ECE) = (1,1,1) ... within the same connection" (RFC 9768 section 3.1.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asks {
    Nothing,
    Classic,
    Accurate,
}

impl Asks {
    /// Flags of SYN number `tries`, from 0 on; `is_needed`: the algorithm does not work without ECN.
    pub(crate) fn flags(self, tries: u8, is_needed: bool) -> TcpFlags {
        let ace = match self {
            _ if self.is_silent(tries, is_needed) => NOTHING,
            Self::Nothing => NOTHING,
            Self::Classic => CLASSIC,
            Self::Accurate => ACCURATE,
        };
        TcpFlags::SYN.with_ace(ace)
    }

    /// True when SYN number `tries` does not ask any more. "A host that receives no reply to an ECN-setup SYN ... MAY resend the SYN and any
    /// subsequent SYN retransmissions with CWR and ECE cleared" (RFC 3168 section 6.1.1.1).
    pub(crate) const fn is_silent(self, tries: u8, is_needed: bool) -> bool {
        let tries_most = match self {
            _ if is_needed => NEEDED_TRIES,
            Self::Accurate => ACCURATE_TRIES,
            _ => 1,
        };
        tries >= tries_most
    }
}

/// The part of [`Negotiated`] about ECN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Agreed {
    /// Both ends use ECN, in one of its forms: `state::ECN`.
    pub(crate) has_ecn: bool,
    pub(crate) accurate: AccurateEcn,
}

impl Agreed {
    const CLASSIC: Self = Self { has_ecn: true, accurate: AccurateEcn::NONE };

    const fn accurate(accurate: AccurateEcn) -> Self {
        Self { has_ecn: true, accurate }
    }
}

/// The peer has asked for classic and for accurate ECN during one handshake: "MUST reset the connection with a RST packet" (RFC 9768
/// section 3.1.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Contradiction;

impl Negotiated {
    /// Flags of our SYN-ACK number `tries`, from 0 on.
    pub(crate) fn syn_ack_flags(&mut self, tries: u8) -> TcpFlags {
        let ace = match () {
            () if self.features & state::ECN == 0 => NOTHING,
            () if !self.accurate.is_agreed() => CLASSIC_ANSWER,
            () if tries < ACCURATE_ANSWERS => self.accurate.greeting(),
            () => {
                self.accurate.forbid_marks();
                NOTHING
            }
        };
        TcpFlags::SYN.with(TcpFlags::ACK).with_ace(ace)
    }

    /// The peer's SYN has come again, at an end that speaks accurate ECN if `is_able`.
    pub(crate) fn syn_again(&mut self, packet: &TcpPacket, is_able: bool) -> Result<(), Contradiction> {
        let ace = packet.header.flags.ace();
        if self.accurate.is_agreed() {
            self.accurate.greet_again(packet.ip.ecn, false);
            match ace {
                NOTHING => self.accurate.forbid_marks(),
                CLASSIC => return Err(Contradiction),
                _ => {}
            }
        } else if self.features & state::ECN != 0 && is_able && !matches!(ace, NOTHING | CLASSIC) {
            return Err(Contradiction);
        }
        Ok(())
    }

    /// The last segment of the peer's handshake: without data and SACK blocks it says how our SYN-ACK arrived.
    pub(crate) fn take_final(&mut self, packet: &TcpPacket) {
        let is_pure = packet.payload.is_empty() && packet.options.sack.is_empty();
        if self.accurate.is_agreed() && is_pure && !packet.header.flags.contains(TcpFlags::FIN) {
            self.is_marked |= self.accurate.greeted(packet.header.flags.ace());
        }
    }
}

impl SlowPath {
    /// True when ECN may be negotiated: never for an algorithm that ignores marks, always for an algorithm that does not work without it.
    pub(crate) fn speaks_ecn(&self, asked: &FlowOptions) -> bool {
        self.is_ecn_on && self.algorithm(asked).heeds_marks() || self.needs_ecn(asked)
    }

    /// True when the algorithm that such a connection gets does not work without ECN.
    pub(crate) fn needs_ecn(&self, asked: &FlowOptions) -> bool {
        self.algorithm(asked).needs_ecn()
    }

    /// True when accurate ECN is spoken where ECN is.
    pub(crate) fn speaks_accurately(&self) -> bool {
        self.flow_config().accurate_ecn
    }

    /// What our SYN asks for.
    pub(crate) fn asks_for(&self, asked: &FlowOptions) -> Asks {
        match self.speaks_ecn(asked) && (self.config.asks_ecn || self.needs_ecn(asked)) {
            false => Asks::Nothing,
            true if self.speaks_accurately() => Asks::Accurate,
            true => Asks::Classic,
        }
    }

    /// What `packet`, the peer's SYN, makes of a connection with these options.
    pub(crate) fn answer_ecn(&self, packet: &TcpPacket, asked: &FlowOptions) -> Agreed {
        match packet.header.flags.ace() {
            _ if !self.speaks_ecn(asked) => Agreed::default(),
            NOTHING => Agreed::default(),
            CLASSIC => Agreed::CLASSIC,
            // "set to any combination other than (0,0,0), (0,1,1) or (1,1,1) ... the Server MUST negotiate the use of AccECN" (section
            // 3.1.3).
            _ if self.speaks_accurately() => Agreed::accurate(AccurateEcn::server(packet.ip.ecn)),
            // RFC 3168 knows nothing of AE.
            ACCURATE => Agreed::CLASSIC,
            _ => Agreed::default(),
        }
    }
}

/// What `packet`, the peer's SYN-ACK, makes of a connection that has asked for `asks` in its SYN; `is_silent`: a later SYN of ours asked for nothing.
pub(crate) fn conclude_ecn(packet: &TcpPacket, asks: Asks, is_silent: bool) -> Agreed {
    match (asks, packet.header.flags.ace()) {
        // "A host MUST NOT set ECT on data packets if it has sent at least one non-ECN-setup SYN" (RFC 3168 section 6.1.1).
        (Asks::Classic | Asks::Accurate, CLASSIC_ANSWER) if !is_silent => Agreed::CLASSIC,
        (Asks::Accurate, CLASSIC_ANSWER | NOTHING | ACCURATE) => Agreed::default(),
        // "it is still allowed to set ECT" after a SYN that asked for nothing, unlike the server (RFC 9768 section 3.1.4.1).
        (Asks::Accurate, ace) => Agreed::accurate(AccurateEcn::client(packet.ip.ecn, ace)),
        _ => Agreed::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syns_ask_as_often_as_makes_sense_and_then_for_nothing() {
        let ace = |asks: Asks, is_needed| [0, 1, 2, 3].map(|tries| asks.flags(tries, is_needed).ace());
        assert_eq!(ace(Asks::Nothing, false), [0; 4]);
        assert_eq!(ace(Asks::Classic, false), [3, 0, 0, 0]);
        assert_eq!(ace(Asks::Accurate, false), [7, 7, 0, 0]);
        assert_eq!(ace(Asks::Classic, true), [3, 3, 3, 0]);
        assert_eq!(ace(Asks::Accurate, true), [7, 7, 7, 0]);
    }
}
