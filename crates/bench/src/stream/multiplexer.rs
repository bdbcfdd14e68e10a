//! The outgoing connections of a stage. Tuples wait in a buffer for each connection until they are sent together.

use super::tuple::Tuple;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Write};

/// Bytes in a buffer at which a batch leaves before its time.
const FULL: usize = 64 * 1024;

/// When tuples leave their buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Batching {
    /// Each tuple leaves at once.
    None,
    /// A batch leaves when its first tuple has waited that long, or the buffer is full.
    Milliseconds(u32),
}

impl Batching {
    fn longest_ns(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Milliseconds(ms) => u64::from(ms) * 1_000_000,
        }
    }
}

/// A connection and its buffer.
struct Lane<S> {
    stream: S,
    bytes: Vec<u8>,
    /// Bytes of the buffer that were sent.
    gone: usize,
    /// True if the connection's send buffer is full.
    is_stuck: bool,
    /// The time at which the first tuple entered the buffer.
    since_ns: u64,
    /// Number of measured tuples in the buffer, and the sum of the delays after `since_ns` with which they entered it.
    measured: u64,
    later_ns: u64,
}

/// The outgoing connections of a stage, with their buffers.
pub struct Multiplexer<S> {
    lanes: Vec<Lane<S>>,
    batching: Batching,
    waited_ns: u64,
}

impl<S: Write> Multiplexer<S> {
    pub fn new(streams: impl IntoIterator<Item = S>, batching: Batching) -> Self {
        let lane = |stream| Lane {
            stream,
            bytes: Vec::with_capacity(2 * FULL),
            gone: 0,
            is_stuck: false,
            since_ns: 0,
            measured: 0,
            later_ns: 0,
        };
        Self { lanes: streams.into_iter().map(lane).collect(), batching, waited_ns: 0 }
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Puts a tuple into the buffer of a connection.
    pub fn emit(&mut self, at: usize, tuple: &Tuple<'_>, now_ns: u64) {
        let lane = &mut self.lanes[at];
        if lane.bytes.is_empty() {
            lane.since_ns = now_ns;
        }
        tuple.write(&mut lane.bytes);
        if tuple.is_measured {
            lane.measured += 1;
            lane.later_ns += now_ns - lane.since_ns;
        }
    }

    /// Sends the buffers that are due. A connection that cannot take all bytes is stuck until [`resume`](Self::resume).
    ///
    /// # Errors
    /// When a connection has failed.
    pub fn send(&mut self, clock: impl Fn() -> u64) -> io::Result<()> {
        let longest_ns = self.batching.longest_ns();
        for lane in &mut self.lanes {
            // The clock is read only if needed: reading it takes a large part of a tuple's time.
            let is_due =
                || longest_ns == 0 || lane.bytes.len() >= FULL || clock() >= lane.since_ns + longest_ns;
            if !lane.bytes.is_empty() && !lane.is_stuck && is_due() {
                self.waited_ns += lane.send(&clock)?;
            }
        }
        Ok(())
    }

    /// Sends the buffer of a connection that is writable again.
    ///
    /// # Errors
    /// When the connection has failed.
    pub fn resume(&mut self, at: usize, clock: impl Fn() -> u64) -> io::Result<()> {
        self.waited_ns += self.lanes[at].send(&clock)?;
        Ok(())
    }

    /// From now on tuples leave at once.
    pub fn hurry(&mut self) {
        self.batching = Batching::None;
    }

    /// The earliest time at which a buffer of a connection that is not stuck must be sent.
    pub fn deadline_ns(&self) -> Option<u64> {
        let waiting = self.lanes.iter().filter(|lane| !lane.bytes.is_empty() && !lane.is_stuck);
        waiting.map(|lane| lane.since_ns + self.batching.longest_ns()).min()
    }

    /// True if that connection's send buffer is full.
    pub fn is_stuck(&self, at: usize) -> bool {
        self.lanes[at].is_stuck
    }

    /// True if the send buffer of any connection is full.
    pub fn is_any_stuck(&self) -> bool {
        self.lanes.iter().any(|lane| lane.is_stuck)
    }

    /// True if everything was sent.
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.bytes.is_empty())
    }

    /// The sum of the times that measured tuples have waited in the buffers until they were written to their connections.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns
    }

    /// The streams of all connections.
    pub fn streams(&self) -> impl Iterator<Item = &S> {
        self.lanes.iter().map(|lane| &lane.stream)
    }
}

impl<S: Write> Lane<S> {
    /// Sends the buffer. Returns the time that its measured tuples have waited in sum if it is empty now, otherwise 0.
    fn send(&mut self, clock: &impl Fn() -> u64) -> io::Result<u64> {
        while self.gone < self.bytes.len() {
            let now_ns = clock();
            match self.stream.write(&self.bytes[self.gone..]) {
                Ok(sent) => self.gone += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_stuck = true;
                    return Ok(0);
                }
                Err(error) => return Err(error),
            }
            if self.gone == self.bytes.len() {
                return Ok(self.is_gone(now_ns));
            }
        }
        self.is_stuck = false;
        Ok(0)
    }

    /// Empties the buffer. Returns the time in sum that its measured tuples have waited until `now_ns`.
    fn is_gone(&mut self, now_ns: u64) -> u64 {
        let waited_ns = self.measured * (now_ns - self.since_ns) - self.later_ns;
        self.bytes.clear();
        (self.gone, self.is_stuck, self.measured, self.later_ns) = (0, false, 0, 0);
        waited_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes this many bytes, then returns `WouldBlock`.
    struct Narrow(usize);

    impl Write for &mut Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            if taken == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(taken) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const TUPLE: Tuple<'_> =
        Tuple { number: 0, due_ns: 0, is_measured: true, count: 0, key: b"", text: &[b'x'; 76] };
    const BYTES: usize = 100;
    const TEN_MS: u64 = 10_000_000;

    #[test]
    fn a_batch_leaves_when_its_first_tuple_has_waited_long_enough() {
        let (mut one, mut other) = (Narrow(10 * BYTES), Narrow(10 * BYTES));
        let mut out = Multiplexer::new([&mut one, &mut other], Batching::Milliseconds(10));
        assert_eq!(out.deadline_ns(), None);
        out.emit(0, &TUPLE, 5);
        out.emit(0, &TUPLE, 9);
        out.emit(1, &TUPLE, 7);
        assert_eq!(out.deadline_ns(), Some(TEN_MS + 5));
        out.send(|| TEN_MS + 4).unwrap();
        assert_eq!(out.waited_ns(), 0);
        out.send(|| TEN_MS + 6).unwrap();
        assert_eq!((out.waited_ns(), out.deadline_ns()), (2 * TEN_MS - 2, Some(TEN_MS + 7)));
        out.hurry();
        out.send(|| 8).unwrap();
        assert!(out.is_empty());
        assert_eq!((one.0, other.0), (8 * BYTES, 9 * BYTES));
    }

    #[test]
    fn a_full_buffer_leaves_before_its_time() {
        let mut stream = Narrow(2 * FULL);
        let mut out = Multiplexer::new([&mut stream], Batching::Milliseconds(10));
        for sent in 0..FULL.div_ceil(BYTES) {
            assert_eq!(out.is_empty(), sent == 0);
            out.emit(0, &TUPLE, 0);
            out.send(|| 1).unwrap();
        }
        assert!(out.is_empty());
    }

    #[test]
    fn what_does_not_go_is_stuck_until_it_goes_and_waits_so_long() {
        let mut stream = Narrow(BYTES / 2);
        let mut out = Multiplexer::new([&mut stream], Batching::None);
        out.emit(0, &TUPLE, 10);
        out.send(|| 11).unwrap();
        assert!(out.is_stuck(0) && out.is_any_stuck() && out.deadline_ns().is_none());
        out.lanes[0].stream.0 = BYTES / 2 - 1;
        out.resume(0, || 12).unwrap();
        assert!(out.is_stuck(0) && !out.is_empty());
        out.lanes[0].stream.0 = BYTES;
        out.resume(0, || 30).unwrap();
        assert!(!out.is_any_stuck() && out.is_empty());
        assert_eq!(out.waited_ns(), 20);
    }
}
