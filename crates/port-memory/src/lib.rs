//! A link in memory: two ports of one process, joined by one ring per direction. For tests, benchmarks and the simulator.
//!
//! ```text
//!   a.reserve .. commit .. flush --> [ring of slots] --> b.receive
//!   a.receive <-- [ring of slots] <-- b.reserve .. commit .. flush
//! ```
//!
//! A frame is written once, into its slot, and is passed on by an exchange of buffers. Nothing here depends on time or on
//! threads: polled from one thread, the link is deterministic. It never loses a packet; a full ring refuses it.
#![deny(unsafe_code)]

mod fan;
mod link;
#[allow(unsafe_code)]
mod ring;
mod wake;

pub use fan::{FanPort, MemorySteering, fan};
pub use link::{LinkOptions, MemoryPort, link};
pub use ring::{Consumer, Producer, ring};
