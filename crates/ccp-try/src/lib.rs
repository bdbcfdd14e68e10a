//! Tries an algorithm of congestion control: flows over one bottleneck in virtual time, through the service's own fast and slow path, and the
//! figures of each flow. The same trial with the same seed gives the same text, byte by byte. Reads no clock and opens no file.
//!
//! ```text
//!   host with the algorithm (program, or agent 20 us away) --\                 bottleneck                 /--> receiver
//!   host with the rival, if there is one --------------------- router == rate, delay, queue, loss =====> -
//! ```
//! [`Trial::run`] makes a [`Race`] of the algorithm alone; with a rival, also one of the rival alone and one of both over the same link.
#![forbid(unsafe_code)]

mod contestant;
mod env;
mod figures;
mod options;
mod page;
mod path;
mod plot;
mod race;
mod replay;
mod text;
pub mod transcript;
mod trial;

pub use contestant::{Contestant, Unknown, names};
pub use env::{Env, EnvSetting, Observation};
pub use figures::{FlowFigures, QueueFigures};
pub use options::Options;
pub use path::{BadPath, Path};
pub use race::{Entry, Flow, Race, RaceSetting, Sample};
pub use replay::{Difference, Replayed, replay};
pub use trial::{Outcome, Trial};
