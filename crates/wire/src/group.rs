//! The group of a TCP flow: 8 bits of its addresses and ports. A port's steering program computes it as this function does, so it uses only
//! what a classic BPF program can: exclusive or, one multiplication, one shift. It is no secret: a sender that fills one group with its flows
//! slows down one core. The flow table's own hash is keyed.

use crate::FourTuple;
use core::net::IpAddr;

/// Number of groups: what 8 bits can tell apart.
pub const GROUPS: usize = 256;
/// 2^32 divided by the golden ratio, odd: neighbouring ports come to different groups (Knuth, volume 3, section 6.4).
pub const GROUP_FACTOR: u32 = 0x9E37_79B1;

impl FourTuple {
    /// The group of this flow, the same for both directions.
    #[must_use]
    pub fn group(&self) -> u8 {
        let fold = |addr: IpAddr| match addr {
            IpAddr::V4(addr) => u32::from(addr),
            IpAddr::V6(addr) => {
                let bits = u128::from(addr);
                (bits >> 96) as u32 ^ (bits >> 64) as u32 ^ (bits >> 32) as u32 ^ bits as u32
            }
        };
        let ports = u32::from(self.src.port ^ self.dst.port);
        let folded = fold(self.src.addr) ^ fold(self.dst.addr) ^ ports;
        (folded.wrapping_mul(GROUP_FACTOR) >> 24) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Endpoint;

    #[test]
    fn both_directions_have_one_group_and_neighbouring_ports_spread() {
        for local in ["10.0.0.1", "fd00::1"] {
            let peer: IpAddr = if local.contains(':') { "fd00::2" } else { "10.0.0.2" }.parse().unwrap();
            let mut counts = [0u32; GROUPS];
            for port in 32_768..=60_999 {
                let tuple =
                    FourTuple::new(Endpoint::new(local.parse().unwrap(), 80), Endpoint::new(peer, port));
                assert_eq!(tuple.group(), tuple.reversed().group());
                counts[usize::from(tuple.group())] += 1;
            }
            let mean = 28_232 / GROUPS as u32;
            assert!(counts.iter().all(|n| (mean / 2..2 * mean).contains(n)), "{counts:?}");
        }
    }
}
