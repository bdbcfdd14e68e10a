//! The cost of `epoll_wait` with a hundred readable connections among a growing number of idle ones.

use super::actor::{Actor, Answer};
use super::pair::Pair;
use super::{actor, calls};
use crate::clock;
use crate::samples::{Samples, median};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::time::Duration;

/// Number of connections with something to read.
pub const READY: u32 = 100;
/// Numbers of idle connections besides them.
pub const IDLE: [u32; 3] = [100, 1_000, 10_000];
/// The longest wait for bytes that were sent.
const PATIENCE: Duration = Duration::from_secs(5);

/// A request to a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Make a new epoll set with the first N connections.
    Register(u32),
    /// Send a byte on these connections.
    Send(Chosen),
    /// Read a byte on these connections.
    Take(Chosen),
    /// Call `epoll_wait` this many times without reading; the answer is nanoseconds per call.
    Wait(u32),
    /// Call `epoll_wait` once; the answer is nanoseconds and the number of events.
    WaitOnce,
}

/// Selects [`READY`] connections: number `first` and every `step`-th after it.
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

/// In the process: executes a request.
pub fn obey(actor: &mut Actor, ask: Ask) -> anyhow::Result<Answer> {
    match ask {
        Ask::Register(count) => {
            // Close the earlier epoll set before the new one is filled.
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

/// Nanoseconds of one `epoll_wait`, and the number of its events.
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

/// Measures with each number of idle connections: "same" waits repeatedly for the same hundred, which stay readable; "news" waits for
/// another hundred each time, which became readable after the last call.
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

/// The case's name in results.
pub fn case(look: &str, idle: u32) -> String {
    format!("sockets/epoll/{look}/idle{idle}")
}
