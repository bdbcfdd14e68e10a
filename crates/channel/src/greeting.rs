//! The handshake of one channel, before the channel belongs to a session.
//!
//! ```text
//!   opener                              acceptor
//!     | -- HELLO ask: nonce a ---------> |        what both are, the session, the class
//!     | <- HELLO answer: nonce b, proof  |        proof over both HELLOs, with the key of secret and session
//!     | -- HELLO confirm: proof -------> |        frames of the session may follow at once
//! ```
//! Either side sends REFUSED with a reason instead, and then nothing more. An acceptor keeps nothing but this before the last proof.

use core::net::IpAddr;

use base::Instant;

use crate::bytes::{Input, Room};
use crate::deframer::{Deframer, Item};
use crate::frame::{HEADER_LEN, Header, Kind};
use crate::hello::{Agreed, Hello, LEN, Step};
use crate::limits::GREETING_TIME;
use crate::proof::{Key, Purpose};
use crate::violation::{Refusal, Violation};

/// What the handshake waits for.
#[derive(Clone, Debug)]
enum Wait {
    /// The acceptor: for the ask.
    Ask,
    /// The opener: for the answer.
    Answer { ask: Hello, key: Key },
    /// The acceptor: for the confirmation.
    Confirm { ask: Hello, answer: Hello, key: Key },
    /// The opener: for room to send the confirmation.
    Room(Agreed),
    /// The other side was refused, or has refused: for the end of the channel.
    End,
}

/// What a frame of the handshake brings.
#[derive(Clone, Debug)]
pub(crate) enum Heard {
    /// An acceptor must answer or refuse.
    Ask(Hello),
    /// An opener may send its confirmation.
    Answered(Agreed),
    /// An acceptor has a channel with proof.
    Confirmed { ask: Hello, agreed: Agreed },
    /// The other side refuses.
    Refused(Refusal),
    /// This side must refuse.
    MustRefuse(Refusal),
}

/// One channel in its handshake, at either side.
#[derive(Debug)]
pub(crate) struct Greeting {
    pub peer: IpAddr,
    /// The session that the opener makes the channel for.
    pub session: Option<u128>,
    pub is_join: bool,
    /// The peer has made the channel.
    pub is_incoming: bool,
    pub deframer: Deframer,
    pub deadline: Instant,
    wait: Wait,
    /// The frame to send next: all are at most as long as a HELLO.
    frame: [u8; HEADER_LEN + LEN],
    frame_len: usize,
}

impl Greeting {
    /// A handshake at the acceptor's side.
    pub fn accept(now: Instant, peer: IpAddr) -> Self {
        Self {
            peer,
            session: None,
            is_join: false,
            is_incoming: true,
            deframer: Deframer::default(),
            deadline: now.plus(GREETING_TIME),
            wait: Wait::Ask,
            frame: [0; HEADER_LEN + LEN],
            frame_len: 0,
        }
    }

    /// A handshake at the opener's side.
    pub fn ask(now: Instant, peer: IpAddr, ask: Hello, key: Key) -> Self {
        let mut greeting = Self::accept(now, peer);
        (greeting.session, greeting.is_join, greeting.is_incoming) = (Some(ask.session), ask.is_join, false);
        greeting.send_hello(Step::Ask, &ask, &[0; 32]);
        greeting.wait = Wait::Answer { ask, key };
        greeting
    }

    /// Answers the ask; `key` proves both sides.
    pub fn answer(&mut self, ask: Hello, answer: Hello, key: Key) {
        let proof = key.prove(Purpose::Answer, &ask, &answer);
        self.send_hello(Step::Answer, &answer, &proof);
        self.wait = Wait::Confirm { ask, answer, key };
    }

    /// Says why there is no handshake, and waits for the other side to end the channel.
    pub fn refuse(&mut self, why: Refusal) {
        let header = Header::bare(Kind::Refused, 0, why as u64);
        self.frame[..HEADER_LEN].copy_from_slice(&header.encode());
        self.frame_len = HEADER_LEN;
        self.wait = Wait::End;
    }

    /// Takes in the next frame from the beginning of `input`. `None`: all of `input` is taken, and no frame is whole. DATA has no place in a
    /// handshake.
    pub fn next(&mut self, input: &mut Input<'_>) -> Result<Option<Heard>, Violation> {
        if self.is_refused() {
            // What was under way before the refusal, or is sent in spite of it, does not keep the refusal from being sent.
            input.take(input.len());
            return Ok(None);
        }
        // The de-framer is taken out, because what it finds borrows it.
        let mut deframer = core::mem::take(&mut self.deframer);
        let heard = match deframer.next(input) {
            Ok(Some(Item::Control { header, body })) => self.hear(&header, body).map(Some),
            Ok(Some(Item::Data { .. })) => Err(Violation::Unexpected(Kind::Data)),
            Ok(None) => Ok(None),
            Err(violation) => Err(violation),
        };
        self.deframer = deframer;
        heard
    }

    fn hear(&mut self, header: &Header, body: &[u8]) -> Result<Heard, Violation> {
        if header.kind == Kind::Refused && header.socket == 0 && !matches!(self.wait, Wait::Ask | Wait::End) {
            return Ok(Heard::Refused(Refusal::of(header.argument)));
        }
        let step = if header.kind == Kind::Hello && header.socket == 0 {
            Step::parse(header.argument)
        } else {
            None
        };
        let wait = core::mem::replace(&mut self.wait, Wait::End);
        match (step, wait) {
            (Some(Step::Ask), Wait::Ask) => Hello::parse(body).map(Heard::Ask),
            (Some(Step::Answer), Wait::Answer { ask, key }) => {
                self.hear_answer(&ask, &key, &Hello::parse(body)?, &Hello::proof_in(body))
            }
            (Some(Step::Confirm), Wait::Confirm { ask, answer, key }) => {
                hear_confirm(&ask, &answer, &key, &Hello::parse(body)?, &Hello::proof_in(body))
            }
            _ if header.kind == Kind::Hello => Err(Violation::Unexpected(Kind::Hello)),
            (_, Wait::Ask) => Err(Violation::Magic),
            _ => Err(Violation::Unexpected(header.kind)),
        }
    }

    fn hear_answer(
        &mut self,
        ask: &Hello,
        key: &Key,
        answer: &Hello,
        proof: &[u8; 32],
    ) -> Result<Heard, Violation> {
        let is_same =
            answer.session == ask.session && answer.class == ask.class && answer.is_join == ask.is_join;
        if !is_same {
            return Err(Violation::Hello);
        }
        let agreed = match answer.agree(ask) {
            Ok(agreed) => agreed,
            Err(why) => return Ok(Heard::MustRefuse(why)),
        };
        if !key.is_proved(Purpose::Answer, ask, answer, proof) {
            return Ok(Heard::MustRefuse(Refusal::Secret));
        }
        let confirm = key.prove(Purpose::Confirm, ask, answer);
        self.send_hello(Step::Confirm, ask, &confirm);
        self.wait = Wait::Room(agreed);
        Ok(Heard::Answered(agreed))
    }

    fn send_hello(&mut self, step: Step, hello: &Hello, proof: &[u8; 32]) {
        self.frame = hello.encode(step, proof);
        self.frame_len = self.frame.len();
    }

    /// True when this side has said why there is no handshake.
    pub fn is_refused(&self) -> bool {
        matches!(self.wait, Wait::End)
    }

    /// True when the channel has a connection: the peer has made it, or the ask has been sent over it.
    pub fn has_begun(&self) -> bool {
        !(matches!(self.wait, Wait::Answer { .. }) && self.frame_len > 0)
    }

    /// True when a frame waits for room.
    pub fn has_output(&self) -> bool {
        self.frame_len > 0
    }

    /// Puts the frame that waits into `room`. With the opener's confirmation the handshake is done: the channel belongs to its session.
    pub fn transmit<R: Room + ?Sized>(&mut self, room: &mut R) -> Sent {
        let len = self.frame_len;
        if len == 0 || room.size() < len {
            return Sent { len: 0, done: None };
        }
        room.put(0, &self.frame[..len]);
        self.frame_len = 0;
        let done = match core::mem::replace(&mut self.wait, Wait::End) {
            Wait::Room(agreed) => Some(agreed),
            other => {
                self.wait = other;
                None
            }
        };
        Sent { len, done }
    }
}

/// What a greeting has put into the room of its channel.
pub(crate) struct Sent {
    pub len: usize,
    /// Set when the handshake is over at the opener's side.
    pub done: Option<Agreed>,
}

fn hear_confirm(
    ask: &Hello,
    answer: &Hello,
    key: &Key,
    confirm: &Hello,
    proof: &[u8; 32],
) -> Result<Heard, Violation> {
    if confirm != ask {
        return Err(Violation::Hello);
    }
    if !key.is_proved(Purpose::Confirm, ask, answer, proof) {
        return Ok(Heard::MustRefuse(Refusal::Secret));
    }
    match ask.agree(answer) {
        Ok(agreed) => Ok(Heard::Confirmed { ask: *ask, agreed }),
        Err(why) => Ok(Heard::MustRefuse(why)),
    }
}
