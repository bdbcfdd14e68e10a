//! The agent's side of CCP (CCP paper, sections 4 and 6.3): algorithms of congestion control in a process of their own. The core owns no
//! socket and reads no clock; [`Runner`] is the thin part that does. The datapath's side is crate `ccp`, or any that speaks Portus' messages.
//!
//! ```text
//!              receive(now, from, bytes)                 new_flow, on_report, on_timer, close
//! datapaths  ---------------------------->  +-------+  ------------------------------------->  algorithms,
//! (UNIX                                     | Agent |                                          one object for
//!  datagrams)  <------------------------    +-------+  <-------------------------------------  each flow
//!              poll_outgoing                  ^   |          Datapath: set_program, update, set_timer
//!                           drive, gone   now |   | poll_event: the log;   flows(): the live list
//! ```
//! # An algorithm
//! [`Algorithm`] names its programs (text in CCP's language) and makes a [`Flow`] for each connection. The flow's [`Datapath`] gives it a
//! program, sets variables, window and rate, and a timer. [`Report`] has the values of the program's report variables. All values are `u64`.
//!
//! ```
//! use ccp_agent::{Agent, Algorithm, Datapath, Failure, Flow, FlowInfo, Outcome, Report};
//!
//! struct Aimd;
//! struct AimdFlow { datapath: Datapath, cwnd: u64, mss: u64 }
//!
//! impl Algorithm for Aimd {
//!     fn name(&self) -> &str { "aimd" }
//!     fn programs(&self) -> Vec<(String, String)> {
//!         let text = "(def (Report (volatile acked 0) (volatile lost 0)))
//!             (when true
//!                 (:= Report.acked (+ Report.acked Ack.bytes_acked))
//!                 (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
//!                 (fallthrough))
//!             (when (> Micros Flow.rtt_sample_us) (report) (reset))";
//!         vec![("aimd".to_owned(), text.to_owned())]
//!     }
//!     fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
//!         datapath.set_program("aimd", &[])?;
//!         Ok(Box::new(AimdFlow { datapath, cwnd: info.cwnd, mss: info.mss }))
//!     }
//! }
//!
//! impl Flow for AimdFlow {
//!     fn on_report(&mut self, report: &Report) -> Outcome {
//!         self.cwnd = if report.get("lost")? > 0 {
//!             self.cwnd / 2
//!         } else {
//!             self.cwnd + report.get("acked")? * self.mss / self.cwnd
//!         }
//!         .max(self.mss);
//!         self.datapath.update(&[("Cwnd", self.cwnd)])?;
//!         Ok(())
//!     }
//! }
//!
//! let mut agent = Agent::new();
//! agent.add(Aimd)?;
//! # Ok::<(), ccp_agent::Error>(())
//! ```
//! # Mistakes
//! A handler that fails or panics costs its flow and no other: the flow gets a Reno that lives in the datapath, the event says the flow, the
//! handler and the reason, and the agent goes on. A report of a program that the flow has left meanwhile is dropped and counted.
//!
//! # Aggregates
//! [`Aggregate`] gathers flows under one key (`aggregate_by`) and decides about them together ([`Group`], [`apportion`] by weights).
//!
//! # Algorithms of Portus
//! [`portus`] has the traits of Portus 0.8 under their names, so that such a source needs another import.
#![forbid(unsafe_code)]

mod agent;
mod aggregate;
mod algorithm;
mod datapath;
mod desk;
mod error;
mod event;
pub mod portus;
mod program;
mod report;
mod runner;

pub use agent::{Agent, FlowView};
pub use aggregate::{Aggregate, Aggregated, Group, apportion};
pub use algorithm::{Algorithm, Failure, Flow, FlowInfo, FlowKey, Outcome};
pub use base::{Duration, Instant};
pub use ccp_vm::INFINITY;
pub use datapath::Datapath;
pub use desk::{Counters, Outgoing};
pub use error::Error;
pub use event::{Event, What};
pub use report::Report;
pub use runner::{Heard, PATH, Runner};

/// Flows of one agent at most; more are left to the datapath's default algorithm.
pub const FLOWS_MAX: usize = 1 << 20;
/// Datapaths of one agent at most; datagrams of others are dropped.
pub const DATAPATHS_MAX: usize = 256;
/// Datagrams that wait for a datapath at most; more are dropped and counted.
pub const OUTGOING_MAX: usize = 1 << 16;
/// The shortest timer. Without it a handler that sets its timer to no time at all would let its agent do nothing else, and stop the virtual time
/// of a simulator and of a replay.
pub const TIMER_MIN: Duration = Duration::from_us(100);
/// Events that wait for [`Agent::poll_event`] at most; more are only counted.
pub const EVENTS_MAX: usize = 4096;
