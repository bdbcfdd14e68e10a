//! Many sockets of two services over few connections: the layers of NetChannel (Cai et al., SIGCOMM 2022, section 3) between two services.
//!
//! ```text
//!   caller: rings of applications            accepts, opens, writes, credits          events, bytes by position (Streams)
//!   ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
//!   virtual sockets                          session: sending, receiving, runs, intervals
//!   scheduler                                lane (what may share), scheduler (which channel), scaling (how many channels)
//!   channels                                 hub, greeting (handshake), fair (places for handshakes), paths (the peer's addresses), channel, deframer, frame
//!   ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
//!   transport: create, destroy, enqueue, dequeue                                      TCP, or queues in memory
//! ```
//! No I/O and no clock: bytes, calls and `now` come in; bytes, events and deadlines go out. A peer's fault is a value
//! ([`Violation`](violation::Violation)) and costs it its session. In steady state no frame allocates.
#![forbid(unsafe_code)]

pub mod bytes;
mod channel;
pub mod deframer;
pub mod drive;
mod fair;
pub mod frame;
mod greeting;
pub mod hello;
pub mod hub;
mod intervals;
pub mod lane;
pub mod limits;
pub mod open;
mod paths;
pub mod proof;
mod receiving;
mod runs;
pub mod scaling;
pub mod scheduler;
mod sending;
pub mod session;
mod sockets;
mod streams;
pub mod transport;
pub mod violation;

pub use hub::{About, Config, Hub, SessionId};
pub use lane::{Class, Lane, Sharing};
pub use session::{Event, News, Session};
pub use streams::Streams;
pub use transport::{ChannelId, Transport};
