//! One direction of a virtual socket at the side that receives. Bytes go at once to their place in the caller's buffer, in whatever order
//! the channels bring them.
//!
//! ```text
//!         next       ahead of it                        edge
//!   --------|         [======]        [===]               |        the caller has room up to edge
//!   readable  missing          missing      missing
//! ```

use crate::frame::{Header, Kind};
use crate::intervals::Intervals;
use crate::limits::FRAME_MAX;
use crate::violation::Violation;

/// Bytes received from which on the peer is told at once: half of the smallest ring, so that a sender with such a ring never waits for
/// [`ACK_DELAY`](crate::limits::ACK_DELAY).
const ACK_AT_ONCE: u64 = 2_048;

/// The state of the direction; all positions count bytes from the beginning of the stream.
#[derive(Clone, Debug, Default)]
pub struct Receiving {
    /// Every byte before this position has come.
    pub next: u64,
    /// The caller has room for the bytes before this position.
    pub edge: u64,
    /// The edge that the peer was told last.
    told_edge: u64,
    /// The confirmation that the peer was told last.
    told_acked: u64,
    /// The final position, once a FIN named it.
    end: Option<u64>,
    ahead: Intervals,
}

/// What the arrival of bytes asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Bytes at the beginning of the piece that came before: they must not be stored again.
    pub skip: usize,
    /// True: `next` has moved.
    pub is_readable: bool,
}

/// When the peer must be told what has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tell {
    /// The peer knows enough.
    Nothing,
    /// At the latest after [`ACK_DELAY`](crate::limits::ACK_DELAY).
    Soon,
    /// With the next frames.
    Now,
}

impl Receiving {
    /// Begins a new stream in the memory of an old one; `edge`: the first credit.
    pub fn clear(&mut self, edge: u64) {
        let mut ahead = core::mem::take(&mut self.ahead);
        ahead.clear();
        *self = Self { ahead, edge, told_edge: edge, ..Self::default() };
    }

    /// Takes in `len` bytes of a DATA frame behind `before` others of the frame.
    ///
    /// # Errors
    /// [`Violation::BeyondCredit`], [`Violation::BeyondFin`] and [`Violation::Scattered`].
    pub fn arrive(&mut self, header: &Header, before: u32, len: usize) -> Result<Arrival, Violation> {
        debug_assert!(header.kind == Kind::Data && before as usize + len <= header.length as usize);
        let beyond = |end| Violation::BeyondCredit { socket: header.socket, end, edge: self.told_edge };
        let frame_end = header.argument.checked_add(u64::from(header.length)).ok_or(beyond(u64::MAX))?;
        if frame_end > self.told_edge {
            return Err(beyond(frame_end));
        }
        if self.end.is_some_and(|end| frame_end > end) {
            return Err(Violation::BeyondFin(header.socket));
        }
        let start = header.argument + u64::from(before);
        let end = start + len as u64;
        let skip = self.next.saturating_sub(start).min(len as u64) as usize;
        if end <= self.next {
            return Ok(Arrival { skip, is_readable: false });
        }
        if start <= self.next {
            self.next = if self.ahead.is_empty() { end } else { self.ahead.advance(end) };
            return Ok(Arrival { skip, is_readable: true });
        }
        if !self.ahead.insert(start, end) {
            return Err(Violation::Scattered(header.socket));
        }
        Ok(Arrival { skip, is_readable: false })
    }

    /// Takes in a FIN.
    ///
    /// # Errors
    /// [`Violation::BeyondFin`], when bytes beyond `end` have come, or another FIN has named another end.
    pub fn finish(&mut self, socket: u32, end: u64) -> Result<(), Violation> {
        let last = self.ahead.end().unwrap_or(self.next);
        if self.end.is_some_and(|known| known != end) || end < last {
            return Err(Violation::BeyondFin(socket));
        }
        self.end = Some(end);
        Ok(())
    }

    /// True when every byte and the end have come.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.end == Some(self.next)
    }

    /// The position that a CREDIT frame confirms: one more than `next` for the end.
    #[must_use]
    pub fn acked(&self) -> u64 {
        self.next + u64::from(self.is_over())
    }

    /// When the peer must be told about what has come and the room there is.
    #[must_use]
    pub fn tell(&self) -> Tell {
        let unconfirmed = self.acked() - self.told_acked;
        let (left, whole) = (self.told_edge.saturating_sub(self.next), self.edge.saturating_sub(self.next));
        let widened = self.edge - self.told_edge;
        let is_short = widened > 0 && (widened >= u64::from(FRAME_MAX) || left <= whole / 2);
        match unconfirmed {
            _ if self.is_over() && unconfirmed > 0 => Tell::Now,
            // Behind a FIN only the credit up to the end is of use.
            _ if is_short && self.end.is_none_or(|end| self.told_edge < end) => Tell::Now,
            ACK_AT_ONCE.. => Tell::Now,
            1.. => Tell::Soon,
            0 => Tell::Nothing,
        }
    }

    /// The peer is told by a CREDIT frame with [`acked`](Self::acked) and `edge`.
    pub fn note_told(&mut self) {
        (self.told_acked, self.told_edge) = (self.acked(), self.edge);
    }

    /// The peer is told by an OPENED frame with `edge`.
    pub fn note_edge_told(&mut self) {
        self.told_edge = self.edge;
    }

    /// The edge of the credit that the peer was told last.
    #[must_use]
    pub fn told_edge(&self) -> u64 {
        self.told_edge
    }

    /// True when the peer was told of all that has come.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.told_acked == self.acked()
    }

    /// Number of intervals ahead of the next byte, for the check of memory.
    #[must_use]
    pub fn intervals(&self) -> usize {
        self.ahead.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(argument: u64, length: u32) -> Header {
        Header { length, kind: Kind::Data, socket: 3, argument }
    }

    fn fresh(edge: u64) -> Receiving {
        let mut receiving = Receiving::default();
        receiving.clear(edge);
        receiving
    }

    #[test]
    fn bytes_join_in_any_order_and_duplicates_are_skipped() {
        let mut r = fresh(100);
        let whole = |r: &mut Receiving, at, len: u32| r.arrive(&data(at, len), 0, len as usize);
        assert_eq!(whole(&mut r, 20, 10), Ok(Arrival { skip: 0, is_readable: false }));
        assert_eq!(r.arrive(&data(0, 20), 0, 5), Ok(Arrival { skip: 0, is_readable: true }));
        assert_eq!(whole(&mut r, 0, 20), Ok(Arrival { skip: 5, is_readable: true }));
        assert_eq!(r.next, 30);
        assert_eq!(whole(&mut r, 0, 30), Ok(Arrival { skip: 30, is_readable: false }));
    }

    #[test]
    fn credit_counts_as_the_peer_was_told() {
        let mut r = fresh(10);
        assert!(r.arrive(&data(0, 10), 0, 1).is_ok());
        r.edge = 20;
        let beyond = Err(Violation::BeyondCredit { socket: 3, end: 11, edge: 10 });
        assert_eq!(r.arrive(&data(1, 10), 0, 1), beyond, "the frame's end counts before its bytes have come");
        r.note_told();
        assert!(r.arrive(&data(1, 10), 0, 10).is_ok());
        assert!(matches!(r.arrive(&data(u64::MAX, 2), 0, 1), Err(Violation::BeyondCredit { .. })));
    }

    #[test]
    fn fin_may_overtake_data_but_not_contradict_it() {
        let mut r = fresh(100);
        assert_eq!(r.finish(3, 20), Ok(()));
        assert!(!r.is_over());
        assert_eq!(r.arrive(&data(15, 6), 0, 6), Err(Violation::BeyondFin(3)));
        assert_eq!(r.finish(3, 21), Err(Violation::BeyondFin(3)));
        assert!(r.arrive(&data(0, 20), 0, 20).is_ok());
        assert!(r.is_over());
        assert_eq!((r.acked(), r.tell()), (21, Tell::Now));
        let mut r = fresh(100);
        assert!(r.arrive(&data(50, 10), 0, 10).is_ok());
        assert_eq!(r.finish(3, 59), Err(Violation::BeyondFin(3)));
    }

    #[test]
    fn small_messages_are_confirmed_late_and_bulk_at_once() {
        let mut r = fresh(1 << 20);
        assert_eq!(r.tell(), Tell::Nothing);
        assert!(r.arrive(&data(0, 64), 0, 64).is_ok());
        assert_eq!(r.tell(), Tell::Soon);
        r.note_told();
        assert!(r.is_confirmed());
        assert!(r.arrive(&data(64, 4_000), 0, 4_000).is_ok());
        assert_eq!(r.tell(), Tell::Now);
        r.note_told();
        r.edge += 4_064;
        assert_eq!(r.tell(), Tell::Nothing, "a small part of the window comes back later");
        r.edge += u64::from(FRAME_MAX);
        assert_eq!(r.tell(), Tell::Now);
    }

    #[test]
    fn credit_goes_on_behind_a_fin_that_has_overtaken() {
        let mut r = fresh(64);
        assert_eq!(r.finish(3, 100), Ok(()));
        assert!(r.arrive(&data(0, 64), 0, 64).is_ok());
        r.note_told();
        r.edge = 128;
        assert_eq!(r.tell(), Tell::Now);
        r.note_told();
        r.edge = 192;
        assert_eq!(r.tell(), Tell::Nothing);
    }

    #[test]
    fn a_closed_window_that_opens_is_told_at_once() {
        let mut r = fresh(64);
        assert!(r.arrive(&data(0, 64), 0, 64).is_ok());
        r.note_told();
        r.edge = 65;
        assert_eq!(r.tell(), Tell::Now);
    }
}
