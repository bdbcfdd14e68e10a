//! What a core has done: plain numbers of its own thread.

use wire::DropReason;

/// Why a core did not do the common thing with a segment of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Cause {
    /// It tells something new, and its timestamp is older than the last (RFC 7323 PAWS).
    Paws,
    /// It lies outside the window.
    Unacceptable,
    /// It acknowledges what was never sent, or is without ACK.
    BadAck,
    /// It tells nothing new: all that it carries has come before.
    Duplicate,
    /// It came out of order and every interval is in use.
    IntervalsFull,
    /// The application's region has no memory left for it.
    NoMemory,
    /// The record was held by the slow path.
    Busy,
    /// The exceptions' ring was full.
    ExceptionLost,
    /// The port had no room; what was to be sent waits.
    PortFull,
}

impl Cause {
    /// All of them, in the order of their counters.
    pub const ALL: [Self; 9] = [
        Self::Paws,
        Self::Unacceptable,
        Self::BadAck,
        Self::Duplicate,
        Self::IntervalsFull,
        Self::NoMemory,
        Self::Busy,
        Self::ExceptionLost,
        Self::PortFull,
    ];

    /// The name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paws => "paws",
            Self::Unacceptable => "unacceptable",
            Self::BadAck => "bad_ack",
            Self::Duplicate => "duplicate",
            Self::IntervalsFull => "intervals_full",
            Self::NoMemory => "no_memory",
            Self::Busy => "busy",
            Self::ExceptionLost => "exception_lost",
            Self::PortFull => "port_full",
        }
    }
}

/// Counters of one core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Packets taken from the port.
    pub packets: u64,
    /// Segments of flows handled here.
    pub segments_in: u64,
    /// Payload bytes delivered to applications.
    pub bytes_in: u64,
    /// Segments sent; a super-frame is one.
    pub segments_out: u64,
    /// Payload bytes sent, repetitions included.
    pub bytes_out: u64,
    /// Of the segments sent, those that only acknowledge.
    pub pure_acks_out: u64,
    /// Bytes sent again.
    pub retransmitted_bytes: u64,
    /// Fast retransmissions begun.
    pub recoveries: u64,
    /// Tail loss probes sent.
    pub tail_probes: u64,
    /// Recoveries and timeouts that were not needed, undone.
    pub undone: u64,
    /// Duplicates that peers have reported.
    pub duplicates_reported: u64,
    /// Segments received out of order.
    pub out_of_order: u64,
    /// Slots with news from applications.
    pub doorbells: u64,
    /// Frames handed to the slow path.
    pub exceptions: u64,
    /// Applications that broke the rules.
    pub violations: u64,
    drops: [u64; DropReason::COUNT],
    causes: [u64; Cause::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            packets: 0,
            segments_in: 0,
            bytes_in: 0,
            segments_out: 0,
            bytes_out: 0,
            pure_acks_out: 0,
            retransmitted_bytes: 0,
            recoveries: 0,
            tail_probes: 0,
            undone: 0,
            duplicates_reported: 0,
            out_of_order: 0,
            doorbells: 0,
            exceptions: 0,
            violations: 0,
            drops: [0; DropReason::COUNT],
            causes: [0; Cause::ALL.len()],
        }
    }
}

impl Counters {
    /// Frames dropped for `reason`.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()]
    }

    /// Segments that met with `cause`.
    #[must_use]
    pub fn of(&self, cause: Cause) -> u64 {
        self.causes[cause as usize]
    }

    #[inline]
    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.drops[reason.index()] += 1;
    }

    #[inline]
    pub(crate) fn count(&mut self, cause: Cause) {
        self.causes[cause as usize] += 1;
    }
}
