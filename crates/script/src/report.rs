//! What became of a script.

use crate::network::Passed;
use crate::syntax::{Trouble, TroubleKind};
use serde::Serialize;

/// How a script ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase", tag = "outcome")]
pub enum Outcome {
    /// Everything was as it says.
    Passed,
    /// Something was not.
    Failed {
        /// The line of the event that was not as expected.
        line: u32,
        /// What was expected and what happened.
        why: String,
    },
    /// It needs what this runner or this stack does not have, so nothing is said about the stack.
    Unsupported {
        /// The line that needs it.
        line: u32,
        /// What it needs.
        what: String,
    },
}

/// A script's run.
#[derive(Clone, Debug)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// Packets, calls and prints in the order of their times.
    pub trace: Vec<String>,
    /// Frames that passed, when they were asked for.
    pub frames: Vec<Passed>,
}

impl From<Trouble> for Outcome {
    fn from(trouble: Trouble) -> Self {
        match trouble.kind {
            TroubleKind::Syntax(why) => Self::Failed { line: trouble.line, why },
            TroubleKind::Unsupported(what) => Self::Unsupported { line: trouble.line, what },
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed { line, why } => write!(f, "failed in line {line}: {why}"),
            Self::Unsupported { line, what } => write!(f, "unsupported in line {line}: {what}"),
        }
    }
}

impl Report {
    pub(crate) fn ended(outcome: Outcome) -> Self {
        Self { outcome, trace: Vec::new(), frames: Vec::new() }
    }
}
