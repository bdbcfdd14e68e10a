//! `TCP_DEFER_ACCEPT` ([`control::DeferAccept`]) inside this host: a new connection stays out of the accept queue until its connector's
//! library announces the first bytes or the end, the connector leaves the connection to another process or dies, or the listener's time is
//! over. Only then does the connector learn, as on Linux, that the listener is gone.

use crate::registry::listen::deferred::Waiting;
use crate::registry::listen::origin::{Incoming, Origin};
use crate::registry::memory::connection::Stage;
use crate::registry::{Answer, Registry};
use shm::half_flags::{RELEASED, RESET};
use std::collections::HashSet;
use std::time::Duration;

impl Registry {
    /// How long a listener waits for a new connection's first bytes; `None`: it does not wait.
    pub fn deferral(&self, listener: u32) -> Option<Duration> {
        let rule = self.listeners.all.get(&listener)?.options.defer_accept?;
        Some(Duration::from_nanos(rule.left(base::Duration::ZERO)?.as_ns()))
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
        while let Some((until, origin)) = self.listeners.deferred.first()
            && until <= self.now
        {
            self.let_in(origin);
        }
    }

    /// Moves connections into their accept queues if the connector has closed or died.
    pub fn announce_left(&mut self) {
        let is_left =
            |incoming: &Incoming| self.connector_flags(incoming.0).is_none_or(|flags| flags & RELEASED != 0);
        self.listeners.deferred.that(is_left).into_iter().for_each(|origin| self.let_in(origin));
    }

    /// Resets the connections of closed listeners where the acceptor's memory goes, because no process in `held` owns it. Closed with that
    /// memory they would look like served ones.
    pub fn reset_deferred(&mut self, held: &HashSet<u32>) {
        let is_over =
            |incoming: &Incoming| self.party_that_accepts(incoming).is_none_or(|p| !held.contains(&p));
        self.listeners.deferred.that(is_over).into_iter().for_each(|origin| self.let_in(origin));
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
