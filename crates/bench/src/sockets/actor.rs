//! One of the two processes of a measurement: it does what it is asked, through the C library as any program, and does not
//! know whether the library in front of it is Towpath's.

use super::{calls, cycle, echo, load, memory, pipeline, ready, wake};
use crate::{affinity, client, kv, stream};
use anyhow::Context;
use control::Line;
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};

/// The role of this process.
pub const ROLE: &str = "sockets";

/// Connections that wait to be accepted at most: as many as the kernel takes, unless it was told otherwise.
pub const BACKLOG: i32 = 4_096;

/// What is asked of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Two eventfds come along: one that this process reads, one that it writes.
    Meet,
    /// Run on these processors.
    Pin(Vec<usize>),
    /// Listen; the answer is the port.
    Listen(Ipv4Addr),
    /// Open so many connections to there, and keep them.
    Connect(SocketAddrV4, u32),
    /// The same, from an address of one's own: a host has few ports for each.
    ConnectFrom(Ipv4Addr, SocketAddrV4, u32),
    /// Accept so many, and keep them.
    Accept(u32),
    /// Make so many sockets, and keep them.
    Open(u32),
    /// The same, bound to free ports of that address.
    Bind(Ipv4Addr, u32),
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
    /// See [`pipeline`].
    Pipeline(pipeline::Ask),
    /// See [`echo`].
    Echo(echo::Ask),
    /// See [`client`].
    Client(client::Ask),
    /// See [`kv`].
    Kv(kv::Ask),
    /// See [`stream`].
    Stream(stream::Ask),
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
    /// A key-value server's table.
    pub store: Option<kv::server::Store>,
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
            Ask::Listen(address) => {
                let listener = self.listener.insert(TcpListener::bind((address, 0))?);
                calls::listen(listener, BACKLOG)?;
                return Ok(vec![f64::from(listener.local_addr()?.port())]);
            }
            Ask::Connect(address, count) => {
                self.streams.reserve(count as usize);
                for _ in 0..count {
                    self.streams.push(TcpStream::connect(address)?);
                }
            }
            Ask::ConnectFrom(from, to, count) => {
                self.streams.reserve(count as usize);
                for _ in 0..count {
                    self.streams.push(calls::connect_from(from, to)?);
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
            Ask::Bind(address, count) => {
                self.sockets.reserve(count as usize);
                for _ in 0..count {
                    self.sockets.push(calls::bound(address)?);
                }
            }
            Ask::Wake(ask) => return wake::obey(self, ask),
            Ask::Ready(ask) => return ready::obey(self, ask),
            Ask::Cycle(ask) => return cycle::obey(self, ask),
            Ask::Memory => return memory::resident(),
            Ask::Load(ask) => return load::obey(self, ask),
            Ask::Pipeline(ask) => return pipeline::obey(self, ask),
            Ask::Echo(ask) => return echo::obey(self, ask),
            Ask::Client(ask) => return client::obey(self, ask),
            Ask::Kv(ask) => return kv::obey(self, ask),
            Ask::Stream(ask) => return stream::obey(self, ask),
        }
        Ok(Answer::new())
    }

    /// Takes the next connection.
    pub fn accept(&self) -> anyhow::Result<TcpStream> {
        Ok(self.listener.as_ref().context("nobody listens")?.accept()?.0)
    }
}
