//! The receiving end, on the kernel: it counts what arrives, and resets everything when told.

use anyhow::Context;
use control::Line;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_linger;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// The role of this process.
pub const ROLE: &str = "loss-sink";
/// Bytes of one read.
const CHUNK: usize = 256 * 1024;
const LINE: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;

/// Where to listen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Orders {
    pub at: SocketAddr,
}

/// What is asked of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// How it stands.
    Count,
    /// End every connection by a reset, and begin anew at 0.
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

struct Sink {
    set: rustix::fd::OwnedFd,
    listener: TcpListener,
    streams: Vec<Option<TcpStream>>,
    bytes: u64,
    buffer: Vec<u8>,
}

/// The main function of this process. It leaves when the control line hangs up.
pub fn main(line: &Line) -> anyhow::Result<()> {
    let orders = line.receive::<Orders>(true)?.message;
    let mut sink = Sink::listen(orders, line)?;
    line.send(&sink.count(), &[], true)?;
    let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
    loop {
        events.clear();
        match epoll::wait(&sink.set, spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            match event.data.u64() {
                LINE => {
                    // Nobody asks any more: the measurement is over.
                    let Ok(asked) = line.receive::<Ask>(true) else { return Ok(()) };
                    if asked.message == Ask::Reset {
                        sink.reset();
                    }
                    line.send(&sink.count(), &[], true)?;
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
        rustix::net::listen(&listener, 4096)?;
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&set, line, epoll::EventData::new_u64(LINE), epoll::EventFlags::IN)?;
        epoll::add(&set, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        Ok(Self { set, listener, streams: Vec::new(), bytes: 0, buffer: vec![0; CHUNK] })
    }

    fn count(&self) -> Count {
        Count { connections: self.streams.len() as u64, bytes: self.bytes, at_ns: crate::clock::now_ns() }
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
            // So that a close is a reset, and nothing of this run is left for the next one.
            set_socket_linger(&stream, Some(Duration::ZERO))?;
            let number = epoll::EventData::new_u64(self.streams.len() as u64);
            epoll::add(&self.set, &stream, number, epoll::EventFlags::IN)?;
            self.streams.push(Some(stream));
        }
    }

    /// Once: the set tells again if there is more.
    fn read(&mut self, number: usize) {
        let Some(place) = self.streams.get_mut(number) else { return };
        let Some(stream) = place else { return };
        match stream.read(&mut self.buffer) {
            Ok(0) => *place = None,
            Ok(len) => self.bytes += len as u64,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => *place = None,
        }
    }

    fn reset(&mut self) {
        self.streams.clear();
        self.bytes = 0;
    }
}
