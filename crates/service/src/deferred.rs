//! `TCP_DEFER_ACCEPT` inside this host: a connection whose maker has said nothing yet comes into no accept queue. It does when its first
//! bytes or its end are announced, which its maker's library does, or when the listener's time is over. As on Linux it hears then, and not
//! before, that the listener is gone.

use crate::listeners::{Incoming, Origin, QueueKey};
use crate::region::{Connection, Stage, Use};
use crate::registry::{Answer, Registry};
use shm::half_flags::RESET;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A connection that waits for its first bytes.
#[derive(Debug)]
struct Waiting {
    listener: u32,
    incoming: Incoming,
    until: Instant,
}

/// All that wait.
#[derive(Debug, Default)]
pub struct Deferred {
    all: HashMap<Origin, Waiting>,
    by_time: BTreeSet<(Instant, Origin)>,
}

impl Deferred {
    fn add(&mut self, waiting: Waiting) {
        let origin = waiting.incoming.0;
        self.take(origin);
        self.by_time.insert((waiting.until, origin));
        self.all.insert(origin, waiting);
    }

    fn take(&mut self, origin: Origin) -> Option<Waiting> {
        let waiting = self.all.remove(&origin)?;
        self.by_time.remove(&(waiting.until, origin));
        Some(waiting)
    }

    /// When the first has waited long enough.
    pub fn due(&self) -> Option<Instant> {
        self.by_time.first().map(|(until, _)| *until)
    }
}

impl Registry {
    /// For how long the listener of that queue leaves connections alone that say nothing.
    pub fn deferral(&self, key: QueueKey) -> Option<Duration> {
        let listener = self.listeners.queues.get(&key)?.listener;
        let patience = self.listeners.all.get(&listener)?.options.defer_accept?;
        Some(Duration::from_nanos(patience.as_ns()))
    }

    /// A connection of this host has come for the listener of that queue. True: it is to be announced.
    pub fn arrive_or_wait(&mut self, key: QueueKey, incoming: Incoming) -> bool {
        let listener = self.listeners.queues.get(&key).map(|queue| queue.listener);
        let (Some(patience), Some(listener)) = (self.deferral(key), listener) else {
            self.arrive(key, incoming);
            return false;
        };
        self.establish(incoming.0, 0);
        self.listeners.deferred.add(Waiting { listener, incoming, until: Instant::now() + patience });
        true
    }

    /// `Request::Announce`. Its time may have been over already.
    pub fn announce(&mut self, id: u32, region: u32, slot: u32) -> Answer {
        let used = self.regions.get(&region).and_then(|r| r.slots.get(slot));
        let origin = match used {
            Some(Use::Relay(relay, 0)) => Origin::Relay(*relay),
            _ => Origin::Pair(region, slot),
        };
        let connector = self.connection_of(origin).map(|connection| connection.applications[0]);
        let is_its = |connector| self.applications.get(&id).is_some_and(|a| a.descends_from(connector));
        if !connector.is_none_or(is_its) {
            return Answer::Offence("it announced a stranger's connection".to_owned());
        }
        if let Some(waiting) = self.listeners.deferred.take(origin) {
            self.let_in(&waiting);
        }
        Answer::Silent
    }

    /// Lets those in whose time is over.
    pub fn announce_due(&mut self, now: Instant) {
        while let Some(&(until, origin)) = self.listeners.deferred.by_time.first()
            && until <= now
            && let Some(waiting) = self.listeners.deferred.take(origin)
        {
            self.let_in(&waiting);
        }
    }

    fn let_in(&mut self, waiting: &Waiting) {
        let (origin, record) = waiting.incoming;
        let is_there = |connection: &Connection| {
            (connection.addresses, connection.stage) == ([record.peer, record.local], Stage::Queued)
        };
        if !self.connection_of(origin).is_some_and(is_there) {
            return;
        }
        let queues = self.listeners.all.get(&waiting.listener).map(|l| l.queues.clone()).unwrap_or_default();
        // As on Linux who has reset it is forgotten.
        match self.choose_queue(&queues).filter(|_| !self.is_reset(origin)) {
            Some(key) => self.arrive(key, waiting.incoming),
            None => self.reset_unaccepted(waiting.incoming),
        }
    }

    fn connection_of(&self, origin: Origin) -> Option<&Connection> {
        match origin {
            Origin::Pair(region, slot) => self.pairs.get(&region)?.slots.get(slot),
            Origin::Relay(id) => self.relays.get(&id).map(|relay| &relay.connection),
            Origin::Flow(..) => None,
        }
    }

    /// Its maker has reset it. Hostile.
    fn is_reset(&self, origin: Origin) -> bool {
        let flags = match origin {
            Origin::Pair(region, slot) => self.pairs.get(&region).and_then(|pair| pair.region.slot(slot)),
            Origin::Relay(_) | Origin::Flow(..) => None,
        };
        flags.is_some_and(|slot| slot.half[0].flags.load(Ordering::Acquire) & RESET != 0)
    }
}
