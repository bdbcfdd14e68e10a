//! The header of a frame, 16 bytes, and the types of frames. No state, no allocation.
//!
//! ```text
//!  byte  0        3      4              8                                16
//!        | length | type | socket u32   | argument u64                   | body, `length` bytes
//!          u24      u8     0: session
//! ```
//! All numbers are little-endian. A frame begins at any byte of a channel's stream. The argument is a whole position of the socket's stream,
//! not its low half: a channel may fall behind the others by more than 2 GiB (0.2 s at 100 Gbit/s), and a position of 32 bits would then
//! be taken for a later one.

use crate::limits::{CONTROL_MAX, FRAME_MAX};
use crate::violation::Violation;

/// Bytes of a header.
pub const HEADER_LEN: usize = 16;

/// The type of a frame; the comment names its argument and its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A step of the handshake; argument: the step; body: [`Hello`](crate::hello::Hello).
    Hello = 1,
    /// Opens a virtual socket; argument: the opener's first credit; body: [`Open`](crate::open::Open).
    Open = 2,
    /// The peer has accepted the socket; argument: its first credit; no body.
    Opened = 3,
    /// The socket was not accepted; argument: an errno. Of socket 0: the channel was not accepted; argument: a
    /// [`Refusal`](crate::violation::Refusal). No body.
    Refused = 4,
    /// Bytes of the stream; argument: the position of the first; body: the bytes, at least one.
    Data = 5,
    /// The stream ends; argument: its final position, so that the frame may overtake DATA on other channels; no body.
    Fin = 6,
    /// The socket is gone; argument: an errno, or 0 to confirm the peer's RESET; no body.
    Reset = 7,
    /// Argument: every byte before it has reached the socket (one more: the end, too); body: u64, the position up to which the peer may send.
    Credit = 8,
    /// Asks for a PONG; argument: any number; no body.
    Ping = 9,
    /// Answers a PING; argument: its number; no body.
    Pong = 10,
    /// Argument: a [`Goaway`]; no body.
    Goaway = 11,
    /// From the acceptor of a session, if both services have [`CONGESTED`](crate::hello::CONGESTED). Argument: how many times it
    /// has changed whether congestion windows hold back bytes that the acceptor sends; odd: they do. The largest argument counts, whichever
    /// comes last. No body.
    Congested = 12,
}

/// What a GOAWAY frame says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Goaway {
    /// The sender will put nothing more on this channel, and asks the same of the peer.
    Channel = 0,
    /// The answer to [`Goaway::Channel`]: the sender's last frame on this channel.
    ChannelAnswer = 1,
    /// The sender opens and accepts no more sockets in this session, and asks for the answer below.
    Session = 2,
    /// The answer to [`Goaway::Session`]: the sender has no socket of the session any more.
    SessionAnswer = 3,
    /// A channel is gone at the sender's side, and the sender's last answers with it. The peer repeats every OPEN, FIN, RESET and GOAWAY of
    /// the session that it has no answer to: the peer may have noticed the end of the channel earlier, and have repeated them before the
    /// answers were lost.
    Repeat = 4,
}

impl Goaway {
    /// What the argument of a GOAWAY frame says.
    #[must_use]
    pub(crate) fn parse(argument: u64) -> Option<Self> {
        let known = [Self::Channel, Self::ChannelAnswer, Self::Session, Self::SessionAnswer, Self::Repeat];
        known.into_iter().find(|goaway| *goaway as u64 == argument)
    }
}

impl Kind {
    /// The type of that number.
    #[must_use]
    pub const fn parse(kind: u8) -> Option<Self> {
        Some(match kind {
            1 => Self::Hello,
            2 => Self::Open,
            3 => Self::Opened,
            4 => Self::Refused,
            5 => Self::Data,
            6 => Self::Fin,
            7 => Self::Reset,
            8 => Self::Credit,
            9 => Self::Ping,
            10 => Self::Pong,
            11 => Self::Goaway,
            12 => Self::Congested,
            _ => return None,
        })
    }

    /// The lengths, in bytes, that the body of such a frame may have.
    const fn lengths(self) -> core::ops::RangeInclusive<u32> {
        match self {
            Self::Data => 1..=FRAME_MAX,
            Self::Hello => crate::hello::LEN as u32..=CONTROL_MAX as u32,
            Self::Open => crate::open::LEN as u32..=CONTROL_MAX as u32,
            Self::Credit => 8..=8,
            _ => 0..=0,
        }
    }
}

/// The header of one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Bytes of the body.
    pub length: u32,
    /// The type of the frame.
    pub kind: Kind,
    /// The virtual socket; 0: the session, or the channel.
    pub socket: u32,
    /// A position, a number or an errno: see [`Kind`].
    pub argument: u64,
}

impl Header {
    /// The header of a frame without a body.
    #[must_use]
    pub const fn bare(kind: Kind, socket: u32, argument: u64) -> Self {
        Self { length: 0, kind, socket, argument }
    }

    /// The 16 bytes on the wire.
    #[must_use]
    pub const fn encode(&self) -> [u8; HEADER_LEN] {
        let [a, b, c, _] = self.length.to_le_bytes();
        let [e, f, g, h] = self.socket.to_le_bytes();
        let [i, j, k, l, m, n, o, p] = self.argument.to_le_bytes();
        [a, b, c, self.kind as u8, e, f, g, h, i, j, k, l, m, n, o, p]
    }

    /// The header that these bytes are.
    ///
    /// # Errors
    /// [`Violation::Type`] and [`Violation::Length`], before any byte of the body.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, Violation> {
        let [a, b, c, kind, e, f, g, h, i, j, k, l, m, n, o, p] = *bytes;
        let kind = Kind::parse(kind).ok_or(Violation::Type(kind))?;
        let length = u32::from_le_bytes([a, b, c, 0]);
        if !kind.lengths().contains(&length) {
            return Err(Violation::Length { kind, length });
        }
        let socket = u32::from_le_bytes([e, f, g, h]);
        Ok(Self { length, kind, socket, argument: u64::from_le_bytes([i, j, k, l, m, n, o, p]) })
    }
}

/// The N bytes of `body` from `at` on; zeros where the body is too short.
pub(crate) fn field<const N: usize>(body: &[u8], at: usize) -> [u8; N] {
    body.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_has_the_bytes_of_the_picture() {
        let header = Header {
            length: 0x01_02_03,
            kind: Kind::Data,
            socket: 0x0405_0607,
            argument: 0x0809_0A0B_0C0D_0E0F,
        };
        let bytes = header.encode();
        assert_eq!(bytes, [3, 2, 1, 5, 7, 6, 5, 4, 15, 14, 13, 12, 11, 10, 9, 8]);
        assert_eq!(Header::parse(&bytes), Err(Violation::Length { kind: Kind::Data, length: 0x01_02_03 }));
    }

    #[test]
    fn each_type_comes_back_at_the_ends_of_its_lengths_and_not_beyond() {
        for number in 0..=u8::MAX {
            let Some(kind) = Kind::parse(number) else {
                let mut bytes = Header::bare(Kind::Ping, 1, 2).encode();
                bytes[3] = number;
                assert_eq!(Header::parse(&bytes), Err(Violation::Type(number)));
                continue;
            };
            assert_eq!(kind as u8, number);
            let (least, most) = (*kind.lengths().start(), *kind.lengths().end());
            for length in [least, most] {
                let header = Header { length, kind, socket: u32::MAX, argument: u64::MAX };
                assert_eq!(Header::parse(&header.encode()), Ok(header));
            }
            for length in [most + 1, (1 << 24) - 1].into_iter().chain(least.checked_sub(1)) {
                let header = Header { length, kind, socket: 0, argument: 0 };
                assert_eq!(Header::parse(&header.encode()), Err(Violation::Length { kind, length }));
            }
        }
    }
}
