//! How many bytes a flow may have in flight: Reno, Cubic, DCTCP or a constant, as plain state over signals.
//!
//! Knows nothing of packets, sequence numbers or clocks, and never allocates. One [`Window`] is 48 bytes of plain data
//! in a flow's cold record; the fast path tells it what happened and enforces what it decides.
//!
//! ```text
//! bytes acknowledged: Signals --on_ack-->                +--------+
//! a loss reported --on_fast_retransmit-->                | Window | --> Decision { cwnd, pace_rate }, ssthresh()
//! retransmission timeout --on_timeout-->                 |        |
//! about to send after a pause --after_idle-->            +--------+
//! ```
//! The algorithms differ in a private `Law`: how slow start ends, how the window grows after it, what a loss and an echo of
//! congestion leave of it. What decides elsewhere (a program, an agent) takes the same [`Signals`] and answers with the same
//! [`Decision`].
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
