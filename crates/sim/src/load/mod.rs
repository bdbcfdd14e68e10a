//! An application that sends messages and counts what comes: for figures with very many flows, where every byte need not be checked.
//!
//! ```text
//!   connection:  | number, 8 bytes | message | number, 8 bytes | message | ...      the receiver looks the length up in the tally
//! ```

mod sizes;
mod tally;

pub use sizes::{Arrivals, Sizes};
pub use tally::{Message, Tally};

use crate::machine::Stack;
use crate::sockets::Fd;
use base::Instant;
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// Bytes of a message's number in front of it.
pub const HEADER: usize = 8;
/// Most bytes moved by one call.
const PIECE: usize = 65_536;
/// The contents of messages.
static CONTENTS: [u8; PIECE] = [0; PIECE];

/// A message to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// When the application has it.
    pub at: Instant,
    /// Where the receiver listens.
    pub to: SocketAddr,
    /// Its length; `u64::MAX`: it never ends.
    pub bytes: u64,
    /// Its number in the tally, which [`Tally::enter`] sets.
    pub number: u64,
}

impl Job {
    /// A message that is not in a tally yet.
    #[must_use]
    pub const fn new(at: Instant, to: SocketAddr, bytes: u64) -> Self {
        Self { at, to, bytes, number: u64::MAX }
    }
}

/// The connections that messages take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Connections {
    /// A new one for each message.
    Fresh,
    /// One to the receiver that is idle, or a new one if there is none.
    Kept,
}

/// The sending end of a connection.
#[derive(Debug)]
struct Sending {
    to: SocketAddr,
    is_connected: bool,
    /// Number of the message under way; `None`: the connection is idle.
    number: Option<u64>,
    /// Bytes of the number that are not sent yet, and of the message.
    header_left: usize,
    left: u64,
    is_shut: bool,
}

/// The receiving end of a connection.
#[derive(Debug, Default)]
struct Receiving {
    header: [u8; HEADER],
    header_len: usize,
    number: u64,
    /// Bytes of the message under way that have not come yet; 0: its number comes first.
    left: u64,
}

/// The application of one machine.
#[derive(Debug)]
pub struct Load {
    /// Ports and backlogs on which it does not listen yet.
    serves: VecDeque<(u16, usize)>,
    listeners: Vec<Fd>,
    connections: Connections,
    jobs: VecDeque<Job>,
    senders: BTreeMap<Fd, Sending>,
    receivers: BTreeMap<Fd, Receiving>,
    /// Idle connections of each receiver.
    idle: BTreeMap<SocketAddr, Vec<Fd>>,
    buffer: Vec<u8>,
}

impl Load {
    /// An application that does nothing yet.
    #[must_use]
    pub fn new(connections: Connections) -> Self {
        Self {
            serves: VecDeque::new(),
            listeners: Vec::new(),
            connections,
            jobs: VecDeque::new(),
            senders: BTreeMap::new(),
            receivers: BTreeMap::new(),
            idle: BTreeMap::new(),
            buffer: vec![0; PIECE],
        }
    }

    /// Makes it take messages at `port`, too. What comes at the first port is for the host's first application, and so on.
    #[must_use]
    pub fn serving(mut self, port: u16, backlog: usize) -> Self {
        self.serves.push_back((port, backlog));
        self
    }

    /// Gives it messages to send, each of which is in the tally.
    #[must_use]
    pub fn sending(self, mut jobs: Vec<Job>) -> Self {
        jobs.sort_by_key(|job| (job.at, job.number));
        Self { jobs: jobs.into(), ..self }
    }

    /// When its next turn is due even without socket events.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        if !self.serves.is_empty() {
            return Instant::ZERO;
        }
        self.jobs.front().map_or(Instant::NEVER, |job| job.at)
    }

    /// True when all its messages are sent and their connections are over or idle.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let is_idle = |sending: &Sending| self.connections == Connections::Kept && sending.number.is_none();
        self.jobs.is_empty() && self.senders.values().all(is_idle)
    }

    /// The socket that sends message `number`.
    #[must_use]
    pub fn socket_of(&self, number: u64) -> Option<Fd> {
        self.senders.iter().find(|(_, sending)| sending.number == Some(number)).map(|(fd, _)| *fd)
    }

    /// Runs the application once. True when it did something.
    pub fn turn(&mut self, now: Instant, stack: &mut dyn Stack, tally: &mut Tally) -> bool {
        let mut is_busy = false;
        while let Some((port, backlog)) = self.serves.pop_front() {
            stack.act_for(self.listeners.len() as u16);
            self.listeners.extend(stack.listen_on(port, backlog));
            stack.act_for(0);
        }
        while self.jobs.front().is_some_and(|job| job.at <= now)
            && let Some(job) = self.jobs.pop_front()
        {
            is_busy = true;
            self.begin(&job, stack, tally);
        }
        while let Some(fd) = stack.news() {
            is_busy = true;
            self.serve(now, fd, stack, tally);
        }
        is_busy
    }

    fn begin(&mut self, job: &Job, stack: &mut dyn Stack, tally: &mut Tally) {
        let message = |is_connected| Sending {
            to: job.to,
            is_connected,
            number: Some(job.number),
            header_left: HEADER,
            left: job.bytes,
            is_shut: false,
        };
        let kept = self.idle.get_mut(&job.to).and_then(Vec::pop);
        let (fd, sending) = match kept {
            Some(fd) => (fd, message(true)),
            None => match stack.open(job.to) {
                Ok(fd) => (fd, message(false)),
                Err(_) => return tally.failed += 1,
            },
        };
        self.senders.insert(fd, sending);
        self.send(fd, stack, tally);
    }

    fn serve(&mut self, now: Instant, fd: Fd, stack: &mut dyn Stack, tally: &mut Tally) {
        if self.listeners.contains(&fd) {
            while let Ok(fd) = stack.take(fd) {
                self.receivers.insert(fd, Receiving::default());
                self.receive(now, fd, stack, tally);
            }
        } else if self.senders.contains_key(&fd) {
            self.send(fd, stack, tally);
        } else {
            self.receive(now, fd, stack, tally);
        }
    }

    fn send(&mut self, fd: Fd, stack: &mut dyn Stack, tally: &mut Tally) {
        let Some(sending) = self.senders.get_mut(&fd) else { return };
        match sending.go_on(fd, self.connections, stack) {
            Ok(Next::News) => {}
            Ok(Next::Idle) => self.idle.entry(sending.to).or_default().push(fd),
            Ok(Next::Over) => self.close(fd, stack),
            Err(_) => {
                tally.failed += 1;
                self.close(fd, stack);
            }
        }
    }

    fn receive(&mut self, now: Instant, fd: Fd, stack: &mut dyn Stack, tally: &mut Tally) {
        let Some(receiving) = self.receivers.get_mut(&fd) else { return };
        loop {
            match stack.read(fd, &mut self.buffer) {
                Ok(0) => return self.close(fd, stack),
                Ok(n) if receiving.take(now, &self.buffer[..n], tally) => {}
                Err(Errno::AGAIN) => return,
                _ => {
                    tally.failed += 1;
                    return self.close(fd, stack);
                }
            }
        }
    }

    fn close(&mut self, fd: Fd, stack: &mut dyn Stack) {
        self.senders.remove(&fd);
        self.receivers.remove(&fd);
        stack.drop_fd(fd);
    }
}

/// What a sending end waits for.
enum Next {
    News,
    /// Another message: the connection is kept idle until one comes.
    Idle,
    Over,
}

impl Sending {
    fn go_on(&mut self, fd: Fd, connections: Connections, stack: &mut dyn Stack) -> Result<Next, Errno> {
        if !self.is_connected {
            self.is_connected = stack.is_connected(fd)?;
            if !self.is_connected {
                return Ok(Next::News);
            }
        }
        let Some(number) = self.number else { return self.hear(fd, stack) };
        while self.header_left > 0 || self.left > 0 {
            let number = number.to_le_bytes();
            let piece = match self.header_left {
                0 => &CONTENTS[..self.left.min(PIECE as u64) as usize],
                left => &number[HEADER - left..],
            };
            match stack.write(fd, piece) {
                Ok(n) if self.header_left > 0 => self.header_left -= n,
                Ok(n) if self.left < u64::MAX => self.left -= n as u64,
                Ok(_) => {}
                Err(Errno::AGAIN) => return Ok(Next::News),
                Err(error) => return Err(error),
            }
        }
        if connections == Connections::Kept {
            self.number = None;
            return Ok(Next::Idle);
        }
        if !self.is_shut {
            self.is_shut = true;
            stack.finish(fd)?;
        }
        self.hear(fd, stack)
    }

    /// The receiver says nothing but the end of the stream.
    fn hear(&self, fd: Fd, stack: &mut dyn Stack) -> Result<Next, Errno> {
        match stack.read(fd, &mut [0; HEADER]) {
            Ok(0) => Ok(Next::Over),
            Ok(_) => Err(Errno::PROTO),
            Err(Errno::AGAIN) => Ok(Next::News),
            Err(error) => Err(error),
        }
    }
}

impl Receiving {
    /// Takes in what has come. False when it is no message of the tally.
    fn take(&mut self, now: Instant, mut bytes: &[u8], tally: &mut Tally) -> bool {
        while !bytes.is_empty() {
            if self.left == 0 {
                let n = bytes.len().min(HEADER - self.header_len);
                self.header[self.header_len..][..n].copy_from_slice(&bytes[..n]);
                (bytes, self.header_len) = (&bytes[n..], self.header_len + n);
                if self.header_len < HEADER {
                    return true;
                }
                self.number = u64::from_le_bytes(self.header);
                let Some(left) = tally.bytes(self.number) else { return false };
                (self.left, self.header_len) = (left, 0);
            }
            let n = self.left.min(bytes.len() as u64);
            tally.received(now, self.number, n);
            if self.left < u64::MAX {
                self.left -= n;
            }
            bytes = &bytes[n as usize..];
        }
        true
    }
}
