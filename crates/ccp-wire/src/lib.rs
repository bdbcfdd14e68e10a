//! Messages between a datapath and agents of congestion control: bytes as Portus 0.6 to 0.9 and libccp write them. Conversion only: nothing
//! here sends, waits or remembers.
//!
//! ```text
//! message = type u16 | length u16, with this header | flow u32 | body                              little-endian, no padding
//!
//! 0 CREATE   datapath -> agent   a flow has begun              96 bytes
//! 1 MEASURE  datapath -> agent   a report; no values: the flow is closed   16 + 8 n
//! 2 INSTALL  agent -> datapath   a program, for any flow       20 + 16 events + 16 instructions
//! 3 UPDATE   agent -> datapath   variables, window, rate       12 + 13 n
//! 4 CHANGE   agent -> datapath   a flow changes its program    16 + 13 n
//! 5 READY    datapath -> agent   the datapath has started      12 bytes
//! ```
//! A datagram towards an agent may hold several messages, but no more than [`DATAGRAM_MAX`] bytes: agents read 1024. An agent sends one
//! message in each datagram.
//!
//! [`messages`] decodes a datagram of any origin: each message comes out whole, or as a [`Malformed`], and nothing panics. Lists
//! ([`Fields`], [`Values`], [`Instructions`], [`Events`]) stay in the datagram's bytes and are counted against them once.
//! [`Message::encode`] appends to a datagram. Programs are only decoded here: `ccp_vm::Program::verify` judges them.
#![forbid(unsafe_code)]

mod create;
mod decode;
mod encode;
mod list;
mod message;

pub use create::{Create, NAME_LEN, shown_address};
pub use decode::{Malformed, Messages, messages};
pub use list::{Events, Fields, Instructions, Item, List, Values};
pub use message::{Kind, Message, TooLong, Update};

/// Bytes of the header of each message.
pub const HEADER_LEN: usize = 8;
/// Bytes of a CREATE.
pub const CREATE_LEN: usize = 96;
/// Bytes of a datagram towards an agent at most. Released agents read 1024 bytes and lose the rest.
pub const DATAGRAM_MAX: usize = 1000;
