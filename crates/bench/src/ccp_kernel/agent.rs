//! The agent's process: all algorithms of crate `ccp-algorithms`, one of which serves flows that name none.

use anyhow::Context;
use ccp_agent::Runner;
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

/// Sent when the socket is bound; the number keeps the message from being empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ready(pub u8);

/// The main function of this process: serves flows until it is killed.
pub fn main(line: &Line) -> anyhow::Result<()> {
    let orders = line.receive::<Orders>(true)?.message;
    let mut agent = ccp_algorithms::all()?;
    agent.prefer(&orders.algorithm)?;
    let mut runner = Runner::bind(&orders.path).context("cannot bind the agent's socket")?;
    line.send(&Ready(1), &[], true)?;
    runner.run(&mut agent, &|| false, &mut |_| {})?;
    Ok(())
}
