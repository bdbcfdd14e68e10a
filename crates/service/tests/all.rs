//! All tests of this crate's public face as one program: a program for each file would cost its linking each time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod accept_queue;
mod claims;
mod common;
mod congestion;
mod cycles;
mod direct;
mod freeze;
mod held;
mod hostile;
mod hostile_holder;
mod killed;
mod moving;
mod policy;
mod promises;
mod reports;
mod same_host;
mod shares;
mod shown_listener;
mod unread;
mod views;
