//! What a peer must not do, and why a service refuses a channel. Both are values, with the text for the log.

use crate::frame::Kind;

/// A fault of the peer. Its session is closed, and every virtual socket of the session is reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A frame of a type that the negotiated version does not have.
    Type(u8),
    /// A frame whose body is longer or shorter than its type allows.
    Length {
        /// The type of the frame.
        kind: Kind,
        /// The length that its header names, bytes.
        length: u32,
    },
    /// A frame that must not come at this point of the handshake, or of the socket's life.
    Unexpected(Kind),
    /// The first bytes are no HELLO of this protocol.
    Magic,
    /// A HELLO whose fields contradict each other.
    Hello,
    /// A proof that the shared secret does not give.
    Proof,
    /// An OPEN whose fields are out of range.
    Open,
    /// A frame of a virtual socket that was never opened.
    UnknownSocket(u32),
    /// An OPEN whose identifier is not the next one of the peer's.
    OpenOrder {
        /// The identifier that had to come next.
        expected: u32,
        /// The identifier that came.
        found: u32,
    },
    /// Bytes beyond the credit of their virtual socket.
    BeyondCredit {
        /// The identifier of the virtual socket.
        socket: u32,
        /// One after the last byte of the frame.
        end: u64,
        /// The position up to which the peer was allowed to send.
        edge: u64,
    },
    /// Bytes beyond the final position that a FIN named, or two FINs that differ.
    BeyondFin(u32),
    /// A CREDIT that confirms bytes never sent.
    AckedUnsent {
        /// The identifier of the virtual socket.
        socket: u32,
        /// The position that the peer claims to have received.
        acked: u64,
    },
    /// A credit larger than any window.
    Window(u64),
    /// More separate runs of bytes ahead of the next one than a sender may have under way.
    Scattered(u32),
    /// A PONG that answers no PING.
    UnaskedPong,
    /// More answers about sockets that are gone than an honest peer can ask for.
    Flood,
}

impl core::fmt::Display for Violation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Type(kind) => write!(f, "frame of unknown type {kind}"),
            Self::Length { kind, length } => write!(f, "{kind:?} frame with a body of {length} bytes"),
            Self::Unexpected(kind) => write!(f, "{kind:?} frame where none may come"),
            Self::Magic => write!(f, "the first frame is no HELLO of this protocol"),
            Self::Hello => write!(f, "HELLO with contradictory fields"),
            Self::Proof => write!(f, "wrong proof of the secret"),
            Self::Open => write!(f, "OPEN with fields out of range"),
            Self::UnknownSocket(id) => write!(f, "frame of socket {id}, which was never opened"),
            Self::OpenOrder { expected, found } => {
                write!(f, "OPEN of socket {found} where {expected} had to come")
            }
            Self::BeyondCredit { socket, end, edge } => {
                write!(f, "socket {socket}: bytes up to {end}, credit ends at {edge}")
            }
            Self::BeyondFin(id) => write!(f, "socket {id}: bytes or another FIN beyond the final position"),
            Self::AckedUnsent { socket, acked } => {
                write!(f, "socket {socket}: confirms {acked}, which was never sent")
            }
            Self::Window(edge) => write!(f, "credit up to {edge} is larger than any window"),
            Self::Scattered(id) => write!(f, "socket {id}: more runs ahead of the next byte than allowed"),
            Self::UnaskedPong => write!(f, "PONG that answers no PING"),
            Self::Flood => write!(f, "more repetitions about closed sockets than there were sockets"),
        }
    }
}

/// Why a service refuses a channel: the argument of a REFUSED frame of socket 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Refusal {
    /// The two services have no version of the protocol in common.
    Version = 1,
    /// The proof of the secret is wrong, or only one side has a secret.
    Secret = 2,
    /// There is no session of that identifier: the service has restarted, or has given the session up.
    UnknownSession = 3,
    /// The peer's boot epoch is older than that of the sessions that the service has with its address.
    OldEpoch = 4,
    /// The service has as many sessions, or the session as many channels, as it may have.
    Full = 5,
    /// The service shuts down.
    ShuttingDown = 6,
    /// The service does not speak with this peer.
    NotAllowed = 7,
}

impl Refusal {
    /// The reason that a frame's argument names; a reason of a later version counts as [`Refusal::NotAllowed`].
    #[must_use]
    pub fn of(code: u64) -> Self {
        let known = [
            Self::Version,
            Self::Secret,
            Self::UnknownSession,
            Self::OldEpoch,
            Self::Full,
            Self::ShuttingDown,
        ];
        known.into_iter().find(|refusal| *refusal as u64 == code).unwrap_or(Self::NotAllowed)
    }
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Version => "no version of the protocol in common",
            Self::Secret => "the secrets differ",
            Self::UnknownSession => "no such session",
            Self::OldEpoch => "a service that started later has this address",
            Self::Full => "too many sessions or channels",
            Self::ShuttingDown => "the service shuts down",
            Self::NotAllowed => "the service does not speak with this peer",
        })
    }
}

/// Why a channel did not come through its handshake, for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejection {
    /// This service has refused the channel.
    Refused(Refusal),
    /// The peer has refused the channel.
    ByPeer(Refusal),
    /// The peer broke the rules in the handshake.
    Violation(Violation),
    /// The peer has ended the channel, or has said too little for [`GREETING_TIME`](crate::limits::GREETING_TIME).
    GivenUp,
    /// The session that the channel was made for has ended before the end of the handshake.
    SessionOver,
    /// The peer, or all peers together, have as many channels in their handshakes as they may have.
    Crowd,
}

impl core::fmt::Display for Rejection {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "refused: {refusal}"),
            Self::ByPeer(refusal) => write!(f, "refused by the peer: {refusal}"),
            Self::Violation(violation) => write!(f, "the peer broke the rules: {violation}"),
            Self::GivenUp => {
                f.write_str("the peer has ended the channel, or has not ended its handshake within 5 s")
            }
            Self::SessionOver => f.write_str("its session has ended meanwhile"),
            Self::Crowd => f.write_str("too many handshakes at once"),
        }
    }
}
