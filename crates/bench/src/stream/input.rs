//! The bytes that arrive on one connection; the last tuple may be incomplete.

use super::tuple::{LONGEST, Tuple};
use anyhow::{Context, bail};
use std::io::{ErrorKind, Read};
use std::time::Duration;

/// Events taken by one `epoll_wait`.
pub const EVENTS: usize = 64;
/// Time without an event after which the stage before counts as gone.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Size of the buffer in bytes.
const ROOM: usize = 64 * 1024;
const _: () = assert!(ROOM > LONGEST);

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// The connection is open; bytes may have come.
    Some,
    /// The peer has closed the connection, and all bytes were read.
    End,
}

/// A connection with a buffer for incomplete tuples.
pub struct Input<S> {
    stream: Option<S>,
    bytes: Vec<u8>,
    /// Bytes in the buffer.
    filled: usize,
}

impl<S: Read> Input<S> {
    /// The input of a connection that does not block.
    pub fn new(stream: S) -> Self {
        Self { stream: Some(stream), bytes: vec![0; ROOM], filled: 0 }
    }

    /// Reads once. Drops the connection at its end.
    ///
    /// # Errors
    /// When the connection has failed or has ended within a tuple.
    pub fn read(&mut self) -> anyhow::Result<Came> {
        let Some(stream) = &mut self.stream else { return Ok(Came::End) };
        match stream.read(&mut self.bytes[self.filled..]) {
            Ok(0) if self.filled > 0 => bail!("a connection ended within a tuple"),
            Ok(0) => {
                self.stream = None;
                return Ok(Came::End);
            }
            Ok(taken) => self.filled += taken,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("receiving tuples"),
        }
        Ok(Came::Some)
    }

    /// Calls `with` for each complete tuple and removes it from the buffer.
    ///
    /// # Errors
    /// When the bytes are not a tuple, or `with` fails.
    pub fn tuples(&mut self, mut with: impl FnMut(Tuple<'_>) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut used = 0;
        while let Some((tuple, length)) = Tuple::read(&self.bytes[used..self.filled])? {
            with(tuple)?;
            used += length;
        }
        self.bytes.copy_within(used..self.filled, 0);
        self.filled -= used;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::io;

    /// A stream that returns one of these pieces per read, then `WouldBlock`; an empty piece is the end.
    struct Pieces(VecDeque<Vec<u8>>);

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let piece = self.0.pop_front().ok_or(ErrorKind::WouldBlock)?;
            buffer[..piece.len()].copy_from_slice(&piece);
            Ok(piece.len())
        }
    }

    fn bytes() -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in 0..3 {
            let text = &b"a text"[..number as usize + 1];
            Tuple { number, due_ns: 0, is_measured: false, count: 0, key: b"", text }.write(&mut bytes);
        }
        bytes
    }

    #[test]
    fn tuples_come_once_wherever_reads_end() {
        let bytes = bytes();
        for cut in 1..bytes.len() {
            let (first, second) = bytes.split_at(cut);
            let mut input = Input::new(Pieces([first.to_vec(), second.to_vec(), Vec::new()].into()));
            let mut numbers = Vec::new();
            while input.read().unwrap() != Came::End {
                let take = |tuple: Tuple<'_>| {
                    numbers.push(tuple.number);
                    Ok(())
                };
                input.tuples(take).unwrap();
            }
            assert_eq!(numbers, [0, 1, 2], "cut at {cut}");
            assert_eq!(input.read().unwrap(), Came::End);
        }
    }

    #[test]
    fn an_end_within_a_tuple_is_an_error() {
        let mut cut = bytes();
        cut.pop();
        let mut input = Input::new(Pieces([cut, Vec::new()].into()));
        assert_eq!(input.read().unwrap(), Came::Some);
        input.tuples(|_| Ok(())).unwrap();
        assert!(input.read().is_err());
    }
}
