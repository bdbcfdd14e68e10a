//! What the service knows of connections on their way from one process to another: where each was left, who carries it on, and
//! whether anybody still has its descriptor. Decides nothing.

use crate::alive::Alive;
use control::Left;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Pauses between looks at descriptors that perhaps nobody has any more: whoever has let go is about to close.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(500));

/// A connection that was left, or may be taken away from where it is.
#[derive(Clone, Copy, Debug)]
pub struct Trust {
    /// Of its descriptor; 0: nobody has ever accepted it.
    pub cookie: u64,
    /// Where it is, or was.
    pub left: Left,
    /// What `getsockname` says, and `getpeername`.
    pub ends: [SocketAddr; 2],
    /// The processes whose regions it lies in.
    pub owners: [u32; 2],
    /// Their family.
    pub family: u32,
    /// Carried on by that relay, for its new holder.
    pub relay: Option<u32>,
}

impl Trust {
    /// Region, slot and side.
    pub fn place(&self) -> (u32, u32, u8) {
        (self.left.region, self.left.slot, self.left.side)
    }
}

/// All of them.
#[derive(Debug)]
pub struct Trusts {
    all: HashMap<u64, Trust>,
    /// The latest of each descriptor: a connection may be handed on again and again.
    by_cookie: HashMap<u64, u64>,
    next: u64,
    /// The connections' descriptors.
    pub alive: Alive,
    /// The next pause; none: the longest.
    pause: Option<Duration>,
    /// Regions may be nobody's any more.
    pub changed: bool,
    /// Somebody is about to close the descriptor of a listening socket.
    pub soon: bool,
}

impl Trusts {
    /// None at all. Their descriptors are watched in `alive`.
    pub fn new(alive: Alive) -> Self {
        let (all, by_cookie) = (HashMap::new(), HashMap::new());
        Self { all, by_cookie, next: 0, alive, pause: None, changed: false, soon: false }
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Trust)> {
        self.all.iter().map(|(key, trust)| (*key, trust))
    }

    /// The processes whose regions are still needed.
    pub fn owners(&self) -> impl Iterator<Item = u32> {
        self.all.values().flat_map(|t| t.owners)
    }

    /// True when some connection of that family was left.
    pub fn has_family(&self, family: u32) -> bool {
        self.all.values().any(|t| t.family == family)
    }

    /// The latest of that descriptor.
    pub fn find(&self, cookie: u64) -> Option<(u64, Trust)> {
        let key = self.by_cookie.get(&cookie)?;
        Some((*key, *self.all.get(key)?))
    }

    /// What that relay carries on.
    pub fn behind(&self, relay: u32) -> Option<(u64, Trust)> {
        self.iter().find(|(_, t)| t.relay == Some(relay)).map(|(key, t)| (key, *t))
    }

    /// That one.
    pub fn get(&self, key: u64) -> Option<&Trust> {
        self.all.get(&key)
    }

    /// One more: the latest of its descriptor. Returns its number.
    pub fn add(&mut self, trust: Trust) -> u64 {
        self.next += 1;
        self.all.insert(self.next, trust);
        if trust.cookie != 0 {
            self.by_cookie.insert(trust.cookie, self.next);
        }
        self.next
    }

    /// That relay carries it on.
    pub fn carried(&mut self, key: u64, relay: u32) {
        if let Some(trust) = self.all.get_mut(&key) {
            trust.relay = Some(relay);
        }
    }

    /// One fewer.
    pub fn remove(&mut self, key: u64) -> Option<Trust> {
        let trust = self.all.remove(&key)?;
        if self.by_cookie.get(&trust.cookie) == Some(&key) {
            self.by_cookie.remove(&trust.cookie);
        }
        self.changed = true;
        Some(trust)
    }

    /// Somebody has just let go: their descriptors are closed in a moment.
    pub fn hurry(&mut self) {
        self.pause = Some(PAUSE.0);
    }

    /// When to look again.
    pub fn later(&mut self, now: Instant) -> Instant {
        let pause = self.pause.unwrap_or(PAUSE.1);
        self.pause = Some((pause * 2).min(PAUSE.1));
        now + pause
    }
}
