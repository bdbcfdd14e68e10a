//! Keeps connections in an epoll set, and writes to and reads from some of them.

use crate::clock;
use crate::sockets::actor::{Actor, Answer};
use crate::sockets::calls;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::time::Duration;

/// Number of connections with something to read.
pub const READY: u32 = 100;
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
    /// Number of the first connection.
    pub first: u32,
    /// Distance from one selected connection to the next.
    pub step: u32,
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
