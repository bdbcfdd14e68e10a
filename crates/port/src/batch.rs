//! The packets a fast-path core takes from a port at once, in buffers made once and used for every batch.

use crate::packet::PacketBuf;
use base::limits::BATCH;

/// Up to [`BATCH`] received packets.
#[derive(Debug)]
pub struct Batch {
    bufs: Box<[PacketBuf]>,
    count: usize,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// An empty batch whose buffers take super-frames.
    #[must_use]
    pub fn new() -> Self {
        Self { bufs: (0..BATCH).map(|_| PacketBuf::new()).collect(), count: 0 }
    }

    /// An empty batch for frames of at most `capacity` bytes, for ports that never deliver super-frames.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { bufs: (0..BATCH).map(|_| PacketBuf::with_capacity(capacity)).collect(), count: 0 }
    }

    /// Packets in it.
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
        self.count == self.bufs.len()
    }

    /// Forgets all packets; the buffers stay.
    #[inline]
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// For ports: the next free buffer, emptied. It counts only after [`push_slot`](Self::push_slot).
    #[must_use]
    #[inline]
    pub fn slot(&mut self) -> Option<&mut PacketBuf> {
        let buf = self.bufs.get_mut(self.count)?;
        buf.clear();
        Some(buf)
    }

    /// For ports: the buffer that [`slot`](Self::slot) gave holds a packet now.
    ///
    /// # Panics
    /// When the batch is full: a bug of the caller.
    #[inline]
    pub fn push_slot(&mut self) {
        assert!(self.count < self.bufs.len(), "no slot was given");
        self.count += 1;
    }

    /// The packets, in the order they came.
    #[must_use]
    #[inline]
    pub fn packets(&self) -> &[PacketBuf] {
        &self.bufs[..self.count]
    }

    /// The packets, to be changed in place.
    #[must_use]
    #[inline]
    pub fn packets_mut(&mut self) -> &mut [PacketBuf] {
        &mut self.bufs[..self.count]
    }
}
