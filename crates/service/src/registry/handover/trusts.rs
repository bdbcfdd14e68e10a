//! The table of trusts: connections that processes have left with the service, where each is, and which relay carries it on. Decides
//! nothing.

use crate::registry::memory::slot_key::SlotKey;
use crate::registry::process::fd_liveness::Alive;
use control::Left;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Shortest and longest pause between looks for descriptors that no process has open. A process that has let go is about to close its
/// descriptor, so the first pauses are short.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(500));

/// A connection that the service may take from its slot and give to another process.
#[derive(Clone, Copy, Debug)]
pub struct Trust {
    /// `SO_COOKIE` of its descriptor; 0: no process has accepted it yet.
    pub cookie: u64,
    /// The slot where it is or was, and its socket block.
    pub left: Left,
    /// The results of `getsockname` and `getpeername`.
    pub ends: [SocketAddr; 2],
    /// The processes that own the regions of its socket block and of its slot.
    pub owners: [u32; 2],
    /// Family of the processes in `owners`.
    pub family: u32,
    /// Id of the relay that carries it on to a new holder; `None`: it is still in its slot.
    pub relay: Option<u32>,
}

impl Trust {
    fn place(&self) -> (SlotKey, u8) {
        (SlotKey::of_left(&self.left), self.left.side)
    }
}

/// All trusts by number, and by cookie.
#[derive(Debug)]
pub struct Trusts {
    all: HashMap<u64, Trust>,
    /// Number of the latest trust of each descriptor: a connection may be passed on again and again.
    by_cookie: HashMap<u64, u64>,
    /// Number of the trust of the connection in each slot, on that side.
    by_place: HashMap<(SlotKey, u8), u64>,
    next: u64,
    /// Watches the connections' descriptors.
    pub alive: Alive,
    /// The next pause before a look; `None`: the longest.
    pause: Option<Duration>,
    /// Set when a trust was removed or a process has let go: regions may not be needed any more.
    pub changed: bool,
    /// Set when a process is about to close the descriptor of a listening socket.
    pub soon: bool,
}

impl Trusts {
    /// No trusts. `alive` is to watch their descriptors.
    pub fn new(alive: Alive) -> Self {
        let (all, by_cookie, by_place) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { all, by_cookie, by_place, next: 0, alive, pause: None, changed: false, soon: false }
    }

    /// True when there are no trusts.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All trusts with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Trust)> {
        self.all.iter().map(|(key, trust)| (*key, trust))
    }

    /// Processes that own regions which trusts still need.
    pub fn owners(&self) -> impl Iterator<Item = u32> {
        self.all.values().flat_map(|t| t.owners)
    }

    /// True when a trust belongs to that family.
    pub fn has_family(&self, family: u32) -> bool {
        self.all.values().any(|t| t.family == family)
    }

    /// The latest trust of the descriptor with that cookie, and its number.
    pub fn find(&self, cookie: u64) -> Option<(u64, Trust)> {
        let key = self.by_cookie.get(&cookie)?;
        Some((*key, *self.all.get(key)?))
    }

    /// The trust that `relay` carries on, and its number.
    pub fn behind(&self, relay: u32) -> Option<(u64, Trust)> {
        self.iter().find(|(_, t)| t.relay == Some(relay)).map(|(key, t)| (key, *t))
    }

    /// Number of the trust of the connection in that slot, on that side.
    pub fn at(&self, slot: SlotKey, side: u8) -> Option<u64> {
        self.by_place.get(&(slot, side)).copied()
    }

    /// The trust with that number.
    pub fn get(&self, key: u64) -> Option<&Trust> {
        self.all.get(&key)
    }

    /// Adds a trust, which becomes the latest of its descriptor. Returns its number.
    pub fn add(&mut self, trust: Trust) -> u64 {
        self.next += 1;
        self.all.insert(self.next, trust);
        let before = self.by_place.insert(trust.place(), self.next);
        debug_assert!(before.is_none(), "two trusts of one connection: {trust:?}");
        if trust.cookie != 0 {
            self.by_cookie.insert(trust.cookie, self.next);
        }
        self.next
    }

    /// Notes that `relay` carries the trust's connection on.
    pub fn carried(&mut self, key: u64, relay: u32) {
        if let Some(trust) = self.all.get_mut(&key) {
            trust.relay = Some(relay);
        }
    }

    /// Removes and returns a trust.
    pub fn remove(&mut self, key: u64) -> Option<Trust> {
        let trust = self.all.remove(&key)?;
        if self.by_cookie.get(&trust.cookie) == Some(&key) {
            self.by_cookie.remove(&trust.cookie);
        }
        if self.by_place.get(&trust.place()) == Some(&key) {
            self.by_place.remove(&trust.place());
        }
        self.changed = true;
        Some(trust)
    }

    /// A process has just let go and will close its descriptors in a moment: the next pause is the shortest.
    pub fn hurry(&mut self) {
        self.pause = Some(PAUSE.0);
    }

    /// When to look again; each pause is twice the one before.
    pub fn later(&mut self, now: Instant) -> Instant {
        let pause = self.pause.unwrap_or(PAUSE.1);
        self.pause = Some((pause * 2).min(PAUSE.1));
        now + pause
    }
}
