//! The result of running a script.

use crate::network::Passed;
use crate::syntax::{Trouble, TroubleKind};
use serde::Serialize;

/// How a script ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase", tag = "outcome")]
pub enum Outcome {
    /// The stack behaved as the script says.
    Passed,
    /// The stack behaved differently, or the script has an error.
    Failed {
        /// Line of the event that failed, from 1.
        line: u32,
        /// The expected and the actual behaviour, in words.
        why: String,
    },
    /// The script needs something that this runner or this stack does not have; the run says nothing about the stack.
    Unsupported {
        /// Line that needs it, from 1.
        line: u32,
        /// The missing thing, in words.
        what: String,
    },
}

/// The result of a run with its trace.
#[derive(Clone, Debug)]
pub struct Report {
    /// How the script ended.
    pub outcome: Outcome,
    /// Packets, calls and prints in the order of their times, one line each.
    pub trace: Vec<String>,
    /// Frames to and from the host; empty unless they were requested.
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
