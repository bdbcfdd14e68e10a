//! What it costs to make and end a socket, to make and end a connection, and to fork with many connections.

use super::actor::{Actor, Answer};
use super::pair::Pair;
use super::{actor, calls};
use crate::clock;
use crate::samples::{Samples, median};
use anyhow::{Context, bail};
use rustix::process::{Pid, WaitOptions, waitpid};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::net::{SocketAddrV4, TcpStream};

/// Connections that a fork copies.
pub const OPEN: u32 = 1_000;

/// What is asked of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Make and close a socket, so many times; the answer is the time of one, nanoseconds.
    Socket(u32),
    /// Connect, wait for the other end to close, close; so many times; the answer is the time of one, nanoseconds.
    Connect(SocketAddrV4, u32),
    /// Accept and close, so many times.
    Accept(u32),
    /// Fork so many times; the answer is the median time until the parent and until the child are back, microseconds.
    Fork(u32),
}

/// In a process: obeys.
pub fn obey(actor: &mut Actor, ask: Ask) -> anyhow::Result<Answer> {
    match ask {
        Ask::Socket(count) => {
            let start = clock::now_ns();
            for _ in 0..count {
                drop(calls::socket()?);
            }
            Ok(vec![(clock::now_ns() - start) as f64 / f64::from(count)])
        }
        Ask::Connect(address, count) => {
            let start = clock::now_ns();
            for _ in 0..count {
                let mut stream = TcpStream::connect(address)?;
                if stream.read(&mut [0])? != 0 {
                    bail!("something came on a connection that was closed");
                }
            }
            Ok(vec![(clock::now_ns() - start) as f64 / f64::from(count)])
        }
        Ask::Accept(count) => {
            for _ in 0..count {
                drop(actor.accept()?);
            }
            Ok(Answer::new())
        }
        Ask::Fork(count) => fork(count),
    }
}

fn fork(count: u32) -> anyhow::Result<Answer> {
    let (mut parents, mut children) = (Vec::new(), Vec::new());
    let (read, write) = rustix::pipe::pipe()?;
    for _ in 0..count {
        let start = clock::now_ns();
        let pid = calls::fork(|| {
            // The parent finds out when nothing comes.
            let _ = rustix::io::write(&write, &clock::now_ns().to_ne_bytes());
        })?;
        parents.push((clock::now_ns() - start) as f64 / 1e3);
        waitpid(Pid::from_raw(pid), WaitOptions::empty())?.context("the child is gone")?;
        let mut stamp = [0; 8];
        rustix::io::read(&read, &mut stamp)?;
        children.push((u64::from_ne_bytes(stamp) - start) as f64 / 1e3);
    }
    Ok([parents, children].iter().filter_map(|times| median(times)).collect())
}

/// Measures sockets and connections, of a new pair of processes.
pub fn measure(pair: &Pair<'_>, count: u32, samples: &mut Samples) -> anyhow::Result<()> {
    let ask = |ask| actor::Ask::Cycle(ask);
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

/// Measures forks, of a new pair of processes.
pub fn measure_fork(pair: &Pair<'_>, forks: u32, samples: &mut Samples) -> anyhow::Result<()> {
    for open in [1, OPEN] {
        // One there is already.
        pair.connect(open - 1)?;
        let answer = pair.near(&actor::Ask::Cycle(Ask::Fork(forks)))?;
        let [parent, child] = answer[..] else { bail!("no time of fork") };
        let case = format!("sockets/fork/n{open}");
        samples.add(&case, pair.name, "back in the parent", "us", parent);
        samples.add(&case, pair.name, "back in the child", "us", child);
    }
    Ok(())
}
