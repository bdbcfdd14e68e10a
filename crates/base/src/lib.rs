//! Basic types of all other crates: time, sequence numbers, seeds and limits.
//!
//! Never does I/O, never reads a clock, never allocates.
#![no_std]
#![forbid(unsafe_code)]

pub mod limits;
mod seed;
mod seq;
mod time;

pub use seed::Seed;
pub use seq::SeqNumber;
pub use time::{Duration, Instant};
