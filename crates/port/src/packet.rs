//! One packet: a frame in a buffer made once and used again, and what the port knows about it besides its bytes.

use crate::Lent;
use base::limits::FRAME_MAX;

/// State of a frame's TCP (or other transport) checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Checksum {
    /// Received: nobody has looked at it. To send: the frame's bytes are complete as they are.
    #[default]
    Unknown,
    /// Received: the port has verified it. To send: as [`Checksum::Unknown`].
    Valid,
    /// The field holds only the pseudo-header's sum (not complemented); whoever puts the frame on a wire sums the bytes from
    /// `start` to the frame's end and stores the complement. On a received frame it means that the bytes never were on a wire
    /// (the peer is this host's kernel), so they are as good as verified.
    Partial {
        /// Frame offset of the first byte covered: the transport header.
        start: u16,
        /// Offset of the checksum field from `start`: 16 for TCP.
        offset: u16,
    },
}

impl Checksum {
    /// True when a received frame's transport checksum need not be computed again.
    #[must_use]
    #[inline]
    pub const fn is_trusted(self) -> bool {
        !matches!(self, Self::Unknown)
    }
}

/// What a super-frame consists of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum GsoKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
}

/// A super-frame: one frame longer than the MTU that stands for several TCP segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Gso {
    /// Network and transport protocol.
    pub kind: GsoKind,
    /// Payload bytes of each segment but the last; never 0.
    pub segment_size: u16,
    /// Bytes of Ethernet, IP and TCP header together, copied in front of every segment.
    pub header_len: u16,
    /// CWR is set and belongs to the first segment only (RFC 3168 section 6.1.2).
    pub ecn: bool,
}

/// What is known of a frame besides its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PacketMeta {
    /// Transport checksum.
    pub checksum: Checksum,
    /// Set when the frame is a super-frame.
    pub gso: Option<Gso>,
    /// The port's flow hash, where it computes one. It steers; it is not a secret.
    pub flow_hash: Option<u32>,
}

/// Where a port finds the rest of a frame of which it has given the beginning ([`Port::receive_heads`](crate::Port::receive_heads)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(pub u32);

/// A buffer for one frame, allocated once, with the frame's length and metadata.
///
/// ```text
///   storage  |<------------------ capacity ------------------>|
///   frame    |<-------- len -------->|
///            Ethernet, IP, TCP, data
/// ```
#[derive(Debug)]
pub struct PacketBuf {
    // Private, so that a backend may one day lend its own memory here (an AF_XDP chunk) without a change to users.
    storage: Box<[u8]>,
    len: usize,
    ticket: Option<Ticket>,
    /// What is known of the frame besides its bytes.
    pub meta: PacketMeta,
}

impl Default for PacketBuf {
    fn default() -> Self {
        Self::new()
    }
}

impl PacketBuf {
    /// An empty buffer that takes any frame, super-frames too ([`FRAME_MAX`] bytes; pages are touched only when used).
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(FRAME_MAX)
    }

    /// An empty buffer for frames of at most `capacity` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            storage: vec![0; capacity].into_boxed_slice(),
            len: 0,
            ticket: None,
            meta: PacketMeta::default(),
        }
    }

    /// The longest frame that fits.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.storage.len()
    }

    /// Bytes of the frame.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there is no frame.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The frame.
    #[must_use]
    #[inline]
    pub fn frame(&self) -> &[u8] {
        &self.storage[..self.len]
    }

    /// The frame, to be changed in place.
    #[must_use]
    #[inline]
    pub fn frame_mut(&mut self) -> &mut [u8] {
        &mut self.storage[..self.len]
    }

    /// The whole buffer.
    #[must_use]
    #[inline]
    pub fn storage(&self) -> &[u8] {
        &self.storage
    }

    /// The whole buffer, to write a frame into; then [`set_len`](Self::set_len).
    #[must_use]
    #[inline]
    pub fn storage_mut(&mut self) -> &mut [u8] {
        &mut self.storage
    }

    /// Says how long the frame is.
    ///
    /// # Panics
    /// When `len` exceeds the capacity: a bug of the caller.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.storage.len(), "frame longer than its buffer");
        self.len = len;
    }

    /// Of the frame only the beginning is here, with all headers; behind it stand bytes of earlier frames. None when it is whole.
    #[must_use]
    #[inline]
    pub fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    /// For ports: says where the rest is, or that the frame is whole.
    #[inline]
    pub fn set_ticket(&mut self, ticket: Option<Ticket>) {
        self.ticket = ticket;
    }

    /// Forgets frame and metadata; the old bytes stay in the storage.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
        self.ticket = None;
        self.meta = PacketMeta::default();
    }

    /// Makes `frame` the content, without metadata. False, and empty, when it does not fit.
    #[must_use]
    pub fn fill(&mut self, frame: &[u8]) -> bool {
        self.clear();
        let fits = frame.len() <= self.storage.len();
        if fits {
            self.storage[..frame.len()].copy_from_slice(frame);
            self.len = frame.len();
        }
        fits
    }

    /// Puts `payload` at the frame's end. False, and empty, when it does not fit.
    #[must_use]
    #[inline]
    pub fn append(&mut self, payload: Lent<'_>) -> bool {
        if payload.is_empty() {
            return true;
        }
        let end = self.len + payload.len();
        let Some(place) = self.storage.get_mut(self.len..end) else {
            self.clear();
            return false;
        };
        payload.copy_to(place);
        self.len = end;
        true
    }

    /// Copies frame and metadata of `other`. False, and empty, when it does not fit.
    #[must_use]
    pub fn copy_from(&mut self, other: &Self) -> bool {
        let frame = other.frame();
        let Some(place) = self.storage.get_mut(..frame.len()) else {
            self.clear();
            return false;
        };
        place.copy_from_slice(frame);
        (self.len, self.meta) = (frame.len(), other.meta);
        true
    }
}
