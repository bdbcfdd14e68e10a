//! Writing to connections until they take no more, for a peer that does not read.

use crate::sockets::actor::{Actor, Answer};
use anyhow::Context;
use std::io::{ErrorKind, Write};

/// Bytes of one write.
const PIECE: usize = 64 << 10;

/// In the process: fills every connection of [`Actor::streams`], which stay open. The answer: the bytes that they took.
pub fn obey(actor: &mut Actor) -> anyhow::Result<Answer> {
    let mut taken = 0;
    for stream in &mut actor.streams {
        stream.set_nonblocking(true)?;
        loop {
            match stream.write(&[0; PIECE]) {
                Ok(bytes) => taken += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("filling a connection"),
            }
        }
    }
    Ok(vec![taken as f64])
}
