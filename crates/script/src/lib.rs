//! Runs packetdrill scripts against the stack in virtual time.
//!
//! ```text
//!   text -- parse --> Script -- run --> Report
//!                                |
//!            sim::Host: the daemon's own fast path, slow path and sockets; no clock, no sleep, no kernel
//! ```
//! A script says which packets go to the stack, which calls an application makes, and which packets must come out when.
//! Whatever a script needs that is not there makes it unsupported, with the reason; it is never quietly left out.
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
