//! One of the two processes of a measurement: it does what it is asked, through the C library as any program, and does not
//! know whether the library in front of it is Towpath's.

use super::{calls, cycle, load, memory, ready, wake};
use crate::affinity;
use anyhow::Context;
use control::Line;
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::net::{TcpListener, TcpStream};

/// The role of this process.
pub const ROLE: &str = "sockets";

/// What is asked of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Two eventfds come along: one that this process reads, one that it writes.
    Meet,
    /// Run on these processors.
    Pin(Vec<usize>),
    /// Listen; the answer is the port.
    Listen,
    /// Open so many connections to the port, and keep them.
    Connect(u16, u32),
    /// Accept so many, and keep them.
    Accept(u32),
    /// Make so many sockets, and keep them.
    Open(u32),
    /// See [`wake`].
    Wake(wake::Ask),
    /// See [`ready`].
    Ready(ready::Ask),
    /// See [`cycle`].
    Cycle(cycle::Ask),
    /// See [`memory`].
    Memory,
    /// See [`load`].
    Load(load::Ask),
}

/// What it says when it is done.
pub type Answer = Vec<f64>;

/// What it has.
#[derive(Default)]
pub struct Actor {
    /// Where it listens.
    pub listener: Option<TcpListener>,
    /// Further places where it does, of [`load`].
    pub listeners: Vec<TcpListener>,
    /// Its connections, in the order in which they were made: at the other end the same.
    pub streams: Vec<TcpStream>,
    /// Sockets without a connection.
    pub sockets: Vec<OwnedFd>,
    /// The eventfds: read, written.
    pub bells: Option<[OwnedFd; 2]>,
    /// The epoll set, and what it has told last.
    pub set: Option<OwnedFd>,
}

/// The main function of this process. It leaves when the control line hangs up.
pub fn main(line: &Line) -> anyhow::Result<()> {
    let mut actor = Actor::default();
    while let Ok(asked) = line.receive::<Ask>(true) {
        let answer = actor.obey(asked.message, asked.fds)?;
        line.send(&answer, &[], true)?;
    }
    Ok(())
}

impl Actor {
    fn obey(&mut self, ask: Ask, fds: Vec<OwnedFd>) -> anyhow::Result<Answer> {
        match ask {
            Ask::Meet => self.bells = Some(fds.try_into().ok().context("two eventfds are needed")?),
            Ask::Pin(cpus) => affinity::pin(&cpus)?,
            Ask::Listen => {
                let listener = self.listener.insert(TcpListener::bind(("127.0.0.1", 0))?);
                return Ok(vec![f64::from(listener.local_addr()?.port())]);
            }
            Ask::Connect(port, count) => {
                self.streams.reserve(count as usize);
                for _ in 0..count {
                    self.streams.push(TcpStream::connect(("127.0.0.1", port))?);
                }
            }
            Ask::Accept(count) => {
                self.streams.reserve(count as usize);
                for _ in 0..count {
                    let stream = self.accept()?;
                    self.streams.push(stream);
                }
            }
            Ask::Open(count) => {
                self.sockets.reserve(count as usize);
                for _ in 0..count {
                    self.sockets.push(calls::socket()?);
                }
            }
            Ask::Wake(ask) => return wake::obey(self, ask),
            Ask::Ready(ask) => return ready::obey(self, ask),
            Ask::Cycle(ask) => return cycle::obey(self, ask),
            Ask::Memory => return memory::resident(),
            Ask::Load(ask) => return load::obey(self, ask),
        }
        Ok(Answer::new())
    }

    /// Takes the next connection.
    pub fn accept(&self) -> anyhow::Result<TcpStream> {
        Ok(self.listener.as_ref().context("nobody listens")?.accept()?.0)
    }
}
