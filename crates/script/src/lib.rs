//! Runs packetdrill scripts against the stack in virtual time.
//!
//! ```text
//!   text -- parse --> Script -- run --> Report
//!                                |
//!            sim::Host: the daemon's own fast path, slow path and sockets; no clock, no sleep, no kernel
//! ```
//! A script contains the packets that go to the stack, the calls that an application makes, and the packets that the stack must
//! send, with their times. A script that needs something the runner or the stack lacks is reported as unsupported, with the reason.
//! The language is described in `docs/scripts.md`.
#![forbid(unsafe_code)]

mod compare;
mod connection;
mod epoll;
mod icmp;
mod info;
mod lexer;
mod machine;
mod network;
mod parser;
mod python;
mod report;
mod runner;
mod segment;
mod settings;
mod shell;
mod support;
mod symbols;
mod syntax;
mod sysctl;

pub use epoll::Epoll;
pub use machine::{HOST, OTHERS, set_sysctl};
pub use network::Passed;
pub use parser::parse;
pub use report::{Outcome, Report};
pub use runner::{Keep, run, run_text};
pub use settings::{IpVersion, Settings};
pub use syntax::*;
pub use sysctl::{is_understood as is_sysctl_understood, names as sysctl_names};
