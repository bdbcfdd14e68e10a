//! Local ports: which listeners and connections hold them, and the choice of ephemeral ones (RFC 6056).
//!
//! The space is that of our own addresses; addresses shared with the kernel are reserved there by the service first.

use crate::isn::{Purpose, Secret};
use std::ops::RangeInclusive;
use wire::FourTuple;

/// Counters of algorithm 4: as many as RFC 6056 suggests.
const COUNTERS: usize = 16;

/// Ports looked at before one in TIME-WAIT will do. When most are, all of them would be looked at for every connect: 28,000 look-ups,
/// 4 ms each time.
const LOOKS: usize = 64;

/// What a port is good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Nobody has it.
    Free,
    /// Its last connection to the same place is in TIME-WAIT and may be given up.
    Spare,
    /// Somebody has it.
    Taken,
}

/// Chooses ephemeral ports: RFC 6056's algorithm 4, double-hash selection.
#[derive(Debug)]
pub struct EphemeralPorts {
    range: RangeInclusive<u16>,
    counters: [u16; COUNTERS],
}

impl EphemeralPorts {
    /// Ports of `range`; the whole upper half of the port space when `range` is empty or holds port 0.
    #[must_use]
    pub fn new(range: RangeInclusive<u16>) -> Self {
        let is_good = *range.start() > 0 && range.start() <= range.end();
        Self { range: if is_good { range } else { 32_768..=60_999 }, counters: [0; COUNTERS] }
    }

    /// A port for the connection `tuple` (its source port is not read), as `standing` knows them: a spare one only when no free one
    /// is near, or none at all.
    ///
    /// Where the search starts depends on the peer by a secret, and advances by one for each connection of the same group: a port is reused as
    /// late as possible, and nobody outside can tell the next.
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
