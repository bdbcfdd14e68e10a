//! Room in a connection's ring, to be filled and committed.

use crate::raw;
use crate::ring::Ring;
use endpoint::in_place::{Room, owed};

/// Room for bytes to be sent, until this is dropped. What is not committed was never there.
#[derive(Debug)]
pub struct Write<'a> {
    ring: &'a mut Ring,
    index: u32,
    room: Room,
    filled: usize,
}

impl<'a> Write<'a> {
    pub(crate) const fn new(ring: &'a mut Ring, index: u32, room: Room) -> Self {
        Self { ring, index, room, filled: 0 }
    }

    /// Number of bytes that fit.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.room.total
    }

    /// Never true: there is room for one byte at least.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.room.total == 0
    }

    /// Number of bytes that [`put`](Self::put) has filled.
    #[must_use]
    pub const fn filled(&self) -> usize {
        self.filled
    }

    /// Copies `bytes` behind what was put before, as far as they fit; returns how many.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.room.total - self.filled);
        let [(first, first_len), (second, _)] = self.room.pieces;
        let Some(connection) = self.ring.table.connection(self.index) else { return 0 };
        let mapped = &connection.link.mapped;
        let in_first = first_len.saturating_sub(self.filled).min(n);
        if in_first > 0 {
            mapped.region.write(mapped.side, first + self.filled, &bytes[..in_first]);
        }
        if in_first < n {
            let at = second + (self.filled + in_first - first_len);
            mapped.region.write(mapped.side, at, &bytes[in_first..n]);
        }
        self.filled += n;
        n
    }

    /// The room as two slices, the second behind the first; their contents are old bytes. `None` when the other side is an application, which
    /// could change them meanwhile: use [`put`](Self::put).
    pub fn slices(&mut self) -> Option<[&mut [u8]; 2]> {
        let connection = self.ring.table.connection(self.index)?;
        raw::room(&mut connection.link, self.room.pieces)
    }

    /// The room as two pieces, each a pointer and a length, for other languages: they may be written until the next call with this ring. The
    /// peer, if it is an application of this host, can write there, too.
    pub fn pointers(&mut self) -> [(*mut u8, usize); 2] {
        let nowhere = [(std::ptr::null_mut(), 0); 2];
        let Some(connection) = self.ring.table.connection(self.index) else { return nowhere };
        let mapped = &connection.link.mapped;
        self.room
            .pieces
            .map(|(at, len)| (mapped.region.shared(mapped.side, at, len).as_ptr().cast_mut().cast(), len))
    }

    /// The first `n` bytes of the room are sent at the next flush.
    ///
    /// # Panics
    /// When `n` is more than [`len`](Self::len): a bug of the program.
    #[inline]
    pub fn commit(self, n: usize) {
        assert!(n <= self.room.total, "committed more than was reserved");
        if n == 0 {
            return;
        }
        if let Some(connection) = self.ring.table.connection(self.index) {
            connection.link.commit(n);
            self.ring.owe(self.index, owed::BYTES);
        }
    }

    /// Commits what was put.
    #[inline]
    pub fn done(self) {
        let n = self.filled;
        self.commit(n);
    }
}
