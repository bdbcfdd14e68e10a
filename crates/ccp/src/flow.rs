//! One flow as an endpoint knows it. The flow itself, its program and its registers live in the datapath.

use base::{Duration, Instant};
use ccp_vm::{Bounds, REPORTS_MAX};
use ccp_wire::{Create, Message, Values};

use crate::command::Reason;

/// The datapath's own name of a flow: never that of an earlier flow, as an index with a generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct FlowId(pub u64);

/// A flow that has begun, or that has chosen an agent's algorithm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewFlow {
    /// The datapath's name of the flow.
    pub id: FlowId,
    /// The user of the application. Agents of other users do not see the flow, unless they are root's.
    pub uid: u32,
    /// The smoothed round-trip time so far.
    pub rtt: Duration,
    /// The largest rate that the application allows (`SO_MAX_PACING_RATE`), bytes per second; `u64::MAX`: any.
    pub rate_max: u64,
    /// Window, segment size, addresses, and the name of the algorithm.
    pub create: Create,
}

/// Where a flow stands. What `explain` shows is made of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// No agent that is there serves the flow's algorithm.
    NoAgent,
    /// An agent serves the algorithm, but for other users.
    OtherUser,
    /// An agent knows the flow, or will in a moment, and has given it no program yet.
    NoProgram,
    /// The agent's program of this number runs.
    Running(u32),
    /// The flow went back to the default algorithm, and no agent has taken it since.
    FellBack(Reason),
}

/// Which agent has the flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Free,
    Fallen(Reason),
    /// The index of the agent; the program's number once it has one.
    At {
        agent: usize,
        program: Option<u32>,
    },
}

/// A report that waits to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    program: u32,
    values: [u64; REPORTS_MAX],
    len: usize,
}

impl Report {
    /// `None` without values (which would close the flow), and with more than a program can have.
    pub fn new(program: u32, values: &[u64]) -> Option<Self> {
        let mut report = Self { program, values: [0; REPORTS_MAX], len: values.len() };
        report.values.get_mut(..values.len())?.copy_from_slice(values);
        (!values.is_empty()).then_some(report)
    }

    pub fn message(&self, flow: u32) -> Message<'_> {
        Message::Measure { flow, program: self.program, values: Values::of(&self.values[..self.len]) }
    }
}

/// One open flow, at an agent or on the default algorithm.
#[derive(Debug)]
pub struct Flow {
    pub id: FlowId,
    pub uid: u32,
    pub rtt: Duration,
    pub bounds: Bounds,
    pub create: Create,
    pub place: Place,
    /// The agent has been told of the flow under its present number.
    pub is_told: bool,
    /// The flow is in the endpoint's queue, or waits at its full agent.
    pub is_queued: bool,
    pub report: Option<Report>,
    /// A report of the flow lies in its agent's datagram, which has not gone yet.
    pub is_in_datagram: bool,
    /// When the flow falls back, if its report has found no room.
    pub grace: Option<Instant>,
}

impl Flow {
    pub fn agent(&self) -> Option<usize> {
        match self.place {
            Place::At { agent, .. } => Some(agent),
            Place::Free | Place::Fallen(_) => None,
        }
    }

    pub fn is_at(&self, index: usize) -> bool {
        self.agent() == Some(index)
    }
}
