//! Addresses and ports of connections inside this host. No two connections have the same ends; a connector that is bound to no port gets
//! one. To an address of the service's own that is any port of Linux's default range, which only the service manages. To an address of the
//! kernel's it is a port that a socket of the service holds in the kernel, so that no other program gets it. Each held port serves all
//! destinations of its sort: the service holds as many as one destination needs at once.

use crate::listen::table::Origin;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

/// The default of Linux's `net.ipv4.ip_local_port_range`.
const RANGE: RangeInclusive<u16> = 32_768..=60_999;
/// Fewest ports held, once one is needed, and most ports added at once.
const STEP: (usize, usize) = (32, 256);

/// The two ends of a connection: the connector's address and the acceptor's.
pub type Ends = [SocketAddr; 2];

/// The sort of a held port: what the socket that holds it has in common with the sockets of the connectors that use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sort {
    /// Held at the host's IPv6 addresses; false: at its IPv4 addresses.
    pub is_ipv6: bool,
    /// `SO_REUSEADDR` is set: another socket with the option may be bound to the port.
    pub reuses: bool,
}

impl Sort {
    const fn index(self) -> usize {
        self.is_ipv6 as usize * 2 + self.reuses as usize
    }
}

/// A port that a socket holds in the kernel.
#[derive(Debug)]
struct Held {
    port: u16,
    _socket: OwnedFd,
}

/// The held ports of one sort.
#[derive(Debug, Default)]
struct Pool {
    held: Vec<Held>,
    /// Index of the port that the next search begins with.
    next: usize,
}

/// The ends in use, and their connections. An ended connection is removed later: when its ends are wanted, or after each pass over the
/// ports.
#[derive(Debug)]
pub struct PortSpace {
    next_own: u16,
    /// One pool for each sort of addresses, at [`Sort::index`].
    pools: [Pool; 4],
    taken: HashMap<Ends, Origin>,
}

impl Default for PortSpace {
    fn default() -> Self {
        Self { next_own: *RANGE.start(), pools: Default::default(), taken: HashMap::new() }
    }
}

impl PortSpace {
    /// The next port of `local`, an address of the service's own, that no connection to `remote` uses and that is not reserved. `None`: all
    /// are in use.
    pub fn find_own(
        &mut self,
        local: IpAddr,
        remote: SocketAddr,
        is_live: impl Fn(&Ends, Origin) -> bool,
        is_reserved: impl Fn(SocketAddr) -> bool,
    ) -> Option<u16> {
        for _ in RANGE {
            let at = SocketAddr::new(local, self.next_own);
            self.next_own = if self.next_own >= *RANGE.end() { *RANGE.start() } else { self.next_own + 1 };
            if self.next_own == *RANGE.start() {
                self.forget_ended(&is_live);
            }
            if self.is_free(&[at, remote], &is_live) && !is_reserved(at) {
                return Some(at.port());
            }
        }
        None
    }

    /// The next held port of that sort with which `local`, an address of the kernel's, has no connection to `remote`. `None`: all are in use.
    pub fn find_held(
        &mut self,
        sort: Sort,
        local: IpAddr,
        remote: SocketAddr,
        is_live: impl Fn(&Ends, Origin) -> bool,
    ) -> Option<u16> {
        for _ in 0..self.pools[sort.index()].held.len() {
            let pool = &mut self.pools[sort.index()];
            let at = SocketAddr::new(local, pool.held[pool.next].port);
            pool.next = (pool.next + 1) % pool.held.len();
            if pool.next == 0 {
                self.forget_ended(&is_live);
            }
            if self.is_free(&[at, remote], &is_live) {
                return Some(at.port());
            }
        }
        None
    }

    fn is_free(&self, ends: &Ends, is_live: impl Fn(&Ends, Origin) -> bool) -> bool {
        self.taken.get(ends).is_none_or(|origin| !is_live(ends, *origin))
    }

    fn forget_ended(&mut self, is_live: impl Fn(&Ends, Origin) -> bool) {
        self.taken.retain(|ends, origin| is_live(ends, *origin));
    }

    /// Holds as many more ports of that sort as are held now, within `STEP`; the next search begins with them. False: the kernel gives none.
    pub fn hold_more(&mut self, sort: Sort) -> bool {
        let pool = &mut self.pools[sort.index()];
        let wanted = pool.held.len().clamp(STEP.0, STEP.1);
        let new: Vec<Held> = (0..wanted).map_while(|_| hold(sort)).collect();
        let is_more = !new.is_empty();
        if is_more {
            pool.next = pool.held.len();
            pool.held.extend(new);
        }
        is_more
    }

    /// Gives ports back to the kernel when connections use less than a quarter of a sort.
    pub fn release(&mut self, is_live: impl Fn(&Ends, Origin) -> bool) {
        if self.pools.iter().all(|pool| pool.held.len() <= STEP.0) {
            return;
        }
        self.forget_ended(is_live);
        let used: HashSet<u16> = self.taken.keys().map(|[at, _]| at.port()).collect();
        self.pools.iter_mut().for_each(|pool| pool.release(&used));
    }

    /// The connection that was last recorded with these ends.
    pub fn user(&self, ends: &Ends) -> Option<Origin> {
        self.taken.get(ends).copied()
    }

    /// Records that `origin` uses these ends.
    pub fn take(&mut self, ends: Ends, origin: Origin) {
        self.taken.insert(ends, origin);
    }
}

impl Pool {
    fn release(&mut self, used: &HashSet<u16>) {
        let in_use = self.held.iter().filter(|held| used.contains(&held.port)).count();
        if self.held.len() <= STEP.0 || in_use * 4 >= self.held.len() {
            return;
        }
        let mut spare = self.held.len() - (in_use * 2).max(STEP.0);
        self.held.retain(|held| {
            let goes = spare > 0 && !used.contains(&held.port);
            spare -= usize::from(goes);
            !goes
        });
        self.next = 0;
    }
}

/// Has the kernel choose a port and holds it, at all addresses of the family.
fn hold(sort: Sort) -> Option<Held> {
    let any: (AddressFamily, IpAddr) = if sort.is_ipv6 {
        (AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into())
    } else {
        (AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into())
    };
    let socket = socket_with(any.0, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()?;
    if sort.is_ipv6 {
        sockopt::set_ipv6_v6only(&socket, true).ok()?;
    }
    bind(&socket, &SocketAddr::new(any.1, 0)).ok()?;
    // Only now: with the option the kernel would choose ports that other sockets have, too.
    sockopt::set_socket_reuseaddr(&socket, sort.reuses).ok()?;
    let at = SocketAddr::try_from(getsockname(&socket).ok()?).ok()?;
    Some(Held { port: at.port(), _socket: socket })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_with_the_same_peer_is_skipped_in_the_next_round() {
        let (a, b): (SocketAddr, SocketAddr) =
            ("10.9.0.2:80".parse().unwrap(), "10.9.0.2:81".parse().unwrap());
        let mut ports = PortSpace::default();
        let held = ports.find_own(a.ip(), a, |_, _| true, |_| false).unwrap();
        ports.take([SocketAddr::new(a.ip(), held), a], Origin::Pair(1, 1));
        let reserved = |at: SocketAddr| at.port() == 40_000;
        for _ in 0..60_000 {
            let port = ports.find_own(a.ip(), a, |_, origin| origin == Origin::Pair(1, 1), reserved).unwrap();
            assert!(port != held && port != 40_000 && RANGE.contains(&port));
            ports.take([SocketAddr::new(a.ip(), port), a], Origin::Pair(2, 2));
        }
        assert!(ports.taken.len() <= RANGE.len(), "what has ended is forgotten");
        let mut others = (0..RANGE.len()).filter_map(|_| ports.find_own(a.ip(), b, |_, _| true, |_| false));
        assert!(others.any(|port| port == held), "another peer's connections do not matter");
    }

    #[test]
    fn a_port_is_held_at_the_addresses_of_one_family() {
        let is_taken = |ip: IpAddr, port: u16| std::net::TcpListener::bind((ip, port)).is_err();
        for (own, other) in [("127.0.0.1", "::1"), ("::1", "127.0.0.1")] {
            let [own, other]: [IpAddr; 2] = [own, other].map(|ip| ip.parse().unwrap());
            let mut ports = PortSpace::default();
            let [sort, other_sort] = [own, other].map(|ip| Sort { is_ipv6: ip.is_ipv6(), reuses: false });
            assert!(ports.hold_more(sort));
            let port = ports.find_held(sort, own, SocketAddr::new(own, 80), |_, _| true).unwrap();
            assert!(is_taken(own, port));
            // Another program may have some of these ports.
            assert!(ports.pools[sort.index()].held.iter().any(|held| !is_taken(other, held.port)));
            assert_eq!(ports.find_held(other_sort, other, SocketAddr::new(other, 80), |_, _| true), None);
        }
    }

    #[test]
    fn a_port_is_shared_where_both_sockets_reuse_addresses() {
        let local: IpAddr = "127.0.0.1".parse().unwrap();
        let mut ports = PortSpace::default();
        for held_reuses in [false, true] {
            let sort = Sort { is_ipv6: false, reuses: held_reuses };
            assert!(ports.hold_more(sort));
            let port = ports.find_held(sort, local, SocketAddr::new(local, 80), |_, _| true).unwrap();
            for reuses in [false, true] {
                let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
                let socket = socket.unwrap();
                sockopt::set_socket_reuseaddr(&socket, reuses).unwrap();
                let is_bound = bind(&socket, &SocketAddr::new(local, port)).is_ok();
                assert_eq!(is_bound, held_reuses && reuses, "held {held_reuses}, bound {reuses}");
            }
        }
    }

    #[test]
    fn all_ports_in_use_is_said() {
        let a: SocketAddr = "10.9.0.2:80".parse().unwrap();
        let mut ports = PortSpace::default();
        for port in RANGE {
            ports.take([SocketAddr::new(a.ip(), port), a], Origin::Relay(1));
        }
        assert_eq!(ports.find_own(a.ip(), a, |_, _| true, |_| false), None);
        assert!(ports.find_own(a.ip(), a, |_, _| false, |_| false).is_some());
    }

    #[test]
    fn held_ports_serve_every_destination_and_go_back_to_the_kernel() {
        let local: IpAddr = "127.0.0.1".parse().unwrap();
        let [a, b]: [SocketAddr; 2] = ["127.0.0.1:80", "127.0.0.1:81"].map(|at| at.parse().unwrap());
        let mut ports = PortSpace::default();
        let sort = Sort { is_ipv6: false, reuses: false };
        for to in [a, b] {
            for _ in 0..STEP.0 * 4 {
                let port = ports.find_held(sort, local, to, |_, _| true).or_else(|| {
                    assert!(ports.hold_more(sort));
                    ports.find_held(sort, local, to, |_, _| true)
                });
                let port = port.unwrap();
                assert!(ports.user(&[SocketAddr::new(local, port), to]).is_none());
                ports.take([SocketAddr::new(local, port), to], Origin::Relay(1));
            }
        }
        let port = ports.pools[sort.index()].held[0].port;
        assert_eq!(ports.pools[sort.index()].held.len(), STEP.0 * 4, "the second destination needed no more");
        assert!(std::net::TcpListener::bind(("127.0.0.1", port)).is_err(), "the kernel gives it to no other");
        ports.release(|_, _| true);
        assert_eq!(ports.pools[sort.index()].held.len(), STEP.0 * 4);
        ports.release(|_, _| false);
        assert_eq!(ports.pools[sort.index()].held.len(), STEP.0, "what nothing needs goes at once");
    }
}
