//! `TCP_DEFER_ACCEPT` inside this host: a connection whose maker has said nothing yet comes into no accept queue. It does when its first
//! bytes or its end are announced, which its maker's library does, when its maker leaves it to another process or dies, or when the
//! listener's time is over. As on Linux the maker hears then, and not before, that nobody listens there any more.

use crate::listeners::{Incoming, Origin, QueueKey};
use crate::region::Stage;
use crate::registry::{Answer, Registry};
use control::AcceptRecord;
use cycles::now_ns;
use shm::half_flags::{RELEASED, RESET};
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// A connection that waits for its first bytes. It was made for the process of that queue.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    listener: u32,
    key: QueueKey,
    incoming: Incoming,
    until: Instant,
}

/// All that wait.
#[derive(Debug, Default)]
pub struct Deferred {
    all: HashMap<Origin, Waiting>,
    by_time: BTreeSet<(Instant, Origin)>,
    by_queue: HashMap<QueueKey, usize>,
}

impl Deferred {
    fn add(&mut self, waiting: Waiting) {
        let origin = waiting.incoming.0;
        self.take(origin);
        self.by_time.insert((waiting.until, origin));
        *self.by_queue.entry(waiting.key).or_default() += 1;
        self.all.insert(origin, waiting);
    }

    fn take(&mut self, origin: Origin) -> Option<Waiting> {
        let waiting = self.all.remove(&origin)?;
        self.by_time.remove(&(waiting.until, origin));
        if let Some(count) = self.by_queue.get_mut(&waiting.key) {
            *count -= 1;
            if *count == 0 {
                self.by_queue.remove(&waiting.key);
            }
        }
        Some(waiting)
    }

    fn count(&self, key: QueueKey) -> usize {
        self.by_queue.get(&key).copied().unwrap_or(0)
    }

    /// Those of one queue.
    fn of_queue(&self, key: QueueKey) -> Vec<Origin> {
        if self.count(key) == 0 {
            return Vec::new();
        }
        self.all.values().filter(|waiting| waiting.key == key).map(|waiting| waiting.incoming.0).collect()
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
        let room = |backlog: u32| self.listeners.deferred.count(key) <= backlog as usize;
        let queue = self.listeners.queues.get(&key);
        let listener = queue.filter(|queue| room(queue.backlog)).map(|queue| queue.listener);
        let (Some(listener), Some(patience)) = (listener, self.deferral(key)) else {
            self.arrive(key, incoming);
            return false;
        };
        self.establish(incoming.0, 0);
        let until = Instant::now() + patience;
        self.listeners.deferred.add(Waiting { listener, key, incoming, until });
        true
    }

    /// `Request::Announce`. Its time may have been over already.
    pub fn announce(&mut self, id: u32, region: u32, slot: u32) -> Answer {
        let origin = self.origin_at(region, slot);
        let connector = self.connection_of(origin).map(|connection| connection.applications[0]);
        let is_its = |connector| self.applications.get(&id).is_some_and(|a| a.descends_from(connector));
        if connector.is_some_and(is_its) {
            self.let_in(origin);
        }
        Answer::Silent
    }

    /// Lets those in whose time is over.
    pub fn announce_due(&mut self, now: Instant) {
        while let Some(&(until, origin)) = self.listeners.deferred.by_time.first()
            && until <= now
        {
            self.let_in(origin);
        }
    }

    /// Lets those in whose makers have gone.
    pub fn announce_left(&mut self) {
        let is_left =
            |origin: &Origin| self.connector_flags(*origin).is_none_or(|flags| flags & RELEASED != 0);
        let left: Vec<Origin> = self.listeners.deferred.all.keys().copied().filter(is_left).collect();
        left.into_iter().for_each(|origin| self.let_in(origin));
    }

    /// A queue is about to close: what waits for it goes to others who accept from the same socket, whatever it has said. Where there are
    /// none it waits on, unless its process `is_gone`. It is reset where that has misbehaved.
    pub fn leave_deferred(&mut self, key: QueueKey, is_gone: bool, offender: bool) {
        let Some(queue) = self.listeners.queues.get(&key) else { return };
        let heirs =
            if offender { Vec::new() } else { self.listeners.others(queue.listener, queue.application) };
        if !(is_gone || offender) && heirs.is_empty() {
            return;
        }
        for origin in self.listeners.deferred.of_queue(key) {
            if let Some(waiting) = self.take_deferred(origin) {
                self.hand_over(waiting.incoming, &heirs);
            }
        }
    }

    /// That connection waits no more, if it does.
    pub fn let_in(&mut self, origin: Origin) {
        let Some(waiting) = self.take_deferred(origin) else { return };
        let listener = self.listeners.all.get(&waiting.listener);
        let queues = listener.map(|listener| listener.queues.clone()).unwrap_or_default();
        if self.connector_flags(origin).is_some_and(|flags| flags & RESET != 0) {
            // As on Linux it is forgotten.
            self.reset_unaccepted(waiting.incoming);
        } else if queues.contains(&waiting.key) {
            let (origin, record) = waiting.incoming;
            self.arrive(waiting.key, (origin, AcceptRecord { time: now_ns(), ..record }));
        } else {
            self.hand_over(waiting.incoming, &queues);
        }
    }

    /// Gives it to one of `heirs`, or resets it.
    fn hand_over(&mut self, incoming: Incoming, heirs: &[QueueKey]) {
        if !self.bequeath(incoming, heirs) {
            self.reset_unaccepted(incoming);
        }
    }

    /// What waits there, if it still is the connection that was made.
    fn take_deferred(&mut self, origin: Origin) -> Option<Waiting> {
        let waiting = self.listeners.deferred.take(origin)?;
        let (_, record) = waiting.incoming;
        let connection = self.connection_of(origin)?;
        let is_it = connection.addresses == [record.peer, record.local] && connection.stage == Stage::Queued;
        is_it.then_some(waiting)
    }
}
