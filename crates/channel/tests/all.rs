//! All tests of this crate's public face as one program: a program for each file would cost its linking each time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod addresses;
mod allocation;
#[path = "../../fastpath/tests/counting/mod.rs"]
mod counting;
mod crowds;
mod deframer;
mod flood;
mod hostile;
mod model;
mod page;
mod repeat;
mod replay;
mod sessions;
mod states;
mod support;
