//! The capabilities of a port: sizes, addresses and offloads.

use crate::{Checksum, GsoKind, PacketBuf};
use base::limits::FRAME_MAX;

/// Length of the Ethernet header without and with one VLAN tag, bytes.
const LINK_HEADER_MIN: usize = 14;
const LINK_HEADER_MAX: usize = 18;

/// The capabilities of a port; constant for its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Bytes of the largest IP packet on the link, without the Ethernet header.
    pub mtu: u16,
    /// Our Ethernet address on this link.
    pub mac: [u8; 6],
    /// Frames with [`Checksum::Partial`](crate::Checksum::Partial) may be sent.
    pub tx_checksum: bool,
    /// Received frames may have the state `Valid` or `Partial`; without this capability all are `Unknown`.
    pub rx_checksum: bool,
    /// Super-frames of TCP over IPv4 may be sent (their checksum is always `Partial`).
    pub tso_v4: bool,
    /// Super-frames of TCP over IPv6 may be sent.
    pub tso_v6: bool,
    /// Super-frames with CWR set may be sent.
    pub tso_ecn: bool,
    /// Bytes of the longest frame that may be sent, headers included: more than `mtu` and the Ethernet header only with TSO.
    pub frame_max: usize,
    /// The port sends payload from where it lies ([`Port::commit_with`](crate::Port::commit_with)), without a copy.
    pub gathers: bool,
    /// Queues of the whole interface, each with a [`Port`](crate::Port) of its own.
    pub queues: u16,
    /// The port spreads flows over the queues so that a flow stays on one.
    pub rss: bool,
}

impl Capabilities {
    /// A plain link with one queue and without offloads.
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
            frame_max: mtu as usize + LINK_HEADER_MAX,
            gathers: false,
            queues: 1,
            rss: false,
        }
    }

    /// The same link with checksum offload in both directions.
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

    /// True when the frame may be sent: its length fits, and it needs no offload that the port lacks or that contradicts the frame.
    #[must_use]
    #[inline(always)]
    pub fn admits(&self, packet: &PacketBuf) -> bool {
        self.admits_with(packet, 0)
    }

    /// As [`admits`](Self::admits), for a frame that continues with `more` bytes outside the buffer.
    #[must_use]
    #[inline(always)]
    pub fn admits_with(&self, packet: &PacketBuf, more: usize) -> bool {
        let len = packet.len() + more;
        let is_checksum_good = match packet.meta.checksum {
            Checksum::Partial { start, offset } => {
                self.tx_checksum && usize::from(start) + usize::from(offset) + 2 <= len
            }
            Checksum::Unknown | Checksum::Valid => true,
        };
        let wire_max = usize::from(self.mtu) + LINK_HEADER_MAX;
        is_checksum_good
            && LINK_HEADER_MIN <= len
            && match packet.meta.gso {
                None => len <= wire_max,
                Some(gso) => {
                    let has_kind = match gso.kind {
                        GsoKind::TcpV4 => self.tso_v4,
                        GsoKind::TcpV6 => self.tso_v6,
                    };
                    has_kind
                        && (self.tso_ecn || !gso.ecn)
                        && matches!(packet.meta.checksum, Checksum::Partial { .. })
                        && 0 < gso.segment_size
                        && usize::from(gso.header_len) < len
                        && usize::from(gso.header_len) + usize::from(gso.segment_size) <= wire_max
                        && len <= self.frame_max
                }
            }
    }
}

#[cfg(test)]
mod tests {
    use super::Capabilities;
    use crate::fixture::{super_frame, tcp};
    use crate::{Checksum, complete_checksum};

    #[test]
    fn only_offloads_that_the_port_has_are_admitted() {
        let plain = Capabilities::plain(1500, [2, 0, 0, 0, 0, 1]);
        let mut frame = tcp(true, 0x10, 1, 0, &[0; 1460]);
        assert!(plain.with_checksum().admits(&frame) && !plain.admits(&frame));
        assert!(complete_checksum(&mut frame) && plain.admits(&frame));
        frame.meta.checksum = Checksum::Partial { start: 1500, offset: 16 };
        assert!(!plain.with_checksum().admits(&frame));

        let big = super_frame(tcp(false, 0x10, 1, 0, &[0; 9000]), 1440);
        assert!(plain.with_tso().admits(&big) && !plain.with_checksum().admits(&big));
        assert!(!plain.with_tso().admits(&super_frame(tcp(false, 0x10, 1, 0, &[0; 9000]), 1460)));
        assert!(!plain.with_tso().admits(&tcp(false, 0x10, 1, 0, &[0; 1500])));
    }
}
