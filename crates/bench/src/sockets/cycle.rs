//! The cost of making and closing a socket or a connection, and of a fork with many connections.

use super::acts::cycle::Ask;
use super::ask;
use super::pair::Pair;
use crate::samples::Samples;
use anyhow::{Context, bail};

/// Number of open connections when the process forks.
pub const OPEN: u32 = 1_000;

/// Measures sockets and connections on a new pair of processes.
pub fn measure(pair: &Pair<'_>, count: u32, samples: &mut Samples) -> anyhow::Result<()> {
    let ask = |ask| ask::Ask::Cycle(ask);
    pair.near(&ask(Ask::Socket(count / 10)))?;
    let ns = pair.near(&ask(Ask::Socket(count * 10)))?;
    let ns = ns.first().context("no time of socket and close")?;
    samples.add("sockets/cycle/socket+close", pair.name, "time", "us", ns / 1e3);
    let before = pair.accepted()?;
    let (ns, _) = pair.both(&ask(Ask::Connect(pair.address(), count)), &ask(Ask::Accept(count)))?;
    pair.prove(count, before)?;
    let ns = ns.first().context("no time of connect, accept and close")?;
    samples.add("sockets/cycle/connect+accept+close", pair.name, "time", "us", ns / 1e3);
    Ok(())
}

/// Measures forks on a new pair of processes.
pub fn measure_fork(pair: &Pair<'_>, forks: u32, samples: &mut Samples) -> anyhow::Result<()> {
    for open in [1, OPEN] {
        // The pair has one connection already.
        pair.connect(open - 1)?;
        let answer = pair.near(&ask::Ask::Cycle(Ask::Fork(forks)))?;
        let [parent, child] = answer[..] else { bail!("no time of fork") };
        let case = format!("sockets/fork/n{open}");
        samples.add(&case, pair.name, "back in the parent", "us", parent);
        samples.add(&case, pair.name, "back in the child", "us", child);
    }
    Ok(())
}
