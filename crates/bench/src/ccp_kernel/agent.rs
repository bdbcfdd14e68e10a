//! The agent's process: all algorithms of crate `ccp-algorithms`, one of which serves flows that name none.

use crate::ccp_figures::agent::serve;
use control::Line;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The role of this process.
pub const ROLE: &str = "ccp-algorithms";

/// Where the agent is to be, and the algorithm of flows that name none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Orders {
    pub path: PathBuf,
    pub algorithm: String,
}

/// The main function of this process: serves flows until it is killed.
pub fn main(line: &Line) -> anyhow::Result<()> {
    let orders = line.receive::<Orders>(true)?.message;
    let mut agent = ccp_algorithms::all()?;
    agent.prefer(&orders.algorithm)?;
    serve(line, &orders.path, &mut agent)
}
