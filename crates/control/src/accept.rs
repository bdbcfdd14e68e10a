//! What an accept queue's grant is: the connection behind its number. The service writes it into `shm::GrantTable`.
//!
//! ```text
//!   word 0  region u32 | slot u32        word 1  side u8 | 1 | - u16 | local port u16 | peer port u16
//!   word 2, 3  local address             word 4, 5  peer address (control/src/address.rs)
//! ```

use crate::address::{address_from_words, address_to_words};
use shm::RECORD_WORDS;
use std::net::SocketAddr;

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

/// Set in word 1 of each record: a place that was never written is no record.
const PRESENT: u64 = 1 << 8;

impl AcceptRecord {
    /// Encodes the record as the words of its place in the table.
    #[must_use]
    pub fn to_words(&self) -> [u64; RECORD_WORDS] {
        let ([a, b], [c, d]) = (address_to_words(self.local.ip()), address_to_words(self.peer.ip()));
        let ports = u64::from(self.local.port()) << 32 | u64::from(self.peer.port()) << 48;
        let place = u64::from(self.region) | u64::from(self.slot) << 32;
        [place, u64::from(self.side) | PRESENT | ports, a, b, c, d]
    }

    /// Decodes a record; `None` if there is none.
    #[must_use]
    pub fn from_words([place, rest, a, b, c, d]: [u64; RECORD_WORDS]) -> Option<Self> {
        (rest & PRESENT != 0).then(|| Self {
            region: place as u32,
            slot: (place >> 32) as u32,
            side: rest as u8,
            local: SocketAddr::new(address_from_words([a, b]), (rest >> 32) as u16),
            peer: SocketAddr::new(address_from_words([c, d]), (rest >> 48) as u16),
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
