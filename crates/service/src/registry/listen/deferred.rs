//! Connections that wait for their first bytes (`TCP_DEFER_ACCEPT`; see `defer_accept`).

use crate::registry::listen::origin::{Incoming, Origin};
use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

/// A connection that waits for its first bytes, and the listener for which it was made.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub listener: u32,
    pub incoming: Incoming,
    pub until: Instant,
}

/// All connections that wait for their first bytes.
#[derive(Debug, Default)]
pub struct Deferred {
    all: HashMap<Origin, Waiting>,
    by_time: BTreeSet<(Instant, Origin)>,
    by_listener: HashMap<u32, usize>,
}

impl Deferred {
    pub fn add(&mut self, waiting: Waiting) {
        let origin = waiting.incoming.0;
        self.take(origin);
        self.by_time.insert((waiting.until, origin));
        *self.by_listener.entry(waiting.listener).or_default() += 1;
        self.all.insert(origin, waiting);
    }

    pub fn take(&mut self, origin: Origin) -> Option<Waiting> {
        let waiting = self.all.remove(&origin)?;
        self.by_time.remove(&(waiting.until, origin));
        if let Some(count) = self.by_listener.get_mut(&waiting.listener) {
            *count -= 1;
            if *count == 0 {
                self.by_listener.remove(&waiting.listener);
            }
        }
        Some(waiting)
    }

    pub fn count(&self, listener: u32) -> usize {
        self.by_listener.get(&listener).copied().unwrap_or(0)
    }

    /// All connections that wait, each with the listener for which it was made.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Incoming)> {
        self.all.values().map(|waiting| (waiting.listener, &waiting.incoming))
    }

    /// The connections for which `is_it` holds.
    pub fn that(&self, is_it: impl Fn(&Incoming) -> bool) -> Vec<Origin> {
        let found = self.all.iter().filter(|(_, waiting)| is_it(&waiting.incoming));
        found.map(|(origin, _)| *origin).collect()
    }

    /// The connection the time of which ends first, and when that is.
    pub fn first(&self) -> Option<(Instant, Origin)> {
        self.by_time.first().copied()
    }

    /// When the time of the first waiting connection is over.
    pub fn due(&self) -> Option<Instant> {
        self.first().map(|(until, _)| until)
    }
}
