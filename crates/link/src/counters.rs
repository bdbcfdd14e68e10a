//! Counters of a link.

/// The reason why a packet was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(usize)]
pub enum Cause {
    /// Lost by the configured loss.
    Loss,
    /// The queue was full.
    Queue,
    /// The packet was longer than the link's MTU.
    Mtu,
    /// The link was down when the packet was sent or would have arrived.
    Down,
}

impl Cause {
    /// All causes, in the order of their counters.
    pub const ALL: [Self; 4] = [Self::Loss, Self::Queue, Self::Mtu, Self::Down];

    /// The cause's name in statistics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Queue => "queue",
            Self::Mtu => "mtu",
            Self::Down => "down",
        }
    }
}

/// Counters of one direction. At any time `offered + duplicated == dropped() + delivered + in flight`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets sent into the link.
    pub offered: u64,
    /// Bytes of these packets' frames.
    pub offered_bytes: u64,
    /// Packets that were delivered.
    pub delivered: u64,
    /// Bytes of these packets' frames.
    pub delivered_bytes: u64,
    /// Packets that the queue marked CE.
    pub marked: u64,
    /// Second copies made. (A full queue may drop a copy like any packet.)
    pub duplicated: u64,
    /// Packets in which a byte was changed.
    pub corrupted: u64,
    /// Packets that were cut short.
    pub truncated: u64,
    /// Packets held back so that others could overtake them.
    pub reordered: u64,
    /// The largest number of packets in the queue so far.
    pub queue_packets_max: u64,
    /// The largest number of bytes in the queue so far.
    pub queue_bytes_max: u64,
    dropped: [u64; Cause::ALL.len()],
}

impl Counters {
    /// Number of packets dropped for `cause`.
    #[must_use]
    pub fn of(&self, cause: Cause) -> u64 {
        self.dropped[cause as usize]
    }

    /// Number of packets dropped for all causes.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Counts a packet dropped for `cause`.
    pub(crate) fn drop_for(&mut self, cause: Cause) {
        self.dropped[cause as usize] += 1;
    }

    /// Counts a delivered packet. For callers that use a [`Model`](crate::Model) and carry the bytes themselves.
    #[inline]
    pub fn count_delivered(&mut self, bytes: usize) {
        self.delivered += 1;
        self.delivered_bytes += bytes as u64;
    }
}
