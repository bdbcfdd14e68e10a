//! What an accept queue's grant is: the connection behind its number. The service writes it into `shm::GrantTable`.
//!
//! ```text
//!   word 0  region u32 | slot u32        word 1  side u8 | family u8 (4, 6) | - u16 | local port u16 | peer port u16
//!   word 2, 3  local address             word 4, 5  peer address                      little endian, ports too
//! ```

use shm::RECORD_WORDS;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

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

fn words(bytes: [u8; 16]) -> [u64; 2] {
    let value = u128::from_le_bytes(bytes);
    [value as u64, (value >> 64) as u64]
}

const fn bytes(words: [u64; 2]) -> [u8; 16] {
    (words[0] as u128 | (words[1] as u128) << 64).to_le_bytes()
}

impl AcceptRecord {
    /// Encodes the record. Both addresses must be of the same family.
    #[must_use]
    pub fn to_words(&self) -> [u64; RECORD_WORDS] {
        let (family, local) = address(self.local.ip());
        let (_, peer) = address(self.peer.ip());
        let ([a, b], [c, d]) = (words(local), words(peer));
        let ports = u64::from(self.local.port()) << 32 | u64::from(self.peer.port()) << 48;
        let place = u64::from(self.region) | u64::from(self.slot) << 32;
        [place, u64::from(self.side) | u64::from(family) << 8 | ports, a, b, c, d]
    }

    /// Decodes a record; `None` if the family byte is neither 4 nor 6.
    #[must_use]
    pub fn from_words([place, rest, a, b, c, d]: [u64; RECORD_WORDS]) -> Option<Self> {
        let family = (rest >> 8) as u8;
        Some(Self {
            region: place as u32,
            slot: (place >> 32) as u32,
            side: rest as u8,
            local: SocketAddr::new(ip(family, bytes([a, b]))?, (rest >> 32) as u16),
            peer: SocketAddr::new(ip(family, bytes([c, d]))?, (rest >> 48) as u16),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_words() {
        for (local, peer) in [("127.0.0.1:80", "10.1.2.3:65535"), ("[::1]:8080", "[fe80::1]:1")] {
            let r = AcceptRecord {
                region: u32::MAX - 7,
                slot: 65_535,
                side: 1,
                local: local.parse().unwrap(),
                peer: peer.parse().unwrap(),
            };
            assert_eq!(AcceptRecord::from_words(r.to_words()), Some(r));
        }
        assert_eq!(AcceptRecord::from_words([0; RECORD_WORDS]), None);
    }
}
