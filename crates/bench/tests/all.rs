//! All tests of this crate's public face as one program: a program for each file would cost its linking each time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod proof;
mod spikes;
