//! The record of one accepted connection. The service writes it into the listener's stream; a connector writes it into a direct queue
//! ("line").
//!
//! ```text
//!   0 region u32 | 4 slot u32 | 8 side u8 | 9 family u8 (4, 6) | 10 - u16 | 12 local port u16 | 14 peer port u16
//!   16 local address 16 bytes | 32 peer address 16 bytes | 48 time u64 | 56 line u32 | 60 -      little endian, ports too
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Length of a record in bytes; a listener's ring holds a whole number of records.
pub const RECORD_LEN: usize = 64;

/// A connection waiting to be accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AcceptRecord {
    /// Id of the region in which the connection lies.
    pub region: u32,
    /// Slot of the connection in that region.
    pub slot: u32,
    /// The acceptor's side of the region: 0 or 1.
    pub side: u8,
    /// Address and port of the accepting end.
    pub local: SocketAddr,
    /// Address and port of the connecting end.
    pub peer: SocketAddr,
    /// Arrival time, nanoseconds of the monotonic clock. With several queues, the record with the smallest time is accepted first.
    pub time: u64,
    /// 1 + the slot of a new line: the stream into which the connector writes the records of its further connections to this listener. 0:
    /// no new line.
    pub line: u32,
}

fn address(ip: IpAddr) -> (u8, [u8; 16]) {
    match ip {
        IpAddr::V4(a) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&a.octets());
            (4, bytes)
        }
        IpAddr::V6(a) => (6, a.octets()),
    }
}

fn ip(family: u8, bytes: [u8; 16]) -> Option<IpAddr> {
    match family {
        4 => Some(IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]))),
        6 => Some(IpAddr::V6(Ipv6Addr::from(bytes))),
        _ => None,
    }
}

impl AcceptRecord {
    /// Encodes the record. Both addresses must be of the same family.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; RECORD_LEN] {
        let mut b = [0; RECORD_LEN];
        let (family, local) = address(self.local.ip());
        let (_, peer) = address(self.peer.ip());
        b[0..4].copy_from_slice(&self.region.to_le_bytes());
        b[4..8].copy_from_slice(&self.slot.to_le_bytes());
        b[8] = self.side;
        b[9] = family;
        b[12..14].copy_from_slice(&self.local.port().to_le_bytes());
        b[14..16].copy_from_slice(&self.peer.port().to_le_bytes());
        b[16..32].copy_from_slice(&local);
        b[32..48].copy_from_slice(&peer);
        b[48..56].copy_from_slice(&self.time.to_le_bytes());
        b[56..60].copy_from_slice(&self.line.to_le_bytes());
        b
    }

    /// Decodes a record; `None` if the family byte is neither 4 nor 6.
    #[must_use]
    pub fn from_bytes(b: &[u8; RECORD_LEN]) -> Option<Self> {
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let u16_at = |i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
        let bytes_at = |i: usize| <[u8; 16]>::try_from(&b[i..i + 16]).ok();
        Some(Self {
            region: u32_at(0),
            slot: u32_at(4),
            side: b[8],
            local: SocketAddr::new(ip(b[9], bytes_at(16)?)?, u16_at(12)),
            peer: SocketAddr::new(ip(b[9], bytes_at(32)?)?, u16_at(14)),
            time: u64::from(u32_at(48)) | u64::from(u32_at(52)) << 32,
            line: u32_at(56),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_bytes() {
        for (local, peer) in [("127.0.0.1:80", "10.1.2.3:65535"), ("[::1]:8080", "[fe80::1]:1")] {
            let r = AcceptRecord {
                region: 7,
                slot: 65_535,
                side: 1,
                local: local.parse().unwrap(),
                peer: peer.parse().unwrap(),
                time: u64::MAX - 5,
                line: 65_536,
            };
            assert_eq!(AcceptRecord::from_bytes(&r.to_bytes()), Some(r));
        }
        assert_eq!(AcceptRecord::from_bytes(&[0; RECORD_LEN]), None);
    }
}
