//! What a bridge shows of itself: plain data that becomes JSON or a table.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// What a bridge shows of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The name of the algorithm in the kernel.
    pub name: String,
    /// The process that keeps it up.
    pub pid: u32,
    /// The agents and what came from each.
    pub agents: Vec<AgentStatus>,
    /// Live flows of all namespaces.
    pub flows: Vec<FlowStatus>,
    /// Reports that were put into datagrams.
    pub reports: u64,
    /// Programs that were refused.
    pub refused_programs: u64,
    /// Flows that went back to the default algorithm.
    pub fallbacks: u64,
}

/// One agent that is configured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AgentStatus {
    /// The path of its socket.
    pub address: String,
    /// It is there: it has sent something.
    pub is_there: bool,
    /// The number of its process; none: it is not there, or its process is in another PID namespace.
    pub pid: Option<u32>,
    /// Programs that it has installed.
    pub programs: usize,
}

/// One live flow of the kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FlowStatus {
    /// The host's address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub peer: SocketAddr,
    /// What decides about it.
    pub standing: String,
    /// The window that a program set last, bytes; 0: none has run.
    pub cwnd: u64,
    /// The rate that a program set last, bytes per second; 0: none has set one.
    pub rate: u64,
    /// The smoothed round-trip time, microseconds.
    pub rtt_us: u64,
    /// Runs of the flow's programs.
    pub runs: u64,
    /// Runs that a fault stopped.
    pub faults: u64,
    /// Decisions that were moved to a bound.
    pub clamps: u64,
    /// Reports that came from the kernel.
    pub reports: u64,
    /// Commands for the flow.
    pub commands: u64,
    /// Of these, those that the kernel has carried out.
    pub commands_applied: u64,
}

impl Status {
    #[cfg(feature = "load")]
    pub(crate) fn new(
        name: &str,
        endpoint: &ccp::Endpoint,
        addresses: &[Vec<u8>],
        flows: Vec<FlowStatus>,
    ) -> Self {
        let agents = addresses.iter().map(|address| AgentStatus {
            address: String::from_utf8_lossy(address).into_owned(),
            is_there: endpoint.process_of(address).is_some(),
            pid: endpoint.process_of(address).filter(|pid| *pid != 0),
            programs: endpoint.programs_of(address),
        });
        let counters = endpoint.counters();
        Self {
            name: name.to_owned(),
            pid: std::process::id(),
            agents: agents.collect(),
            flows,
            reports: counters.reports,
            refused_programs: counters.refused_programs,
            fallbacks: counters.fallbacks,
        }
    }
}
