//! What a port can do for the fast path.

use base::limits::FRAME_MAX;

/// What a port can do; constant for the life of the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Bytes of the largest IP packet on the link, Ethernet header not counted.
    pub mtu: u16,
    /// Our Ethernet address on this link.
    pub mac: [u8; 6],
    /// Frames may be sent with [`Checksum::Partial`](crate::Checksum::Partial).
    pub tx_checksum: bool,
    /// Received frames may come as `Valid` or `Partial`; without it all are `Unknown`.
    pub rx_checksum: bool,
    /// Super-frames of TCP over IPv4 may be sent (their checksum is always `Partial`).
    pub tso_v4: bool,
    /// Super-frames of TCP over IPv6 may be sent.
    pub tso_v6: bool,
    /// Super-frames with CWR set may be sent.
    pub tso_ecn: bool,
    /// Longest frame that may be sent, headers included: more than `mtu` and 14 only with TSO.
    pub frame_max: usize,
    /// Queues of the whole interface; one [`Port`](crate::Port) each.
    pub queues: u16,
    /// The port spreads flows over the queues so that a flow stays on one.
    pub rss: bool,
}

impl Capabilities {
    /// A plain single-queue link without offloads.
    #[must_use]
    pub const fn plain(mtu: u16, mac: [u8; 6]) -> Self {
        Self {
            mtu,
            mac,
            tx_checksum: false,
            rx_checksum: false,
            tso_v4: false,
            tso_v6: false,
            tso_ecn: false,
            frame_max: mtu as usize + 18,
            queues: 1,
            rss: false,
        }
    }

    /// The same link with checksum offload both ways.
    #[must_use]
    pub const fn with_checksum(self) -> Self {
        Self { tx_checksum: true, rx_checksum: true, ..self }
    }

    /// The same link with checksum and TCP segmentation offload.
    #[must_use]
    pub const fn with_tso(self) -> Self {
        let tso = Self { tso_v4: true, tso_v6: true, tso_ecn: true, frame_max: FRAME_MAX, ..self };
        tso.with_checksum()
    }
}
