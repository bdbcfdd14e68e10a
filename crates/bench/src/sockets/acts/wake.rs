//! Waits in each way for a write of the other process, and the writes.

use crate::clock;
use crate::samples::median;
use crate::sockets::actor::{Actor, Answer};
use crate::sockets::calls;
use anyhow::Context;
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

/// Pause before each write: longer than any reader spins.
const PAUSE: Duration = Duration::from_millis(1);
/// Rounds that are not counted: after them the readers have stopped spinning.
const WARM_UP: u32 = 20;
/// Time for which a call stays blocked while its processor time is measured.
pub const BLOCKED: Duration = Duration::from_secs(1);
/// Time after which a reader that was told to wait surely waits.
pub const SETTLED: Duration = Duration::from_millis(20);

/// A request to a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Write once for each way to wait, in this many rounds.
    Write(u32),
    /// Wait for all these writes; the answer is the median wake-up time of each way in microseconds.
    Read(u32),
    /// Write once after [`BLOCKED`] for this way to wait.
    WriteLate(Way),
    /// Wait this way for that write; the answer is the processor time used, in percent of the elapsed time.
    Block(Way),
}

/// A way to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Way {
    /// A blocking read of the eventfd.
    Eventfd,
    /// A blocking call of `recv`.
    Receive,
    /// A `poll`, then `recv`.
    Poll,
    /// An `epoll_wait`, then `recv`.
    Epoll,
}

impl Way {
    /// All ways; the bare eventfd is first.
    pub const ALL: [Self; 4] = [Self::Eventfd, Self::Receive, Self::Poll, Self::Epoll];

    /// The way's name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eventfd => "eventfd",
            Self::Receive => "recv",
            Self::Poll => "poll",
            Self::Epoll => "epoll_wait",
        }
    }
}

/// In the process: executes a request.
pub fn obey(actor: &mut Actor, ask: Ask) -> anyhow::Result<Answer> {
    match ask {
        Ask::Write(rounds) => {
            for _ in 0..rounds + WARM_UP {
                for way in Way::ALL {
                    sleep(PAUSE);
                    write(actor, way)?;
                    let [ours, _] = bells(actor)?;
                    rustix::io::read(ours, &mut [0; 8])?;
                }
            }
            Ok(Answer::new())
        }
        Ask::Read(rounds) => read(actor, rounds),
        Ask::WriteLate(way) => {
            sleep(SETTLED + BLOCKED);
            write(actor, way)?;
            Ok(Answer::new())
        }
        Ask::Block(way) => {
            let set = watched(actor)?;
            let (start, before) = (clock::now_ns(), clock::process_cpu_ns());
            wait(actor, way, &set)?;
            let used = clock::process_cpu_ns() - before;
            Ok(vec![used as f64 / (clock::now_ns() - start) as f64 * 100.0])
        }
    }
}

/// The eventfds: the first to read, the second to write.
fn bells(actor: &Actor) -> anyhow::Result<&[OwnedFd; 2]> {
    actor.bells.as_ref().context("no eventfd")
}

/// The connection used for this way to wait.
fn stream(actor: &Actor, way: Way) -> anyhow::Result<&TcpStream> {
    let stream = if way == Way::Epoll { actor.streams.last() } else { actor.streams.first() };
    stream.context("no connection")
}

/// A new epoll set with the connection of [`Way::Epoll`].
fn watched(actor: &Actor) -> anyhow::Result<OwnedFd> {
    let set = calls::epoll_create()?;
    calls::epoll_add(&set, stream(actor, Way::Epoll)?, 0)?;
    Ok(set)
}

/// Writes the current time, for this way to wait.
fn write(actor: &Actor, way: Way) -> anyhow::Result<()> {
    if way == Way::Eventfd {
        rustix::io::write(&bells(actor)?[1], &clock::now_ns().to_ne_bytes())?;
    } else {
        stream(actor, way)?.write_all(&clock::now_ns().to_ne_bytes())?;
    }
    Ok(())
}

/// Waits this way for a written time. Returns nanoseconds from that time to the return of the blocked call.
fn wait(actor: &Actor, way: Way, set: &OwnedFd) -> anyhow::Result<u64> {
    let mut stream = stream(actor, way)?;
    let mut stamp = [0; 8];
    let returned = match way {
        Way::Eventfd => {
            rustix::io::read(&bells(actor)?[0], &mut stamp)?;
            return Ok(clock::now_ns() - u64::from_ne_bytes(stamp));
        }
        Way::Receive => {
            stream.read_exact(&mut stamp)?;
            return Ok(clock::now_ns() - u64::from_ne_bytes(stamp));
        }
        Way::Poll => calls::poll_readable(stream, None).map(|_| clock::now_ns())?,
        Way::Epoll => calls::epoll_wait(set, &mut [calls::NO_EVENT; 8], None).map(|_| clock::now_ns())?,
    };
    stream.read_exact(&mut stamp)?;
    Ok(returned - u64::from_ne_bytes(stamp))
}

fn read(actor: &Actor, rounds: u32) -> anyhow::Result<Answer> {
    let set = watched(actor)?;
    let mut waits: [Vec<f64>; 4] = Default::default();
    for round in 0..rounds + WARM_UP {
        for (way, waits) in Way::ALL.into_iter().zip(&mut waits) {
            let ns = wait(actor, way, &set)?;
            // The writer waits for this before it goes on.
            rustix::io::write(&bells(actor)?[1], &1u64.to_ne_bytes())?;
            if round >= WARM_UP {
                waits.push(ns as f64 / 1e3);
            }
        }
    }
    Ok(waits.iter().filter_map(|waits| median(waits)).collect())
}
