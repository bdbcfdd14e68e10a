//! `TCP_DEFER_ACCEPT` inside this host: a new connection stays out of the accept queue until its connector's library announces the first
//! bytes or the end, the connector leaves the connection to another process or dies, or the listener's time is over. Only then does the
//! connector learn, as on Linux, that the listener is gone.

use crate::listen::origin::{Incoming, Origin};
use crate::memory::connection::Stage;
use crate::registry::{Answer, Registry};
use shm::half_flags::{RELEASED, RESET};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

/// A connection that waits for its first bytes, and the listener for which it was made.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    listener: u32,
    incoming: Incoming,
    until: Instant,
}

/// All connections that wait for their first bytes.
#[derive(Debug, Default)]
pub struct Deferred {
    all: HashMap<Origin, Waiting>,
    by_time: BTreeSet<(Instant, Origin)>,
    by_listener: HashMap<u32, usize>,
}

impl Deferred {
    fn add(&mut self, waiting: Waiting) {
        let origin = waiting.incoming.0;
        self.take(origin);
        self.by_time.insert((waiting.until, origin));
        *self.by_listener.entry(waiting.listener).or_default() += 1;
        self.all.insert(origin, waiting);
    }

    fn take(&mut self, origin: Origin) -> Option<Waiting> {
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

    fn count(&self, listener: u32) -> usize {
        self.by_listener.get(&listener).copied().unwrap_or(0)
    }

    /// All connections that wait, each with the listener for which it was made.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Incoming)> {
        self.all.values().map(|waiting| (waiting.listener, &waiting.incoming))
    }

    /// When the time of the first waiting connection is over.
    pub fn due(&self) -> Option<Instant> {
        self.by_time.first().map(|(until, _)| *until)
    }
}

impl Registry {
    /// How long a listener waits for a connection's first bytes; `None`: it does not wait.
    pub fn deferral(&self, listener: u32) -> Option<Duration> {
        let patience = self.listeners.all.get(&listener)?.options.defer_accept?;
        Some(Duration::from_nanos(patience.as_ns()))
    }

    /// Takes a new connection of this host for a listener. True: it waits, and the connector must announce its first bytes.
    pub fn arrive_or_wait(&mut self, listener: u32, incoming: Incoming) -> bool {
        let backlog = self.listeners.all.get(&listener).map_or(0, |l| l.grants.backlog() as usize);
        let has_room = self.listeners.deferred.count(listener) <= backlog;
        let Some(patience) = self.deferral(listener).filter(|_| has_room) else {
            self.arrive(listener, incoming);
            return false;
        };
        self.establish(incoming.0, 0);
        let until = self.now + patience;
        self.listeners.deferred.add(Waiting { listener, incoming, until });
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

    /// Resets the connections of closed listeners where the acceptor's memory goes, because no process in `held` owns it. Closed with that
    /// memory they would look like served ones.
    pub fn reset_deferred(&mut self, held: &HashSet<u32>) {
        let is_over =
            |incoming: &Incoming| self.party_that_accepts(incoming).is_none_or(|p| !held.contains(&p));
        let all = self.listeners.deferred.all.iter();
        let over: Vec<Origin> =
            all.filter(|(_, waiting)| is_over(&waiting.incoming)).map(|(origin, _)| *origin).collect();
        over.into_iter().for_each(|origin| self.let_in(origin));
    }

    /// Ends the wait of a connection, if it waits, and puts it into its accept queue.
    pub fn let_in(&mut self, origin: Origin) {
        let Some(waiting) = self.take_deferred(origin) else { return };
        let is_reset = self.connector_flags(origin).is_some_and(|flags| flags & RESET != 0);
        if is_reset || !self.listeners.all.contains_key(&waiting.listener) {
            // Linux forgets a connection that was reset, too.
            self.reset_unaccepted(waiting.incoming);
        } else {
            self.arrive(waiting.listener, waiting.incoming);
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
