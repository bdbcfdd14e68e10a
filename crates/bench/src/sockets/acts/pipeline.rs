//! Sends or receives messages on all connections as fast as they go, with some work for each.

use crate::clock;
use crate::sockets::actor::{Actor, Answer};
use crate::sockets::calls::{self, For};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

/// The most calls on one connection before the next connection's turn.
const TURN: u32 = 16;
/// Events taken by one `epoll_wait`.
const EVENTS: usize = 256;
/// The warm-up lasts the measured time divided by this; buffers fill in it.
const WARM_UP: u32 = 4;
/// Time without an event after which the peer counts as gone.
const PATIENCE: Duration = Duration::from_secs(20);

/// The task of one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// Bytes of a message.
    pub bytes: u32,
    /// Messages moved by one call.
    pub at_once: u32,
    /// Cycles of work for each message.
    pub cycles: u32,
    /// Length of the measured time, milliseconds.
    pub milliseconds: u32,
}

/// A request to a process, for all its connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Send until the peer has closed the connections.
    Send(Part),
    /// Receive for the given time, then close the connections. The answer: messages and nanoseconds of the measured time, then all
    /// messages.
    Receive(Part),
}

/// In the process: executes a request.
pub fn obey(actor: &mut Actor, ask: Ask) -> anyhow::Result<Answer> {
    for stream in &actor.streams {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
    }
    match ask {
        Ask::Send(part) => send(actor, part).map(|()| Answer::new()),
        Ask::Receive(part) => receive(actor, part),
    }
}

/// The application's work for a message: a chain of steps of about four cycles each (multiply and exclusive or), each of which needs the
/// result of the one before. The value stays in a register, because the latency of memory differs between processors.
pub fn work(cycles: u32) {
    let mut x = black_box(1u64);
    for _ in 0..cycles / 4 {
        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ (x >> 32);
    }
    black_box(x);
}

fn receive(actor: &mut Actor, part: Part) -> anyhow::Result<Answer> {
    let set = calls::epoll_create()?;
    for (i, stream) in actor.streams.iter().enumerate() {
        calls::epoll_add(&set, stream, i as u64)?;
    }
    let (mut got, mut all) = (vec![0u32; actor.streams.len()], 0u64);
    let (mut events, mut buffer) = ([calls::NO_EVENT; EVENTS], vec![0; (part.bytes * part.at_once) as usize]);
    let start = clock::now_ns();
    let length = u64::from(part.milliseconds) * 1_000_000;
    let mut begun = None;
    loop {
        let count = calls::epoll_wait(&set, &mut events, Some(PATIENCE))?;
        if count == 0 {
            bail!("nothing came");
        }
        for event in &events[..count] {
            let at = event.u64 as usize;
            all += take(&mut actor.streams[at], &mut got[at], &mut buffer, part)?;
        }
        let now = clock::now_ns();
        match begun {
            None if now - start >= length / u64::from(WARM_UP) => begun = Some((now, all)),
            Some((begin, before)) if now - begin >= length => {
                // Closing the connections ends the sender.
                actor.streams.clear();
                return Ok(vec![(all - before) as f64, (now - begin) as f64, all as f64]);
            }
            _ => {}
        }
    }
}

/// Reads messages of one connection. `got`: bytes received of an incomplete message. Returns the number of completed messages.
fn take(stream: &mut impl Read, got: &mut u32, buffer: &mut [u8], part: Part) -> anyhow::Result<u64> {
    let mut messages = 0;
    for _ in 0..TURN {
        let room = (part.bytes * part.at_once - *got) as usize;
        let taken = match stream.read(&mut buffer[..room]) {
            Ok(0) => bail!("the sender has closed a connection"),
            Ok(taken) => taken,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error).context("receiving"),
        };
        *got += taken as u32;
        let ended = *got / part.bytes;
        *got %= part.bytes;
        (0..ended).for_each(|_| work(part.cycles));
        messages += u64::from(ended);
        if part.at_once > 1 {
            break;
        }
    }
    Ok(messages)
}

fn send(actor: &mut Actor, part: Part) -> anyhow::Result<()> {
    let set = calls::epoll_create()?;
    let mut streams: Vec<_> = actor.streams.drain(..).map(Some).collect();
    for (i, stream) in streams.iter().flatten().enumerate() {
        calls::epoll_watch(&set, stream, For::Writing, i as u64)?;
    }
    let bytes = vec![1; (part.bytes * part.at_once) as usize];
    // For each connection: bytes already sent of the current message (or batch of `at_once` messages).
    let mut gone = vec![0; streams.len()];
    let (mut events, mut living) = ([calls::NO_EVENT; EVENTS], streams.len());
    while living > 0 {
        let count = calls::epoll_wait(&set, &mut events, Some(PATIENCE))?;
        if count == 0 {
            bail!("nothing could be sent");
        }
        for event in &events[..count] {
            let at = event.u64 as usize;
            let Some(stream) = &mut streams[at] else { continue };
            if !give(stream, &mut gone[at], &bytes, part)? {
                streams[at] = None;
                living -= 1;
            }
        }
    }
    Ok(())
}

/// Sends on one connection. False if the peer has closed it.
fn give(stream: &mut impl Write, gone: &mut usize, bytes: &[u8], part: Part) -> anyhow::Result<bool> {
    for _ in 0..if part.at_once > 1 { 1 } else { TURN } {
        if *gone == 0 {
            (0..part.at_once).for_each(|_| work(part.cycles));
        }
        match stream.write(&bytes[*gone..]) {
            Ok(sent) => *gone = (*gone + sent) % bytes.len(),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => break,
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => return Ok(false),
                _ => return Err(error).context("sending"),
            },
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// A stream with this many bytes for each call; further calls return `WouldBlock`.
    struct Pieces(Vec<usize>);

    impl Pieces {
        fn next(&mut self, room: usize) -> io::Result<usize> {
            let piece = if self.0.is_empty() { None } else { Some(self.0.remove(0)) };
            piece.map(|piece| piece.min(room)).ok_or_else(|| ErrorKind::WouldBlock.into())
        }
    }

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.next(buffer.len())
        }
    }

    impl Write for Pieces {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.next(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn messages_in_pieces_are_counted_once() {
        let one = Part { bytes: 10, at_once: 1, cycles: 4, milliseconds: 1 };
        let (mut got, mut buffer) = (0, [0; 40]);
        assert_eq!(take(&mut Pieces(vec![10, 4, 99, 3]), &mut got, &mut buffer, one).unwrap(), 2);
        assert_eq!(got, 3);
        let many = Part { at_once: 4, ..one };
        assert_eq!(take(&mut Pieces(vec![99]), &mut got, &mut buffer, many).unwrap(), 4);
        assert_eq!(got, 0);
        assert!(take(&mut Pieces(vec![0]), &mut got, &mut buffer, one).is_err());
    }

    #[test]
    fn what_has_gone_is_not_sent_again() {
        let one = Part { bytes: 10, at_once: 1, cycles: 4, milliseconds: 1 };
        let mut gone = 0;
        assert!(give(&mut Pieces(vec![4, 99, 2]), &mut gone, &[1; 10], one).unwrap());
        assert_eq!(gone, 2);
    }
}
