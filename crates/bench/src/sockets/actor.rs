//! One of the processes of a measurement: it does what the benchmark asks, through the C library like any program, and does not know
//! whether Towpath's library is preloaded.

use super::{calls, cycle, echo, load, memory, pipeline, ready, wake};
use crate::{affinity, client, kv, stream};
use anyhow::Context;
use control::Line;
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};

/// The role of this process.
pub const ROLE: &str = "sockets";

/// The backlog of listeners: the kernel's default limit (`net.core.somaxconn`).
pub const BACKLOG: i32 = 4_096;

/// A request to the process.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Take two eventfds, which come with the message: the first is to read, the second to write.
    Meet,
    /// Run on these processors only.
    Pin(Vec<usize>),
    /// Listen at this address; the answer is the port.
    Listen(Ipv4Addr),
    /// Open this many connections to this address, and keep them.
    Connect(SocketAddrV4, u32),
    /// As [`Connect`](Self::Connect), from the first address: each local address has its own range of ports.
    ConnectFrom(Ipv4Addr, SocketAddrV4, u32),
    /// Accept this many connections, and keep them.
    Accept(u32),
    /// Make this many unconnected sockets, and keep them.
    Open(u32),
    /// As [`Open`](Self::Open), with each socket bound to this address and a free port.
    Bind(Ipv4Addr, u32),
    /// A request of the module [`wake`].
    Wake(wake::Ask),
    /// A request of the module [`ready`].
    Ready(ready::Ask),
    /// A request of the module [`cycle`].
    Cycle(cycle::Ask),
    /// Report the memory in use, see [`memory::resident`].
    Memory,
    /// A request of the module [`load`].
    Load(load::Ask),
    /// A request of the module [`pipeline`].
    Pipeline(pipeline::Ask),
    /// A request of the module [`echo`].
    Echo(echo::Ask),
    /// A request of the module [`client`].
    Client(client::Ask),
    /// A request of the module [`kv`].
    Kv(kv::Ask),
    /// A request of the module [`stream`].
    Stream(stream::Ask),
}

/// The numbers with which the process answers a request.
pub type Answer = Vec<f64>;

/// The process's sockets and other state.
#[derive(Default)]
pub struct Actor {
    /// The listener of [`Ask::Listen`].
    pub listener: Option<TcpListener>,
    /// The listeners of [`load`].
    pub listeners: Vec<TcpListener>,
    /// The connections, in the order in which they were made; the peer has them in the same order.
    pub streams: Vec<TcpStream>,
    /// Sockets without a connection.
    pub sockets: Vec<OwnedFd>,
    /// The eventfds of [`Ask::Meet`]: the first to read, the second to write.
    pub bells: Option<[OwnedFd; 2]>,
    /// The epoll set of [`ready`].
    pub set: Option<OwnedFd>,
    /// The table of the key-value server.
    pub store: Option<kv::server::Store>,
}

/// The main function of this process. It returns when the control socket is closed.
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

    /// Accepts the next connection.
    pub fn accept(&self) -> anyhow::Result<TcpStream> {
        Ok(self.listener.as_ref().context("nobody listens")?.accept()?.0)
    }
}
