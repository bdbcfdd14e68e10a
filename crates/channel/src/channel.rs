//! One channel of a session after its handshake: what has come of a frame, the chunks that wait for its transport, and whether its peer is
//! alive. Knows nothing of sockets.

use core::net::IpAddr;
use std::collections::VecDeque;

use base::Instant;

use crate::deframer::Deframer;
use crate::frame::{Goaway, Header, Kind};
use crate::limits::{DEAD_AFTER, PING_AFTER};
use crate::runs::Number;
use crate::scheduler::ChannelState;
use crate::transport::ChannelId;
use crate::violation::Violation;

/// Bytes of a virtual socket that wait for the transport.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// Place of the socket in its table; another socket is there when the identifiers differ.
    pub place: u32,
    pub id: u32,
    pub start: u64,
    pub end: u64,
}

/// How far the channel's end has come: each side asks or answers once, with its last frame on this channel.
#[derive(Clone, Copy, Debug, Default)]
struct Closing {
    must_ask: bool,
    has_asked: bool,
    must_answer: bool,
    has_answered: bool,
    was_answered: bool,
}

/// A frame that concerns the channel alone.
pub(crate) enum Own {
    Ping(u64),
    Pong(u64),
}

/// A channel after its handshake.
#[derive(Debug)]
pub(crate) struct Greeted {
    pub id: ChannelId,
    /// The address of the peer at which the channel ends.
    pub address: IpAddr,
    /// As the handshake has left it.
    pub deframer: Deframer,
}

#[derive(Debug)]
pub(crate) struct Channel {
    pub number: Number,
    pub id: ChannelId,
    /// The address of the peer at which the channel ends.
    pub address: IpAddr,
    pub deframer: Deframer,
    pub waiting: VecDeque<Waiting>,
    /// Sum of the bytes in `waiting`.
    pub unsent: usize,
    /// Bytes placed here that the peer's sockets have not confirmed.
    pub unconfirmed: u64,
    heard_at: Instant,
    /// The number of the PING that has no PONG yet.
    pinged: Option<u64>,
    owes_ping: bool,
    owes_pong: Option<u64>,
    closing: Closing,
}

/// Counts bytes of `channels` as no longer under way.
pub(crate) fn free(channels: &mut [Channel], on: Number, bytes: u64) {
    if let Some(channel) = channels.iter_mut().find(|channel| channel.number == on) {
        channel.unconfirmed = channel.unconfirmed.saturating_sub(bytes);
    }
}

impl Channel {
    pub fn new(now: Instant, number: Number, greeted: Greeted) -> Self {
        let Greeted { id, address, deframer } = greeted;
        Self {
            number,
            id,
            address,
            deframer,
            waiting: VecDeque::new(),
            unsent: 0,
            unconfirmed: 0,
            heard_at: now,
            pinged: None,
            owes_ping: false,
            owes_pong: None,
            closing: Closing::default(),
        }
    }

    pub fn state(&self) -> ChannelState {
        ChannelState {
            number: self.number,
            unsent: self.unsent,
            chunks: self.waiting.len(),
            unconfirmed: self.unconfirmed,
        }
    }

    /// True when nothing new may be placed on the channel.
    pub fn is_closing(&self) -> bool {
        self.closing.must_ask || self.closing.must_answer
    }

    /// Begins to end the channel: what waits is sent, then a GOAWAY.
    pub fn close(&mut self) {
        self.closing.must_ask = true;
    }

    /// True when each side has said that it puts nothing more on the channel.
    pub fn is_closed(&self) -> bool {
        let Closing { must_answer, has_answered, was_answered, .. } = self.closing;
        was_answered && (!must_answer || has_answered)
    }

    /// Adds a chunk behind the others, or to the last one if it continues that.
    pub fn place(&mut self, chunk: Waiting, most: u64) {
        self.unsent += (chunk.end - chunk.start) as usize;
        self.unconfirmed += chunk.end - chunk.start;
        match self.waiting.back_mut() {
            Some(last)
                if last.id == chunk.id && last.end == chunk.start && chunk.end - last.start <= most =>
            {
                last.end = chunk.end;
            }
            _ => self.waiting.push_back(chunk),
        }
    }

    pub fn heard(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// When the channel must be looked at.
    pub fn deadline(&self) -> Instant {
        let is_asked = self.pinged.is_some() || self.owes_ping;
        self.heard_at.plus(if is_asked { DEAD_AFTER } else { PING_AFTER })
    }

    /// Asks a silent peer for a PONG. False: the peer has been silent for too long.
    pub fn check(&mut self, now: Instant) -> bool {
        let silence = now.since(self.heard_at);
        self.owes_ping |= silence >= PING_AFTER && self.pinged.is_none();
        silence < DEAD_AFTER
    }

    /// Takes in a PING, a PONG, or a GOAWAY of the channel.
    pub fn control(&mut self, header: &Header) -> Result<(), Violation> {
        match header.kind {
            Kind::Ping => self.owes_pong = Some(header.argument),
            Kind::Pong if self.pinged == Some(header.argument) => self.pinged = None,
            Kind::Pong => return Err(Violation::UnaskedPong),
            Kind::Goaway if header.argument == Goaway::Channel as u64 => self.closing.must_answer = true,
            Kind::Goaway if self.closing.has_asked => self.closing.was_answered = true,
            kind => return Err(Violation::Unexpected(kind)),
        }
        Ok(())
    }

    /// True when the channel has a frame of its own to send, or chunks.
    pub fn has_output(&self) -> bool {
        self.owes_ping || self.owes_pong.is_some() || !self.waiting.is_empty() || self.last().is_some()
    }

    /// The next PING or PONG; [`sent`](Self::sent) when it has room.
    pub fn own(&self, now: Instant) -> Option<Own> {
        let pong = self.owes_pong.map(Own::Pong);
        pong.or_else(|| self.owes_ping.then_some(Own::Ping(now.as_ns())))
    }

    pub fn sent(&mut self, own: &Own) {
        match own {
            Own::Ping(number) => (self.owes_ping, self.pinged) = (false, Some(*number)),
            Own::Pong(_) => self.owes_pong = None,
        }
    }

    /// The GOAWAY to send when no chunk waits; [`sent_last`](Self::sent_last) when it has room.
    pub fn last(&self) -> Option<Goaway> {
        let closing = &self.closing;
        if !self.waiting.is_empty() {
            return None;
        }
        if closing.must_ask && !closing.has_asked {
            return Some(Goaway::Channel);
        }
        (closing.must_answer && !closing.has_answered).then_some(Goaway::ChannelAnswer)
    }

    pub fn sent_last(&mut self, last: Goaway) {
        match last {
            Goaway::Channel => self.closing.has_asked = true,
            _ => self.closing.has_answered = true,
        }
    }
}
