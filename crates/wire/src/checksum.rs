//! The internet checksum (RFC 1071): sums in native byte order, eight bytes at a time, folded once at the end.
//!
//! A [`Sum`] is a partial result that can be passed on: the pseudo header's to a port that offloads the rest, a header's to
//! the sum of its payload, an old checksum's to the one after a field has changed (RFC 1624).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::IpProtocol;

/// A partial one's-complement sum.
///
/// Kept below 2^34, so that adding any slice that fits in memory cannot overflow it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum over no bytes.
    pub const ZERO: Self = Self(0);

    /// Adds `bytes`, which begin at an even offset of the summed data; an odd last byte counts as padded with zero.
    #[must_use]
    #[inline]
    pub fn add_bytes(self, bytes: &[u8]) -> Self {
        Self(reduce(self.0 + native_sum(bytes)))
    }

    /// Adds a 16-bit field (given in host order).
    #[must_use]
    #[inline]
    pub const fn add_u16(self, value: u16) -> Self {
        Self(reduce(self.0 + value.to_be() as u64))
    }

    /// Adds a 32-bit field (given in host order).
    #[must_use]
    #[inline]
    pub const fn add_u32(self, value: u32) -> Self {
        Self(reduce(self.0 + value.to_be() as u64))
    }

    /// Adds the sum of another block that begins at an even offset.
    #[must_use]
    #[inline]
    pub const fn add(self, other: Self) -> Self {
        Self(reduce(self.0 + other.0))
    }

    /// Adds the sum of a block that begins `offset` bytes after this one. This joins the two parts of a ring that wraps at an
    /// odd place (RFC 1071 section 2 (B), byte order independence).
    #[must_use]
    #[inline]
    pub const fn add_at(self, offset: usize, other: Self) -> Self {
        if offset & 1 == 0 {
            self.add(other)
        } else {
            Self(reduce(self.0 + fold(other.0).swap_bytes() as u64))
        }
    }

    /// The 16-bit sum, not complemented: the value of the checksum field for a port with checksum offload.
    #[must_use]
    #[inline]
    pub const fn partial(self) -> u16 {
        u16::from_be(fold(self.0))
    }

    /// The 16-bit checksum: the complement of the sum.
    #[must_use]
    #[inline]
    pub const fn finish(self) -> u16 {
        !self.partial()
    }

    /// True when the sum over data *including* its checksum field shows that the data is intact.
    #[must_use]
    #[inline]
    pub const fn is_valid(self) -> bool {
        fold(self.0) == 0xFFFF
    }
}

/// The internet checksum of `bytes`.
#[must_use]
#[inline]
pub fn of(bytes: &[u8]) -> u16 {
    Sum::ZERO.add_bytes(bytes).finish()
}

/// The sum of the pseudo header of an upper-layer packet of `len` bytes over IPv4 (RFC 9293 section 3.1).
#[must_use]
#[inline]
pub fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: IpProtocol, len: u16) -> Sum {
    let addresses = native_u32(src.octets()) + native_u32(dst.octets());
    Sum(addresses).add_u32((u32::from(protocol.0) << 16) | u32::from(len))
}

/// The sum of the pseudo header of an upper-layer packet of `len` bytes over IPv6 (RFC 8200 section 8.1).
#[must_use]
#[inline]
pub fn pseudo_v6(src: &Ipv6Addr, dst: &Ipv6Addr, protocol: IpProtocol, len: u32) -> Sum {
    Sum::ZERO.add_bytes(&src.octets()).add_bytes(&dst.octets()).add_u32(len).add_u32(u32::from(protocol.0))
}

/// The sum of the pseudo header for either family. `None` when the families differ or `len` does not fit.
#[must_use]
#[inline]
pub fn pseudo(src: IpAddr, dst: IpAddr, protocol: IpProtocol, len: usize) -> Option<Sum> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Some(pseudo_v4(src, dst, protocol, u16::try_from(len).ok()?)),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Some(pseudo_v6(&src, &dst, protocol, u32::try_from(len).ok()?)),
        _ => None,
    }
}

/// True when `packet`, an upper-layer packet with its checksum in place, is intact; `pseudo` is its pseudo header's sum.
#[must_use]
#[inline]
pub fn verify(pseudo: Sum, packet: &[u8]) -> bool {
    pseudo.add_bytes(packet).is_valid()
}

/// Computes the checksum over `pseudo` and `packet` and writes it at `offset` (16 for TCP, 2 for ICMP).
/// Returns false and writes nothing when the field lies outside `packet`.
#[must_use]
#[inline]
pub fn fill(pseudo: Sum, packet: &mut [u8], offset: usize) -> bool {
    if !write(packet, offset, 0) {
        return false;
    }
    let checksum = pseudo.add_bytes(packet).finish();
    write(packet, offset, checksum)
}

/// Writes the partial sum of `pseudo` at `offset`, for a port that sums the packet itself.
/// Returns false and writes nothing when the field lies outside `packet`.
#[must_use]
#[inline]
pub fn fill_partial(pseudo: Sum, packet: &mut [u8], offset: usize) -> bool {
    write(packet, offset, pseudo.partial())
}

/// The checksum after a 16-bit field changed from `old` to `new` (RFC 1624 equation 3: HC' = ~(~HC + ~m + m')).
#[must_use]
#[inline]
pub const fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::ZERO.add_u16(!checksum).add_u16(!old).add_u16(new).finish()
}

/// The checksum after a 32-bit field at an even offset changed from `old` to `new`.
#[must_use]
#[inline]
pub const fn update_u32(checksum: u16, old: u32, new: u32) -> u16 {
    Sum::ZERO.add_u16(!checksum).add_u32(!old).add_u32(new).finish()
}

#[inline]
fn write(packet: &mut [u8], offset: usize, value: u16) -> bool {
    match packet.get_mut(offset..).and_then(|rest| rest.first_chunk_mut::<2>()) {
        Some(field) => {
            *field = value.to_be_bytes();
            true
        }
        None => false,
    }
}

/// Adds the halves of `sum`. The value modulo 2^16 - 1 stays the same, because 2^32 is 1 modulo 2^16 - 1.
#[inline]
const fn reduce(sum: u64) -> u64 {
    (sum & 0xFFFF_FFFF) + (sum >> 32)
}

#[inline]
const fn fold(sum: u64) -> u16 {
    let sum = reduce(reduce(sum));
    let sum = (sum & 0xFFFF) + ((sum >> 16) & 0xFFFF) + (sum >> 32);
    let sum = (sum & 0xFFFF) + (sum >> 16);
    ((sum & 0xFFFF) + (sum >> 16)) as u16
}

#[inline]
const fn native_u32(octets: [u8; 4]) -> u64 {
    u32::from_ne_bytes(octets) as u64
}

/// The sum of both halves of an eight-byte word: at most 2^33, so 2^31 words (16 GiB) fit into the accumulator.
#[inline]
fn halves(word: &[u8; 8]) -> u64 {
    let word = u64::from_ne_bytes(*word);
    (word & 0xFFFF_FFFF) + (word >> 32)
}

/// The sum of `bytes` as 16-bit words of the machine's own byte order.
#[inline]
fn native_sum(bytes: &[u8]) -> u64 {
    let mut sum = 0u64;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        sum += word.first_chunk::<8>().map_or(0, halves);
    }
    let mut rest = words.remainder();
    if let Some((four, tail)) = rest.split_first_chunk::<4>() {
        sum += native_u32(*four);
        rest = tail;
    }
    if let Some((two, tail)) = rest.split_first_chunk::<2>() {
        sum += u64::from(u16::from_ne_bytes(*two));
        rest = tail;
    }
    if let [last] = rest {
        sum += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    reduce(sum)
}

#[cfg(test)]
mod tests;
