//! What an endpoint tells the flows, and what an agent has asked for, within its bounds.

use std::sync::Arc;

use ccp_vm::{Bounds, Changes, Field, Program};
use ccp_wire::Fields;

use crate::flow::FlowId;

/// One command for one flow. Each is carried out between two runs of the flow's program, as a whole.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// The program begins (or takes the place of the one before), and then the changes are made.
    Program {
        /// The flow that gets the program.
        flow: FlowId,
        /// What runs from now on.
        program: Arc<Program>,
        /// The agent's number of the program, which each report gives back.
        number: u32,
        /// What is set once the program has begun.
        changes: Changes,
        /// What the program's own decisions are moved into; the datapath tells of that by
        /// [`Endpoint::clamped`](crate::Endpoint::clamped).
        bounds: Bounds,
    },
    /// The changes are made; the program goes on.
    Change {
        /// The flow that is changed.
        flow: FlowId,
        /// What is set, all of it at once.
        changes: Changes,
    },
    /// The last report has gone: the flow may hand over its next one.
    Accept {
        /// The flow that may report.
        flow: FlowId,
    },
    /// The flow goes back to the default algorithm, with a window no larger than what is in flight, or than a new connection's.
    Default {
        /// The flow that has no agent any more.
        flow: FlowId,
        /// What happened to its agent.
        reason: Reason,
    },
}

/// Why a flow went back to the default algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The agent's process has ended, or another one took its address.
    AgentDied,
    /// The agent did not read its reports.
    AgentStalled,
    /// The agent is no longer configured.
    AgentRemoved,
}

/// Changes, and how many of their values were moved to a bound.
pub struct Bounded {
    pub changes: Changes,
    pub clamps: u64,
}

impl Bounded {
    /// The fields of a message; `None` if one of them is nothing that an agent may set: then none is.
    pub fn of(fields: Fields<'_>, bounds: &Bounds) -> Option<Self> {
        let mut bounded = Self { changes: Changes::default(), clamps: 0 };
        for update in fields.iter() {
            let value = update.value;
            let kept = match Field::of(update.register)? {
                Field::Control(index) => {
                    *bounded.changes.controls.get_mut(usize::from(index))? = Some(value);
                    continue;
                }
                // 0 leaves the window, and the rate, as it is.
                Field::Cwnd | Field::Rate if value == 0 => continue,
                Field::Cwnd => *bounded.changes.cwnd.insert(bounds.cwnd(value)),
                Field::Rate => *bounded.changes.rate.insert(bounds.rate(value)),
            };
            bounded.clamps += u64::from(kept != value);
        }
        Some(bounded)
    }
}
