//! What `epoll_wait` costs: a hundred connections with something to read, among ever more that have nothing.

use super::actor::{Actor, Answer};
use super::pair::Pair;
use super::{actor, calls};
use crate::clock;
use crate::samples::{Samples, median};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::time::Duration;

/// Connections that have something to read.
pub const READY: u32 = 100;
/// Connections beside them that have nothing.
pub const IDLE: [u32; 3] = [100, 1_000, 10_000];
/// Until all that was sent is there.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is asked of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// A new epoll set with the first so many connections.
    Register(u32),
    /// Send a byte on [`READY`] connections: the first, and every so many.
    Send(Chosen),
    /// Take these bytes.
    Take(Chosen),
    /// Wait so many times, taking nothing; the answer is the time of one call, nanoseconds.
    Wait(u32),
    /// Wait once; the answer is the time, nanoseconds, and how many were told.
    WaitOnce,
}

/// Which connections have something to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Chosen {
    first: u32,
    step: u32,
}

impl Chosen {
    fn numbers(self) -> impl Iterator<Item = usize> {
        (0..READY).map(move |i| (self.first + i * self.step) as usize)
    }
}

/// In a process: obeys.
pub fn obey(actor: &mut Actor, ask: Ask) -> anyhow::Result<Answer> {
    match ask {
        Ask::Register(count) => {
            // The last one is closed first.
            actor.set = None;
            let set = actor.set.insert(calls::epoll_create()?);
            for (i, stream) in actor.streams.iter().enumerate().take(count as usize) {
                calls::epoll_add(set, stream, i as u64)?;
            }
        }
        Ask::Send(chosen) => {
            for i in chosen.numbers() {
                actor.streams.get(i).context("no such connection")?.write_all(&[1])?;
            }
        }
        Ask::Take(chosen) => {
            for i in chosen.numbers() {
                actor.streams.get(i).context("no such connection")?.read_exact(&mut [0])?;
            }
        }
        Ask::Wait(calls) => return wait(actor, calls),
        Ask::WaitOnce => {
            let (ns, told) = wait_once(actor)?;
            return Ok(vec![ns, f64::from(told)]);
        }
    }
    Ok(Answer::new())
}

/// The time of one call, and what it told.
fn wait_once(actor: &Actor) -> anyhow::Result<(f64, u32)> {
    let set = actor.set.as_ref().context("no epoll set")?;
    let mut events = [calls::NO_EVENT; READY as usize * 2];
    let start = clock::now_ns();
    let told = calls::epoll_wait(set, &mut events, Some(PATIENCE))?;
    Ok(((clock::now_ns() - start) as f64, told as u32))
}

fn wait(actor: &Actor, calls: u32) -> anyhow::Result<Answer> {
    let mut told = 0;
    let start = clock::now_ns();
    for _ in 0..calls {
        told += wait_once(actor)?.1;
    }
    if told != calls * READY {
        bail!("{calls} calls told of {told} connections, not {}", calls * READY);
    }
    Ok(vec![(clock::now_ns() - start) as f64 / f64::from(calls)])
}

/// Measures with each number of idle connections. Two looks: at the same hundred again and again, which stay ready; and at
/// another hundred each time, of which news has come since the last call.
pub fn measure(pair: &Pair<'_>, calls: u32, samples: &mut Samples) -> anyhow::Result<()> {
    for idle in IDLE {
        let all = READY + idle;
        pair.near(&actor::Ask::Ready(Ask::Register(all)))?;
        let step = all / READY;
        let same = Chosen { first: 0, step };
        pair.far(&actor::Ask::Ready(Ask::Send(same)))?;
        pair.near(&actor::Ask::Ready(Ask::Wait(calls / 10 + 1)))?;
        let ns = pair.near(&actor::Ask::Ready(Ask::Wait(calls)))?;
        let us = ns.first().context("no time of epoll_wait")? / 1e3;
        samples.add(&case("same", idle), pair.name, "epoll_wait", "us", us);
        pair.near(&actor::Ask::Ready(Ask::Take(same)))?;
        let mut times = Vec::new();
        for round in 0..calls / 20 + 1 {
            let others = Chosen { first: round % step, step };
            pair.far(&actor::Ask::Ready(Ask::Send(others)))?;
            let answer = pair.near(&actor::Ask::Ready(Ask::WaitOnce))?;
            let [ns, told] = answer[..] else { bail!("no time of epoll_wait") };
            if told != f64::from(READY) {
                bail!("one call told of {told} connections, not {READY}");
            }
            times.push(ns / 1e3);
            pair.near(&actor::Ask::Ready(Ask::Take(others)))?;
        }
        let us = median(&times).context("no time of epoll_wait")?;
        samples.add(&case("news", idle), pair.name, "epoll_wait", "us", us);
    }
    Ok(())
}

/// How results name it.
pub fn case(look: &str, idle: u32) -> String {
    format!("sockets/epoll/{look}/idle{idle}")
}
