//! Routes: a destination is on the link of one of our own addresses, or reached through a gateway. Static.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One of our addresses, with the prefix of its link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnAddress {
    /// IP address of ours.
    pub addr: IpAddr,
    /// Length of the prefix in bits: all addresses with this prefix are on the link.
    pub prefix_len: u8,
}

impl OwnAddress {
    /// True when `other` lies in the prefix.
    #[must_use]
    pub fn covers(&self, other: IpAddr) -> bool {
        match (self.addr, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()) & mask_v4(self.prefix_len) == 0,
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()) & mask_v6(self.prefix_len) == 0,
            _ => false,
        }
    }

    /// True for the IPv4 network and broadcast addresses of the prefix, which no host has (RFC 1122 section 3.2.1.3).
    fn is_broadcast(&self, other: IpAddr) -> bool {
        match other {
            IpAddr::V4(v4) if self.prefix_len < 31 && self.covers(other) => {
                let host = v4.to_bits() & !mask_v4(self.prefix_len);
                host == 0 || host == !mask_v4(self.prefix_len)
            }
            _ => false,
        }
    }
}

/// The route to a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Our address to use as source, unless the socket is bound to another.
    pub source: IpAddr,
    /// The neighbour to which the packet is sent.
    pub next_hop: IpAddr,
}

/// Our addresses and gateways, from which routes follow.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    own: Vec<OwnAddress>,
    gateway_v4: Option<Ipv4Addr>,
    gateway_v6: Option<Ipv6Addr>,
}

impl Routes {
    /// Makes a table; the first address of each family is the preferred source through its gateway.
    #[must_use]
    pub fn new(own: Vec<OwnAddress>, gateway_v4: Option<Ipv4Addr>, gateway_v6: Option<Ipv6Addr>) -> Self {
        Self { own, gateway_v4, gateway_v6 }
    }

    /// Adds an address of ours; if it exists already it keeps its place and gets the new prefix.
    pub fn add(&mut self, address: OwnAddress) {
        match self.own.iter_mut().find(|own| own.addr == address.addr) {
            Some(own) => *own = address,
            None => self.own.push(address),
        }
    }

    /// Our addresses, in order of preference.
    #[must_use]
    pub fn own(&self) -> &[OwnAddress] {
        &self.own
    }

    /// True when `addr` is one of ours.
    #[must_use]
    pub fn owns(&self, addr: IpAddr) -> bool {
        self.own.iter().any(|own| own.addr == addr)
    }

    /// True for addresses that name a group of hosts on our links.
    #[must_use]
    pub fn is_group(&self, addr: IpAddr) -> bool {
        let is_limited = matches!(addr, IpAddr::V4(v4) if v4.is_broadcast());
        addr.is_multicast() || is_limited || self.own.iter().any(|own| own.is_broadcast(addr))
    }

    /// The route to `dst`: on the link with the longest prefix that covers it, else through the gateway of its family.
    #[must_use]
    pub fn lookup(&self, dst: IpAddr) -> Option<Route> {
        if dst.is_unspecified() || dst.is_loopback() || self.is_group(dst) {
            return None;
        }
        let on_link = self.own.iter().filter(|own| own.covers(dst)).max_by_key(|own| own.prefix_len);
        if let Some(own) = on_link {
            return Some(Route { source: own.addr, next_hop: dst });
        }
        let next_hop = match dst {
            IpAddr::V4(_) => self.gateway_v4.map(IpAddr::V4),
            IpAddr::V6(_) => self.gateway_v6.map(IpAddr::V6),
        }?;
        let reaches = |own: &&OwnAddress| own.covers(next_hop);
        let family = |own: &&OwnAddress| own.addr.is_ipv4() == dst.is_ipv4();
        let own = self.own.iter().find(reaches).or_else(|| self.own.iter().find(family))?;
        Some(Route { source: own.addr, next_hop })
    }
}

fn mask_v4(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0)
}

fn mask_v6(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len.min(128))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn routes() -> Routes {
        let own = [("10.0.0.2", 24), ("10.0.0.130", 25), ("fd00::2", 64)];
        let own = own.map(|(addr, prefix_len)| OwnAddress { addr: ip(addr), prefix_len });
        Routes::new(own.to_vec(), Some("10.0.0.1".parse().unwrap()), None)
    }

    #[test]
    fn longest_prefix_then_gateway_then_nothing() {
        let way = |dst| routes().lookup(ip(dst)).map(|r| (r.source, r.next_hop));
        assert_eq!(way("10.0.0.9"), Some((ip("10.0.0.2"), ip("10.0.0.9"))));
        assert_eq!(way("10.0.0.200"), Some((ip("10.0.0.130"), ip("10.0.0.200"))));
        assert_eq!(way("192.0.2.1"), Some((ip("10.0.0.2"), ip("10.0.0.1"))));
        assert_eq!(way("fd00::77"), Some((ip("fd00::2"), ip("fd00::77"))));
        assert_eq!(way("2001:db8::1"), None);
    }

    #[test]
    fn address_that_is_added_is_owned_and_reaches_its_link() {
        let mut routes = Routes::default();
        assert_eq!(routes.lookup(ip("10.0.0.9")), None);
        routes.add(OwnAddress { addr: ip("10.0.0.2"), prefix_len: 32 });
        routes.add(OwnAddress { addr: ip("10.0.0.2"), prefix_len: 24 });
        assert_eq!(routes.own().len(), 1);
        assert_eq!(routes.lookup(ip("10.0.0.9")).map(|r| r.source), Some(ip("10.0.0.2")));
    }

    #[test]
    fn groups_have_no_route() {
        for dst in ["10.0.0.255", "10.0.0.0", "224.0.0.1", "255.255.255.255", "ff02::1", "127.0.0.1", "::"] {
            assert_eq!(routes().lookup(ip(dst)), None, "{dst}");
        }
        assert!(routes().owns(ip("fd00::2")) && !routes().owns(ip("10.0.0.1")));
    }

    #[test]
    fn prefix_of_zero_covers_everything() {
        let own = OwnAddress { addr: ip("10.0.0.2"), prefix_len: 0 };
        assert!(own.covers(ip("203.0.113.1")) && !own.covers(ip("fd00::1")));
    }
}
