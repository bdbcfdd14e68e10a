//! All tests of this crate's public face as one program: a program for each file would cost its linking each time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod accurate_ecn;
mod allocation;
mod bursts;
mod cork;
mod counting;
mod flows;
mod gaps;
mod harness;
mod heads;
mod hostile;
mod isolation;
mod leaving;
mod long_fat;
mod losses;
mod lossy;
mod pacing;
#[path = "harness/peer.rs"]
mod peer;
mod prediction;
mod receiver;
mod requirements;
mod requirements_recovery;
mod resets;
mod resting;
mod round_trips;
#[path = "harness/scene.rs"]
mod scene;
mod shares;
mod storms;
mod strangers;
mod urgent;
mod windows;
