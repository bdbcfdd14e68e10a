//! Profiling of threads: a thread's work is divided into sections, and its cycles are counted by section.
//!
//! ```text
//!   -----poll-----|--receive--|-events-|---transmit---|--poll--      each change of section reads the counter once: the time since
//!        ^ at                                                        the last change is charged to the section that ends
//! ```
//! Every moment of a thread belongs to exactly one section. Counting is off until a [`Switch`] turns it on; while it is off it costs
//! a branch. Permission to turn the switch is decided elsewhere.
#![deny(unsafe_code)]

mod account;
#[allow(unsafe_code)]
mod clock;
mod section;
mod switch;

pub use account::{Account, Spent};
pub use clock::{Ticks, moment, now_ns};
pub use section::Section;
pub use switch::Switch;
