//! The daemon: it registers applications, decides which may connect to each other, sets up the memory that they share, relays between those
//! that must not share memory, and cleans up when one dies. On the service's side only this crate reads clocks and starts threads.
//!
//! ```text
//!   daemon    the one loop: control lines, signals, eventfds; helper threads      config    options and the file
//!   registry  applications and their families, requests, deaths                   memory    regions and their slots
//!   listen    accept queues                                                       policy    what each user may do
//!   local     connections within this host                                        tcp       connections over the port
//!   relay     connections between processes that share no memory                  cores     fast-path threads
//!   channels  connections over channels to other hosts with this service
//!   handover  connections on their way from one process to another                report    ss, stat, explain
//!   process   what the kernel says of processes                                   privilege what the daemon gives up
//!   choice    which congestion control a flow gets                              agents    congestion control by other processes
//!   scaling   how many cores serve flows, and which flows each has
//! ```
#![deny(unsafe_code)]

mod agents;
mod channels;
mod choice;
mod config;
mod cores;
mod daemon;
mod error;
mod handover;
mod listen;
mod local;
mod memory;
pub mod policy;
mod privilege;
mod process;
mod registry;
mod relay;
pub mod report;
mod scaling;
#[allow(unsafe_code)]
mod sys;
mod tcp;

pub use config::values::{
    AgentPlace, ChannelCount, Congestion, Cores, CoresChoice, HostAddresses, Mac, Network, PortChoice,
    PortKind, Rate,
};
pub use config::{AgentSettings, ChannelPolicy, Config, Link, Options, Sharing};
pub use daemon::Service;
pub use daemon::control_socket::pid_behind;
pub use error::ServiceError;
pub use privilege::page as privileges;
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
