//! What a ring does between two looks at its events: publishes, collects news, sleeps.

use crate::error::Error;
use crate::event::{Event, Kind};
use crate::listen::Listening;
use crate::ring::{Ring, enqueue};
use endpoint::stream::ready;
use rustix::io::Errno;
use shm::half_flags::FIN;
use std::time::{Duration, Instant};

/// Longest sleep when some news does not wake the ring: a peer that sends no wake-ups, no memory, no eventfd.
const BLIND: Duration = Duration::from_millis(1);
/// A ring that never sleeps asks the kernel for other news once in so many looks.
const KERNEL_EVERY: u64 = 256;
/// Spinning pays while a look finds news of at most so many connections. That is so with few connections, and with many if the peers run on
/// other cores at the same time: there each sleep costs both sides a wake-up between cores. Looks that find more mean that the peers had
/// this core meanwhile, and get it again by one yield.
const LONELY: u32 = 4;

impl Ring {
    /// Publishes, then waits until there are events, `timeout` is over (`None`: never) or a signal comes. `events` is cleared and filled; it
    /// is empty after a timeout. At most [`crate::Options::events_most`] are told at once, the rest at the next call.
    ///
    /// # Errors
    /// [`Error::ServiceGone`], once every connection was told [`Kind::Closed`]; [`Error::NotYours`].
    pub fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> Result<(), Error> {
        self.look(events)?;
        if !events.is_empty() || timeout == Some(Duration::ZERO) {
            return Ok(());
        }
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if self.pause(self.timers.limit(left))? {
                // A signal: the program may want to look at what its handler has noted.
                return self.look(events);
            }
            self.look(events)?;
            if !events.is_empty() || left == Some(Duration::ZERO) {
                return Ok(());
            }
        }
    }

    /// As [`wait`](Self::wait) without waiting.
    ///
    /// # Errors
    /// As [`wait`](Self::wait)'s.
    pub fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        self.look(events)
    }

    /// For a program that sleeps on [`Ring::fd`]: publishes and announces the sleep. False: there are events now, so call [`Ring::poll`] instead
    /// of sleeping. `poll` takes the announcement back.
    ///
    /// # Errors
    /// As [`wait`](Self::wait)'s.
    pub fn arm(&mut self) -> Result<bool, Error> {
        self.flush();
        self.check()?;
        self.is_armed = self.prepare_sleep() && !self.has_news();
        if !self.is_armed {
            self.awake();
        }
        Ok(self.is_armed)
    }

    fn look(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        events.clear();
        self.end_view();
        self.flush();
        self.counters.waits += 1;
        match self.check() {
            Err(Error::ServiceGone) => return self.last_look(events),
            other => other?,
        }
        if std::mem::take(&mut self.is_armed) {
            self.awake();
            self.context.harvest();
        } else if self.counters.waits.is_multiple_of(KERNEL_EVERY) {
            self.context.harvest();
        }
        if self.context.take_outside() {
            self.refuse_kernel();
        }
        self.collect();
        if self.waker.take() {
            events.push(Self::event(0, Kind::Woken));
        }
        if self.timers.next().is_some() {
            let now = Instant::now();
            while let Some(token) = self.timers.pop(now) {
                events.push(Self::event(token, Kind::Timer));
            }
        }
        self.accept(events);
        self.tell(events);
        self.counters.events += events.len() as u64;
        Ok(())
    }

    /// Takes the news: connections that have some are due.
    fn collect(&mut self) {
        let Self { watches, table, due, context, .. } = self;
        let is_told = watches.drain(context.number, |index| {
            if let Some(connection) = table.connection(index) {
                connection.link.prefetch();
            }
            enqueue(table, due, index);
        });
        self.busy = self.busy - self.busy / 8 + self.due.len() as u32;
        if is_told {
            self.service.client.pump();
        }
    }

    /// The service has ended: each connection hears it once, then the call fails.
    fn last_look(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        for index in self.table.taken() {
            let handle = self.table.handle(index);
            let most = self.events_most();
            let Some(connection) = self.table.connection(index) else { continue };
            if events.len() < most && !std::mem::replace(&mut connection.told_closed, true) {
                let _ = connection.link.peer_flags();
                let e = connection.link.take_error().unwrap_or(Errno::CONNRESET);
                events.push(Event { handle, token: connection.token, kind: Kind::Closed(e) });
            }
        }
        if events.is_empty() { Err(Error::ServiceGone) } else { Ok(()) }
    }

    /// Tells what the due connections have, while there is room.
    fn tell(&mut self, events: &mut Vec<Event>) {
        // One connection has at most five events.
        while events.len() < self.events_most()
            && let Some(index) = self.due.pop_front()
        {
            let handle = self.table.handle(index);
            let Some(connection) = self.table.connection(index) else { continue };
            connection.is_due = false;
            let token = connection.token;
            let mut say = |kind| events.push(Event { handle, token, kind });
            let link = &connection.link;
            let seen = link.peer_flags();
            if connection.is_connecting {
                if link.is_open() {
                    connection.is_connecting = false;
                    say(Kind::Connected);
                } else if link.is_over() {
                    connection.is_connecting = false;
                    connection.told_closed = true;
                    say(Kind::Failed(link.take_error().unwrap_or(Errno::CONNABORTED)));
                    continue;
                } else {
                    continue;
                }
            }
            let arrived = link.arrived();
            if arrived > connection.known {
                connection.known = arrived;
                say(Kind::Readable);
                link.prefetch_bytes();
            }
            if connection.wants_room && (link.has_room_again() || link.is_over()) {
                connection.wants_room = false;
                say(Kind::Writable);
            }
            if seen & FIN != 0 && !connection.told_finished {
                connection.told_finished = true;
                say(Kind::Finished);
            }
            if link.is_over() && !connection.told_closed {
                connection.told_closed = true;
                let error = link.stream_readiness() & ready::ERR != 0;
                let e = if error { link.take_error() } else { None };
                say(Kind::Closed(e.unwrap_or(Errno::CONNRESET)));
            }
        }
    }

    /// True when a look would find something.
    fn has_news(&self) -> bool {
        !self.due.is_empty()
            || self.waker.is_woken()
            || self.watches.any(self.context.number)
            || self.listening().any(Listening::has_any)
    }

    /// Gives the core away, or sleeps, for `limit` at most. True: a signal came.
    fn pause(&mut self, limit: Option<Duration>) -> Result<bool, Error> {
        let start = Instant::now();
        if self.spin(limit) {
            self.context.spin.waited(start.elapsed());
            return Ok(false);
        }
        let is_quiet = self.prepare_sleep() && !self.has_news();
        let is_interrupted = is_quiet && {
            self.counters.sleeps += 1;
            let is_blind = self.is_blind();
            let limit = if is_blind { Some(limit.map_or(BLIND, |limit| limit.min(BLIND))) } else { limit };
            match self.context.sleep(limit, None) {
                Err(Errno::INTR) => true,
                Err(e) => return Err(Error::Os(e)),
                Ok(_) => false,
            }
        };
        self.awake();
        self.context.spin.waited(start.elapsed());
        if self.is_starved {
            self.retry_room();
        }
        Ok(is_interrupted)
    }

    /// True when some news does not wake the ring.
    fn is_blind(&self) -> bool {
        let is_crowded = self.listening().any(Listening::is_crowded);
        is_crowded || self.is_starved || self.watches.is_mute() || self.context.is_deaf()
    }

    /// Memory may be free again: connections that found none look again.
    fn retry_room(&mut self) {
        self.is_starved = false;
        for index in self.table.taken() {
            if self.table.connection(index).is_some_and(|connection| connection.wants_room) {
                self.enqueue(index);
            }
        }
    }

    /// Spins where that has paid lately. True: there is news.
    fn spin(&self, limit: Option<Duration>) -> bool {
        let spin = &self.context.spin;
        if !spin.pays() {
            return false;
        }
        if self.busy > LONELY * 8 && !spin.is_patient() {
            return spin.once(limit, || self.has_news());
        }
        // What the kernel reports is found after the spin.
        spin.until(limit, || self.has_news(), || Ok(false)).unwrap_or(false)
    }

    fn prepare_sleep(&self) -> bool {
        self.context.sleeping.announce();
        let is_quiet = self.watches.prepare_sleep(self.context.number);
        self.listening().fold(is_quiet, |is_quiet, listening| listening.prepare_sleep() && is_quiet)
    }

    fn awake(&self) {
        self.listening().for_each(Listening::take_turn);
        self.context.sleeping.awake();
        self.watches.awake(self.context.number);
    }
}
