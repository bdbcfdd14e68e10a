//! What a service decides once for all its flows.

use base::Duration;
use std::net::IpAddr;

/// Limits and switches of fast and slow path.
#[derive(Clone, Debug)]
pub struct Config {
    /// Flow records: established connections at most.
    pub flows: u32,
    /// Application regions at most.
    pub regions: u16,
    /// Slots of each ring between a core and the slow path; a power of two. Half of them are for SYNs: as many as there are half-open
    /// connections (`slowpath::Config::half_open_max`), so that a burst waits here until it is answered, by cookies if need be.
    pub ring_slots: usize,
    /// Our addresses, as far as they are known at start: a core drops what belongs to no flow and goes to another. None: the slow path
    /// alone knows them.
    pub addresses: Vec<IpAddr>,
    /// Offer and accept selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Offer and accept timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offer and accept window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Offer and accept congestion notification (RFC 3168).
    pub ecn: bool,
    /// Hops that a segment may take, IPv4's TTL: "The TTL value used to send TCP segments MUST be configurable" (RFC 9293 section
    /// 3.9.2); 64 as Linux.
    pub hop_limit: u8,
    /// How long an acknowledgement may wait for data to carry it: 40 ms as Linux; RFC 9293 allows 500 ms.
    pub delayed_ack: Duration,
    /// The first receive window and the size of the first large ring, a power of two.
    pub receive_buffer_initial: u32,
    /// The largest receive window and ring, a power of two up to `RING_MAX`.
    pub receive_buffer_max: u32,
    /// The first bound of what an application may have unacknowledged or unsent, bytes; it grows with the congestion window (Linux's
    /// `tcp_wmem`). 0: no bound but the application's memory.
    pub send_buffer_initial: u32,
    /// How far it grows.
    pub send_buffer_max: u32,
    /// What a retransmission timeout is longer than the smoothed round trip, at least: 200 ms as Linux.
    pub rto_min: Duration,
    /// Largest retransmission timeout: RFC 6298 section 2.5 wants at least 60 s; Linux has 120 s.
    pub rto_max: Duration,
    /// The window shrinks while a flow pauses (RFC 5681 section 4.1, RFC 2861): Linux's `tcp_slow_start_after_idle`.
    pub slow_start_after_idle: bool,
    /// Probe for the loss of a tail (RFC 8985 section 7): Linux's `tcp_early_retrans`.
    pub tail_probes: bool,
    /// Segments that a super-frame may always hold, however slow the flow: Linux's `tcp_min_tso_segs`.
    pub burst_segments_min: u16,
    /// How long an emptied ring stays with its flow before it goes back to the pool.
    pub ring_linger: Duration,
}

// SETUP: read when the service starts.
impl Default for Config {
    fn default() -> Self {
        Self {
            flows: 65_536,
            regions: 1024,
            ring_slots: 32_768,
            addresses: Vec::new(),
            sack: true,
            timestamps: true,
            window_scaling: true,
            ecn: false,
            hop_limit: 64,
            delayed_ack: Duration::from_ms(40),
            receive_buffer_initial: 64 << 10,
            receive_buffer_max: base::limits::RING_MAX_DEFAULT,
            send_buffer_initial: 0,
            send_buffer_max: base::limits::RING_MAX_DEFAULT,
            rto_min: Duration::from_ms(200),
            rto_max: Duration::from_secs(120),
            slow_start_after_idle: true,
            tail_probes: true,
            burst_segments_min: 2,
            ring_linger: Duration::from_ms(10),
        }
    }
}

impl Config {
    /// The window shift to offer (RFC 7323 section 2.2): the least with which the largest buffer fits in 16 bits.
    #[must_use]
    pub const fn window_shift(&self) -> u8 {
        let mut shift = 0;
        while shift < 14 && (self.receive_buffer_max >> shift) > 0xFFFF {
            shift += 1;
        }
        shift
    }
}
