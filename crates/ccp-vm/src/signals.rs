//! Signals of congestion: the 14 of the CCP paper's Table 2 and the bytes pending. Plain sums of one batch of acknowledgements.

use crate::register::{INFINITY, PRIMITIVES};

/// The signals by their register index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Primitive {
    /// The register of `Ack.bytes_acked`.
    BytesAcked = 0,
    /// The register of `Ack.bytes_misordered`.
    BytesMisordered = 1,
    /// The register of `Ack.ecn_bytes`.
    EcnBytes = 2,
    /// The register of `Ack.ecn_packets`.
    EcnPackets = 3,
    /// The register of `Ack.lost_pkts_sample`.
    LostPackets = 4,
    /// The register of `Ack.now`.
    Now = 5,
    /// The register of `Ack.packets_acked`.
    PacketsAcked = 6,
    /// The register of `Ack.packets_misordered`.
    PacketsMisordered = 7,
    /// The register of `Flow.bytes_in_flight`.
    BytesInFlight = 8,
    /// The register of `Flow.bytes_pending`.
    BytesPending = 9,
    /// The register of `Flow.packets_in_flight`.
    PacketsInFlight = 10,
    /// The register of `Flow.rate_incoming`.
    RateIncoming = 11,
    /// The register of `Flow.rate_outgoing`.
    RateOutgoing = 12,
    /// The register of `Flow.rtt_sample_us`.
    RttSample = 13,
    /// The register of `Flow.was_timeout`.
    WasTimeout = 14,
}

impl Primitive {
    /// All signals with their names in the language, in the order of their indices.
    pub const NAMES: [(&'static str, Self); PRIMITIVES] = [
        ("Ack.bytes_acked", Self::BytesAcked),
        ("Ack.bytes_misordered", Self::BytesMisordered),
        ("Ack.ecn_bytes", Self::EcnBytes),
        ("Ack.ecn_packets", Self::EcnPackets),
        ("Ack.lost_pkts_sample", Self::LostPackets),
        ("Ack.now", Self::Now),
        ("Ack.packets_acked", Self::PacketsAcked),
        ("Ack.packets_misordered", Self::PacketsMisordered),
        ("Flow.bytes_in_flight", Self::BytesInFlight),
        ("Flow.bytes_pending", Self::BytesPending),
        ("Flow.packets_in_flight", Self::PacketsInFlight),
        ("Flow.rate_incoming", Self::RateIncoming),
        ("Flow.rate_outgoing", Self::RateOutgoing),
        ("Flow.rtt_sample_us", Self::RttSample),
        ("Flow.was_timeout", Self::WasTimeout),
    ];

    /// The name of the signal in the language.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }
}

/// A set of signals, a bit for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reads(u16);

impl Reads {
    /// The set of these signals.
    #[must_use]
    pub const fn of(signals: &[Primitive]) -> Self {
        let (mut all, mut i) = (Self(0), 0);
        while i < signals.len() {
            all = all.with(signals[i]);
            i += 1;
        }
        all
    }

    /// The set with `signal` added.
    #[must_use]
    pub const fn with(self, signal: Primitive) -> Self {
        Self(self.0 | 1 << signal as u16)
    }

    /// True if at least one signal is in both sets.
    #[must_use]
    #[inline]
    pub const fn has_any(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// The state of a flow since its program ran last. `Default` is a batch in which nothing happened.
///
/// The fields lie in the order of the registers, so that a run copies them by a few wide moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Signals {
    /// Bytes by which the cumulative acknowledgement advanced.
    pub bytes_acked: u64,
    /// Bytes acknowledged out of order (newly selectively acknowledged).
    pub bytes_misordered: u64,
    /// Acknowledged bytes of which the peer said that they were marked by ECN.
    pub ecn_bytes: u64,
    /// Segments in `ecn_bytes`, rounded likewise.
    pub ecn_packets: u64,
    /// Segments found lost since the last run.
    pub lost_packets: u64,
    /// Microseconds since the datapath began.
    pub now_us: u64,
    /// Segments in `bytes_acked`, rounded as the datapath says.
    pub packets_acked: u64,
    /// Segments in `bytes_misordered`, rounded likewise.
    pub packets_misordered: u64,
    /// Bytes sent, not acknowledged and not found lost (RFC 6675, pipe).
    pub bytes_in_flight: u64,
    /// Bytes that the application has written and that were never sent.
    pub bytes_pending: u64,
    /// Segments in `bytes_in_flight`, rounded likewise.
    pub packets_in_flight: u64,
    /// The rate at which they arrived, bytes per second; 0: no sample.
    pub rate_incoming: u64,
    /// The rate at which the sampled bytes were sent, bytes per second; 0: no sample.
    pub rate_outgoing: u64,
    /// A sample of the round-trip time, microseconds; 0: no sample.
    pub rtt_us: u64,
    /// A retransmission timeout happened.
    pub was_timeout: bool,
}

impl Signals {
    /// Adds what one more acknowledgement (or loss, or timeout) says: bytes and counts are sums, of the round-trip times the least counts,
    /// the timeout stays, all else is as in `newer`. A rate without a sample in `newer` keeps the earlier sample.
    pub fn merge(&mut self, newer: &Self) {
        let sums = [
            (&mut self.bytes_acked, newer.bytes_acked),
            (&mut self.packets_acked, newer.packets_acked),
            (&mut self.bytes_misordered, newer.bytes_misordered),
            (&mut self.packets_misordered, newer.packets_misordered),
            (&mut self.ecn_bytes, newer.ecn_bytes),
            (&mut self.ecn_packets, newer.ecn_packets),
            (&mut self.lost_packets, newer.lost_packets),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
        self.was_timeout |= newer.was_timeout;
        if newer.rtt_us != 0 && (self.rtt_us == 0 || newer.rtt_us < self.rtt_us) {
            self.rtt_us = newer.rtt_us;
        }
        for (rate, sample) in
            [(&mut self.rate_outgoing, newer.rate_outgoing), (&mut self.rate_incoming, newer.rate_incoming)]
        {
            if sample != 0 {
                *rate = sample;
            }
        }
        self.now_us = newer.now_us;
        self.bytes_in_flight = newer.bytes_in_flight;
        self.packets_in_flight = newer.packets_in_flight;
        self.bytes_pending = newer.bytes_pending;
    }

    /// The values of the primitive registers, by [`Primitive`]. A round-trip time without a sample reads as [`INFINITY`].
    #[must_use]
    #[inline]
    pub fn registers(&self) -> [u64; PRIMITIVES] {
        [
            self.bytes_acked,
            self.bytes_misordered,
            self.ecn_bytes,
            self.ecn_packets,
            self.lost_packets,
            self.now_us,
            self.packets_acked,
            self.packets_misordered,
            self.bytes_in_flight,
            self.bytes_pending,
            self.packets_in_flight,
            self.rate_incoming,
            self.rate_outgoing,
            if self.rtt_us == 0 { INFINITY } else { self.rtt_us },
            u64::from(self.was_timeout),
        ]
    }
}
