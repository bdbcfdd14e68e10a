//! Why a program is not installed.

use core::fmt;

/// The first rule that a program breaks. Instructions and events are named by their number in what was installed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// More instructions than [`INSTRUCTIONS_MAX`](crate::INSTRUCTIONS_MAX).
    TooManyInstructions,
    /// More events than [`EVENTS_MAX`](crate::EVENTS_MAX).
    TooManyEvents,
    /// Events that share instructions, so that one run executes more than [`INSTRUCTIONS_MAX`](crate::INSTRUCTIONS_MAX).
    TooMuchWork,
    /// An event with instructions outside the program.
    EventOutOfBounds {
        /// The number of the event.
        event: usize,
    },
    /// An event with a condition that does not end by writing the event flag.
    FlagNotWritten {
        /// The number of the event.
        event: usize,
    },
    /// A definition that is not `DEF variable variable immediate`, or that defines a variable twice.
    BadDefinition {
        /// The number of the instruction.
        instruction: usize,
    },
    /// A definition among the instructions of an event.
    DefinitionInEvent {
        /// The number of the instruction.
        instruction: usize,
    },
    /// A report variable that is used and not defined, or an index that the definitions of report variables leave out.
    UndefinedReport {
        /// The index of the report variable.
        index: u32,
    },
    /// A register with an index that its scope does not have.
    NoSuchRegister {
        /// The number of the instruction.
        instruction: usize,
    },
    /// A result in a signal or in an immediate value.
    ReadOnly {
        /// The number of the instruction.
        instruction: usize,
    },
    /// A temporary that is read, and that may not have been written in this run.
    UnwrittenTemp {
        /// The number of the instruction.
        instruction: usize,
        /// The index of the temporary.
        temp: u32,
    },
    /// More different immediate values than a program can hold (176).
    TooManyConstants,
    /// A builder's value that belongs to another event.
    StaleValue,
}

impl fmt::Display for Refusal {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyInstructions => to.write_str("more than 256 instructions"),
            Self::TooManyEvents => to.write_str("more than 16 events"),
            Self::TooMuchWork => to.write_str("the events share instructions: more than 256 in one run"),
            Self::EventOutOfBounds { event } => {
                write!(to, "event {event} has instructions outside the program")
            }
            Self::FlagNotWritten { event } => {
                write!(to, "the condition of event {event} does not write the event flag")
            }
            Self::BadDefinition { instruction } => {
                write!(to, "instruction {instruction} is no definition of a new variable")
            }
            Self::DefinitionInEvent { instruction } => {
                write!(to, "instruction {instruction} of an event is a definition")
            }
            Self::UndefinedReport { index } => write!(to, "report variable {index} is not defined"),
            Self::NoSuchRegister { instruction } => {
                write!(to, "instruction {instruction} names a register that does not exist")
            }
            Self::ReadOnly { instruction } => {
                write!(to, "instruction {instruction} writes a signal or a constant")
            }
            Self::UnwrittenTemp { instruction, temp } => {
                write!(
                    to,
                    "instruction {instruction} reads temporary {temp}, which may not have been written"
                )
            }
            Self::TooManyConstants => to.write_str("more than 176 different constants"),
            Self::StaleValue => to.write_str("a value of one event is used in another"),
        }
    }
}

impl core::error::Error for Refusal {}
