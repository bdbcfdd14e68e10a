//! The state of a flow that comes with each [`Event`](crate::Event), and the decision that is the answer. Both serve the algorithms here,
//! which decide at each event, and controllers outside, which decide less often.

use base::Instant;

/// State of a flow at an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signals {
    /// Time of the event.
    pub now: Instant,
    /// Bytes newly acknowledged; 0 when the event is no acknowledgement.
    pub acked_bytes: u32,
    /// The part of `acked_bytes` with an echo of congestion: exact for peers of DCTCP, all or nothing for others.
    pub marked_bytes: u32,
    /// Bytes in flight after the event.
    pub in_flight: u32,
    /// Most bytes in flight in the last round trip, including the bytes acknowledged now.
    pub flight_max: u32,
    /// A new sample of the round-trip time, microseconds, if there is one.
    pub rtt_us: Option<u32>,
    /// The smoothed round-trip time, microseconds; 0 before the first.
    pub srtt_us: u32,
    /// The least round-trip time known, microseconds; `u32::MAX` before the first.
    pub min_rtt_us: u32,
    /// Bytes per second that arrived at the peer in the round trip measured last; 0 before the first.
    pub delivery_rate: u64,
    /// Bytes retransmitted since the flow began.
    pub lost_bytes_total: u64,
    /// The application had less to send than the window allowed.
    pub is_app_limited: bool,
}

impl Signals {
    /// Signals with the time only.
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

/// Values that the fast path enforces from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Congestion window: most bytes in flight.
    pub cwnd: u32,
    /// Most bytes per second; 0: no pacing.
    pub pace_rate: u64,
    /// The window was reduced because congestion was echoed: the next new segment carries CWR (RFC 3168 section 6.1.2).
    pub is_echo_answered: bool,
}
