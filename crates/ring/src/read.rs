//! The unread bytes of one connection. Another application may still write bytes that it has sent: such bytes are shown as a slice only after
//! they were copied, once, so that what was checked is what is used.

use crate::raw;
use crate::ring::Ring;
use endpoint::Endpoint;
use endpoint::in_place::{Piece, Unread};

/// The unread bytes of one connection, until this is dropped. Spans and slices of it cannot live longer.
///
/// ```
/// # fn turn(ring: &mut ring::Ring, handle: ring::Handle) -> Result<Option<u8>, ring::Error> {
/// let mut read = ring.conn(handle)?.read()?;
/// let first = read.bytes().first().copied();
/// read.consume(usize::from(first.is_some()));
/// ring.flush();
/// # Ok(first) }
/// ```
/// A slice does not outlive the consume of its bytes,
/// ```compile_fail,E0505
/// # fn turn(ring: &mut ring::Ring, handle: ring::Handle) -> Result<Option<u8>, ring::Error> {
/// let mut read = ring.conn(handle)?.read()?;
/// let bytes = read.bytes();
/// read.consume(1);
/// # Ok(bytes.first().copied()) }
/// ```
/// nor a span the next flush or wait:
/// ```compile_fail,E0499
/// # fn turn(ring: &mut ring::Ring, handle: ring::Handle) -> Result<Option<usize>, ring::Error> {
/// let mut read = ring.conn(handle)?.read()?;
/// let span = read.spans().next();
/// ring.flush();
/// # Ok(span.map(|span| span.len())) }
/// ```
#[derive(Debug)]
pub struct Read<'a> {
    ring: &'a mut Ring,
    index: u32,
    unread: Unread,
    /// So many bytes from the first lie in the ring's scratch memory.
    copied: usize,
    is_private: bool,
}

/// Bytes that lie in one piece.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    link: &'a Endpoint,
    at: usize,
    len: usize,
    is_private: bool,
}

impl<'a> Span<'a> {
    /// Number of bytes, at least 1.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes where they lie. `None` when another application may change them: use [`copy_to`](Self::copy_to).
    #[must_use]
    pub fn bytes(&self) -> Option<&'a [u8]> {
        raw::unread(self.link, (self.at, self.len), self.is_private)
    }

    /// Copies the first bytes to `out`; returns how many.
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        let n = self.len.min(out.len());
        let mapped = &self.link.mapped;
        mapped.region.read(mapped.side.other(), self.at, &mut out[..n]);
        n
    }
}

impl<'a> Read<'a> {
    pub(crate) fn new(ring: &'a mut Ring, index: u32, unread: Unread) -> Self {
        ring.end_view();
        let trusts = ring.service.options.trusts_local_peers;
        let is_pair = ring.table.connection(index).is_none_or(|c| c.link.mapped.pair);
        // In the checked mode every view is a copy, which can be overwritten when it is released.
        let is_private = (trusts || !is_pair) && !ring.is_checked;
        Self { ring, index, unread, copied: 0, is_private }
    }

    /// Number of unread bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.unread.total
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unread.total == 0
    }

    /// True when no other application can change these bytes: they are shown without a copy.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.is_private
    }

    /// The bytes as they lie, in order: at most four pieces.
    pub fn spans(&mut self) -> impl Iterator<Item = Span<'_>> {
        let (is_private, unread) = (self.is_private, self.unread);
        let link = self.ring.table.connection(self.index).map(|connection| &connection.link);
        link.into_iter()
            .flat_map(move |link| pieces(unread).map(move |(at, len)| Span { link, at, len, is_private }))
    }

    /// The first `n` bytes, or all if there are fewer, in one piece that does not change: where they lie, or a copy. Asking again for the same
    /// or more bytes shows the same bytes.
    pub fn contiguous(&mut self, n: usize) -> &[u8] {
        let n = n.min(self.unread.total);
        let (at, first) = self.unread.pieces[0];
        let Self { ring, index, .. } = self;
        let Ring { table, scratch, counters, viewed, .. } = &mut **ring;
        let Some(connection) = table.connection(*index) else { return &[] };
        if n <= first
            && let Some(bytes) = raw::unread(&connection.link, (at, n), self.is_private)
        {
            counters.in_place += n as u64;
            return bytes;
        }
        if n > self.copied {
            counters.copied += (n - self.copied) as u64;
            if scratch.len() < n {
                scratch.resize(n.next_power_of_two(), 0);
            }
            copy(&connection.link, self.unread, self.copied, &mut scratch[self.copied..n]);
            self.copied = n;
            *viewed = n;
        }
        &scratch[..n]
    }

    /// All unread bytes, as [`contiguous`](Self::contiguous) shows them.
    #[inline]
    pub fn bytes(&mut self) -> &[u8] {
        self.contiguous(usize::MAX)
    }

    /// Copies the first bytes to `out`; returns how many.
    pub fn copy_to(&mut self, out: &mut [u8]) -> usize {
        let n = out.len().min(self.unread.total);
        let copied = self.copied.min(n);
        out[..copied].copy_from_slice(&self.ring.scratch[..copied]);
        let Some(connection) = self.ring.table.connection(self.index) else { return 0 };
        copy(&connection.link, self.unread, copied, &mut out[copied..n]);
        self.ring.counters.copied += n as u64;
        n
    }

    /// Where `byte` is for the first time, counted from the first unread byte. Looks at the bytes as [`bytes`](Self::bytes) shows them.
    pub fn find(&mut self, byte: u8) -> Option<usize> {
        self.bytes().iter().position(|b| *b == byte)
    }

    /// The first `n` bytes are done with. The rest stays unread.
    ///
    /// # Panics
    /// When `n` is more than [`len`](Self::len): a bug of the program.
    pub fn consume(self, n: usize) {
        self.ring.end_view();
        if let Some(connection) = self.ring.table.connection(self.index) {
            let owed = connection.link.consume_in_place(&self.unread, n);
            self.ring.owe(self.index, owed);
        }
    }
}

/// The pieces of `unread` that have bytes.
fn pieces(unread: Unread) -> impl Iterator<Item = Piece> {
    unread.pieces.into_iter().filter(|(_, len)| *len > 0)
}

/// Fills `out` with the bytes of `unread` that follow its first `skip`; there are so many.
fn copy(link: &Endpoint, unread: Unread, mut skip: usize, mut out: &mut [u8]) {
    let mapped = &link.mapped;
    for (at, len) in pieces(unread) {
        let from = skip.min(len);
        skip -= from;
        let (part, rest) = out.split_at_mut(out.len().min(len - from));
        if !part.is_empty() {
            mapped.region.read(mapped.side.other(), at + from, part);
        }
        out = rest;
    }
}
