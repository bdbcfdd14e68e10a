//! Messages as values. What a message asks for is judged elsewhere.

use std::fmt;

use ccp_vm::Register;

use crate::create::Create;
use crate::list::{Events, Fields, Instructions, Values};

/// What a message is about; the numbers are those of the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u16)]
pub enum Kind {
    /// A flow has begun.
    Create = 0,
    /// A report, or the end of a flow.
    Measure = 1,
    /// A program for any flow.
    Install = 2,
    /// Variables of a flow's program, its window, its rate.
    Update = 3,
    /// A flow changes its program.
    Change = 4,
    /// The datapath has started.
    Ready = 5,
}

impl Kind {
    /// The kind with this number in the header.
    #[must_use]
    pub const fn from_wire(number: u16) -> Option<Self> {
        Some(match number {
            0 => Self::Create,
            1 => Self::Measure,
            2 => Self::Install,
            3 => Self::Update,
            4 => Self::Change,
            5 => Self::Ready,
            _ => return None,
        })
    }
}

/// One variable and what it is set to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Update {
    /// The variable; that an agent may set it is judged elsewhere (`ccp_vm::Field::of`).
    pub register: Register,
    /// What it is set to; the unit is the variable's.
    pub value: u64,
}

/// One message. `flow` is the number that the CREATE gave to a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A flow has begun.
    Create {
        /// The number of the new flow.
        flow: u32,
        /// Its window, segment size, addresses and algorithm.
        create: Create,
    },
    /// A report; without values: the flow is closed.
    Measure {
        /// The flow that reports.
        flow: u32,
        /// The number of the program that reported, as its INSTALL said.
        program: u32,
        /// The program's report variables, in order.
        values: Values<'a>,
    },
    /// A program for any flow of this agent.
    Install {
        /// The number that the agent gives to the program.
        program: u32,
        /// Its events, in order.
        events: Events<'a>,
        /// Its instructions, definitions first.
        instructions: Instructions<'a>,
    },
    /// Sets variables of a flow's present program, its window, its rate.
    Update {
        /// The flow to change.
        flow: u32,
        /// What is set, in order.
        fields: Fields<'a>,
    },
    /// Gives a flow another program.
    Change {
        /// The flow to change.
        flow: u32,
        /// The number of an installed program.
        program: u32,
        /// What is set once the program has begun, in order.
        fields: Fields<'a>,
    },
    /// The datapath has started, or greets an agent that has started.
    Ready {
        /// The number of the datapath.
        datapath: u32,
    },
}

/// A message of more than 65,535 bytes, which its header cannot say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a message of more than 65535 bytes")
    }
}

impl std::error::Error for TooLong {}

impl Message<'_> {
    /// The kind of this message.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Create { .. } => Kind::Create,
            Self::Measure { .. } => Kind::Measure,
            Self::Install { .. } => Kind::Install,
            Self::Update { .. } => Kind::Update,
            Self::Change { .. } => Kind::Change,
            Self::Ready { .. } => Kind::Ready,
        }
    }

    /// The flow that the message is about; 0 if it is about none.
    #[must_use]
    pub const fn flow(&self) -> u32 {
        match self {
            Self::Create { flow, .. }
            | Self::Measure { flow, .. }
            | Self::Update { flow, .. }
            | Self::Change { flow, .. } => *flow,
            Self::Install { .. } | Self::Ready { .. } => 0,
        }
    }
}
