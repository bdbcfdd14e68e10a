//! All tests of this crate's public face as one program: a program for each file would cost its linking each time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
#![allow(clippy::print_stdout, reason = "a test says why it is skipped")]

mod bench;
mod cc_check;
#[cfg(feature = "kernel")]
mod cc_kernel;
mod cc_try;
mod channels;
#[path = "../../preload/tests/common/mod.rs"]
mod common;
mod congestion;
mod cores;
mod cycles;
mod ignored;
#[path = "../../ring/tests/passes.rs"]
mod passes;
mod private;
mod privileges;
mod rates;
mod role;
mod service;
mod silent;
