//! The cost of `epoll_wait` with a hundred readable connections among a growing number of idle ones.

use super::acts::ready::{Ask, Chosen, READY};
use super::ask;
use super::pair::Pair;
use crate::samples::{Samples, median};
use anyhow::{Context, bail};

/// Numbers of idle connections besides them.
pub const IDLE: [u32; 3] = [100, 1_000, 10_000];

/// Measures with each number of idle connections: "same" waits repeatedly for the same hundred, which stay readable; "news" waits for
/// another hundred each time, which became readable after the last call.
pub fn measure(pair: &Pair<'_>, calls: u32, samples: &mut Samples) -> anyhow::Result<()> {
    for idle in IDLE {
        let all = READY + idle;
        pair.near(&ask::Ask::Ready(Ask::Register(all)))?;
        let step = all / READY;
        let same = Chosen { first: 0, step };
        pair.far(&ask::Ask::Ready(Ask::Send(same)))?;
        pair.near(&ask::Ask::Ready(Ask::Wait(calls / 10 + 1)))?;
        let ns = pair.near(&ask::Ask::Ready(Ask::Wait(calls)))?;
        let us = ns.first().context("no time of epoll_wait")? / 1e3;
        samples.add(&case("same", idle), pair.name, "epoll_wait", "us", us);
        pair.near(&ask::Ask::Ready(Ask::Take(same)))?;
        let mut times = Vec::new();
        for round in 0..calls / 20 + 1 {
            let others = Chosen { first: round % step, step };
            pair.far(&ask::Ask::Ready(Ask::Send(others)))?;
            let answer = pair.near(&ask::Ask::Ready(Ask::WaitOnce))?;
            let [ns, told] = answer[..] else { bail!("no time of epoll_wait") };
            if told != f64::from(READY) {
                bail!("one call told of {told} connections, not {READY}");
            }
            times.push(ns / 1e3);
            pair.near(&ask::Ask::Ready(Ask::Take(others)))?;
        }
        let us = median(&times).context("no time of epoll_wait")?;
        samples.add(&case("news", idle), pair.name, "epoll_wait", "us", us);
    }
    Ok(())
}

/// The case's name in results.
pub fn case(look: &str, idle: u32) -> String {
    format!("sockets/epoll/{look}/idle{idle}")
}
