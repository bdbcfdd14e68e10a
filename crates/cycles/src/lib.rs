//! Whose time it is: what a thread does is divided into sections, and its cycles are counted section by section.
//!
//! ```text
//!   -----poll-----|--receive--|-events-|---transmit---|--poll--      each switch reads the counter once: the time since the
//!        ^ at                                                        last one is the section's that ends here
//! ```
//! Sections partition a thread's time: nothing is counted twice and nothing is lost. Counting is off until a [`Switch`] says
//! otherwise, and then costs a branch; who may turn it is not this crate's business.
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
