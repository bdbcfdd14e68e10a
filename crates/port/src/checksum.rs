//! Completes in software the checksums that were left to a port.

use crate::headers::{Layout, write};
use crate::packet::{Checksum, PacketBuf};
use wire::checksum::Sum;

/// The sum of the TCP pseudo-header of `frame` (RFC 9293 section 3.1, RFC 8200 section 8.1).
pub(crate) fn pseudo_header(frame: &[u8], layout: &Layout) -> Sum {
    let addresses = if layout.v4 { layout.ip + 12..layout.ip + 20 } else { layout.ip + 8..layout.ip + 40 };
    Sum::ZERO.add_bytes(&frame[addresses]).add_u16(6).add_u32((frame.len() - layout.tcp) as u32)
}

/// Computes the checksum that [`Checksum::Partial`] leaves to the port. Returns false and changes nothing when the offsets do not lie
/// within the frame.
pub fn complete_checksum(packet: &mut PacketBuf) -> bool {
    let Checksum::Partial { start, offset } = packet.meta.checksum else { return true };
    let (start, field) = (usize::from(start), usize::from(start) + usize::from(offset));
    if packet.len() < field + 2 {
        return false;
    }
    let sum = Sum::ZERO.add_bytes(&packet.frame()[start..]).finish();
    write(packet.frame_mut(), field, &sum.to_be_bytes());
    packet.meta.checksum = Checksum::Unknown;
    true
}
