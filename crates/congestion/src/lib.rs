//! How many bytes a flow may have in flight: Reno, Cubic, DCTCP or a constant, as plain state over signals.
//!
//! Knows nothing of packets, sequence numbers or clocks, and never allocates. One [`Window`] is 48 bytes of plain data
//! in a flow's cold record; the fast path tells it what happened and reads [`Window::cwnd`].
//!
//! ```text
//! acknowledgements, RTT, ECN echo --on_ack-->            +--------+
//! three duplicates --on_fast_retransmit-->               | Window | --> cwnd(), ssthresh()
//! retransmission timeout --on_timeout-->                 +--------+
//! ```
#![no_std]
#![forbid(unsafe_code)]

mod algorithm;
mod cubic;
mod dctcp;
mod hystart;
mod window;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use window::{CWND_MAX, INITIAL_SEGMENTS, Window};
