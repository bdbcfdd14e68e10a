//! All tests of this crate's public face as one program: a program for each file would cost its linking each time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod accurate_ecn;
mod agreements;
mod challenges;
mod claims;
mod cookies;
mod ends;
mod harness;
mod info;
mod neighbours_v6;
mod opens;
mod paths;
mod patience;
mod requirements;
mod service_class;
mod stacks;
mod states;
mod times;
mod wire;
