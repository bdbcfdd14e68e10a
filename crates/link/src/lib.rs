//! One direction of a network link as a seeded model: it decides what happens to each frame sent into the link, and when.
//!
//! ```text
//!            +-------------------------------- Model: decides, sees no bytes -------------------------------+
//!  offer --> | up? -> fits? -> lost? -> doubled? -> damaged? -> queue: full? mark? -> line -> delay, jitter | --> poll
//!            +----------------------------------------------------------------------------------------------+
//!              Link = Model + the frames' bytes in buffers that are used again
//! ```
//!
//! The same configuration, seed and input give the same output. Each kind of mishap has its own random sequence: whether packet number n of
//! a direction is lost does not depend on the other settings. The simulator runs the model in virtual time, the emulator in real time; all
//! times count from [`Instant::ZERO`](base::Instant::ZERO). This crate reads no clock and does no I/O.
#![forbid(unsafe_code)]

mod config;
mod counters;
mod damage;
mod line;
mod loss;
mod model;
mod parse;
mod pipe;
mod print;
mod probability;
mod quantity;
mod trace;

pub use config::{Amount, Burst, Flap, LinkConfig, Loss, Outage, PacketRange, Reorder};
pub use counters::{Cause, Counters};
pub use damage::{Damage, apply, mark_ce};
pub use model::{Fate, Model, Passage, View};
pub use parse::ParseError;
pub use pipe::Link;
pub use probability::Probability;
pub use quantity::{bytes as parse_bytes, time as parse_time};
pub use trace::{Trace, TraceError};
