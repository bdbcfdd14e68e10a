//! Ephemeral local ports and their choice (RFC 6056).
//!
//! The ports are those of our own addresses; of addresses shared with the kernel the service reserves them there first.

use crate::isn::{Purpose, Secret};
use std::ops::RangeInclusive;
use wire::FourTuple;

/// Number of counters of algorithm 4: as many as RFC 6056 suggests.
const COUNTERS: usize = 16;

/// Ports tried before one in TIME-WAIT is taken. Without this bound, when most ports are in TIME-WAIT, every connect would try all of
/// them: 28,000 look-ups, 4 ms.
const LOOKS: usize = 64;

/// Whether a port may be used for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// No connection or listener uses the port.
    Free,
    /// The port's last connection to the same peer is in TIME-WAIT and may be replaced.
    Spare,
    /// A connection or listener uses the port.
    Taken,
}

/// Chooses ephemeral ports: RFC 6056's algorithm 4, double-hash selection.
#[derive(Debug)]
pub struct EphemeralPorts {
    range: RangeInclusive<u16>,
    counters: [u16; COUNTERS],
}

impl EphemeralPorts {
    /// Chooses from `range`; from Linux's range 32768 to 60999 when `range` is empty or holds port 0.
    #[must_use]
    pub fn new(range: RangeInclusive<u16>) -> Self {
        let is_good = *range.start() > 0 && range.start() <= range.end();
        Self { range: if is_good { range } else { 32_768..=60_999 }, counters: [0; COUNTERS] }
    }

    /// Chooses a port for the connection `tuple` (its source port is ignored). `standing` tells whether a port may be used. A port in
    /// TIME-WAIT is chosen only if no free one is found among the first `LOOKS`, or none at all.
    ///
    /// The search starts at a secret function of the peer's address, and one further for each connection of the same group: a port is
    /// reused as late as possible, and other hosts cannot predict the next.
    pub fn pick(
        &mut self,
        secret: &Secret,
        tuple: &FourTuple,
        mut standing: impl FnMut(u16) -> Standing,
    ) -> Option<u16> {
        let mut tuple = *tuple;
        tuple.src.port = 0;
        let hash = secret.hash(Purpose::Port, &tuple, true);
        let counter = &mut self.counters[(hash >> 32) as usize % COUNTERS];
        let (first, count) = (u32::from(*self.range.start()), self.range.len() as u32);
        let mut spare = None;
        for looks in 0..count as usize {
            if LOOKS <= looks && spare.is_some() {
                break;
            }
            let at = (hash as u32).wrapping_add(u32::from(*counter)) % count;
            *counter = counter.wrapping_add(1);
            let port = (first + at) as u16;
            match standing(port) {
                Standing::Free => return Some(port),
                Standing::Spare => spare = spare.or(Some(port)),
                Standing::Taken => {}
            }
        }
        spare
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::net::IpAddr;
    use wire::Endpoint;

    fn to(last: u8) -> FourTuple {
        let end = |a: [u8; 4], p| Endpoint::new(IpAddr::from(a), p);
        FourTuple::new(end([10, 0, 0, 2], 0), end([10, 0, 0, last], 80))
    }

    fn free_if(is_free: bool) -> Standing {
        if is_free { Standing::Free } else { Standing::Taken }
    }

    #[test]
    fn every_port_is_found_before_giving_up() {
        let (mut ports, secret) = (EphemeralPorts::new(40_000..=40_099), Secret::new([1; 16]));
        let mut used = HashSet::new();
        for _ in 0..100 {
            let port = ports.pick(&secret, &to(1), |p| free_if(!used.contains(&p))).unwrap();
            assert!((40_000..=40_099).contains(&port) && used.insert(port));
        }
        assert_eq!(ports.pick(&secret, &to(1), |p| free_if(!used.contains(&p))), None);
    }

    #[test]
    fn the_start_depends_on_peer_and_secret() {
        let first = |key, last| {
            EphemeralPorts::new(1024..=65_535).pick(&Secret::new([key; 16]), &to(last), |_| Standing::Free)
        };
        assert_ne!(first(1, 1), first(2, 1));
        assert_ne!(first(1, 1), first(1, 2));
    }

    #[test]
    fn a_spare_port_will_do_when_no_free_one_is_near() {
        let (mut ports, secret) = (EphemeralPorts::new(10_000..=60_000), Secret::new([1; 16]));
        let mut looks = 0;
        let all_spare = |_| {
            looks += 1;
            Standing::Spare
        };
        assert!(ports.pick(&secret, &to(1), all_spare).is_some() && looks <= LOOKS);
        let mut seen = 0;
        let third_free = |_| {
            seen += 1;
            if seen == 3 { Standing::Free } else { Standing::Spare }
        };
        assert!(ports.pick(&secret, &to(1), third_free).is_some() && seen == 3);
        let one_spare = |p| if p == 30_000 { Standing::Spare } else { Standing::Taken };
        assert_eq!(ports.pick(&secret, &to(1), one_spare), Some(30_000));
    }
}
