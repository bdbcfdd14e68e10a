//! The Internet checksum (RFC 1071), and its completion in software where a port or a wrapper must do what was left to it.

use crate::headers::{Layout, write};
use crate::packet::{Checksum, PacketBuf};

/// The sum of `bytes` as big-endian 16-bit words, the last one padded with zero, added to `sum`.
pub(crate) fn add(mut sum: u64, bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(4);
    let mut last = [0; 4];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    sum += u64::from(u32::from_be_bytes(last));
    // A 32-bit word is two 16-bit words to a sum that is folded modulo 2^16 - 1 in the end.
    words.fold(sum, |sum, word| sum + u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]])))
}

/// The sum folded to 16 bits, not complemented.
pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

/// The sum of the TCP pseudo-header of `frame` (RFC 9293 section 3.1, RFC 8200 section 8.1).
pub(crate) fn pseudo_header(frame: &[u8], layout: &Layout) -> u64 {
    let addresses = if layout.v4 { layout.ip + 12..layout.ip + 20 } else { layout.ip + 8..layout.ip + 40 };
    add(6 + (frame.len() - layout.tcp) as u64, &frame[addresses])
}

/// Does in software what [`Checksum::Partial`] leaves to the port. False, and unchanged, when the offsets do not lie within
/// the frame.
pub fn complete_checksum(packet: &mut PacketBuf) -> bool {
    let Checksum::Partial { start, offset } = packet.meta.checksum else { return true };
    let (start, field) = (usize::from(start), usize::from(start) + usize::from(offset));
    if packet.len() < field + 2 {
        return false;
    }
    let sum = fold(add(0, &packet.frame()[start..]));
    write(packet.frame_mut(), field, &(!sum).to_be_bytes());
    packet.meta.checksum = Checksum::Unknown;
    true
}
