//! Congestion control: how many bytes a flow may have in flight, by Reno, Cubic, DCTCP or a constant, or how fast
//! it may send them, by rate-based DCTCP, TIMELY, BBR or a constant. Plain state over signals.
//!
//! Contains no packets, sequence numbers or clocks, and never allocates. A [`Window`] is 48 bytes of plain data in a flow's cold
//! record. It has one entry:
//!
//! ```text
//! Event: Ack, Duplicate, Partial, Recovered,                +--------+
//!        Lost, Timeout, Idle, Undo, Mtu       --- on() ---> | Window | --> Decision { cwnd, pace_rate, is_echo_answered }
//! Signals: bytes acknowledged, marked, in flight, ...       +--------+ (and the RateLaw)
//! ```
//! The caller enforces each decision, and asks by questions ([`Algorithm::needs_ecn`], [`Algorithm::wants_exact_echo`],
//! [`Window::watches_delay`]) what an algorithm needs: no code outside this crate compares with an algorithm's name for that.
//!
//! The algorithms differ in a private `Law`: how slow start ends, how the window grows after it, and how much of it remains after a
//! loss or an echo of congestion. A controller outside this crate (a program, an agent) takes the same [`Event`]s and [`Signals`] and
//! returns the same [`Decision`].
//!
//! Laws that decide a rate ([`Algorithm::decides_rate`]) keep their state in a [`RateLaw`] beside the window, which only their flows touch.
#![no_std]
#![forbid(unsafe_code)]

mod algorithm;
mod bbr;
mod cubic;
mod dctcp;
mod event;
mod hystart;
mod rate;
mod signals;
mod window;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use bbr::Bbr;
pub use event::Event;
pub use rate::{
    ConstantRate, Rate, RateDctcp, RateDctcpSettings, RateLaw, RateSettings, RoundTrip, Step, Timely,
    TimelySettings,
};
pub use signals::{Decision, Signals};
pub use window::{CWND_MAX, INITIAL_SEGMENTS, Window};
