//! `TCP_DEFER_ACCEPT` inside this host: a new connection stays out of the accept queue until its connector's library announces the first
//! bytes or the end, the connector leaves the connection to another process or dies, or the listener's time is over. Only then does the
//! connector learn, as on Linux, that the listener is gone.

use crate::listen::table::{Incoming, Origin, QueueKey};
use crate::memory::region::Stage;
use crate::registry::{Answer, Registry};
use control::AcceptRecord;
use cycles::now_ns;
use shm::half_flags::{RELEASED, RESET};
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// A connection that waits for its first bytes, and the accept queue for which it was made.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    listener: u32,
    key: QueueKey,
    incoming: Incoming,
    until: Instant,
}

/// All connections that wait for their first bytes.
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

    /// The connections that wait for queue `key`.
    fn of_queue(&self, key: QueueKey) -> Vec<Origin> {
        if self.count(key) == 0 {
            return Vec::new();
        }
        self.all.values().filter(|waiting| waiting.key == key).map(|waiting| waiting.incoming.0).collect()
    }

    /// When the time of the first waiting connection is over.
    pub fn due(&self) -> Option<Instant> {
        self.by_time.first().map(|(until, _)| *until)
    }
}

impl Registry {
    /// How long the listener of queue `key` waits for a connection's first bytes; `None`: it does not wait.
    pub fn deferral(&self, key: QueueKey) -> Option<Duration> {
        let listener = self.listeners.queues.get(&key)?.listener;
        let patience = self.listeners.all.get(&listener)?.options.defer_accept?;
        Some(Duration::from_nanos(patience.as_ns()))
    }

    /// Takes a new connection of this host for queue `key`. True: it waits, and the connector must announce its first bytes.
    pub fn arrive_or_wait(&mut self, key: QueueKey, incoming: Incoming) -> bool {
        let room = |backlog: u32| self.listeners.deferred.count(key) <= backlog as usize;
        let queue = self.listeners.queues.get(&key);
        let listener = queue.filter(|queue| room(queue.backlog)).map(|queue| queue.listener);
        let (Some(listener), Some(patience)) = (listener, self.deferral(key)) else {
            self.arrive(key, incoming);
            return false;
        };
        self.establish(incoming.0, 0);
        let until = self.now + patience;
        self.listeners.deferred.add(Waiting { listener, key, incoming, until });
        true
    }

    /// Answers `Request::Announce`. The connection's time may have been over already.
    pub fn announce(&mut self, id: u32, region: u32, slot: u32) -> Answer {
        let origin = self.origin_at(region, slot);
        let connector = self.connection_of(origin).map(|connection| connection.applications[0]);
        let is_its = |connector| self.applications.get(&id).is_some_and(|a| a.descends_from(connector));
        if connector.is_some_and(is_its) {
            self.let_in(origin);
        }
        Answer::Silent
    }

    /// Moves the connections that have waited long enough into their accept queues.
    pub fn announce_due(&mut self) {
        while let Some(&(until, origin)) = self.listeners.deferred.by_time.first()
            && until <= self.now
        {
            self.let_in(origin);
        }
    }

    /// Moves connections into their accept queues if the connector has closed or died.
    pub fn announce_left(&mut self) {
        let is_left =
            |origin: &Origin| self.connector_flags(*origin).is_none_or(|flags| flags & RELEASED != 0);
        let left: Vec<Origin> = self.listeners.deferred.all.keys().copied().filter(is_left).collect();
        left.into_iter().for_each(|origin| self.let_in(origin));
    }

    /// Queue `key` is about to close: its waiting connections go to other queues of the same socket, even before their first bytes. Without
    /// such a queue they go on waiting, unless the queue's process `is_gone`; those of an `offender` are reset.
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

    /// Ends the wait of a connection, if it waits, and puts it into its accept queue.
    pub fn let_in(&mut self, origin: Origin) {
        let Some(waiting) = self.take_deferred(origin) else { return };
        let listener = self.listeners.all.get(&waiting.listener);
        let queues = listener.map(|listener| listener.queues.clone()).unwrap_or_default();
        if self.connector_flags(origin).is_some_and(|flags| flags & RESET != 0) {
            // Linux forgets such a connection, too.
            self.reset_unaccepted(waiting.incoming);
        } else if queues.contains(&waiting.key) {
            let (origin, record) = waiting.incoming;
            self.arrive(waiting.key, (origin, AcceptRecord { time: now_ns(), ..record }));
        } else {
            self.hand_over(waiting.incoming, &queues);
        }
    }

    /// Gives a connection to one of the queues `heirs`, or resets it.
    fn hand_over(&mut self, incoming: Incoming, heirs: &[QueueKey]) {
        if !self.bequeath(incoming, heirs) {
            self.reset_unaccepted(incoming);
        }
    }

    /// Removes a waiting connection. `None` if its slot has another connection by now.
    fn take_deferred(&mut self, origin: Origin) -> Option<Waiting> {
        let waiting = self.listeners.deferred.take(origin)?;
        let (_, record) = waiting.incoming;
        let connection = self.connection_of(origin)?;
        let is_it = connection.addresses == [record.peer, record.local] && connection.stage == Stage::Queued;
        is_it.then_some(waiting)
    }
}
