//! A key-value store that does not scale, on purpose: one table behind one lock for all threads.

use crate::client::protocol::{FOUND, GET, MISSING, SET, Shape};
use crate::exchange::{self, Answers};
use crate::sockets::actor::{Actor, Answer};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};
use std::thread::ScopedJoinHandle;

/// The table of keys and values, with its lock.
pub struct Store {
    shape: Shape,
    table: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
}

impl Store {
    /// Makes the table with all keys of `shape`.
    pub fn new(shape: Shape) -> Self {
        let mut table = HashMap::new();
        for number in 0..shape.keys {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            shape.write_key(number, &mut key);
            shape.write_value(&mut value);
            table.insert(key, value);
        }
        Self { shape, table: Mutex::new(table) }
    }

    /// Serves these connections with `threads` threads until the peer has closed all of them.
    pub fn serve(&self, streams: Vec<TcpStream>, threads: u32) -> anyhow::Result<()> {
        let mut shares: Vec<Vec<TcpStream>> = (0..threads).map(|_| Vec::new()).collect();
        for (i, stream) in streams.into_iter().enumerate() {
            stream.set_nodelay(true)?;
            shares[i % threads as usize].push(stream);
        }
        std::thread::scope(|scope| {
            let serve = |share| scope.spawn(move || exchange::by_epoll(share, self).map(|_| ()));
            let threads: Vec<_> = shares.into_iter().map(serve).collect();
            let join = |thread: ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| bail!("a thread of the server has failed"))
            };
            threads.into_iter().try_for_each(join)
        })
    }

    /// Answers one request. All threads contend for this lock: it is the bottleneck.
    fn one(&self, kind: u8, key: &[u8], value: &[u8], replies: &mut Vec<u8>) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        match table.get_mut(key) {
            Some(place) if kind == SET => {
                place.copy_from_slice(value);
                replies.push(FOUND);
            }
            Some(place) => {
                replies.push(FOUND);
                replies.extend_from_slice(place);
            }
            None => replies.push(MISSING),
        }
    }
}

impl Answers for Store {
    fn answer(&self, bytes: &[u8], replies: &mut Vec<u8>) -> anyhow::Result<usize> {
        let (key_end, value) = (1 + self.shape.key_bytes as usize, self.shape.value_bytes as usize);
        let mut used = 0;
        while let Some(kind) = bytes.get(used) {
            let len = match *kind {
                GET => key_end,
                SET => key_end + value,
                other => bail!("no request begins with {other}"),
            };
            let Some(request) = bytes.get(used..used + len) else { break };
            self.one(*kind, &request[1..key_end], &request[key_end..], replies);
            used += len;
        }
        Ok(used)
    }
}

/// A request to the server's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Make a table of this shape.
    Hold(Shape),
    /// Serve all connections with this many threads until the peer has closed all of them.
    Serve(u32),
}

/// In the server's process: executes a request.
pub fn obey(actor: &mut Actor, ask: Ask) -> anyhow::Result<Answer> {
    match ask {
        Ask::Hold(shape) => actor.store = Some(Store::new(shape)),
        Ask::Serve(threads) => {
            let store = actor.store.take().context("no table to serve")?;
            store.serve(std::mem::take(&mut actor.streams), threads)?;
        }
    }
    Ok(Answer::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_in_pieces_are_answered_when_they_are_whole() {
        let store = Store::new(Shape { keys: 2, key_bytes: 4, value_bytes: 2 });
        let mut replies = Vec::new();
        let bytes = b"g0001s0001xyg0001g0002g00";
        assert_eq!(store.answer(bytes, &mut replies).unwrap(), bytes.len() - 3);
        assert_eq!(replies, b"+vv++xy-");
        assert!(store.answer(b"x0001", &mut replies).is_err());
    }
}
