//! Makes and closes sockets and connections, and forks.

use crate::clock;
use crate::samples::median;
use crate::sockets::actor::{Actor, Answer};
use crate::sockets::calls;
use anyhow::{Context, bail};
use rustix::process::{Pid, WaitOptions, waitpid};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::net::{SocketAddrV4, TcpStream};

/// A request to a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Make and close this many sockets; the answer is nanoseconds per socket.
    Socket(u32),
    /// Connect, wait for the peer to close, close; this many times; the answer is nanoseconds per connection.
    Connect(SocketAddrV4, u32),
    /// Accept and close this many connections.
    Accept(u32),
    /// Fork this many times; the answer is the median time in microseconds until `fork` returns in the parent, and in the child.
    Fork(u32),
}

/// In the process: executes a request.
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
            // If this fails, the parent reads nothing.
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
