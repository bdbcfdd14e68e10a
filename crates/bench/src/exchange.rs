//! Requests and answers of several kinds, for servers that differ in what carries the bytes: sockets with an epoll set, an io_uring, or a ring.

pub mod on_ring;

use crate::client::protocol::{HEAD, Shape};
use crate::kv::server::Store;
use crate::sockets::actor::{Actor, Answer};
use crate::sockets::{calls, uring};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

/// Events taken by one `epoll_wait`.
const EVENTS: usize = 256;
/// Bytes read at once from a connection.
pub const ROOM: usize = 64 << 10;

/// What a server does with requests.
pub trait Answers: Sync {
    /// Answers the whole requests at the beginning of `bytes`: puts the answers behind `replies`. Returns the number of bytes of the requests.
    fn answer(&self, bytes: &[u8], replies: &mut Vec<u8>) -> anyhow::Result<usize>;

    /// For messages of one length of which only the head is looked at: the length of a message and of its head. A server that sees the bytes
    /// where they lie then calls [`answer_head`](Self::answer_head).
    fn message(&self) -> Option<[usize; 2]> {
        None
    }

    /// Answers one message by its head.
    fn answer_head(&self, _head: &[u8], _replies: &mut Vec<u8>) {}
}

/// The kinds of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// HTTP: each request is answered with a body of so many bytes.
    Http(u32),
    /// Messages of so many bytes, of which the first [`HEAD`] are looked at, and answered with as many.
    Header(u32),
    /// A key-value store ([`crate::kv::server`]).
    Store(Shape),
}

impl Kind {
    /// The program of a server of this kind.
    #[must_use]
    pub fn program(self) -> Box<dyn Answers + Send> {
        match self {
            Self::Http(body) => Box::new(Http::new(body)),
            Self::Header(bytes) => Box::new(Header(bytes as usize)),
            Self::Store(shape) => Box::new(Store::new(shape)),
        }
    }
}

/// Answers GET requests with one body, as StackMap's server does.
struct Http {
    reply: Vec<u8>,
}

impl Http {
    fn new(body: u32) -> Self {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {body}\r\nConnection: keep-alive\r\n\r\n");
        let mut reply = head.into_bytes();
        reply.resize(reply.len() + body as usize, b'o');
        Self { reply }
    }
}

impl Answers for Http {
    fn answer(&self, bytes: &[u8], replies: &mut Vec<u8>) -> anyhow::Result<usize> {
        let mut used = 0;
        while let Some(end) = bytes[used..].windows(4).position(|four| four == b"\r\n\r\n") {
            if !bytes[used..].starts_with(b"GET /") {
                bail!("no request begins like this");
            }
            replies.extend_from_slice(&self.reply);
            used += end + 4;
        }
        Ok(used)
    }
}

/// Looks at the head of each message.
struct Header(usize);

impl Answers for Header {
    fn answer(&self, bytes: &[u8], replies: &mut Vec<u8>) -> anyhow::Result<usize> {
        let whole = bytes.chunks_exact(self.0);
        let used = whole.len() * self.0;
        whole.for_each(|message| self.answer_head(&message[..HEAD], replies));
        Ok(used)
    }

    fn message(&self) -> Option<[usize; 2]> {
        Some([self.0, HEAD])
    }

    fn answer_head(&self, head: &[u8], replies: &mut Vec<u8>) {
        replies.extend_from_slice(head);
    }
}

/// How often a server has looked for requests, and how many connections it found ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Calls that returned at least one ready connection.
    pub looks: u64,
    /// Ready connections, of all looks.
    pub ready: u64,
}

impl Counts {
    /// Counts a look that has found `ready` connections.
    pub fn add(&mut self, ready: usize) {
        self.looks += u64::from(ready > 0);
        self.ready += ready as u64;
    }

    /// The counts as an answer, which [`ready_of`] reads.
    #[must_use]
    pub fn answer(self) -> Answer {
        vec![self.looks as f64, self.ready as f64]
    }
}

/// Ready connections for each look, from a server's answer. `None`: it has not counted.
#[must_use]
pub fn ready_of(answer: &[f64]) -> Option<f64> {
    match answer {
        [looks, ready, ..] if *looks > 0.0 => Some(ready / looks),
        _ => None,
    }
}

/// A request to a process with sockets: serve all its connections until the peer has closed them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ask {
    pub kind: Kind,
    /// With an io_uring, not with an epoll set.
    pub is_uring: bool,
}

/// In the process: executes a request.
pub fn obey(actor: &mut Actor, Ask { kind, is_uring }: Ask) -> anyhow::Result<Answer> {
    let (program, streams) = (kind.program(), std::mem::take(&mut actor.streams));
    streams.iter().try_for_each(|stream| stream.set_nodelay(true))?;
    let counts = match is_uring {
        true => uring::serve(streams, &*program, ROOM)?,
        false => by_epoll(streams, &*program)?,
    };
    Ok(counts.answer())
}

/// A connection and the bytes of an incomplete request.
struct Connection {
    stream: TcpStream,
    bytes: Vec<u8>,
}

/// Serves these connections with one thread and an epoll set until the peer has closed all of them.
pub fn by_epoll<P: Answers + ?Sized>(streams: Vec<TcpStream>, program: &P) -> anyhow::Result<Counts> {
    let (set, mut living, mut counts) = (calls::epoll_create()?, streams.len(), Counts::default());
    let mut connections = Vec::with_capacity(living);
    for (i, stream) in streams.into_iter().enumerate() {
        stream.set_nonblocking(true)?;
        calls::epoll_add(&set, &stream, i as u64)?;
        connections.push(Some(Connection { stream, bytes: Vec::new() }));
    }
    let (mut events, mut buffer, mut replies) = ([calls::NO_EVENT; EVENTS], vec![0; ROOM], Vec::new());
    while living > 0 {
        let count = calls::epoll_wait(&set, &mut events, None)?;
        counts.add(count);
        for event in &events[..count] {
            let place = &mut connections[event.u64 as usize];
            let Some(connection) = place else { continue };
            if !connection.turn(program, &mut buffer, &mut replies)? {
                *place = None;
                living -= 1;
            }
        }
    }
    Ok(counts)
}

impl Connection {
    /// Answers the requests that have arrived. False if the peer has closed the connection.
    fn turn<P: Answers + ?Sized>(
        &mut self,
        program: &P,
        buffer: &mut [u8],
        replies: &mut Vec<u8>,
    ) -> anyhow::Result<bool> {
        let taken = match self.stream.read(buffer) {
            Ok(0) => return Ok(false),
            Ok(taken) => taken,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error).context("a connection of the server"),
        };
        replies.clear();
        if self.bytes.is_empty() {
            let used = program.answer(&buffer[..taken], replies)?;
            self.bytes.extend_from_slice(&buffer[used..taken]);
        } else {
            self.bytes.extend_from_slice(&buffer[..taken]);
            let used = program.answer(&self.bytes, replies)?;
            self.bytes.drain(..used);
        }
        self.stream.write_all(replies).context("replies of the server")?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::protocol::{Protocol, Request};

    /// The bytes of a request, and of its answer by `kind`.
    fn exchanged(kind: Kind, protocol: Protocol, bytes: u32) -> (Vec<u8>, Vec<u8>) {
        let shape = Shape { keys: 1, key_bytes: 0, value_bytes: bytes };
        let (mut asked, mut replies) = (Vec::new(), Vec::new());
        protocol.write(&shape, Request { key: 0, is_set: false }, &mut asked);
        let one = asked.len();
        protocol.write(&shape, Request { key: 0, is_set: false }, &mut asked);
        asked.truncate(2 * one - 1);
        let used = kind.program().answer(&asked, &mut replies).unwrap();
        assert_eq!(used, one, "the second request is not whole");
        assert_eq!(replies.len(), protocol.reply_bytes(&shape, false) as usize);
        assert_eq!(replies[0], protocol.good(false));
        (asked, replies)
    }

    #[test]
    fn answers_are_as_long_as_the_client_expects() {
        for body in [64, 512, 1280] {
            let (asked, replies) = exchanged(Kind::Http(body), Protocol::Http, body);
            assert_eq!(asked.len(), 2 * 96 - 1, "StackMap's requests are of 96 bytes");
            assert!((63..=65).contains(&(replies.len() - body as usize)), "and its heads of 63 to 65");
        }
        for bytes in [1448, 16 << 10] {
            exchanged(Kind::Header(bytes), Protocol::Header, bytes);
        }
    }

    #[test]
    fn ready_connections_are_counted_for_each_look_that_finds_any() {
        let mut counts = Counts::default();
        [3, 0, 1].into_iter().for_each(|ready| counts.add(ready));
        assert_eq!(ready_of(&counts.answer()), Some(2.0));
        assert_eq!(ready_of(&Counts::default().answer()), None);
    }
}
