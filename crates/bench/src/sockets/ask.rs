//! The requests to a process of a measurement. It does what the benchmark asks, through the C library like any program, and does not know
//! whether Towpath's library is preloaded.

use super::actor::{Actor, Answer, BACKLOG};
use super::acts::{cycle, fill, load, memory, pipeline, ready, wake};
use super::{calls, echo};
use crate::isolation::{mixed, pings};
use crate::kv::server;
use crate::stream::stages;
use crate::{affinity, client, exchange};
use anyhow::Context;
use control::Line;
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};

/// The role of this process.
pub const ROLE: &str = "sockets";

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
    /// Write to all connections until they take no more, see [`fill`].
    Fill,
    /// Report the memory in use, see [`memory::resident`].
    Memory,
    /// A request of the module [`load`].
    Load(load::Ask),
    /// A request of the module [`pipeline`].
    Pipeline(pipeline::Ask),
    /// A request of the module [`echo`].
    Echo(echo::Ask),
    /// A request of the module [`exchange`].
    Exchange(exchange::Ask),
    /// A request of the module [`client`].
    Client(client::Ask),
    /// A request of the module [`pings`].
    Pings(pings::Ask),
    /// A request of the module [`mixed`].
    Mixed(mixed::Ask),
    /// A request of the module [`server`].
    Kv(server::Ask),
    /// A request of the module [`stages`].
    Stream(stages::Ask),
}

/// The main function of this process. It returns when the control socket is closed.
pub fn main(line: &Line) -> anyhow::Result<()> {
    let mut actor = Actor::default();
    while let Ok(asked) = line.receive::<Ask>(true) {
        let answer = obey(&mut actor, asked.message, asked.fds)?;
        line.send(&answer, &[], true)?;
    }
    Ok(())
}

fn obey(actor: &mut Actor, ask: Ask, fds: Vec<OwnedFd>) -> anyhow::Result<Answer> {
    match ask {
        Ask::Meet => actor.bells = Some(fds.try_into().ok().context("two eventfds are needed")?),
        Ask::Pin(cpus) => affinity::pin(&cpus)?,
        Ask::Listen(address) => {
            let listener = actor.listener.insert(TcpListener::bind((address, 0))?);
            calls::listen(listener, BACKLOG)?;
            return Ok(vec![f64::from(listener.local_addr()?.port())]);
        }
        Ask::Connect(address, count) => {
            actor.streams.reserve(count as usize);
            for _ in 0..count {
                actor.streams.push(TcpStream::connect(address)?);
            }
        }
        Ask::Accept(count) => {
            actor.streams.reserve(count as usize);
            for _ in 0..count {
                let stream = actor.accept()?;
                actor.streams.push(stream);
            }
        }
        Ask::Open(count) => {
            actor.sockets.reserve(count as usize);
            for _ in 0..count {
                actor.sockets.push(calls::socket()?);
            }
        }
        Ask::Bind(address, count) => {
            actor.sockets.reserve(count as usize);
            for _ in 0..count {
                actor.sockets.push(calls::bound(address)?);
            }
        }
        Ask::Wake(ask) => return wake::obey(actor, ask),
        Ask::Ready(ask) => return ready::obey(actor, ask),
        Ask::Cycle(ask) => return cycle::obey(actor, ask),
        Ask::Fill => return fill::obey(actor),
        Ask::Memory => return memory::resident(),
        Ask::Load(ask) => return load::obey(actor, ask),
        Ask::Pipeline(ask) => return pipeline::obey(actor, ask),
        Ask::Echo(ask) => return echo::obey(actor, ask),
        Ask::Exchange(ask) => return exchange::obey(actor, ask),
        Ask::Client(ask) => return client::obey(actor, ask),
        Ask::Pings(ask) => return pings::obey(actor, ask),
        Ask::Mixed(ask) => return mixed::obey(actor, ask),
        Ask::Kv(ask) => return server::obey(actor, ask),
        Ask::Stream(ask) => return stages::obey(actor, ask),
    }
    Ok(Answer::new())
}
