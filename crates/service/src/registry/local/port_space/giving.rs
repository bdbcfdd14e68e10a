//! Ports that the service holds and that programs want to bind themselves: the service gives them back to the kernel, wholly or at all
//! addresses but those at which connections need them.

use super::{Kept, PortSpace, Sort};
use crate::registry::local::port_need::For;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Instant;

const PURPOSES: [For; 3] = [For::Plain, For::Reusing, For::Lent];
/// Most addresses at which one port is held instead of all.
const ADDRESSES_MOST: usize = 16;
/// Most ports and addresses that are held so, with those of closed listeners. The service looks at each of them in each sweep.
const NARROW_MOST: usize = 256;

/// The families (true: IPv6) at which a socket bound to `ip` needs its port. One that is bound to `::` may take connections of both.
fn families(ip: IpAddr) -> impl Iterator<Item = bool> {
    let is_anywhere = ip == IpAddr::from(Ipv6Addr::UNSPECIFIED);
    [false, true].into_iter().filter(move |is_ipv6| is_anywhere || *is_ipv6 == ip.is_ipv6())
}

impl PortSpace {
    /// A program wants to bind a socket to `at`, and the kernel says that the port is in use. Gives it back to the kernel where the service
    /// holds it for no connection that needs it there. The needs are noted. True: the program may try again.
    pub fn give_back(&mut self, at: SocketAddr, now: Instant) -> bool {
        let port = at.port();
        let mut is_given = self.release_kept(Some(port), now);
        for is_ipv6 in families(at.ip()) {
            let needed = self.needed_by_connectors(is_ipv6, port, now);
            is_given |= match needed.is_empty() {
                true => self.give_whole(is_ipv6, |held| held == port),
                // As on Linux a wildcard address stands for each address.
                false if at.ip().is_unspecified() || needed.contains(&at.ip()) => false,
                false => self.narrow(is_ipv6, port, &needed),
            };
        }
        is_given
    }

    /// A program wants to bind a socket to any port at `ip`, and the kernel has none. Gives all ports back to the kernel that no connection
    /// needs. The needs are noted. True: there were some.
    pub fn give_any_back(&mut self, ip: IpAddr, now: Instant) -> bool {
        let mut is_given = self.release_kept(None, now);
        for is_ipv6 in families(ip) {
            let connected =
                self.taken.iter().filter(|(_, taken)| !taken.is_given_back && taken.needs(0, now));
            let connected = connected.map(|(ends, _)| ends[0]).filter(|at| at.is_ipv6() == is_ipv6);
            let mut needed: HashSet<u16> = connected.map(|at| at.port()).collect();
            let resting = self.connectors.iter().filter(|((six, _), _)| *six == is_ipv6);
            let resting = resting.filter(|(_, rests)| rests.values().any(|until| now < *until));
            needed.extend(resting.map(|((_, port), _)| *port));
            is_given |= self.give_whole(is_ipv6, |held| !needed.contains(&held));
        }
        is_given
    }

    /// Gives those ports of a family back to the kernel, at all addresses. True: there were some.
    fn give_whole(&mut self, is_ipv6: bool, is_given: impl Fn(u16) -> bool) -> bool {
        let mut given = HashSet::new();
        for purpose in PURPOSES {
            let pool = &mut self.pools[Sort { is_ipv6, purpose }.index()];
            let before = given.len();
            given.extend(pool.held.iter().map(|held| held.port).filter(|port| is_given(*port)));
            if given.len() > before {
                pool.held.retain(|held| !given.contains(&held.port));
                pool.next = 0;
            }
        }
        // What is left of these connections is the acceptor's end.
        let its = self.taken.iter_mut().filter(|([at, _], _)| at.is_ipv6() == is_ipv6 && is_given(at.port()));
        its.for_each(|(_, taken)| taken.is_given_back = true);
        !given.is_empty()
    }

    /// Holds a port at those addresses only, instead of all addresses of the family. False: it is not held at all, or another socket has it
    /// at one of them.
    fn narrow(&mut self, is_ipv6: bool, port: u16, needed: &HashSet<IpAddr>) -> bool {
        if needed.len() > ADDRESSES_MOST || self.kept.len() + needed.len() > NARROW_MOST {
            return false;
        }
        for purpose in PURPOSES {
            let pool = &mut self.pools[Sort { is_ipv6, purpose }.index()];
            let Some(index) = pool.held.iter().position(|held| held.port == port) else { continue };
            // Both at once while both have SO_REUSEADDR: so no other program gets the port in between.
            let reuses = purpose == For::Reusing;
            let held = &pool.held[index];
            let is_shared = held.share(true);
            let beside = needed.iter().map_while(|ip| Kept::beside(SocketAddr::new(*ip, port), reuses));
            let narrow: Vec<Kept> = beside.collect();
            if !is_shared || narrow.len() < needed.len() {
                held.share(reuses);
                return false;
            }
            pool.held.remove(index);
            pool.next = 0;
            self.kept.extend(narrow);
            return true;
        }
        false
    }

    /// The addresses at which connectors need that port of a family. The needs are noted.
    pub(super) fn needed_by_connectors(&self, is_ipv6: bool, port: u16, now: Instant) -> HashSet<IpAddr> {
        let is_it = |at: &SocketAddr| at.port() == port && at.is_ipv6() == is_ipv6;
        let taken = self
            .taken
            .iter()
            .filter(|(ends, taken)| is_it(&ends[0]) && !taken.is_given_back && taken.needs(0, now));
        let resting = self.connectors.get(&(is_ipv6, port)).into_iter().flatten();
        let resting = resting.filter(|(_, until)| now < **until);
        taken.map(|(ends, _)| ends[0].ip()).chain(resting.map(|(ip, _)| *ip)).collect()
    }
}
