//! RPCs over many long or short connections: a client that offers a load, and a server that echoes.
//!
//! Both have one thread and one level-triggered epoll set. Closed loop: each connection has one request under way, and when a connection
//! ends, the next one is opened.

use crate::clock;
use crate::sockets::actor::{Actor, Answer};
use crate::sockets::calls::{self, For};
use anyhow::{Context, bail};
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

/// Bytes of a request and of its reply.
pub const SIZE: usize = 64;
/// First byte of the last request: the server ends after its reply.
const END: u8 = 255;
/// The listeners' backlog: the kernel's default limit.
const BACKLOG: i32 = 4096;
/// Events taken by one `epoll_wait`.
const EVENTS: usize = 256;
/// The first listener's number in the epoll set; smaller numbers are connections.
const LISTENERS: u64 = 1 << 32;
/// Bytes that the server reads at once.
const READ: usize = 4096;

/// The load that the client offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// Number of connections at once.
    pub connections: u32,
    /// RPCs on each connection, which is then closed and replaced by a new one. `None`: connections stay open.
    pub rpcs: Option<u32>,
    pub milliseconds: u32,
}

/// A request to a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Listen on this many ports; the answer is the ports.
    Listen(u32),
    /// Accept and echo on all connections until the last request.
    Serve,
    /// Offer the load to these ports in turn. The answer: RPCs and nanoseconds of the measured time, then all RPCs and all connections.
    Offer(Vec<u16>, Offer),
}

/// In the process: executes a request.
pub fn obey(actor: &mut Actor, ask: Ask) -> anyhow::Result<Answer> {
    match ask {
        Ask::Listen(count) => listen(actor, count),
        Ask::Serve => serve(actor).map(|()| Answer::new()),
        Ask::Offer(ports, offer) => Client::new(ports, offer)?.run(actor),
    }
}

fn listen(actor: &mut Actor, count: u32) -> anyhow::Result<Answer> {
    let mut ports = Answer::new();
    for _ in 0..count {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        calls::listen(&listener, BACKLOG)?;
        listener.set_nonblocking(true)?;
        ports.push(f64::from(listener.local_addr()?.port()));
        actor.listeners.push(listener);
    }
    Ok(ports)
}

/// Echoes on all connections until the last request.
fn serve(actor: &Actor) -> anyhow::Result<()> {
    let set = calls::epoll_create()?;
    for (i, listener) in actor.listeners.iter().enumerate() {
        calls::epoll_add(&set, listener, LISTENERS + i as u64)?;
    }
    // The connection that the pair made first carries the last request.
    let own = actor.streams.first().context("no connection")?.try_clone()?;
    calls::epoll_add(&set, &own, 0)?;
    let mut streams = vec![Some(own)];
    let (mut events, mut bytes, mut free) = ([calls::NO_EVENT; EVENTS], [0; READ], Vec::new());
    let mut is_over = false;
    while !is_over {
        let count = calls::epoll_wait(&set, &mut events, None)?;
        for event in &events[..count] {
            let at = event.u64;
            if let Some(listener) = at.checked_sub(LISTENERS) {
                accept(&actor.listeners[listener as usize], &set, &mut streams, &mut free)?;
                continue;
            }
            let place = &mut streams[at as usize];
            let Some(stream) = place else { continue };
            match stream.read(&mut bytes) {
                Ok(0) => {
                    *place = None;
                    free.push(at as usize);
                }
                Ok(n) => {
                    stream.write_all(&bytes[..n])?;
                    is_over |= bytes[0] == END;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("a connection of the server"),
            }
        }
    }
    Ok(())
}

fn accept(
    listener: &TcpListener,
    set: &OwnedFd,
    streams: &mut Vec<Option<TcpStream>>,
    free: &mut Vec<usize>,
) -> anyhow::Result<()> {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error).context("accept"),
        };
        let at = free.pop().unwrap_or_else(|| {
            streams.push(None);
            streams.len() - 1
        });
        stream.set_nodelay(true)?;
        calls::epoll_add(set, &stream, at as u64)?;
        streams[at] = Some(stream);
    }
}

/// A connection of the client.
struct Connection {
    stream: TcpStream,
    is_open: bool,
    /// Bytes of the reply received so far.
    got: usize,
    rpcs: u32,
}

struct Client {
    ports: Vec<u16>,
    /// Number of connections begun so far.
    begun: usize,
    offer: Offer,
    set: OwnedFd,
    connections: Vec<Option<Connection>>,
    living: u32,
    rpcs: u64,
    ended: u64,
}

impl Client {
    fn new(ports: Vec<u16>, offer: Offer) -> anyhow::Result<Self> {
        let set = calls::epoll_create()?;
        let connections = (0..offer.connections).map(|_| None).collect();
        Ok(Self { ports, begun: 0, offer, set, connections, living: 0, rpcs: 0, ended: 0 })
    }

    /// Offers the load for its time, then lets all connections end, and ends the server.
    fn run(mut self, actor: &Actor) -> anyhow::Result<Answer> {
        let start = clock::now_ns();
        let until = start + u64::from(self.offer.milliseconds) * 1_000_000;
        (0..self.connections.len()).try_for_each(|at| self.open(at))?;
        let mut events = [calls::NO_EVENT; EVENTS];
        let mut now = start;
        let mut measured = None;
        while self.living > 0 {
            let count = calls::epoll_wait(&self.set, &mut events, None)?;
            for event in &events[..count] {
                self.advance(event.u64 as usize, now < until)?;
            }
            now = clock::now_ns();
            if now >= until && measured.is_none() {
                measured = Some((self.rpcs, now - start));
            }
        }
        let (rpcs, ns) = measured.context("all connections ended before their time")?;
        let mut own = actor.streams.first().context("no connection")?;
        own.write_all(&[END; SIZE])?;
        own.read_exact(&mut [0; SIZE])?;
        Ok(vec![rpcs as f64, ns as f64, self.rpcs as f64, self.ended as f64])
    }

    fn open(&mut self, at: usize) -> anyhow::Result<()> {
        let port = *self.ports.get(self.begun % self.ports.len().max(1)).context("nowhere to connect to")?;
        self.begun += 1;
        let stream = calls::connect(port).context("connect")?;
        stream.set_nodelay(true)?;
        calls::epoll_watch(&self.set, &stream, For::Writing, at as u64)?;
        self.connections[at] = Some(Connection { stream, is_open: false, got: 0, rpcs: 0 });
        self.living += 1;
        Ok(())
    }

    /// Handles an event of a connection. `goes_on` is false after the measured time: then no request is sent.
    fn advance(&mut self, at: usize, goes_on: bool) -> anyhow::Result<()> {
        let Some(connection) = &mut self.connections[at] else { return Ok(()) };
        if !connection.is_open {
            if let Some(error) = connection.stream.take_error()? {
                return Err(error).context("connect");
            }
            connection.is_open = true;
            calls::epoll_change(&self.set, &connection.stream, For::Reading, at as u64)?;
            connection.stream.write_all(&[1; SIZE])?;
            return Ok(());
        }
        match connection.stream.read(&mut [0; SIZE][connection.got..]) {
            Ok(0) => bail!("the server has closed a connection"),
            Ok(n) => connection.got += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error).context("a connection of the client"),
        }
        if connection.got < SIZE {
            return Ok(());
        }
        self.rpcs += 1;
        (connection.got, connection.rpcs) = (0, connection.rpcs + 1);
        let is_over = self.offer.rpcs.is_some_and(|most| connection.rpcs >= most);
        if goes_on && !is_over {
            connection.stream.write_all(&[1; SIZE])?;
            return Ok(());
        }
        // The client closes its connection after the last reply.
        self.connections[at] = None;
        self.living -= 1;
        self.ended += 1;
        if goes_on { self.open(at) } else { Ok(()) }
    }
}
