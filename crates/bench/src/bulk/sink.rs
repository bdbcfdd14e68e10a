//! The receiving end: one process, one thread, an epoll set. It counts what each flow brings, and resets everything when told. Like
//! the source it goes through libc.

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
/// Bytes of one read.
const CHUNK: usize = 256 * 1024;
/// Events taken at once.
const EVENTS: usize = 256;
const LINE: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;

/// Flows that are told one by one at most.
pub const TOLD_MAX: usize = 200;
// A number takes at most ten bytes of a message, and so does how many there are.
const _: () = assert!((TOLD_MAX + 2) * 10 <= MESSAGE_MAX);

/// Where to listen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Orders {
    pub at: SocketAddr,
}

/// What is asked of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// How it stands: a [`Count`].
    Count,
    /// The same, flow by flow: an [`Each`].
    Each,
    /// End every connection by a reset, and begin anew at 0: a [`Count`].
    Reset,
}

/// How it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Count {
    /// Connections accepted since the last reset.
    pub connections: u64,
    /// Bytes that they brought.
    pub bytes: u64,
    /// When this was so, as [`crate::clock::now_ns`].
    pub at_ns: u64,
}

/// How it stands, flow by flow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Each {
    /// Bytes that each brought since the last reset, in the order of acceptance: of the first [`TOLD_MAX`].
    pub bytes: Vec<u64>,
    /// When this was so, as [`crate::clock::now_ns`].
    pub at_ns: u64,
}

struct Flow {
    /// Until its end.
    stream: Option<TcpStream>,
    bytes: u64,
}

struct Sink {
    set: OwnedFd,
    listener: TcpListener,
    flows: Vec<Flow>,
    buffer: Vec<u8>,
}

/// The main function of this process. It leaves when the control line hangs up.
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
                    // Nobody asks any more: the measurement is over.
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
        // Hundreds of flows come at once.
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
        Each { bytes, at_ns: crate::clock::now_ns() }
    }

    fn accept(&mut self) -> anyhow::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // It went away before it was taken.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error.into()),
            };
            stream.set_nonblocking(true)?;
            // So that nothing of this run is left for the next one.
            calls::reset_on_close(&stream)?;
            calls::epoll_add(&self.set, &stream, self.flows.len() as u64)?;
            self.flows.push(Flow { stream: Some(stream), bytes: 0 });
        }
    }

    /// Once: the set tells again if there is more.
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
