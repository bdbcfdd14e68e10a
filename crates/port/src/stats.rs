//! Counters of a port.

/// Why a port dropped a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(usize)]
pub enum DropCause {
    /// Received with offload metadata that contradicts the frame (a bad virtio header).
    Malformed,
    /// Received, but longer than the batch's buffers.
    Oversized,
    /// Received, but the kernel's buffer was full.
    Overrun,
    /// To be sent, but empty, too long, or with an offload that the port lacks.
    Unsendable,
    /// To be sent, but the device refused it: link down, no memory.
    Device,
    /// Lost by the fault injector.
    Injected,
}

impl DropCause {
    /// All causes, in the order of their counters.
    pub const ALL: [Self; 6] =
        [Self::Malformed, Self::Oversized, Self::Overrun, Self::Unsendable, Self::Device, Self::Injected];

    /// The name of the cause in statistics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Oversized => "oversized",
            Self::Overrun => "overrun",
            Self::Unsendable => "unsendable",
            Self::Device => "device",
            Self::Injected => "injected",
        }
    }
}

/// Number of dropped packets per cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Drops([u64; DropCause::ALL.len()]);

impl Drops {
    /// Counts one packet dropped for `cause`.
    #[inline]
    pub fn count(&mut self, cause: DropCause) {
        self.0[cause as usize] += 1;
    }

    /// Counts `packets` packets dropped for `cause`.
    pub fn add(&mut self, cause: DropCause, packets: u64) {
        self.0[cause as usize] += packets;
    }

    /// Number of packets dropped for `cause`.
    #[must_use]
    pub fn of(&self, cause: DropCause) -> u64 {
        self.0[cause as usize]
    }

    /// Number of packets dropped for any cause.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// All causes with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (DropCause, u64)> + '_ {
        DropCause::ALL.iter().map(|&cause| (cause, self.of(cause)))
    }

    /// The sums of both counters, per cause.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
        self
    }
}

/// Counters of one port since it was opened. A super-frame counts as one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Packets given to the fast path.
    pub received_packets: u64,
    /// Bytes of the received frames.
    pub received_bytes: u64,
    /// Packets that the device took.
    pub sent_packets: u64,
    /// Bytes of the sent frames.
    pub sent_bytes: u64,
    /// How often `reserve` had no room.
    pub sent_full: u64,
    /// System calls for packets and wake-ups.
    pub system_calls: u64,
    /// Dropped packets, per cause.
    pub drops: Drops,
}

impl Stats {
    /// Counts a received frame of `bytes`.
    #[inline]
    pub fn count_received(&mut self, bytes: usize) {
        self.received_packets += 1;
        self.received_bytes += bytes as u64;
    }

    /// Counts a sent frame of `bytes`.
    #[inline]
    pub fn count_sent(&mut self, bytes: usize) {
        self.sent_packets += 1;
        self.sent_bytes += bytes as u64;
    }
}
