//! The packets that a fast-path core takes from a port in one call, in buffers that are allocated once and reused for every batch.

use crate::packet::PacketBuf;
use base::limits::{BATCH, BATCH_BYTES};

/// Up to [`BATCH`] received packets. It is full, too, when the packets have [`BATCH_BYTES`] or more.
#[derive(Debug)]
pub struct Batch {
    bufs: Box<[PacketBuf]>,
    count: usize,
    /// Length of all packets.
    bytes: usize,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// An empty batch with buffers that are large enough for super-frames.
    #[must_use]
    pub fn new() -> Self {
        Self { bufs: (0..BATCH).map(|_| PacketBuf::new()).collect(), count: 0, bytes: 0 }
    }

    /// An empty batch for frames of at most `capacity` bytes, for ports that never deliver super-frames.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let bufs = (0..BATCH).map(|_| PacketBuf::with_capacity(capacity)).collect();
        Self { bufs, count: 0, bytes: 0 }
    }

    /// Number of packets in the batch.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// True when there is no packet in it.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// True when no further packet fits.
    #[must_use]
    #[inline]
    pub fn is_full(&self) -> bool {
        self.count == self.bufs.len() || self.bytes >= BATCH_BYTES
    }

    /// Removes all packets; the buffers stay allocated.
    #[inline]
    pub fn clear(&mut self) {
        (self.count, self.bytes) = (0, 0);
    }

    /// For ports: the next free buffer, emptied; `None` when the batch is full. It becomes part of the batch only by
    /// [`push_slot`](Self::push_slot).
    #[must_use]
    #[inline]
    pub fn slot(&mut self) -> Option<&mut PacketBuf> {
        if self.bytes >= BATCH_BYTES {
            return None;
        }
        let buf = self.bufs.get_mut(self.count)?;
        buf.clear();
        Some(buf)
    }

    /// For ports: adds the buffer that [`slot`](Self::slot) gave, which now contains a packet.
    ///
    /// # Panics
    /// When the batch is full: a bug of the caller.
    #[inline]
    pub fn push_slot(&mut self) {
        assert!(self.count < self.bufs.len(), "no slot was given");
        self.bytes += self.bufs[self.count].len();
        self.count += 1;
    }

    /// The packets, in order of arrival.
    #[must_use]
    #[inline]
    pub fn packets(&self) -> &[PacketBuf] {
        &self.bufs[..self.count]
    }

    /// The packets, for changes in place.
    #[must_use]
    #[inline]
    pub fn packets_mut(&mut self) -> &mut [PacketBuf] {
        &mut self.bufs[..self.count]
    }
}
