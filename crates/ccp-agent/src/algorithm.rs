//! What an author of an algorithm writes: the handlers of the CCP paper's section 4. Nothing here knows messages or sockets.

use std::fmt;
use std::net::SocketAddrV4;

use crate::datapath::Datapath;
use crate::report::Report;

/// Why a handler failed. `?` turns any error into it.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a handler returns. A failure costs its flow: it goes to Reno in the datapath, and hears nothing more.
pub type Outcome = Result<(), Failure>;

/// The name of a flow at an agent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct FlowKey {
    /// Which datapath, in the order in which the agent heard of them.
    pub datapath: u32,
    /// The datapath's number of the flow, which it gives to no other flow while this one lives.
    pub number: u32,
}

impl fmt::Display for FlowKey {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}:{}", self.datapath, self.number)
    }
}

/// What a datapath says of a flow when it begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowInfo {
    /// The flow's name at this agent.
    pub flow: FlowKey,
    /// The algorithm that the application or a rule asked for; empty: any.
    pub asked: String,
    /// The congestion window, bytes.
    pub cwnd: u64,
    /// The largest segment, bytes, at least 1.
    pub mss: u64,
    /// The address of this host; of an IPv6 address only the last four bytes.
    pub source: SocketAddrV4,
    /// The peer's address, shown in the same way.
    pub destination: SocketAddrV4,
}

/// An algorithm: its programs, and what it does with a new flow.
pub trait Algorithm: Send {
    /// The name by which flows choose it: at most 63 bytes, 15 if `TCP_CONGESTION` is to name it.
    fn name(&self) -> &str;

    /// All programs that its flows may run: a name and the text of each.
    fn programs(&self) -> Vec<(String, String)>;

    /// A flow has begun. It stays on the datapath's default algorithm until [`Datapath::set_program`].
    ///
    /// # Errors
    /// If the algorithm cannot serve the flow.
    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure>;
}

/// One flow of an algorithm.
pub trait Flow: Send {
    /// The flow's program has reported.
    ///
    /// # Errors
    /// If the flow cannot go on.
    fn on_report(&mut self, report: &Report) -> Outcome;

    /// The time of [`Datapath::set_timer`] has come.
    ///
    /// # Errors
    /// If the flow cannot go on.
    fn on_timer(&mut self) -> Outcome {
        Ok(())
    }

    /// The flow is over, or has failed; nothing can be sent to it any more.
    fn close(&mut self) {}
}
