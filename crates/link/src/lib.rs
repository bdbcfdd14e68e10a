//! One direction of a network link as a seeded model: what happens to each frame that is sent into it, and when.
//!
//! ```text
//!            +-------------------------------- Model: decides, sees no bytes -------------------------------+
//!  offer --> | up? -> fits? -> lost? -> doubled? -> damaged? -> queue: full? mark? -> line -> delay, jitter | --> poll
//!            +----------------------------------------------------------------------------------------------+
//!              Link = Model + the frames' bytes in buffers that are used again
//! ```
//!
//! The same configuration, seed and input give the same output, and each kind of mishap draws from a sequence of its own:
//! packet number n of a direction is lost or not whatever else is configured. The simulator runs it in virtual time, the
//! emulator in real time; all times count from [`Instant::ZERO`](base::Instant::ZERO). Reads no clock and does no I/O.
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

pub use config::{Amount, Burst, Flap, LinkConfig, Loss, Outage, Reorder};
pub use counters::{Cause, Counters};
pub use damage::{Damage, apply, mark_ce};
pub use model::{Fate, Model, Passage, View};
pub use parse::ParseError;
pub use pipe::Link;
pub use probability::Probability;
pub use quantity::time as parse_time;
pub use trace::{Trace, TraceError};
