//! What a congestion control is told, and what it answers. The same two types serve what decides per acknowledgement here
//! and what decides elsewhere and less often.

use base::Instant;

/// What the fast path knows when bytes are acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signals {
    /// The time.
    pub now: Instant,
    /// Bytes newly acknowledged.
    pub acked_bytes: u32,
    /// Of these, bytes whose acknowledgement echoes congestion: exact for DCTCP's peers, all or nothing for others.
    pub marked_bytes: u32,
    /// Bytes still unacknowledged.
    pub in_flight: u32,
    /// The most bytes in flight in the last round trip, what is acknowledged now included.
    pub flight_max: u32,
    /// A new round-trip time, microseconds.
    pub rtt_us: Option<u32>,
    /// The smoothed round-trip time, microseconds; 0 before the first.
    pub srtt_us: u32,
    /// The least round-trip time ever, microseconds; `u32::MAX` before the first.
    pub min_rtt_us: u32,
    /// Bytes per second that arrived at the peer in the last round trip measured; 0 before the first.
    pub delivery_rate: u64,
    /// Bytes sent again in the flow's life.
    pub lost_bytes_total: u64,
    /// The application had less to send than the window allowed.
    pub is_app_limited: bool,
}

impl Signals {
    /// Nothing known but the time.
    #[must_use]
    pub const fn at(now: Instant) -> Self {
        Self {
            now,
            acked_bytes: 0,
            marked_bytes: 0,
            in_flight: 0,
            flight_max: 0,
            rtt_us: None,
            srtt_us: 0,
            min_rtt_us: u32::MAX,
            delivery_rate: 0,
            lost_bytes_total: 0,
            is_app_limited: false,
        }
    }
}

/// What the fast path enforces from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Bytes that may be in flight.
    pub cwnd: u32,
    /// Bytes per second at most; 0: no pacing.
    pub pace_rate: u64,
    /// The window was reduced because congestion was echoed: the next new segment carries CWR (RFC 3168 section 6.1.2).
    pub is_echo_answered: bool,
}
