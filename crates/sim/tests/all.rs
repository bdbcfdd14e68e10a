//! All tests of this crate's public face as one program: a program for each file would cost its linking each time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod agents;
mod bursts;
mod directed;
mod elastic;
mod host;
mod laws;
mod moves;
mod nimbus;
mod programs;
mod seeds;
mod shares;
mod signals;
mod silence;
mod swaps;
