//! All tests of this crate's public face as one program: a program for each file would cost its linking each time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod alone;
mod common;
#[path = "../../fastpath/tests/counting/mod.rs"]
mod counting;
mod death;
mod examples;
mod full;
mod idle;
mod killed;
mod port;
mod refused;
mod rings;
mod version;
