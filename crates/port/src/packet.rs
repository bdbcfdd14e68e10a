//! One packet: a frame in a reusable buffer, and metadata from the port.

use crate::Lent;
use base::limits::FRAME_MAX;

/// State of the transport checksum of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Checksum {
    /// Received: not verified. To send: the frame is complete as it is.
    #[default]
    Unknown,
    /// Received: verified by the port. To send: as [`Checksum::Unknown`].
    Valid,
    /// The field contains only the pseudo header's sum, not complemented. The device that sends the frame must sum the bytes from
    /// `start` to the frame's end and store the complement. A received frame in this state was never on a wire (it comes from this
    /// host's kernel), so it counts as verified.
    Partial {
        /// Offset in the frame of the first byte covered: the transport header.
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

/// The protocols of a super-frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum GsoKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
}

/// Metadata of a super-frame: one frame longer than the MTU that contains several TCP segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Gso {
    /// Network and transport protocol of the segments.
    pub kind: GsoKind,
    /// Payload bytes of each segment except the last; never 0.
    pub segment_size: u16,
    /// Length of the Ethernet, IP and TCP headers together in bytes; they are copied in front of every segment.
    pub header_len: u16,
    /// CWR is set; it belongs to the first segment only (RFC 3168 section 6.1.2).
    pub ecn: bool,
}

/// Metadata of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PacketMeta {
    /// State of the transport checksum.
    pub checksum: Checksum,
    /// `Some` when the frame is a super-frame.
    pub gso: Option<Gso>,
    /// The port's flow hash, if it computes one; it serves for steering and is no secret.
    pub flow_hash: Option<u32>,
}

/// Identifies a frame of which the port has given only the beginning ([`Port::receive_heads`](crate::Port::receive_heads)).
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
    // Private, so that a backend can later provide its own memory here (an AF_XDP chunk) without a change to users.
    storage: Box<[u8]>,
    len: usize,
    ticket: Option<Ticket>,
    /// Metadata of the frame.
    pub meta: PacketMeta,
}

impl Default for PacketBuf {
    fn default() -> Self {
        Self::new()
    }
}

impl PacketBuf {
    /// An empty buffer that fits any frame, also super-frames ([`FRAME_MAX`] bytes; memory pages are taken only when used).
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

    /// Length of the longest frame that fits, bytes.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.storage.len()
    }

    /// Length of the frame in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when the buffer contains no frame.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes of the frame.
    #[must_use]
    #[inline]
    pub fn frame(&self) -> &[u8] {
        &self.storage[..self.len]
    }

    /// The bytes of the frame, for changes in place.
    #[must_use]
    #[inline]
    pub fn frame_mut(&mut self) -> &mut [u8] {
        &mut self.storage[..self.len]
    }

    /// All bytes of the buffer.
    #[must_use]
    #[inline]
    pub fn storage(&self) -> &[u8] {
        &self.storage
    }

    /// All bytes of the buffer, to write a frame into; [`set_len`](Self::set_len) then sets its length.
    #[must_use]
    #[inline]
    pub fn storage_mut(&mut self) -> &mut [u8] {
        &mut self.storage
    }

    /// Sets the length of the frame.
    ///
    /// # Panics
    /// When `len` exceeds the capacity: a bug of the caller.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.storage.len(), "frame longer than its buffer");
        self.len = len;
    }

    /// `Some`: only the beginning of the frame is here, with all headers; the bytes behind it are old. `None`: the frame is complete.
    #[must_use]
    #[inline]
    pub fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    /// For ports: sets the ticket of an incomplete frame, or `None` for a complete one.
    #[inline]
    pub fn set_ticket(&mut self, ticket: Option<Ticket>) {
        self.ticket = ticket;
    }

    /// Removes frame and metadata; the bytes stay in the storage.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
        self.ticket = None;
        self.meta = PacketMeta::default();
    }

    /// Copies `frame` into the buffer, without metadata. Returns false and leaves the buffer empty when it does not fit.
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

    /// Appends `payload` to the frame. Returns false and leaves the buffer empty when it does not fit.
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

    /// Copies frame and metadata of `other`. Returns false and leaves the buffer empty when it does not fit.
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
