//! Listening sockets, their accept queues, and the connections in them.

use crate::listen::defer_accept::Deferred;
use crate::memory::slot_key::SlotKey;
use crate::process::fd_liveness::Alive;
use control::AcceptRecord;
use queue::stream::Sender;
use shm::Half;
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Name of an accept queue: the slot of its stream.
pub type QueueKey = SlotKey;

/// A connection to be accepted, and the accept record that announces it.
pub type Incoming = (Origin, AcceptRecord);

/// The connection that an accept record announces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Origin {
    /// A connection through a pair region: the region and the slot.
    Pair(u32, u32),
    /// A relayed connection: the relay's id.
    Relay(u32),
    /// A connection over the port: the application region and the slot.
    Flow(u32, u32),
}

/// A program's call of `listen`.
#[derive(Clone, Copy, Debug)]
pub struct ListenCall {
    /// Index of the socket's block in the process's region. Hostile.
    pub sock: u32,
    /// The backlog, as given to `listen`.
    pub backlog: u32,
}

/// A listening socket. It remains without queues as long as some process has a descriptor of it.
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
    /// Network namespace of the socket (`SO_NETNS_COOKIE`).
    pub namespace: u64,
    /// User of the first process that listened by it.
    pub uid: u32,
    /// Its accept queues, at most one for each process.
    pub queues: Vec<QueueKey>,
    /// Socket options for its connections over the port.
    pub options: slowpath::FlowOptions,
    /// `O_NONBLOCK` of the socket when its last queue was closed.
    pub nonblocking: bool,
    /// When its last queue was closed, or the listener made.
    pub since: Instant,
    /// Connections kept since its last queue was closed, each with the number of its [`Trust`](crate::handover::trusts::Trust).
    pub kept: Vec<(u64, AcceptRecord)>,
}

/// The accept queue of one process.
#[derive(Debug)]
pub struct Queue {
    /// Number of its listener.
    pub listener: u32,
    /// Id of its process.
    pub application: u32,
    /// User of its process.
    pub uid: u32,
    /// The socket block that listens; `None`: a forked child's share of its parent's listener.
    pub sock: Option<u32>,
    /// The backlog, as given to `listen`.
    pub backlog: u32,
    /// The stream of accept records, as its sender sees it.
    pub sender: Sender,
    /// Records in the stream that may be unread, each with the position of its end.
    pub queued: VecDeque<(u64, Incoming)>,
    /// Connections for which the backlog or the memory has no room yet.
    pub waiting: VecDeque<Incoming>,
    /// Ids of pair regions with a line to this queue, or with a closed one.
    pub lines: Vec<u32>,
}

/// All listening sockets and their accept queues.
#[derive(Debug)]
pub struct Listeners {
    next: u32,
    turn: usize,
    /// Connections that wait for their first bytes.
    pub deferred: Deferred,
    /// When to look for connections that one process leaves unaccepted while another one waits; `None`: not needed.
    pub relief: Option<Instant>,
    /// Watches the listening sockets.
    pub alive: Alive,
    /// Listeners, by number.
    pub all: HashMap<u32, Listener>,
    /// Accept queues, by region and slot.
    pub queues: HashMap<QueueKey, Queue>,
    by_port: HashMap<u16, Vec<u32>>,
    by_cookie: HashMap<u64, u32>,
}

/// The address, a v4-mapped one as IPv4.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl Queue {
    /// True when the queue has as many connections as Linux admits: one more than the backlog.
    pub fn is_full(&self) -> bool {
        let unread = (self.sender.head - self.sender.tail) as usize / control::RECORD_LEN;
        unread + self.waiting.len() > self.backlog as usize
    }

    /// Takes the queued records that `reader`, a hostile half, has not read. The queue is about to close.
    pub fn take_unread(&mut self, reader: Option<&Half>) -> Vec<Incoming> {
        let read = reader.map_or(0, |half| half.rx_tail.load(Ordering::Acquire));
        let queued = mem::take(&mut self.queued).into_iter();
        queued.filter(|(end, _)| *end > read).map(|(_, incoming)| incoming).collect()
    }
}

impl Listener {
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
            next: 0,
            turn: 0,
            deferred: Deferred::default(),
            relief: None,
            alive,
            all: HashMap::new(),
            queues: HashMap::new(),
            by_port: HashMap::new(),
            by_cookie: HashMap::new(),
        }
    }

    /// Adds a listener without queues. Returns its number.
    pub fn add(&mut self, listener: Listener) -> u32 {
        self.next = self.next.wrapping_add(1);
        self.by_cookie.insert(listener.cookie, self.next);
        self.by_port.entry(listener.local.port()).or_default().push(self.next);
        self.all.insert(self.next, listener);
        self.next
    }

    /// Removes and returns one accept queue.
    pub fn remove_queue(&mut self, key: QueueKey) -> Option<Queue> {
        let queue = self.queues.remove(&key)?;
        if let Some(listener) = self.all.get_mut(&queue.listener) {
            listener.queues.retain(|k| *k != key);
        }
        Some(queue)
    }

    /// Removes and returns a listener.
    pub fn remove(&mut self, id: u32) -> Option<Listener> {
        let listener = self.all.remove(&id)?;
        self.by_cookie.remove(&listener.cookie);
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

    /// True for a listener without a queue.
    pub fn is_deserted(&self, id: u32) -> bool {
        self.all.get(&id).is_some_and(|listener| listener.queues.is_empty())
    }

    /// Numbers and cookies of the listeners without a queue.
    pub fn deserted(&self) -> impl Iterator<Item = (u32, u64)> {
        self.all.iter().filter(|(_, l)| l.queues.is_empty()).map(|(id, l)| (*id, l.cookie))
    }

    /// The listener to end when more than `most` have no queue: of the user with the most of them, the one that has been without a queue
    /// for the longest time. So a user that leaves very many ends no other user's.
    pub fn surplus(&self, most: usize) -> Option<u32> {
        let deserted = || self.all.iter().filter(|(_, listener)| listener.queues.is_empty());
        if deserted().count() <= most {
            return None;
        }
        let mut of_user: HashMap<u32, usize> = HashMap::new();
        deserted().for_each(|(_, listener)| *of_user.entry(listener.uid).or_default() += 1);
        let (uid, _) = of_user.into_iter().max_by_key(|(uid, count)| (*count, *uid))?;
        let its = deserted().filter(|(_, listener)| listener.uid == uid);
        its.min_by_key(|(id, listener)| (listener.since, **id)).map(|(id, _)| *id)
    }

    /// The queues that may take a connection to `remote`: those of the best-fitting listeners.
    pub fn candidates(&self, remote: SocketAddr, namespace: Option<u64>) -> Vec<QueueKey> {
        let Some(ids) = self.by_port.get(&remote.port()) else { return Vec::new() };
        let fitting = || ids.iter().filter_map(|id| Some((self.all.get(id)?.fits(remote, namespace)?, id)));
        let Some(best) = fitting().map(|(rank, _)| rank).max() else { return Vec::new() };
        let of_best = fitting().filter(|(rank, _)| *rank == best).filter_map(|(_, id)| self.all.get(id));
        of_best.flat_map(|listener| listener.queues.iter().copied()).collect()
    }

    /// The queues of a listener, without that of process `application`.
    pub fn others(&self, listener: u32, application: u32) -> Vec<QueueKey> {
        let all = self.all.get(&listener).map_or(&[][..], |listener| listener.queues.as_slice());
        let is_other =
            |key: &&QueueKey| self.queues.get(*key).is_some_and(|other| other.application != application);
        all.iter().filter(is_other).copied().collect()
    }

    /// Listeners that may get the same connections over the port as `new` does.
    pub fn overlapping(&self, new: &Listener) -> impl Iterator<Item = (u32, &Listener)> {
        let ids = self.by_port.get(&new.local.port()).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.all.get(id)?))).filter(|(_, listener)| listener.overlaps(new))
    }

    /// The queues of a listener and of its `SO_REUSEPORT` group; the service chooses between them.
    pub fn queues_of_group(&self, id: u32) -> Vec<QueueKey> {
        let Some(listener) = self.all.get(&id) else { return Vec::new() };
        if !listener.reuse_port {
            return listener.queues.clone();
        }
        let is_of_group = |l: &&Listener| {
            l.reuse_port
                && (l.local, l.namespace, l.v6_only) == (listener.local, listener.namespace, listener.v6_only)
        };
        let ids = self.by_port.get(&listener.local.port()).into_iter().flatten();
        let group = ids.filter_map(|id| self.all.get(id)).filter(is_of_group);
        group.flat_map(|listener| listener.queues.iter().copied()).collect()
    }

    /// A number that rises with each call, by which equally good queues take turns.
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
            nonblocking: false,
            kept: vec![],
            local: local.parse().unwrap(),
            v6_only,
            reuse_port: false,
            namespace: 1,
            options: slowpath::FlowOptions::default(),
            queues: vec![],
        }
    }

    #[test]
    fn the_user_with_the_most_listeners_without_a_queue_loses_the_oldest() {
        let mut all = Listeners::new(Alive::open(1).unwrap());
        let start = Instant::now();
        let mut add = |uid, second, queues: &[QueueKey]| {
            let since = start + std::time::Duration::from_secs(second);
            all.add(Listener { uid, since, queues: queues.to_vec(), ..listener("[::]:80", false) })
        };
        add(1, 0, &[]);
        add(2, 0, &[QueueKey { region: 1, slot: 1 }]);
        let [_, oldest, ..] = [3, 1, 2].map(|second| add(2, second, &[]));
        assert_eq!(all.surplus(4), None, "a listener with a queue does not count");
        assert_eq!(all.surplus(3), Some(oldest));
        all.remove(oldest);
        assert_eq!(all.surplus(3), None);
    }

    #[test]
    fn the_exact_address_wins_and_dual_stack_comes_last() {
        let mut all = Listeners::new(Alive::open(1).unwrap());
        for (i, (local, v6_only)) in
            [("[::]:80", false), ("0.0.0.0:80", false), ("127.0.0.2:80", false), ("[::]:81", true)]
                .into_iter()
                .enumerate()
        {
            let id = all.add(listener(local, v6_only));
            all.all.get_mut(&id).unwrap().queues.push(QueueKey { region: i as u32, slot: 0 });
        }
        let find = |remote: &str| {
            let found = all.candidates(remote.parse().unwrap(), Some(1));
            found.iter().map(|k| k.region).collect::<Vec<_>>()
        };
        assert_eq!(find("127.0.0.2:80"), [2]);
        assert_eq!(find("127.0.0.1:80"), [1]);
        assert_eq!(find("[::1]:80"), [0]);
        assert_eq!(find("[::1]:81"), [3]);
        assert!(find("192.0.2.1:80").is_empty(), "a wildcard is no claim to the whole world");
        assert_eq!(
            all.candidates("192.0.2.1:80".parse().unwrap(), None),
            [QueueKey { region: 1, slot: 0 }],
            "but to our own addresses"
        );
        assert!(find("127.0.0.1:81").is_empty() && find("127.0.0.1:82").is_empty());
        assert!(all.candidates("127.0.0.1:80".parse().unwrap(), Some(2)).is_empty());
    }
}
