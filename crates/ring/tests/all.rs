//! All tests of this crate's public face as one program: a program for each file would cost its linking each time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
#![allow(clippy::print_stdout, reason = "a test shows what a part of it has said")]

mod alone;
mod common;
#[path = "../../fastpath/tests/counting/mod.rs"]
mod counting;
mod death;
mod examples;
mod full;
mod idle;
mod killed;
mod passes;
mod port;
mod refused;
mod rings;
mod version;
