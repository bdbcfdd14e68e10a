//! The daemon: it registers applications, decides which may connect to each other, sets up the memory that they share, relays between those
//! that must not share memory, and cleans up when one dies. On the service's side only this crate reads clocks and starts threads.
//!
//! ```text
//!   daemon    the one loop: control lines, signals, eventfds; helper threads. It alone makes system calls on what others hold
//!   registry  all that the control thread knows, a state machine with an interface of functions
//!   cores     fast-path threads
//!   config    options and the file
//!   privilege what the daemon gives up
//!   threads   how a thread starts: its panic is the process's end
//! ```
#![deny(unsafe_code)]

mod config;
mod cores;
mod daemon;
mod error;
mod privilege;
mod registry;
#[allow(unsafe_code)]
mod sys;
mod threads;

pub use config::values::{
    AgentPlace, ChannelCount, Congestion, Cores, CoresChoice, HostAddresses, LogFilter, Mac, Network,
    PortChoice, PortKind, Rate,
};
pub use config::{AgentSettings, ChannelPolicy, Config, Link, Options, Sharing};
pub use daemon::Service;
pub use daemon::control_socket::{pid_answering, pid_behind};
pub use error::ServiceError;
pub use privilege::page as privileges;
pub use registry::{policy, report};
pub use sys::signals;

/// Runs a service until it is told to end.
///
/// # Errors
/// See [`ServiceError`].
pub fn run(config: Config) -> Result<(), ServiceError> {
    Service::open(config)?.run()
}

/// Version of the shared memory's layout that this service speaks.
pub const LAYOUT: u32 = shm::VERSION;
