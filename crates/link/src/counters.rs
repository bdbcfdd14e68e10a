//! What a link has done so far.

/// Why a packet did not come through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(usize)]
pub enum Cause {
    /// The configured loss.
    Loss,
    /// The queue was full.
    Queue,
    /// Longer than the link carries.
    Mtu,
    /// The link was down, or went down before it arrived.
    Down,
}

impl Cause {
    /// All causes, in the order of their counters.
    pub const ALL: [Self; 4] = [Self::Loss, Self::Queue, Self::Mtu, Self::Down];

    /// The name used in statistics.
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

/// Counters of one direction. At every time `offered + duplicated == dropped() + delivered + in flight`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets sent into the link.
    pub offered: u64,
    /// Bytes of their frames.
    pub offered_bytes: u64,
    /// Packets that came out.
    pub delivered: u64,
    /// Bytes of their frames.
    pub delivered_bytes: u64,
    /// Packets marked CE.
    pub marked: u64,
    /// Second copies made (which may be dropped by a full queue like any packet).
    pub duplicated: u64,
    /// Packets with a byte changed.
    pub corrupted: u64,
    /// Packets cut short.
    pub truncated: u64,
    /// Packets held back so that others may pass.
    pub reordered: u64,
    /// Most packets in the queue.
    pub queue_packets_max: u64,
    /// Most bytes in the queue.
    pub queue_bytes_max: u64,
    dropped: [u64; Cause::ALL.len()],
}

impl Counters {
    /// Packets dropped for `cause`.
    #[must_use]
    pub fn of(&self, cause: Cause) -> u64 {
        self.dropped[cause as usize]
    }

    /// Packets dropped for any cause.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Counts a drop.
    pub(crate) fn drop_for(&mut self, cause: Cause) {
        self.dropped[cause as usize] += 1;
    }

    /// Counts a packet that came out, for those who use a [`Model`](crate::Model) and carry the bytes themselves.
    #[inline]
    pub fn count_delivered(&mut self, bytes: usize) {
        self.delivered += 1;
        self.delivered_bytes += bytes as u64;
    }
}
