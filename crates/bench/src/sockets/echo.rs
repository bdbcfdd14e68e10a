//! A server that echoes with one thread on connections opened before: with an epoll set or an io_uring.

use super::actor::{Actor, Answer};
use super::{calls, uring};
use crate::exchange::Answers;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};

/// Events taken by one `epoll_wait`.
const EVENTS: usize = 256;
/// Bytes read at once.
pub const ROOM: usize = 4096;

/// A request to a process: echo on all its connections until the peer has closed them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Echo with an epoll set.
    Epoll,
    /// Echo with an epoll set and busy polling for this many microseconds.
    BusyPoll(u32),
    /// Echo with an io_uring.
    Uring,
}

/// Sends back what has come.
struct Echo;

impl Answers for Echo {
    fn answer(&self, bytes: &[u8], replies: &mut Vec<u8>) -> anyhow::Result<usize> {
        replies.extend_from_slice(bytes);
        Ok(bytes.len())
    }
}

/// In the process: executes a request.
pub fn obey(actor: &mut Actor, ask: Ask) -> anyhow::Result<Answer> {
    for stream in &actor.streams {
        stream.set_nodelay(true)?;
    }
    match ask {
        Ask::Epoll => epoll(actor, None)?,
        Ask::BusyPoll(us) => epoll(actor, Some(us))?,
        Ask::Uring => return Ok(uring::serve(std::mem::take(&mut actor.streams), &Echo, ROOM)?.answer()),
    }
    Ok(Answer::new())
}

fn epoll(actor: &mut Actor, busy_poll_us: Option<u32>) -> anyhow::Result<()> {
    let set = calls::epoll_create()?;
    let mut streams: Vec<_> = actor.streams.drain(..).map(Some).collect();
    for (i, stream) in streams.iter().flatten().enumerate() {
        stream.set_nonblocking(true)?;
        if let Some(us) = busy_poll_us {
            calls::busy_poll(stream, us).context("SO_BUSY_POLL")?;
        }
        calls::epoll_add(&set, stream, i as u64)?;
    }
    if let Some(us) = busy_poll_us {
        calls::epoll_busy_poll(&set, us).context("EPIOCSPARAMS")?;
    }
    let (mut events, mut bytes, mut living) = ([calls::NO_EVENT; EVENTS], [0; ROOM], streams.len());
    while living > 0 {
        let count = calls::epoll_wait(&set, &mut events, None)?;
        for event in &events[..count] {
            let place = &mut streams[event.u64 as usize];
            let Some(stream) = place else { continue };
            match stream.read(&mut bytes) {
                Ok(0) => {
                    *place = None;
                    living -= 1;
                }
                Ok(n) => stream.write_all(&bytes[..n]).context("echoing")?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("a connection of the server"),
            }
        }
    }
    Ok(())
}
