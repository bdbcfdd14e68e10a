//! The daemon: it registers applications, decides which may connect to each other, sets up the memory that they share, relays between those
//! that must not share memory, and cleans up when one dies. On the service's side only this crate reads clocks and starts threads.
//!
//! ```text
//!   listening  the control socket's path         control   the one loop: control lines, signals, bells
//!   requests   registration, regions, wakers     listen    accept queues       connect   same-host connections
//!   departure  death and detaching               report    ss, stat, explain   registry  what all of these share
//!   policy     which users may listen and connect where, how much          permission  its answers to requests
//!   trust      connections on their way from one process to another         succession  from one accept queue to another
//! ```
#![deny(unsafe_code)]

mod alive;
mod application;
mod bells;
mod claiming;
mod clock;
mod config;
mod connect;
mod control_lines;
mod control_loop;
mod cores;
mod counting;
mod deferred;
mod departure;
mod deputies;
mod end;
mod error;
mod explain;
mod held;
mod helpers;
mod judge;
mod limit;
mod lines;
mod listen;
mod listeners;
mod listening;
mod log_limit;
mod memory;
mod meter;
mod options;
mod origin;
mod permission;
pub mod policy;
mod port_space;
mod ports;
mod present;
mod privilege;
mod proc;
mod rates;
mod region;
mod registry;
mod relay;
mod report;
mod requests;
mod shown;
mod slots;
mod statistics;
mod succession;
#[allow(unsafe_code)]
mod sys;
mod tcp;
pub mod text;
mod traffic;
mod trust;
mod trusts;
mod values;
mod whose_time;

pub use config::{Config, Link, Options, Sharing};
pub use control_loop::Service;
pub use error::ServiceError;
pub use listening::pid_behind;
pub use privilege::page as privileges;
pub use sys::signals;
pub use values::{Congestion, Mac, Network, PortChoice, PortKind, Rate};

/// Runs a service until it is told to end.
///
/// # Errors
/// See [`ServiceError`].
pub fn run(config: Config) -> Result<(), ServiceError> {
    Service::open(config)?.run()
}

/// Version of the shared memory's layout that this service speaks.
pub const LAYOUT: u32 = shm::VERSION;
