//! What can go wrong between an algorithm and its agent. The text of each says what to change.

use std::fmt;

use ccp_lang::Mistake;

/// Why an agent did not do what an algorithm asked for. Nothing of it was done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// A program with mistakes, each with its line and column.
    Program {
        /// The name of the program.
        name: String,
        /// All that the compiler found.
        mistakes: Vec<Mistake>,
    },
    /// Two algorithms, or two programs of one algorithm, with the same name.
    SameName(String),
    /// A name of an algorithm that a message cannot carry: empty, above 63 bytes, or with a zero.
    BadName(String),
    /// The agent has no algorithm of this name.
    NoSuchAlgorithm(String),
    /// The algorithm has no program of this name.
    NoSuchProgram(String),
    /// The flow has no program yet: [`set_program`](crate::Datapath::set_program) comes first.
    NoProgram,
    /// The flow's program has no variable of this name that an agent may set.
    NoSuchField {
        /// The program that the flow runs.
        program: String,
        /// What was to be set.
        field: String,
    },
    /// The report has no value of this name.
    NotReported {
        /// The program that has reported.
        program: String,
        /// What was asked for.
        field: String,
    },
    /// The flow is over, or its algorithm has failed.
    FlowIsOver,
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program { name, mistakes } => {
                write!(to, "program `{name}` has mistakes")?;
                mistakes.iter().try_for_each(|mistake| write!(to, "\n{name}:{mistake}"))
            }
            Self::SameName(name) => write!(to, "two are called `{name}`"),
            Self::BadName(name) => write!(to, "`{}` is no name of an algorithm", name.escape_debug()),
            Self::NoSuchAlgorithm(name) => write!(to, "the agent has no algorithm `{name}`"),
            Self::NoSuchProgram(name) => write!(to, "the algorithm has no program `{name}`"),
            Self::NoProgram => to.write_str("the flow has no program yet; call set_program first"),
            Self::NoSuchField { program, field } => {
                write!(to, "program `{program}` has no variable `{field}` that can be set from outside")
            }
            Self::NotReported { program, field } => {
                write!(to, "program `{program}` does not report `{field}`")
            }
            Self::FlowIsOver => to.write_str("the flow is over"),
        }
    }
}

impl std::error::Error for Error {}
