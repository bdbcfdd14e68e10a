//! Addresses of a flow; those of an IPv6 flow are in a third cache line.

use crate::{ReceiveLine, SendLine, state};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::{Endpoint, FourTuple};

/// Both IPv6 addresses of a flow; not used for IPv4.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses {
    /// IPv6 address of the peer.
    pub peer: [u8; 16],
    /// IPv6 address of our end.
    pub local: [u8; 16],
}

impl Addresses {
    /// The flow's tuple in the direction of packets we send.
    #[must_use]
    #[inline]
    pub fn tuple(&self, rx: &ReceiveLine, tx: &SendLine) -> FourTuple {
        let (local, peer) = if rx.has(state::V6) {
            (IpAddr::V6(Ipv6Addr::from(self.local)), IpAddr::V6(Ipv6Addr::from(self.peer)))
        } else {
            (IpAddr::V4(Ipv4Addr::from(tx.local_v4)), IpAddr::V4(Ipv4Addr::from(tx.peer_v4)))
        };
        FourTuple::new(Endpoint::new(local, tx.local_port), Endpoint::new(peer, tx.peer_port))
    }

    /// True when a received packet of `tuple` belongs to the flow.
    #[must_use]
    #[inline]
    pub fn matches(&self, rx: &ReceiveLine, tx: &SendLine, tuple: &FourTuple) -> bool {
        let ports = tx.peer_port == tuple.src.port && tx.local_port == tuple.dst.port;
        ports
            && match (tuple.src.addr, tuple.dst.addr) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => {
                    !rx.has(state::V6) && src.octets() == tx.peer_v4 && dst.octets() == tx.local_v4
                }
                (IpAddr::V6(src), IpAddr::V6(dst)) => {
                    rx.has(state::V6) && src.octets() == self.peer && dst.octets() == self.local
                }
                _ => false,
            }
    }
}
