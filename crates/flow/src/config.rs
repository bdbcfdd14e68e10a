//! Settings that a service fixes once for all its flows.

use base::Duration;
use congestion::RateSettings;
use std::net::IpAddr;

/// Limits and switches of the fast and slow path.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of flow records: most established connections.
    pub flows: u32,
    /// Most application regions.
    pub regions: u16,
    /// Largest number of loss records of each core, which flows with many holes or long windows borrow: at most so many flows at a time have
    /// all of that recorded.
    pub loss_records: u16,
    /// Slots of each ring between a core and the slow path; a power of two. Half of them may be used for SYNs: as many as
    /// `slowpath::Config::half_open_max`, so that a burst of SYNs waits in the ring until it is answered, by cookies if necessary.
    pub ring_slots: usize,
    /// Our addresses, if known at start: a core then drops packets of no flow that are addressed to other hosts. Empty: only the slow
    /// path knows our addresses.
    pub addresses: Vec<IpAddr>,
    /// Offer and accept selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Offer and accept timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offer and accept window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Offer and accept explicit congestion notification (RFC 3168).
    pub ecn: bool,
    /// Where ECN is offered or accepted, offer and accept accurate ECN (RFC 9768), too.
    pub accurate_ecn: bool,
    /// Hop limit of our segments, IPv4's TTL: "The TTL value used to send TCP segments MUST be configurable" (RFC 9293 section
    /// 3.9.2); 64 as Linux.
    pub hop_limit: u8,
    /// How long an acknowledgement may wait for data to carry it: 40 ms as Linux; RFC 9293 allows 500 ms.
    pub delayed_ack: Duration,
    /// Bytes of the first receive window and of the first large ring, a power of two.
    pub receive_buffer_initial: u32,
    /// Bytes of the largest receive window and ring, a power of two up to `RING_MAX`.
    pub receive_buffer_max: u32,
    /// First bound of the bytes that an application may have unacknowledged or unsent; it grows with the congestion window (Linux's
    /// `tcp_wmem`). 0: no bound but the application's memory.
    pub send_buffer_initial: u32,
    /// Bytes: largest bound of the send buffer.
    pub send_buffer_max: u32,
    /// Least time by which the retransmission timeout exceeds the smoothed round trip: 200 ms as Linux.
    pub rto_min: Duration,
    /// Largest retransmission timeout: RFC 6298 section 2.5 wants at least 60 s; Linux has 120 s.
    pub rto_max: Duration,
    /// Reduce the congestion window after a pause of the flow (RFC 5681 section 4.1, RFC 2861): Linux's `tcp_slow_start_after_idle`.
    pub slow_start_after_idle: bool,
    /// Send tail loss probes (RFC 8985 section 7): Linux's `tcp_early_retrans`.
    pub tail_probes: bool,
    /// Segments that a super-frame may hold at least, however slow the flow is: Linux's `tcp_min_tso_segs`.
    pub burst_segments_min: u16,
    /// Time for which an empty ring stays with its flow before it goes back to the pool.
    pub ring_linger: Duration,
    /// Run a flow's program, and send what it admits, after each acknowledgement instead of once for each batch.
    pub runs_each_ack: bool,
    /// Settings of the congestion control laws that decide a rate, for new flows.
    pub rates: RateSettings,
}

// SETUP: read when the service starts.
impl Default for Config {
    fn default() -> Self {
        Self {
            flows: 65_536,
            regions: 1024,
            loss_records: 512,
            ring_slots: 32_768,
            addresses: Vec::new(),
            sack: true,
            timestamps: true,
            window_scaling: true,
            ecn: false,
            accurate_ecn: false,
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
            runs_each_ack: false,
            rates: RateSettings::default(),
        }
    }
}

impl Config {
    /// The window shift to offer (RFC 7323 section 2.2): the smallest with which the largest buffer fits in 16 bits.
    #[must_use]
    pub const fn window_shift(&self) -> u8 {
        let mut shift = 0;
        while shift < 14 && (self.receive_buffer_max >> shift) > 0xFFFF {
            shift += 1;
        }
        shift
    }
}
