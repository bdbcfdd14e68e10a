//! The receiving end: one process, one thread, an epoll set. It counts the bytes of each flow, and resets all flows on request. Like the
//! source it calls libc.

use crate::sockets::actor::BACKLOG;
use crate::sockets::calls;
use anyhow::Context;
use control::{Line, MESSAGE_MAX};
use rustix::fd::{AsFd, OwnedFd};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// The role of this process.
pub const ROLE: &str = "bulk-sink";
/// Size of one read in bytes.
const CHUNK: usize = 256 * 1024;
/// Events taken by one `epoll_wait`.
const EVENTS: usize = 256;
const LINE: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;

/// The largest number of flows that an [`Each`] reports.
pub const TOLD_MAX: usize = 200;
// A number takes at most ten bytes of a message, and so does the length of the list.
const _: () = assert!((TOLD_MAX + 3) * 10 <= MESSAGE_MAX);

/// The address at which the sink listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Orders {
    pub at: SocketAddr,
}

/// A request to the sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Total connections and bytes; the answer is a [`Count`].
    Count,
    /// The bytes of each flow; the answer is an [`Each`].
    Each,
    /// Reset every connection and begin again at 0; the answer is a [`Count`].
    Reset,
}

/// The answer to [`Ask::Count`] and [`Ask::Reset`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Count {
    /// Connections accepted since the last reset.
    pub connections: u64,
    /// Bytes received on these connections.
    pub bytes: u64,
    /// The time of this count, as of [`crate::clock::now_ns`].
    pub at_ns: u64,
}

/// The answer to [`Ask::Each`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Each {
    /// Bytes received on each connection since the last reset, in the order of acceptance, at most [`TOLD_MAX`] connections.
    pub bytes: Vec<u64>,
    /// Bytes received on all connections since the last reset.
    pub total: u64,
    /// The time of this count, as of [`crate::clock::now_ns`].
    pub at_ns: u64,
}

struct Flow {
    /// `None` after the end of the stream or an error.
    stream: Option<TcpStream>,
    bytes: u64,
}

struct Sink {
    set: OwnedFd,
    listener: TcpListener,
    flows: Vec<Flow>,
    buffer: Vec<u8>,
}

/// The main function of this process. It returns when the control socket is closed.
pub fn main(line: &Line) -> anyhow::Result<()> {
    let orders = line.receive::<Orders>(true)?.message;
    let mut sink = Sink::listen(orders, line)?;
    line.send(&sink.count(), &[], true)?;
    let mut events = [calls::NO_EVENT; EVENTS];
    loop {
        let count = match calls::epoll_wait(&sink.set, &mut events, None) {
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            waited => waited?,
        };
        for event in &events[..count] {
            match event.u64 {
                LINE => {
                    // The benchmark has closed the control socket: the measurement is over.
                    let Ok(asked) = line.receive::<Ask>(true) else { return Ok(()) };
                    sink.answer(asked.message, line)?;
                }
                LISTENER => sink.accept()?,
                number => sink.read(number as usize),
            }
        }
    }
}

impl Sink {
    fn listen(orders: Orders, line: &Line) -> anyhow::Result<Self> {
        let listener =
            TcpListener::bind(orders.at).with_context(|| format!("cannot listen at {}", orders.at))?;
        listener.set_nonblocking(true)?;
        // Hundreds of flows connect at once, so the default backlog is too small.
        calls::listen(&listener, BACKLOG)?;
        let set = calls::epoll_create()?;
        calls::epoll_add(&set, &line.as_fd(), LINE)?;
        calls::epoll_add(&set, &listener, LISTENER)?;
        Ok(Self { set, listener, flows: Vec::new(), buffer: vec![0; CHUNK] })
    }

    fn answer(&mut self, ask: Ask, line: &Line) -> anyhow::Result<()> {
        match ask {
            Ask::Count => line.send(&self.count(), &[], true)?,
            Ask::Each => line.send(&self.each(), &[], true)?,
            Ask::Reset => {
                self.flows.clear();
                line.send(&self.count(), &[], true)?;
            }
        }
        Ok(())
    }

    fn count(&self) -> Count {
        let bytes = self.flows.iter().map(|flow| flow.bytes).sum();
        Count { connections: self.flows.len() as u64, bytes, at_ns: crate::clock::now_ns() }
    }

    fn each(&self) -> Each {
        let bytes = self.flows.iter().take(TOLD_MAX).map(|flow| flow.bytes).collect();
        let total = self.flows.iter().map(|flow| flow.bytes).sum();
        Each { bytes, total, at_ns: crate::clock::now_ns() }
    }

    fn accept(&mut self) -> anyhow::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The peer closed the connection before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error.into()),
            };
            stream.set_nonblocking(true)?;
            // A reset leaves no connection of this run (TIME-WAIT) behind for the next run.
            calls::reset_on_close(&stream)?;
            calls::epoll_add(&self.set, &stream, self.flows.len() as u64)?;
            self.flows.push(Flow { stream: Some(stream), bytes: 0 });
        }
    }

    /// Reads once: the epoll set is level-triggered and reports the flow again if more bytes are there.
    fn read(&mut self, number: usize) {
        let Some(flow) = self.flows.get_mut(number) else { return };
        let Some(stream) = &mut flow.stream else { return };
        match stream.read(&mut self.buffer) {
            Ok(0) => flow.stream = None,
            Ok(len) => flow.bytes += len as u64,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => flow.stream = None,
        }
    }
}
