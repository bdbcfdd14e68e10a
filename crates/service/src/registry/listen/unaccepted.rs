//! Whether a grant's connection is still to be accepted. The queue's words do not tell: any holder of the socket may write there. The
//! service's own tables tell which connection a slot has, and `ACCEPTED` in the acceptor's half whether a process has it; of a region's
//! halves only its two parties can write.

use crate::registry::listen::origin::{Incoming, Origin};

use crate::registry::Registry;
use crate::registry::application::Application;
use crate::registry::listen::table::Listener;
use crate::registry::memory::connection::Stage;
use crate::registry::memory::region::{AppRegion, Use};
use crate::registry::memory::slot_key::SlotKey;
use crate::registry::reaper::side_named;
use shm::Half;
use shm::half_flags::{ACCEPTED, RELEASED};
use std::sync::atomic::Ordering;

impl Registry {
    /// True while the connection's slot has not been given to another connection. The service notices late that a connection was accepted,
    /// and keeps its grant until then.
    pub fn is_in_its_slot(&self, (origin, record): &Incoming) -> bool {
        let ends = [record.peer, record.local];
        match *origin {
            Origin::Pair(region, slot) => {
                let connection = self.pairs.get(region).and_then(|pair| pair.connection(slot));
                connection.is_some_and(|c| c.addresses == ends)
            }
            Origin::Relay(id) => self.relays.get(&id).is_some_and(|relay| {
                let place = SlotKey { region: record.region, slot: record.slot };
                relay.place(1) == Some(place) && relay.connection.addresses == ends
            }),
            Origin::Flow(region, slot) => {
                let used = self.regions.get(&region).and_then(|r| r.slots.get(slot));
                matches!(used, Some(Use::Flow(flow)) if flow.ends == [record.local, record.peer])
            }
        }
    }

    /// Notes in the service's tables that a process has accepted a connection. A slot that is lent stays lent.
    pub fn note_accepted(&mut self, incoming: &Incoming) {
        let is_queued = self.connection_of(incoming.0).is_some_and(|c| c.stage == Stage::Queued);
        if is_queued && self.is_in_its_slot(incoming) {
            self.set_stage(incoming.0, Stage::Accepted);
        }
    }

    /// The acceptor's half of a connection; `None`: its slot has another one.
    pub fn acceptors_half(&self, incoming: &Incoming) -> Option<&Half> {
        if !self.is_in_its_slot(incoming) {
            return None;
        }
        let record = &incoming.1;
        match incoming.0 {
            Origin::Pair(region, slot) => Some(&self.pairs.get(region)?.region.slot(slot)?.half[1]),
            Origin::Relay(_) | Origin::Flow(..) => {
                Some(self.regions.get(&record.region)?.memory.halves(record.slot)?.1)
            }
        }
    }

    /// True when no process has accepted the connection.
    pub fn is_unaccepted(&self, incoming: &Incoming) -> bool {
        let half = self.acceptors_half(incoming);
        half.is_some_and(|half| half.flags.load(Ordering::Acquire) & (ACCEPTED | RELEASED) == 0)
    }

    /// Takes the connections out of a queue that no process has accepted.
    pub fn withdraw_unaccepted(&self, listener: &Listener) -> Vec<Incoming> {
        let queue = listener.queue();
        let waiting = listener.grants.iter().filter(|(grant, _)| queue.withdraw(*grant));
        let waiting = waiting.filter_map(|(grant, _)| listener.grants.get(grant));
        waiting.filter(|incoming| self.is_unaccepted(incoming)).collect()
    }

    /// True when a connection that `dead` had claimed was not set up: another process may accept it.
    pub fn is_left_unaccepted(&self, dead: &Application, incoming: &Incoming) -> bool {
        let Some(half) = self.acceptors_half(incoming) else { return false };
        let flags = half.flags.load(Ordering::Acquire);
        if flags & (ACCEPTED | RELEASED) != ACCEPTED {
            return flags & RELEASED == 0;
        }
        // Only a process of the acceptor's family can have set the flag itself and died before it named the connection in a socket block.
        // A hostile holder may say of any connection that the dead process had claimed it.
        let is_its = self.party_that_accepts(incoming).is_some_and(|party| dead.descends_from(party));
        let is_left = is_its && !self.is_held(incoming);
        if is_left {
            half.flags.fetch_and(!ACCEPTED, Ordering::AcqRel);
        }
        is_left
    }

    /// The process that owns the acceptor's end; `None`: its region is gone.
    pub fn party_that_accepts(&self, (origin, record): &Incoming) -> Option<u32> {
        match origin {
            Origin::Pair(region, _) => self.pairs.get(*region).map(|pair| pair.parties[1]),
            Origin::Relay(_) | Origin::Flow(..) => self.regions.get(&record.region).map(|r| r.owner),
        }
    }

    /// True when a socket block of the acceptor's family names the connection, or the service holds it.
    fn is_held(&self, incoming: &Incoming) -> bool {
        let record = &incoming.1;
        if self.trusts.at(SlotKey { region: record.region, slot: record.slot }, record.side).is_some() {
            return true;
        }
        let Some(family) = self.party_that_accepts(incoming).and_then(|party| self.family_of(party)) else {
            return false;
        };
        let is_relative = |id| self.family_of(id) == Some(family);
        let regions = self.regions.values().filter(|r| is_relative(r.owner));
        regions.flat_map(AppRegion::sock_blocks).any(|block| {
            let is_named = block.holders.load(Ordering::Acquire) != 0
                && block.region.load(Ordering::Relaxed) == record.region
                && block.slot.load(Ordering::Relaxed) == record.slot;
            let ports = block.ports.load(Ordering::Relaxed);
            let is_acceptors = self
                .pairs
                .get(record.region)
                .is_none_or(|pair| side_named(pair, record.slot, ports, is_relative) != Some(0));
            is_named && is_acceptors
        })
    }
}
