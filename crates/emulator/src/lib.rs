//! A link in real time between two interfaces: the model of crate `link`, with packets from and to ports.
//!
//! ```text
//!   TAP or packet socket A --> [ lane forward:  Model, frames on the way ] --> B
//!                          <-- [ lane backward: Model, frames on the way ] <--
//! ```
//!
//! One thread moves both directions. A super-frame stays in one buffer: the model decides on each of its segments, and segments that leave
//! together are sent as one frame again, as a network card would receive them. This crate knows nothing of connections.
#![forbid(unsafe_code)]

mod end;
mod lane;
mod report;
mod run;
mod store;

pub use end::Place;
pub use lane::Lane;
pub use report::{Direction, Report};
pub use run::{Emulator, Failure};
