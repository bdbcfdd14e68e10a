//! One core of the fast path: data, acknowledgements and FINs of established flows, between a port and the applications'
//! regions. Everything else becomes an exception for the slow path.
//!
//! ```text
//!   port.receive --> classify --> acknowledged --> receive / out_of_order --+
//!   doorbells ----> applications ----------------------------------------+  |
//!   slow path ----> commands -----------------------------------------+  |  |
//!   timers -------> acknowledge, pacing, lend ----------------------+  |  |  |
//!                                                                   v  v  v  v
//!                                        finish: transmit, acknowledge, tell --> port.commit, doorbells, exceptions
//! ```
//!
//! Reads no clock, makes no system call, waits for no lock and allocates nothing after [`Core::new`]. Knows no slow path, no
//! congestion algorithm by name and no backend.
#![forbid(unsafe_code)]

mod acknowledge;
mod acknowledged;
mod answers;
mod applications;
mod backlog;
mod board;
mod classify;
mod commands;
mod core;
mod cork;
mod counters;
mod deliver;
mod exceptions;
mod finish;
mod flow_lists;
mod gaps;
mod late;
mod leaving;
mod lend;
mod lender;
mod lists;
mod low_water;
mod meter;
mod moves;
mod news;
mod others;
mod out_of_order;
mod pacing;
mod payload;
mod predict;
mod probe;
mod programs;
mod rack;
mod receive;
mod repair;
mod runs;
mod segment;
mod setup;
mod shares;
mod space;
mod task;
mod transmit;
mod undo;
mod urgent;
mod wheel;

pub use crate::core::{Core, Progress};
pub use applications::REST;
pub use counters::{Cause, Counters};
pub use flow::News;
pub use meter::{Meter, Part};
pub use others::Others;
