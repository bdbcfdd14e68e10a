//! What a core has done: plain numbers that only its own thread writes.

use wire::DropReason;

/// Why a core did not handle a segment of a flow in the common way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Cause {
    /// The segment carries something new, but its timestamp is older than the last (RFC 7323 PAWS).
    Paws,
    /// The segment lies outside the receive window.
    Unacceptable,
    /// The segment acknowledges what was never sent, or has no ACK flag.
    BadAck,
    /// The segment carries nothing new: all of it has come before.
    Duplicate,
    /// The segment came out of order and the record has no free interval for it.
    IntervalsFull,
    /// The application's region has no memory for a ring that holds the segment.
    NoMemory,
    /// The slow path held the record's lock.
    Busy,
    /// The exception ring to the slow path was full.
    ExceptionLost,
    /// The port had no room; the segment, or the frame of the slow path, is sent later.
    PortFull,
    /// The port had no room for a frame of the slow path, nor those that wait for it.
    FrameLost,
    /// The ring to the core that serves the flow, or the room for frames of flows that are to come, was full.
    CoreFull,
}

impl Cause {
    /// All causes, in the order of their counters.
    pub const ALL: [Self; 11] = [
        Self::Paws,
        Self::Unacceptable,
        Self::BadAck,
        Self::Duplicate,
        Self::IntervalsFull,
        Self::NoMemory,
        Self::Busy,
        Self::ExceptionLost,
        Self::PortFull,
        Self::FrameLost,
        Self::CoreFull,
    ];

    /// The cause's name in metrics.
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
            Self::FrameLost => "frame_lost",
            Self::CoreFull => "core_full",
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
    /// Segments sent; a super-frame counts as one.
    pub segments_out: u64,
    /// Payload bytes sent, retransmissions included.
    pub bytes_out: u64,
    /// Segments sent without payload.
    pub pure_acks_out: u64,
    /// Payload bytes sent again.
    pub retransmitted_bytes: u64,
    /// Number of fast recoveries begun.
    pub recoveries: u64,
    /// Number of tail loss probes sent (RFC 8985 section 7).
    pub tail_probes: u64,
    /// Number of loss timers of flows that came due with data in flight.
    pub loss_timers: u64,
    /// Number of recoveries and timeouts found unnecessary and undone.
    pub undone: u64,
    /// Number of duplicates that peers have reported by D-SACK (RFC 2883).
    pub duplicates_reported: u64,
    /// Number of runs of scoreboards that were joined for lack of room: their bytes are retransmitted needlessly or late.
    pub runs_joined: u64,
    /// Number of segments received out of order.
    pub out_of_order: u64,
    /// Number of application slots with a set doorbell bit.
    pub doorbells: u64,
    /// Number of frames handed to the slow path.
    pub exceptions: u64,
    /// Number of flows taken in from other cores.
    pub moved_in: u64,
    /// Number of flows handed over to other cores.
    pub moved_out: u64,
    /// Number of slots given up because their application broke the rules of the shared memory.
    pub violations: u64,
    /// Number of runs of programs that a fault has stopped.
    pub program_faults: u64,
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
            loss_timers: 0,
            undone: 0,
            duplicates_reported: 0,
            runs_joined: 0,
            out_of_order: 0,
            doorbells: 0,
            exceptions: 0,
            moved_in: 0,
            moved_out: 0,
            violations: 0,
            program_faults: 0,
            drops: [0; DropReason::COUNT],
            causes: [0; Cause::ALL.len()],
        }
    }
}

impl Counters {
    /// Number of frames dropped for `reason`.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()]
    }

    /// Number of segments that met with `cause`.
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
