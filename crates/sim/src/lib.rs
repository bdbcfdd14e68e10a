//! Hosts and networks in virtual time: the daemon's own fast path, slow path, queues and socket layer, between a network
//! with configurable faults and applications that check every byte.
//!
//! ```text
//!   sockets (endpoint) --- region --- fastpath::Core --- interface --> frames --> the network
//!        one thread, no clock       \----- slowpath::SlowPath --/
//! ```
//! Reads no clock and does no I/O: the same seed gives the same run, byte by byte.
#![forbid(unsafe_code)]

mod agenda;
mod agents;
pub mod apps;
mod check;
pub mod directed;
pub mod figure;
mod host;
mod hostile;
mod interface;
pub mod load;
mod machine;
mod neighbour;
mod network;
mod options;
mod oracle;
mod pcap;
mod processors;
mod receive_offload;
mod repeats;
mod ring;
mod router;
pub mod scenario;
mod sight;
pub mod silence;
mod smoltcp;
mod sockets;
mod station;
pub mod statistics;
mod steering;
mod switch;
pub mod topology;

pub use agents::{AgentMaker, AgentSetting, KeptDatagram, KeptReport, Mind, random_program, reno_of_agent};
pub use check::Leftovers;
pub use elastic::Past;
pub use elastic::scaler::Why;
pub use endpoint::receive_wait::Receiving;
pub use host::{Host, HostConfig};
pub use machine::{Machine, Stack};
pub use neighbour::{icmp_frame, neighbour};
pub use network::{Network, NodeId};
pub use options::SIOCATMARK;
pub use oracle::WireOracle;
pub use pcap::Capture;
pub use processors::ProcessorSetting;
pub use rustix::io::Errno;
pub use sight::Sight;
pub use slowpath::SynCookies;
pub use sockets::Fd;
pub use station::MachineDebug;
