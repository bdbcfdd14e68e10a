//! From bytes of any origin to messages. A message with a bad body is skipped by its length; a bad length ends the datagram.

use std::fmt;

use crate::HEADER_LEN;
use crate::create::Create;
use crate::list::{Item, List};
use crate::message::{Kind, Message};

/// Why a message is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// Fewer bytes than a header, or a length below the header's or beyond the datagram. What follows is not read.
    Length,
    /// A type without a meaning. Agents and datapaths skip it.
    UnknownKind(u16),
    /// A count of items that is not the length of the message.
    Count(Kind),
    /// An item, an address or a fixed part that is too short or has no meaning.
    Content(Kind),
}

impl fmt::Display for Malformed {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => to.write_str("a length that the datagram does not have"),
            Self::UnknownKind(kind) => write!(to, "a message of unknown type {kind}"),
            Self::Count(kind) => write!(to, "{kind:?} has a count that is not its length"),
            Self::Content(kind) => write!(to, "{kind:?} has an item without a meaning"),
        }
    }
}

impl std::error::Error for Malformed {}

/// The messages of one datagram.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

/// The messages of `datagram`, one after the other.
#[must_use]
pub const fn messages(datagram: &[u8]) -> Messages<'_> {
    Messages { rest: datagram }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let datagram = std::mem::take(&mut self.rest);
        let Some((kind, flow, body, rest)) = split(datagram) else { return Some(Err(Malformed::Length)) };
        self.rest = rest;
        Some(match Kind::from_wire(kind) {
            Some(kind) => message(kind, flow, body),
            None => Err(Malformed::UnknownKind(kind)),
        })
    }
}

/// Type, flow and body of the first message, and the bytes behind it.
fn split(datagram: &[u8]) -> Option<(u16, u32, &[u8], &[u8])> {
    let (header, _) = datagram.split_first_chunk::<HEADER_LEN>()?;
    let [k0, k1, l0, l1, flow @ ..] = *header;
    let len = usize::from(u16::from_le_bytes([l0, l1]));
    let (message, rest) = datagram.split_at_checked(len)?;
    let body = message.get(HEADER_LEN..)?;
    Some((u16::from_le_bytes([k0, k1]), u32::from_le_bytes(flow), body, rest))
}

fn message(kind: Kind, flow: u32, body: &[u8]) -> Result<Message<'_>, Malformed> {
    let short = Malformed::Content(kind);
    let (first, rest) = number(body).ok_or(short)?;
    Ok(match kind {
        Kind::Create => Message::Create { flow, create: Create::decode(body).ok_or(short)? },
        Kind::Measure => Message::Measure { flow, program: first, values: counted(kind, rest)? },
        Kind::Install => install(first, rest)?,
        Kind::Update => Message::Update { flow, fields: counted(kind, body)? },
        Kind::Change => Message::Change { flow, program: first, fields: counted(kind, rest)? },
        Kind::Ready if !rest.is_empty() => return Err(short),
        Kind::Ready => Message::Ready { datapath: first },
    })
}

fn install(program: u32, body: &[u8]) -> Result<Message<'_>, Malformed> {
    let short = Malformed::Content(Kind::Install);
    let (events, body) = number(body).ok_or(short)?;
    let (instructions, body) = number(body).ok_or(short)?;
    let sizes = [bytes_of::<ccp_vm::Event>(events), bytes_of::<ccp_vm::Instruction>(instructions)];
    let [Some(of_events), Some(of_instructions)] = sizes else { return Err(Malformed::Count(Kind::Install)) };
    let is_whole = of_events.checked_add(of_instructions) == Some(body.len());
    let split = if is_whole { body.split_at_checked(of_events) } else { None };
    let (events, instructions) = split.ok_or(Malformed::Count(Kind::Install))?;
    let events = List::decode(events).ok_or(short)?;
    Ok(Message::Install { program, events, instructions: List::decode(instructions).ok_or(short)? })
}

/// A list with its count in front, which fills the rest of the message.
fn counted<T: Item + Copy>(kind: Kind, body: &[u8]) -> Result<List<'_, T>, Malformed> {
    let (count, items) = number(body).ok_or(Malformed::Content(kind))?;
    if bytes_of::<T>(count) != Some(items.len()) {
        return Err(Malformed::Count(kind));
    }
    List::decode(items).ok_or(Malformed::Content(kind))
}

fn bytes_of<T: Item>(count: u32) -> Option<usize> {
    (count as usize).checked_mul(T::LEN)
}

fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    bytes.split_first_chunk().map(|(four, rest)| (u32::from_le_bytes(*four), rest))
}
