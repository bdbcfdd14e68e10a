//! Ports of closed connections within the host: what they are needed for, and when a program may bind them again. Each answer is about the
//! service's own sockets only.

use crate::registry::listen::origin::Origin;

use crate::registry::listen::table::{Listener, Stopped};
use crate::registry::local::is_live;
use crate::registry::local::port_need::Need;
use crate::registry::local::port_space::{Ends, PortSpace};
use crate::registry::memory::connection::{Connection, Relay, Stage};
use crate::registry::memory::pairs::PairRegion;
use crate::registry::memory::region::AppRegion;
use crate::registry::memory::slot_key::SlotKey;
use crate::registry::{Answer, Registry};
use control::Reply;
use rustix::io::Errno;
use shm::Half;
use shm::half_flags::RELEASED;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What both ends of a connection need their ports for, from the flags of the connector's half and of the acceptor's.
fn needs_of([connector, acceptor]: [u32; 2]) -> [Need; 2] {
    [Need::of(connector, acceptor), Need::of(acceptor, connector)]
}

fn flags(halves: &[Half; 2]) -> [u32; 2] {
    halves.each_ref().map(|half| half.flags.load(Ordering::Acquire))
}

/// The same for a connection in a pair region. The connector may use a lent slot at any time: its port is never free.
fn needs_in_pair(pair: &PairRegion, slot: u32, connection: &Connection) -> Option<[Need; 2]> {
    let flags = flags(&pair.region.slot(slot)?.half);
    let needs = needs_of(flags);
    Some(match connection.stage {
        Stage::Lent if flags[0] & flags[1] & RELEASED != 0 => [Need::Live, Need::Nothing],
        Stage::Lent => [Need::Live, needs[1]],
        _ => needs,
    })
}

/// The same for a relayed connection.
fn needs_of_relay(regions: &HashMap<u32, AppRegion>, relay: &Relay) -> [Need; 2] {
    let need = |end: usize| {
        let SlotKey { region, slot } = relay.place(end)?;
        let halves = regions.get(&region)?.memory.halves(slot)?;
        let (own, application) = halves;
        let flags = |half: &Half| half.flags.load(Ordering::Acquire);
        Some(Need::of(flags(application), flags(own)))
    };
    [0, 1].map(|end| need(end).unwrap_or(Need::Nothing))
}

impl PortSpace {
    /// Notes what connections of a pair region need their ports for; the slots `over` are about to end.
    pub fn note_pair(&mut self, id: u32, pair: &PairRegion, over: &[u32], now: Instant) {
        let is_closed = |slot: u32| {
            pair.region
                .slot(slot)
                .is_some_and(|s| s.half.iter().any(|half| half.flags.load(Ordering::Relaxed) & RELEASED != 0))
        };
        for (slot, connection) in pair.connections() {
            if connection.stage == Stage::Lent || !is_closed(slot) {
                continue;
            }
            if let Some(needs) = needs_in_pair(pair, slot, connection) {
                self.note(&connection.addresses, Origin::Pair(id, slot), needs, now);
            }
        }
        for slot in over {
            let Some(connection) = pair.connection(*slot) else { continue };
            let Some(lines) = pair.region.slot(*slot) else { continue };
            self.end(&connection.addresses, Origin::Pair(id, *slot), needs_of(flags(&lines.half)), now);
        }
    }
}

impl Registry {
    /// Notes what all connections with that port need it for; with 0 what all connections need their ports for.
    fn note_port(&mut self, port: u16) {
        let Self { ports, pairs, relays, regions, now, .. } = self;
        ports.note_port(port, *now, |ends: &Ends, origin| match origin {
            Origin::Pair(region, slot) => {
                let pair = pairs.get(region)?;
                let connection = pair.connection(slot).filter(|c| c.addresses == *ends)?;
                needs_in_pair(pair, slot, connection)
            }
            Origin::Relay(id) => {
                let relay = relays.get(&id).filter(|relay| relay.connection.addresses == *ends)?;
                Some(needs_of_relay(regions, relay))
            }
            Origin::Flow(..) => None,
        });
    }

    /// Answers `Request::WantPort`.
    pub fn want_port(&mut self, id: u32, at: SocketAddr) -> Answer {
        // The ports are held in the service's network namespace.
        let is_here = self.applications.get(&id).is_some_and(|a| a.namespace == self.namespace);
        if is_here {
            self.note_port(at.port());
            let is_given = match at.port() {
                0 => self.ports.give_any_back(at.ip(), self.now),
                _ => self.ports.give_back(at, self.now),
            };
            if is_given {
                // Gives back what is still held at single addresses, when no connection needs it any more.
                self.sweep_later();
                return Answer::plain(Reply::Done);
            }
        }
        Answer::refused(Errno::ADDRINUSE, "the port is in use")
    }

    /// True when connections need the port of a listener that is being closed.
    pub fn needs_port(&mut self, queue: u32) -> bool {
        let Some(local) = self.listeners.all.get(&queue).filter(|l| self.may_keep(l)).map(|l| l.local) else {
            return false;
        };
        self.note_port(local.port());
        self.ports.has_acceptors(local, self.now)
    }

    /// A listener is closed: its port stays taken while its connections need it. The next socket must have `SO_REUSEADDR` if the listener
    /// had it, and can have the port then.
    pub fn keep_port(&mut self, listener: &Listener) {
        if self.may_keep(listener) {
            self.note_port(listener.local.port());
            self.ports.keep(listener.local, listener.reuse_address, self.now);
            // A sweep gives the port back.
            self.sweep_later();
        }
    }

    /// A listener has stopped, and its port is kept where the kernel gave it up. Notes the listener if its connections need the port.
    pub fn note_stopped(&mut self, queue: u32, listener: &Listener) {
        let Listener { local, reuse_address, .. } = *listener;
        if self.may_keep(listener) && self.ports.has_acceptors(local, self.now) {
            let is_bound = self.ports.is_bound(local);
            self.listeners.stopped.insert(local, Stopped { queue, local, reuse_address, is_bound });
            self.sweep_later();
        }
    }

    /// The stopped listener that had the accept queue, and whether connections need its port. The needs are noted.
    fn stopped(&mut self, queue: u32) -> Option<(Stopped, bool)> {
        let stopped = self.listeners.stopped.values().find(|stopped| stopped.queue == queue).copied()?;
        self.note_port(stopped.local.port());
        Some((stopped, self.ports.has_acceptors(stopped.local, self.now)))
    }

    /// A process says that it closes, or has closed, a listener that has stopped.
    pub fn closed_stopped(&mut self, queue: u32) -> Answer {
        let Some((stopped, true)) = self.stopped(queue) else { return Answer::plain(Reply::Done) };
        let is_kept = self.ports.keep(stopped.local, stopped.reuse_address, self.now);
        self.sweep_later();
        Answer::plain(if is_kept { Reply::Done } else { Reply::PortNeeded })
    }

    /// Answers `Request::ListenAgain`. On Linux a socket that is bound listens again only if its connections, and itself, all have
    /// `SO_REUSEADDR`, or no connection needs the port.
    pub fn listen_again(&mut self, queue: u32, reuse_address: bool) -> Answer {
        match self.stopped(queue) {
            Some((stopped, true)) if stopped.is_bound && !(reuse_address && stopped.reuse_address) => {
                Answer::refused(Errno::ADDRINUSE, "connections of the socket need its port")
            }
            _ => Answer::plain(Reply::Done),
        }
    }

    /// With `SO_REUSEPORT` the next socket must be of the same user as the one that holds the port, which is the service's.
    fn may_keep(&self, listener: &Listener) -> bool {
        listener.namespace == self.namespace && !listener.reuse_port && !self.tcp.owns(listener.local.ip())
    }

    /// True while ports are kept for connections of closed or stopped listeners.
    pub fn keeps_ports(&self) -> bool {
        !(self.ports.kept_ports().is_empty() && self.listeners.stopped.is_empty())
    }

    /// Gives spare ports back to the kernel.
    pub fn release_ports(&mut self) {
        let stopped = self.listeners.stopped.values().map(|stopped| stopped.local.port());
        let noted: HashSet<u16> = self.ports.kept_ports().into_iter().chain(stopped).collect();
        noted.into_iter().for_each(|port| self.note_port(port));
        let Self { ports, listeners, pairs, relays, now, .. } = self;
        ports.release_kept(None, *now);
        listeners.stopped.retain(|_, stopped| ports.has_acceptors(stopped.local, *now));
        ports.release(*now, |ends, origin| is_live(pairs, relays, ends, origin));
    }
}
