//! Connecting inside this host: chooses the listener, decides between shared memory and relay, and sets the connection up.

pub(crate) mod connection;
pub(crate) mod cork_timer;
pub(crate) mod holds;
pub(crate) mod judge;
pub(crate) mod port_claims;
pub(crate) mod port_need;
pub(crate) mod port_space;
pub(crate) mod shown;

use crate::config::Sharing;
use crate::config::values::PortKind;
use crate::registry::application::Application;
use crate::registry::family::Family;
use crate::registry::listen::direct::{InUse, Lending};
use crate::registry::listen::origin::Origin;
use crate::registry::listen::table::canonical;
use crate::registry::local::port_need::For;
use crate::registry::local::port_space::{Ends, Sort};
use crate::registry::local::shown::Shown;
use crate::registry::memory::connection::{Connection, Relay, Stage};
use crate::registry::memory::pairs::{PairRegion, Pairs};
use crate::registry::tcp::any_like;
use crate::registry::{Answer, Registry};
use control::{AcceptRecord, KernelReason, RegionInfo, Reply, SocketOptions};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use shm::Side;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Descriptors of a pair region: its memfd, and an eventfd for each side that wakes the core that relays.
const PAIR: usize = 3;

/// The real destination of a connection to `remote`: Linux takes the unspecified address for this host.
fn destination(remote: SocketAddr) -> SocketAddr {
    let remote = canonical(remote);
    match remote.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), remote.port()),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), remote.port()),
        _ => remote,
    }
}

/// The connector's address as its peer sees it; a wildcard is replaced by the address that Linux would choose.
fn source(local: SocketAddr, remote: SocketAddr) -> SocketAddr {
    let local = canonical(local);
    let ip = match (local.ip(), remote.ip()) {
        // To an address of its own Linux connects from that same address, but to any of 127/8 from 127.0.0.1.
        (a, b) if a.is_unspecified() && !b.is_loopback() => b,
        (a, IpAddr::V4(_)) if a.is_unspecified() || a.is_ipv6() => Ipv4Addr::LOCALHOST.into(),
        (a, IpAddr::V6(_)) if a.is_unspecified() || a.is_ipv4() => Ipv6Addr::LOCALHOST.into(),
        (a, _) => a,
    };
    SocketAddr::new(ip, local.port())
}

/// The connector's network namespace, and whether the destination is one of the service's own addresses.
#[derive(Clone, Copy)]
struct Source {
    namespace: u64,
    own: bool,
}

/// True when the connection `origin` still exists and has these ends.
pub fn is_live(pairs: &Pairs, relays: &HashMap<u32, Relay>, ends: &Ends, origin: Origin) -> bool {
    match origin {
        Origin::Pair(region, slot) => {
            pairs.get(region).and_then(|p| p.connection(slot)).is_some_and(|c| c.addresses == *ends)
        }
        Origin::Relay(relay) => relays.get(&relay).is_some_and(|relay| relay.connection.addresses == *ends),
        Origin::Flow(..) => false,
    }
}

/// The errno that Linux gives for a connect from an address that is not the host's.
fn no_source(ip: IpAddr) -> Errno {
    if is_of_many(ip) { Errno::INVAL } else { Errno::NETUNREACH }
}

/// True for a multicast or broadcast address.
fn is_of_many(ip: IpAddr) -> bool {
    ip.is_multicast() || matches!(ip, IpAddr::V4(ip) if ip.is_broadcast())
}

/// True for an address of this host: the kernel lets a socket be bound to it.
fn is_of_host(ip: IpAddr) -> bool {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket(family, SocketType::STREAM, None);
    socket.is_ok_and(|socket| rustix::net::bind(&socket, &SocketAddr::new(ip, 0)).is_ok())
}

/// The address in the form of the program's own: v4-mapped when it asked for an IPv6 address.
pub fn as_asked(address: SocketAddr, asked: SocketAddr) -> SocketAddr {
    match (address.ip(), asked.ip()) {
        (IpAddr::V4(ip), IpAddr::V6(_)) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        _ => address,
    }
}

impl Registry {
    /// Answers `Request::Connect`. `shown` describes the program's socket; `None`: it is not bound.
    pub fn connect(
        &mut self,
        id: u32,
        shown: Option<&Shown>,
        asked: SocketAddr,
        options: SocketOptions,
        has_looked: bool,
    ) -> Answer {
        let Some(a) = self.applications.get(&id) else { return Answer::Silent };
        let (uid, sockets) = (a.uid, a.sockets);
        let remote = destination(asked);
        let own = self.tcp.owns(remote.ip());
        let from = Source { namespace: shown.map_or(a.namespace, |shown| shown.namespace), own };
        if let Some(refusal) = self.refuses_connect(id, from.namespace, remote) {
            return refusal;
        }
        let bound = shown.map_or(SocketAddr::new(any_like(remote.ip()), 0), |shown| shown.local);
        let local = source(bound, remote);
        let candidates = self.listeners_at(local, remote, from);
        let Some(listener) = self.choose(&candidates) else {
            return match remote.ip() {
                _ if own => Answer::refused(Errno::CONNREFUSED, "nobody listens there"),
                ip if ip.is_loopback() => Answer::kernel(KernelReason::NoListener),
                _ if sockets >= self.config.max_sockets => Answer::kernel(KernelReason::TooManySockets),
                _ if self.config.port == PortKind::None => Answer::kernel(KernelReason::NotOnThisHost),
                _ => self.connect_out(id, [bound, remote], asked, options),
            };
        };
        let Some((home, other_uid)) = self.listeners.all.get(&listener).map(|l| (l.home, l.uid)) else {
            return Answer::Silent;
        };
        let acceptor = home.application;
        if sockets >= self.config.max_sockets {
            return Answer::kernel(KernelReason::TooManySockets);
        }
        if !own && self.forks_too_much(acceptor) {
            return Answer::kernel(KernelReason::TooManyProcesses);
        }
        if !(own || has_looked)
            && let Some(acceptors) = self.unseen_acceptors(listener)
        {
            return Answer::plain(Reply::Look { acceptors });
        }
        if local.port() == 0 && !own && from.namespace != self.namespace {
            return Answer::kernel(KernelReason::NoHeldPorts);
        }
        let purpose = if options.reuse_address { For::Reusing } else { For::Plain };
        let ends = match self.ends(local, remote, own, purpose) {
            Ok(ends) => ends,
            Err(refusal) => return *refusal,
        };
        let is_cramped = |id| self.applications.get(&id).is_some_and(|a: &Application| a.is_cramped);
        let shared = match self.config.sharing {
            _ if is_cramped(id) || is_cramped(acceptor) => false,
            Sharing::Always => true,
            Sharing::SameUser => uid == other_uid,
            Sharing::Never => false,
        };
        let answer = if shared {
            // A bound socket has its own port, and the ports of lent slots are not shared. Slots are lent beforehand only for connections between loopback addresses.
            let is_plain = !own
                && shown.is_none()
                && !options.reuse_address
                && ends.iter().all(|end| end.ip().is_loopback());
            let is_only = is_plain && uid == other_uid && candidates.len() == 1;
            self.connect_pair([id, acceptor], listener, is_only, ends, asked)
        } else {
            self.connect_relay([id, acceptor], listener, ends, asked)
        };
        if let Answer::Reply(Reply::Connecting { region, slot, .. }, _) = &answer {
            let origin = self.origin_at(region.id, *slot);
            self.ports.take(ends, origin);
        }
        answer
    }

    /// The listeners that may get a connection from `local` to `remote`. The kernel decides which socket it goes to.
    fn listeners_at(&mut self, local: SocketAddr, remote: SocketAddr, from: Source) -> Vec<u32> {
        self.hear_ended_listeners();
        let namespace = if from.own { None } else { Some(from.namespace) };
        let known = self.listeners.candidates(remote, namespace);
        // Only the kernel knows whether a further address is the host's. One at which a listener is bound is.
        if known.is_empty() {
            return known;
        }
        let judge = self.judge.as_mut().filter(|_| from.namespace == self.namespace);
        match judge.map(|judge| judge.listener(remote, local)) {
            Some(Ok(cookie)) => {
                let id = cookie.and_then(|cookie| self.listeners.of_socket(cookie));
                id.map(|id| self.listeners.group(id)).unwrap_or_default()
            }
            Some(Err(e)) => {
                tracing::debug!("the kernel does not say who listens at {remote}: {e}");
                known
            }
            None => known,
        }
    }

    /// The two ends of a connection inside this host; no other connection has the same. A connector without a port gets one.
    fn ends(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        own: bool,
        purpose: For,
    ) -> Result<Ends, Box<Answer>> {
        let refused = |errno, why: &str| Err(Box::new(Answer::refused(errno, why)));
        if !self.may_connect_from(local.ip()) {
            return refused(
                no_source(local.ip()),
                "the socket is bound to an address that is none of this host's",
            );
        }
        match self.find_port(local, remote, own, purpose) {
            Some(port) => Ok([SocketAddr::new(local.ip(), port), remote]),
            None if local.port() == 0 && !own && self.ports.holds_most() => {
                Err(Box::new(Answer::kernel(KernelReason::ServiceDescriptors)))
            }
            None => refused(Errno::ADDRNOTAVAIL, "the port, or every port, is in use with that peer"),
        }
    }

    /// True for an address that Linux lets a bound socket connect from. (With `IP_FREEBIND` a socket can be bound to any address.)
    fn may_connect_from(&self, ip: IpAddr) -> bool {
        !is_of_many(ip) && (ip.is_loopback() || self.tcp.owns(ip) || is_of_host(ip))
    }

    /// The port of `local`, if it has one and no connection has these ends; without one, a port for which no connection has them.
    pub fn find_port(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        own: bool,
        purpose: For,
    ) -> Option<u16> {
        let sort = Sort { is_ipv6: local.is_ipv6(), purpose };
        self.free_port(local, remote, own, sort).or_else(|| {
            // A connection counts as live until its slot is swept. The kernel is asked for more ports only when sweeping frees none.
            self.sweep();
            self.free_port(local, remote, own, sort).or_else(|| {
                if local.port() != 0 || own || !self.ports.hold_more(sort) {
                    return None;
                }
                self.free_port(local, remote, own, sort)
            })
        })
    }

    /// Holds ports for direct connections that may come.
    pub fn hold_ahead(&mut self) {
        let Self { ports, pairs, relays, .. } = self;
        ports.hold_ahead(|ends: &Ends, origin: Origin| is_live(pairs, relays, ends, origin));
    }

    fn free_port(&mut self, local: SocketAddr, remote: SocketAddr, own: bool, sort: Sort) -> Option<u16> {
        let Self { ports, pairs, relays, listeners, now, .. } = self;
        let is_live = |ends: &Ends, origin: Origin| is_live(pairs, relays, ends, origin);
        if local.port() != 0 {
            let ends = [local, remote];
            return ports.is_free(&ends, is_live).then_some(local.port());
        }
        if own {
            let listens = |at: SocketAddr| !listeners.candidates(at, None).is_empty();
            return ports.find_own(local.ip(), remote, is_live, listens);
        }
        ports.find_held(sort, local.ip(), remote, *now, is_live)
    }

    /// True for a process that forks, perhaps for each connection, while its family has few holder bits left.
    fn forks_too_much(&self, acceptor: u32) -> bool {
        let family = self.family_of(acceptor).and_then(|f| self.families.get(&f));
        family.is_some_and(Family::is_crowded)
            && self.applications.values().any(|a| a.ancestors.last() == Some(&acceptor))
    }

    fn connect_pair(
        &mut self,
        parties: [u32; 2],
        listener: u32,
        is_only: bool,
        addresses: [SocketAddr; 2],
        asked: SocketAddr,
    ) -> Answer {
        let region = match self.pair_region(parties) {
            Ok(region) => region,
            Err(reason) => return Answer::kernel(reason),
        };
        let connection = Connection { addresses, applications: parties, stage: Stage::Pending, grant: None };
        let Some(slot) = self.take_pair_slot(region, connection) else {
            return Answer::kernel(KernelReason::PairRegionFull);
        };
        self.count_sockets(parties, 1);
        // Slots are lent from the second connection on: a process that connects twice may connect often.
        let again = self.applications.get(&parties[0]).is_some_and(|a| a.pairs.contains(&region));
        let lent = if is_only && again {
            let [source, local] = addresses;
            self.lend(Lending { region, queue: listener, parties, source: source.ip(), local })
        } else {
            None
        };
        let origin = Origin::Pair(region, slot);
        let [peer, local] = addresses;
        self.arrive(listener, (origin, AcceptRecord { region, slot, side: 1, local, peer }));
        self.accelerated(parties[0], |p| &mut p.connected, 1);
        let Some(a) = self.applications.get_mut(&parties[0]) else { return Answer::Silent };
        let known = !a.pairs.insert(region);
        let Some(pair) = self.pairs.get(region) else { return Answer::Silent };
        let info = RegionInfo::of(&pair.region.layout().params, Side::Zero, true);
        let mut fds = if known { Vec::new() } else { vec![pair.fd.clone()] };
        if lent.as_ref().is_some_and(|lent| lent.is_new) {
            fds.extend(
                self.listeners.all.get(&listener).into_iter().flat_map(|l| l.grants.fds().iter().cloned()),
            );
        }
        let local = as_asked(addresses[0], asked);
        Answer::Reply(Reply::Connecting { region: info, slot, local, lent }, fds)
    }

    /// Id of the region for that ordered pair of processes; makes the region at first need.
    fn pair_region(&mut self, parties: [u32; 2]) -> Result<u32, KernelReason> {
        if let Some(id) = self.pairs.of(parties) {
            return Ok(id);
        }
        if parties.iter().any(|p| self.memory_of(*p) > self.config.max_memory) {
            return Err(KernelReason::TooMuchMemory);
        }
        let id = self.new_region_id();
        let charge = self.charge(parties[0], PAIR).ok_or(KernelReason::ServiceDescriptors)?;
        let mut pair =
            PairRegion::create(id, parties, self.usual_size()).map_err(|_| KernelReason::NoSharedMemory)?;
        pair.charges.push(charge);
        self.pairs.add(id, pair);
        Ok(id)
    }

    /// Takes a free slot with cleared halves. When none is free, closed connections are swept first.
    pub fn take_pair_slot(&mut self, region: u32, connection: Connection) -> Option<u32> {
        match self.pairs.get_mut(region)?.take(connection) {
            Ok(slot) => Some(slot),
            Err(connection) => {
                self.sweep_pair(region, &InUse::new());
                self.pairs.get_mut(region)?.take(connection).ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_linux_would_choose() {
        let a = |s: &str| s.parse::<SocketAddr>().unwrap();
        assert_eq!(destination(a("0.0.0.0:5")), a("127.0.0.1:5"));
        assert_eq!(destination(a("[::]:5")), a("[::1]:5"));
        assert_eq!(destination(a("[::ffff:127.0.0.9]:5")), a("127.0.0.9:5"));
        assert_eq!(source(a("0.0.0.0:7"), a("127.0.0.9:5")), a("127.0.0.1:7"));
        assert_eq!(source(a("[::]:7"), a("127.0.0.9:5")), a("127.0.0.1:7"));
        assert_eq!(source(a("[::]:7"), a("[::1]:5")), a("[::1]:7"));
        assert_eq!(as_asked(a("127.0.0.1:7"), a("[::ffff:127.0.0.9]:5")), a("[::ffff:127.0.0.1]:7"));
    }
}
