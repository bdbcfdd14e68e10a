//! Congestion control: how many bytes a flow may have in flight, by Reno, Cubic, DCTCP or a constant. Plain state over signals.
//!
//! Contains no packets, sequence numbers or clocks, and never allocates. A [`Window`] is 48 bytes of plain data
//! in a flow's cold record; the fast path reports events to it and enforces its decisions.
//!
//! ```text
//! bytes acknowledged: Signals --on_ack-->                +--------+
//! a loss reported --on_fast_retransmit-->                | Window | --> Decision { cwnd, pace_rate }, ssthresh()
//! retransmission timeout --on_timeout-->                 |        |
//! about to send after a pause --after_idle-->            +--------+
//! ```
//! The algorithms differ in a private `Law`: how slow start ends, how the window grows after it, and how much of it remains after a
//! loss or an echo of congestion. A controller outside this crate (a program, an agent) would take the same [`Signals`] and return
//! the same [`Decision`].
#![no_std]
#![forbid(unsafe_code)]

mod algorithm;
mod cubic;
mod dctcp;
mod hystart;
mod signals;
mod window;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use signals::{Decision, Signals};
pub use window::{CWND_MAX, INITIAL_SEGMENTS, Window};
