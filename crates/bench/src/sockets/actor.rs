//! One of the processes of a measurement: its sockets and other state, on which the modules of its requests work.

use crate::kv::server::Store;
use anyhow::Context;
use rustix::fd::OwnedFd;
use std::net::{TcpListener, TcpStream};

/// The backlog of listeners: the kernel's default limit (`net.core.somaxconn`).
pub const BACKLOG: i32 = 4_096;

/// The numbers with which the process answers a request.
pub type Answer = Vec<f64>;

/// The process's sockets and other state.
#[derive(Default)]
pub struct Actor {
    /// The listener of [`Ask::Listen`](super::ask::Ask::Listen).
    pub listener: Option<TcpListener>,
    /// The listeners of [`load`](super::acts::load).
    pub listeners: Vec<TcpListener>,
    /// The connections, in the order in which they were made; the peer has them in the same order.
    pub streams: Vec<TcpStream>,
    /// Sockets without a connection.
    pub sockets: Vec<OwnedFd>,
    /// The eventfds of [`Ask::Meet`](super::ask::Ask::Meet): the first to read, the second to write.
    pub bells: Option<[OwnedFd; 2]>,
    /// The epoll set of [`ready`](super::acts::ready).
    pub set: Option<OwnedFd>,
    /// The table of the key-value server.
    pub store: Option<Store>,
}

impl Actor {
    /// Accepts the next connection.
    pub fn accept(&self) -> anyhow::Result<TcpStream> {
        Ok(self.listener.as_ref().context("nobody listens")?.accept()?.0)
    }
}
