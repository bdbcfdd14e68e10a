//! Local ports of connections from one of the service's own addresses to another on this host: no kernel socket reserves
//! them, so the service keeps account itself.

use crate::listeners::Origin;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

/// Linux's default `ip_local_port_range`.
const RANGE: RangeInclusive<u16> = 32_768..=60_999;

/// The connector's address and the acceptor's.
pub type Ends = [SocketAddr; 2];

/// Which ends are in use by which connection. What has ended is not taken out at once: it is found out when it is in the
/// way, and once in every round.
#[derive(Debug)]
pub struct OwnPorts {
    next: u16,
    taken: HashMap<Ends, Origin>,
}

impl Default for OwnPorts {
    fn default() -> Self {
        Self { next: *RANGE.start(), taken: HashMap::new() }
    }
}

impl OwnPorts {
    /// The next port of `local` that no connection to `remote` uses and that is not `reserved`. `None`: all are in use.
    pub fn find(
        &mut self,
        local: IpAddr,
        remote: SocketAddr,
        is_live: impl Fn(&Ends, Origin) -> bool,
        is_reserved: impl Fn(SocketAddr) -> bool,
    ) -> Option<u16> {
        for _ in RANGE {
            let at = SocketAddr::new(local, self.next);
            self.next = if self.next >= *RANGE.end() { *RANGE.start() } else { self.next + 1 };
            if self.next == *RANGE.start() {
                self.taken.retain(|ends, origin| is_live(ends, *origin));
            }
            let is_free = |origin: &Origin| !is_live(&[at, remote], *origin);
            if self.taken.get(&[at, remote]).is_none_or(is_free) && !is_reserved(at) {
                return Some(at.port());
            }
        }
        None
    }

    /// The connection that was last known to use these ends.
    pub fn user(&self, ends: &Ends) -> Option<Origin> {
        self.taken.get(ends).copied()
    }

    /// These ends are in use now.
    pub fn take(&mut self, ends: Ends, origin: Origin) {
        self.taken.insert(ends, origin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_with_the_same_peer_is_skipped_in_the_next_round() {
        let (a, b): (SocketAddr, SocketAddr) =
            ("10.9.0.2:80".parse().unwrap(), "10.9.0.2:81".parse().unwrap());
        let mut ports = OwnPorts::default();
        let held = ports.find(a.ip(), a, |_, _| true, |_| false).unwrap();
        ports.take([SocketAddr::new(a.ip(), held), a], Origin::Pair(1, 1));
        let reserved = |at: SocketAddr| at.port() == 40_000;
        for _ in 0..60_000 {
            let port = ports.find(a.ip(), a, |_, origin| origin == Origin::Pair(1, 1), reserved).unwrap();
            assert!(port != held && port != 40_000 && RANGE.contains(&port));
            ports.take([SocketAddr::new(a.ip(), port), a], Origin::Pair(2, 2));
        }
        assert!(ports.taken.len() <= RANGE.len(), "what has ended is forgotten");
        let mut others = (0..RANGE.len()).filter_map(|_| ports.find(a.ip(), b, |_, _| true, |_| false));
        assert!(others.any(|port| port == held), "another peer's connections do not matter");
    }

    #[test]
    fn all_ports_in_use_is_said() {
        let a: SocketAddr = "10.9.0.2:80".parse().unwrap();
        let mut ports = OwnPorts::default();
        for port in RANGE {
            ports.take([SocketAddr::new(a.ip(), port), a], Origin::Relay(1));
        }
        assert_eq!(ports.find(a.ip(), a, |_, _| true, |_| false), None);
        assert!(ports.find(a.ip(), a, |_, _| false, |_| false).is_some());
    }
}
