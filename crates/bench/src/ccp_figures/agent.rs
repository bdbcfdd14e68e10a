//! The agent's process in table 1 and figure 13: Reno that decides in the agent, of which each flow reports once in 10 ms (CCP paper, section 7.2.2),
//! or at each acknowledgement.

use anyhow::Context;
use base::Duration;
use ccp_agent::{Agent, Runner};
use control::Line;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The role of this process.
pub const ROLE: &str = "ccp-agent";

/// Where the agent is to be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Orders {
    /// The path that its socket is bound to.
    pub path: PathBuf,
    /// Microseconds between two reports of a flow; 0: a report at each run of its program.
    pub interval_us: u64,
}

/// Sent when the socket is bound; the number keeps the message from being empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ready(pub u8);

/// The main function of this process: serves flows until it is killed.
pub fn main(line: &Line) -> anyhow::Result<()> {
    let orders = line.receive::<Orders>(true)?.message;
    serve(line, &orders.path, &mut sim::reno_of_agent(Duration::from_us(orders.interval_us)).make())
}

/// Has an agent serve flows at a socket bound to `path`, until this process is killed. Says [`Ready`] when it is bound.
pub fn serve(line: &Line, path: &Path, agent: &mut Agent) -> anyhow::Result<()> {
    let mut runner = Runner::bind(path).context("cannot bind the agent's socket")?;
    line.send(&Ready(1), &[], true)?;
    runner.run(agent, &|| false, &mut |_| {})?;
    Ok(())
}
