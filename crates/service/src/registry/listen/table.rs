//! Listening sockets, each with its accept queue and the grants in it.

use crate::registry::listen::grants::Grants;
use crate::registry::process::descriptors::Charge;
use crate::registry::process::fd_liveness::Alive;
use control::CongestionName;
use queue::accept::Accepting;
use rustix::fd::OwnedFd;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

/// The process that new connections are set up for: it and its forked children have the memory mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
    /// Id of the process.
    pub application: u32,
    /// Id of its application region.
    pub region: u32,
}

/// A listening socket. It remains as long as some process has a descriptor of it.
#[derive(Debug)]
pub struct Listener {
    /// `SO_COOKIE` of the socket.
    pub cookie: u64,
    /// Address that it listens at; v4-mapped addresses as IPv4.
    pub local: SocketAddr,
    /// `IPV6_V6ONLY`: the IPv6 wildcard does not take IPv4 connections.
    pub v6_only: bool,
    /// `SO_REUSEPORT`: other sockets of the same user may listen at the same address.
    pub reuse_port: bool,
    /// `SO_REUSEADDR`, when it began to listen.
    pub reuse_address: bool,
    /// Network namespace of the socket (`SO_NETNS_COOKIE`).
    pub namespace: u64,
    /// User of the first process that listened by it.
    pub uid: u32,
    /// The congestion control that its socket has chosen.
    pub asked: Option<CongestionName>,
    /// Socket options for its connections over the port.
    pub options: slowpath::FlowOptions,
    /// When the last process that accepts left, or the listener was made.
    pub since: Instant,
    /// The processes that may accept.
    pub holders: Holders,
    /// Where new connections are put.
    pub home: Home,
    /// Its accept queue.
    pub grants: Grants,
    /// Eventfds by which direct connectors wake sleepers, by application and context.
    pub wakers: HashMap<(u32, u32), Arc<OwnedFd>>,
    /// For its memory and these eventfds.
    pub charges: Vec<Charge>,
    /// When all processes that may accept were last woken.
    pub roused: Instant,
}

/// Processes that have shown a listening socket. They and their forked children may accept, but for those that have left.
#[derive(Debug, Default)]
pub struct Holders {
    shown: Vec<u32>,
    left: HashSet<u32>,
}

impl Holders {
    /// A process has shown the socket. False: it had before, and has not left since.
    pub fn join(&mut self, id: u32) -> bool {
        let is_back = self.left.remove(&id);
        let is_first = !self.shown.contains(&id);
        if is_first {
            self.shown.push(id);
        }
        is_first || is_back
    }

    /// A process accepts no more. True: it had shown the socket; else it is the forked child of one that had.
    pub fn leave(&mut self, id: u32) -> bool {
        self.left.insert(id);
        self.shown.contains(&id)
    }

    /// True when the process accepts no more.
    pub fn has_left(&self, id: u32) -> bool {
        self.left.contains(&id)
    }

    /// All processes that have shown the socket, those that have left included.
    pub fn shown(&self) -> impl Iterator<Item = u32> {
        self.shown.iter().copied()
    }

    /// The processes that have shown the socket and have not left: each has one socket more.
    pub fn present(&self) -> impl Iterator<Item = u32> {
        self.shown().filter(|id| !self.has_left(*id))
    }
}

/// A listener that has stopped, with accepted connections that need its port.
#[derive(Clone, Copy, Debug)]
pub struct Stopped {
    /// Id of the accept queue that it had.
    pub queue: u32,
    /// Address that it has listened at; v4-mapped addresses as IPv4.
    pub local: SocketAddr,
    /// `SO_REUSEADDR` of its connections, also of those from before it listened again: else it could not have.
    pub reuse_address: bool,
    /// The socket is bound to the port still, because the program has named the port. A port that the kernel has chosen is free.
    pub is_bound: bool,
}

/// All listening sockets, by the ids of their accept queues.
#[derive(Debug)]
pub struct Listeners {
    turn: usize,
    /// Watches the listening sockets.
    pub alive: Alive,
    /// Listeners, by the ids of their queues.
    pub all: HashMap<u32, Listener>,
    /// The last that has stopped at an address, by the address.
    pub stopped: HashMap<SocketAddr, Stopped>,
    by_port: HashMap<u16, Vec<u32>>,
    by_user: BTreeSet<(u32, u32)>,
    by_cookie: HashMap<u64, u32>,
}

/// The address, a v4-mapped one as IPv4.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl Listener {
    /// The operations on the accept queue's shared words.
    pub fn queue(&self) -> Accepting<'_> {
        self.grants.queue()
    }

    /// How exactly this listener fits `remote`, as Linux ranks listeners: higher is better. `None`: it does not fit. `namespace` is the
    /// connector's; `None`: the address is the service's own, which is the same for all namespaces.
    fn fits(&self, remote: SocketAddr, namespace: Option<u64>) -> Option<u8> {
        // Another address of the host: only the kernel knows whether a wildcard covers it.
        let exact_only = namespace.is_some() && !remote.ip().is_loopback();
        let elsewhere = namespace.is_some_and(|n| n != self.namespace);
        if elsewhere || (exact_only && self.local.ip() != remote.ip()) {
            return None;
        }
        match (self.local.ip(), remote.ip()) {
            (a, b) if a == b => Some(3),
            (IpAddr::V4(a), IpAddr::V4(_)) if a.is_unspecified() => Some(2),
            (IpAddr::V6(a), IpAddr::V6(_)) if a.is_unspecified() => Some(2),
            (IpAddr::V6(a), IpAddr::V4(_)) if a.is_unspecified() && !self.v6_only => Some(1),
            _ => None,
        }
    }

    /// True when both listeners may get the same connections over the port.
    pub fn overlaps(&self, other: &Self) -> bool {
        let is_anywhere = |listener: &Self| listener.local.ip().is_unspecified();
        self.local.port() == other.local.port()
            && (self.local.ip() == other.local.ip() || is_anywhere(self) || is_anywhere(other))
    }
}

impl Listeners {
    /// No listeners. `alive` is to watch their sockets.
    pub fn new(alive: Alive) -> Self {
        Self {
            turn: 0,
            alive,
            all: HashMap::new(),
            stopped: HashMap::new(),
            by_port: HashMap::new(),
            by_user: BTreeSet::new(),
            by_cookie: HashMap::new(),
        }
    }

    /// Adds a listener; `id` names its accept queue.
    pub fn add(&mut self, id: u32, listener: Listener) {
        self.by_cookie.insert(listener.cookie, id);
        self.by_port.entry(listener.local.port()).or_default().push(id);
        self.by_user.insert((listener.uid, id));
        self.all.insert(id, listener);
    }

    /// Removes and returns a listener.
    pub fn remove(&mut self, id: u32) -> Option<Listener> {
        let listener = self.all.remove(&id)?;
        self.by_cookie.remove(&listener.cookie);
        self.by_user.remove(&(listener.uid, id));
        let port = listener.local.port();
        if let Some(ids) = self.by_port.get_mut(&port) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_port.remove(&port);
            }
        }
        Some(listener)
    }

    /// Number of the listener with that cookie.
    pub fn of_socket(&self, cookie: u64) -> Option<u32> {
        self.by_cookie.get(&cookie).copied()
    }

    /// The first `most` listeners of that user, from this number on.
    pub fn of_user(&self, uid: u32, from: u32, most: usize) -> Vec<u32> {
        self.by_user.range((uid, from)..=(uid, u32::MAX)).take(most).map(|(_, id)| *id).collect()
    }

    /// The best-fitting listeners for a connection to `remote`.
    pub fn candidates(&self, remote: SocketAddr, namespace: Option<u64>) -> Vec<u32> {
        let Some(ids) = self.by_port.get(&remote.port()) else { return Vec::new() };
        let fitting = || ids.iter().filter_map(|id| Some((self.all.get(id)?.fits(remote, namespace)?, *id)));
        let Some(best) = fitting().map(|(rank, _)| rank).max() else { return Vec::new() };
        fitting().filter(|(rank, _)| *rank == best).map(|(_, id)| id).collect()
    }

    /// The listeners at a port.
    pub fn at_port(&self, port: u16) -> Vec<u32> {
        self.by_port.get(&port).cloned().unwrap_or_default()
    }

    /// Number of listeners at a port that the user has.
    pub fn count_at(&self, port: u16, uid: u32) -> usize {
        let ids = self.by_port.get(&port).into_iter().flatten();
        ids.filter(|id| self.all.get(id).is_some_and(|listener| listener.uid == uid)).count()
    }

    /// Listeners that may get the same connections over the port as `new` does.
    pub fn overlapping(&self, new: &Listener) -> impl Iterator<Item = (u32, &Listener)> {
        let ids = self.by_port.get(&new.local.port()).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.all.get(id)?))).filter(|(_, listener)| listener.overlaps(new))
    }

    /// A listener and the others of its `SO_REUSEPORT` group; the service chooses between them.
    pub fn group(&self, id: u32) -> Vec<u32> {
        let Some(listener) = self.all.get(&id) else { return Vec::new() };
        if !listener.reuse_port {
            return vec![id];
        }
        let is_of_group = |l: &Listener| {
            l.reuse_port
                && (l.local, l.namespace, l.v6_only) == (listener.local, listener.namespace, listener.v6_only)
        };
        let ids = self.by_port.get(&listener.local.port()).into_iter().flatten();
        ids.filter(|id| self.all.get(id).is_some_and(is_of_group)).copied().collect()
    }

    /// A number that rises with each call, by which equally good listeners take turns.
    pub fn turn(&mut self) -> usize {
        self.turn = self.turn.wrapping_add(1);
        self.turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(local: &str, v6_only: bool) -> Listener {
        Listener {
            cookie: 0,
            uid: 0,
            since: Instant::now(),
            local: local.parse().unwrap(),
            v6_only,
            reuse_address: false,
            reuse_port: false,
            namespace: 1,
            asked: None,
            options: slowpath::FlowOptions::default(),
            holders: Holders::default(),
            home: Home { application: 1, region: 1 },
            grants: Grants::new(0, false).unwrap(),
            wakers: HashMap::new(),
            charges: Vec::new(),
            roused: Instant::now(),
        }
    }

    #[test]
    fn the_exact_address_wins_and_dual_stack_comes_last() {
        let mut all = Listeners::new(Alive::open(true).unwrap());
        for (i, (local, v6_only)) in
            [("[::]:80", false), ("0.0.0.0:80", false), ("127.0.0.2:80", false), ("[::]:81", true)]
                .into_iter()
                .enumerate()
        {
            all.add(i as u32, listener(local, v6_only));
        }
        let find = |remote: &str| all.candidates(remote.parse().unwrap(), Some(1));
        assert_eq!(find("127.0.0.2:80"), [2]);
        assert_eq!(find("127.0.0.1:80"), [1]);
        assert_eq!(find("[::1]:80"), [0]);
        assert_eq!(find("[::1]:81"), [3]);
        assert!(find("192.0.2.1:80").is_empty(), "a wildcard is no claim to the whole world");
        assert_eq!(all.candidates("192.0.2.1:80".parse().unwrap(), None), [1], "but to our own addresses");
        assert!(find("127.0.0.1:81").is_empty() && find("127.0.0.1:82").is_empty());
        assert!(all.candidates("127.0.0.1:80".parse().unwrap(), Some(2)).is_empty());
    }
}
