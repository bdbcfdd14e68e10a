//! The body of a HELLO frame, and what two services agree on by it.
//!
//! ```text
//!  0 magic u32 | 4 least version u8 | 5 most version u8 | 6 class u8 | 7 purpose u8 | 8 features u64
//!  16 largest frame u32 | 20 most sockets u32 | 24 boot epoch u64 | 32 session u128 | 48 nonce [16] | 64 proof [32]       96 bytes
//! ```
//! A later version may append fields: this version ignores them.

use crate::frame::{HEADER_LEN, Header, Kind, field};
use crate::limits::{FRAME_MAX, FRAME_MAX_LEAST};
use crate::violation::{Refusal, Violation};

/// Bytes of the body in this version.
pub(crate) const LEN: usize = 96;
/// Bytes of the body that the proofs cover: all but the proof.
pub(crate) const PROVED_LEN: usize = 64;
/// The version of the protocol that this crate speaks.
pub(crate) const VERSION: u8 = 1;
/// The feature bit of [`Kind::Congested`]: the acceptor tells whether the network limits what it sends. Without it the opener, which makes the
/// channels, knows only of its own side.
pub const CONGESTED: u64 = 1;
/// Features that this version knows. Both sides use those that both name.
pub(crate) const FEATURES: u64 = CONGESTED;
const MAGIC: u32 = u32::from_le_bytes(*b"TpCh");

/// The step of the handshake, the argument of a HELLO frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// From the side that opened the channel; no proof.
    Ask = 0,
    /// From the other side, with its proof.
    Answer = 1,
    /// From the opening side, with its proof. Frames may follow at once.
    Confirm = 2,
}

impl Step {
    /// The step that the argument of a HELLO frame names.
    #[must_use]
    pub const fn parse(step: u64) -> Option<Self> {
        Some(match step {
            0 => Self::Ask,
            1 => Self::Answer,
            2 => Self::Confirm,
            _ => return None,
        })
    }
}

/// What the sockets of a session need most. Sockets of different classes never share a session, and so never a channel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u8)]
pub enum Class {
    /// Short messages that must not wait.
    Latency = 1,
    /// Bulk data, of which only the rate counts.
    Throughput = 2,
}

/// The body of a HELLO frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Least version of the protocol that the sender speaks, 1 to `most`.
    pub least: u8,
    /// Most version of the protocol that the sender speaks.
    pub most: u8,
    /// The class of the session's sockets.
    pub class: Class,
    /// True: the session must exist, because the sender has heard from the peer in it. False: it begins with this channel, unless the last
    /// step of an earlier handshake has come through after all.
    pub is_join: bool,
    /// Bit set of what the sender knows beyond the version.
    pub features: u64,
    /// Longest DATA frame that the sender takes, bytes.
    pub largest_frame: u32,
    /// Most virtual sockets that the sender keeps for one session.
    pub sockets_max: u32,
    /// When the sender's service started, in nanoseconds of a clock that a restart does not turn back. A service that starts later at the
    /// same address has a larger number.
    pub epoch: u64,
    /// The session, chosen at random by the side that opens it.
    pub session: u128,
    /// Random bytes that make each proof a new one.
    pub nonce: [u8; 16],
}

/// What holds in a session after the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Agreed {
    /// The version of the protocol.
    pub version: u8,
    /// The features that both sides have.
    pub features: u64,
    /// Longest DATA frame that the peer takes, bytes.
    pub largest_frame: u32,
    /// Most virtual sockets that the peer keeps.
    pub sockets_max: u32,
    /// The peer's boot epoch.
    pub epoch: u64,
}

impl Hello {
    /// The whole frame of that step; `proof` zeros in [`Step::Ask`].
    #[must_use]
    pub fn encode(&self, step: Step, proof: &[u8; 32]) -> [u8; HEADER_LEN + LEN] {
        let header = Header { length: LEN as u32, kind: Kind::Hello, socket: 0, argument: step as u64 };
        let mut frame = [0; HEADER_LEN + LEN];
        frame[..HEADER_LEN].copy_from_slice(&header.encode());
        frame[HEADER_LEN..HEADER_LEN + PROVED_LEN].copy_from_slice(&self.proved());
        frame[HEADER_LEN + PROVED_LEN..].copy_from_slice(proof);
        frame
    }

    /// The bytes that the proofs cover.
    #[must_use]
    pub(crate) fn proved(&self) -> [u8; PROVED_LEN] {
        let mut body = [0; PROVED_LEN];
        body[..4].copy_from_slice(&MAGIC.to_le_bytes());
        body[4..8].copy_from_slice(&[self.least, self.most, self.class as u8, u8::from(self.is_join)]);
        body[8..16].copy_from_slice(&self.features.to_le_bytes());
        body[16..20].copy_from_slice(&self.largest_frame.to_le_bytes());
        body[20..24].copy_from_slice(&self.sockets_max.to_le_bytes());
        body[24..32].copy_from_slice(&self.epoch.to_le_bytes());
        body[32..48].copy_from_slice(&self.session.to_le_bytes());
        body[48..64].copy_from_slice(&self.nonce);
        body
    }

    /// Reads the body of a HELLO frame.
    ///
    /// # Errors
    /// [`Violation::Magic`] and [`Violation::Hello`] when a field is out of range.
    pub fn parse(body: &[u8]) -> Result<Self, Violation> {
        if body.len() < LEN || u32::from_le_bytes(field(body, 0)) != MAGIC {
            return Err(Violation::Magic);
        }
        let [least, most, class, purpose] = field(body, 4);
        let class = match class {
            1 => Class::Latency,
            2 => Class::Throughput,
            _ => return Err(Violation::Hello),
        };
        let hello = Self {
            least,
            most,
            class,
            is_join: purpose == 1,
            features: u64::from_le_bytes(field(body, 8)),
            largest_frame: u32::from_le_bytes(field(body, 16)),
            sockets_max: u32::from_le_bytes(field(body, 20)),
            epoch: u64::from_le_bytes(field(body, 24)),
            session: u128::from_le_bytes(field(body, 32)),
            nonce: field(body, 48),
        };
        let is_sane = purpose <= 1 && hello.largest_frame >= FRAME_MAX_LEAST && hello.sockets_max > 0;
        if is_sane { Ok(hello) } else { Err(Violation::Hello) }
    }

    /// The proof in the body of a HELLO frame.
    #[must_use]
    pub(crate) fn proof_in(body: &[u8]) -> [u8; 32] {
        field(body, PROVED_LEN)
    }

    /// What this side, with the HELLO `own`, and the peer agree on.
    ///
    /// # Errors
    /// [`Refusal::Version`] when they have no version in common, which includes a peer that names version 0.
    pub(crate) fn agree(&self, own: &Self) -> Result<Agreed, Refusal> {
        let version = self.most.min(own.most);
        if !(1 <= self.least && self.least <= self.most && version >= self.least.max(own.least)) {
            return Err(Refusal::Version);
        }
        Ok(Agreed {
            version,
            features: self.features & own.features,
            largest_frame: self.largest_frame.min(FRAME_MAX),
            sockets_max: self.sockets_max,
            epoch: self.epoch,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello {
        least: 1,
        most: 2,
        class: Class::Throughput,
        is_join: true,
        features: 0x0102,
        largest_frame: 61_440,
        sockets_max: 65_536,
        epoch: 0x1122_3344,
        session: 7,
        nonce: [0xAA; 16],
    };

    #[test]
    fn hello_has_the_bytes_of_the_picture() {
        let frame = HELLO.encode(Step::Answer, &[0xBB; 32]);
        let mut golden = [0; 112];
        golden[..4].copy_from_slice(&[96, 0, 0, 1]);
        golden[8] = 1;
        golden[16..24].copy_from_slice(&[b'T', b'p', b'C', b'h', 1, 2, 2, 1]);
        golden[24..26].copy_from_slice(&[2, 1]);
        golden[32..36].copy_from_slice(&[0x00, 0xF0, 0, 0]);
        golden[36..40].copy_from_slice(&[0, 0, 1, 0]);
        golden[40..44].copy_from_slice(&[0x44, 0x33, 0x22, 0x11]);
        golden[48] = 7;
        golden[64..80].fill(0xAA);
        golden[80..].fill(0xBB);
        assert_eq!(frame, golden);
        assert_eq!(Hello::parse(&frame[16..]), Ok(HELLO));
        assert_eq!(Hello::proof_in(&frame[16..]), [0xBB; 32]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let spoil = |at: usize, byte: u8| {
            let mut frame = HELLO.encode(Step::Ask, &[0; 32]);
            frame[16 + at] = byte;
            Hello::parse(&frame[16..])
        };
        assert_eq!(spoil(0, b't'), Err(Violation::Magic));
        assert_eq!(spoil(6, 0), Err(Violation::Hello));
        assert_eq!(spoil(6, 3), Err(Violation::Hello));
        assert_eq!(spoil(7, 2), Err(Violation::Hello));
        assert_eq!(spoil(17, 0), Err(Violation::Hello));
        assert_eq!(spoil(22, 0), Err(Violation::Hello));
        assert_eq!(Hello::parse(&[]), Err(Violation::Magic));
    }

    #[test]
    fn the_highest_common_version_is_spoken_or_none() {
        let own = Hello { least: 1, most: 3, ..HELLO };
        let agreed = |least, most| Hello { least, most, ..HELLO }.agree(&own).map(|agreed| agreed.version);
        for (least, most, expected) in [
            (1, 1, Ok(1)),
            (1, 255, Ok(3)),
            (3, 4, Ok(3)),
            (2, 2, Ok(2)),
            (4, 255, Err(Refusal::Version)),
            (255, 255, Err(Refusal::Version)),
            (0, 0, Err(Refusal::Version)),
            (0, 3, Err(Refusal::Version)),
            (3, 2, Err(Refusal::Version)),
        ] {
            assert_eq!(agreed(least, most), expected, "{least} to {most}");
        }
    }
}
