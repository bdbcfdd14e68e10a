//! What an endpoint counts, and what it tells people.

use std::collections::VecDeque;
use std::fmt;

use ccp_vm::Refusal;
use ccp_wire::Malformed;

use crate::command::Reason;
use crate::config::NOTICES_MAX;
use crate::flow::FlowId;

/// Numbers since the endpoint began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Datagrams from an address that is no agent's.
    pub unknown_senders: u64,
    /// Datagrams of users that may not be agents.
    pub refused_users: u64,
    /// Messages without a meaning, or of a kind that agents do not send.
    pub malformed: u64,
    /// Programs that broke a rule.
    pub refused_programs: u64,
    /// Messages for a flow that is over, that never was, or that another agent has.
    pub unknown_flows: u64,
    /// Messages that choose a program that is not installed, or change a flow without a program.
    pub unknown_programs: u64,
    /// Messages with a field that agents may not set; nothing of them was done.
    pub refused_fields: u64,
    /// Windows and rates that were moved to a bound.
    pub clamps: u64,
    /// Programs installed, including those that took the place of another.
    pub installs: u64,
    /// CREATEs put into datagrams.
    pub creates: u64,
    /// Reports put into datagrams.
    pub reports: u64,
    /// Datagrams that an agent's socket took.
    pub datagrams: u64,
    /// Datagrams that found no room at first.
    pub full: u64,
    /// Flows that went back to the default algorithm.
    pub fallbacks: u64,
    /// Notices that were not kept.
    pub notices_lost: u64,
}

/// Something that people should hear of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// An agent's process has said its first word.
    AgentCame {
        /// The address of the agent.
        agent: Vec<u8>,
        /// The user of its process.
        uid: u32,
    },
    /// An agent is gone, or reads no more; so many flows went back to the default algorithm.
    AgentLost {
        /// The address of the agent.
        agent: Vec<u8>,
        /// What happened to it.
        reason: Reason,
        /// The number of its flows that fell back at once.
        flows: usize,
    },
    /// A program was not installed.
    ProgramRefused {
        /// The address of the agent.
        agent: Vec<u8>,
        /// The agent's number of the program.
        program: u32,
        /// The rule that it broke.
        refusal: Refusal,
    },
    /// A message was not understood.
    Misunderstood {
        /// The address of the agent.
        agent: Vec<u8>,
        /// What is wrong with it.
        why: Malformed,
    },
    /// An agent asked for more or less than a flow may have.
    Clamped {
        /// The flow with these bounds.
        flow: FlowId,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |agent: &[u8]| String::from_utf8_lossy(agent).escape_debug().to_string();
        match self {
            Self::AgentCame { agent, uid } => write!(to, "agent {} of user {uid} is there", name(agent)),
            Self::AgentLost { agent, reason, flows } => {
                let what = match reason {
                    Reason::AgentDied => "has died",
                    Reason::AgentStalled => "does not read",
                    Reason::AgentRemoved => "is no longer configured",
                };
                write!(to, "agent {} {what}: {flows} flows are back on the default algorithm", name(agent))
            }
            Self::ProgramRefused { agent, program, refusal } => {
                write!(to, "program {program} of agent {} is refused: {refusal}", name(agent))
            }
            Self::Misunderstood { agent, why } => write!(to, "agent {} sent {why}", name(agent)),
            Self::Clamped { flow } => {
                write!(to, "an agent asked for a window or rate beyond the bounds of flow {}", flow.0)
            }
        }
    }
}

/// Notices in the order in which they came, and the counters.
#[derive(Debug, Default)]
pub struct Journal {
    pub counters: Counters,
    notices: VecDeque<Notice>,
}

impl Journal {
    pub fn tell(&mut self, notice: Notice) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back(notice);
        } else {
            self.counters.notices_lost += 1;
        }
    }

    pub fn poll(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }
}
