//! The life of a connection inside this host after the request, shared or relayed: it is established, accepted, or reset because its
//! listener is gone.

use crate::cores::{Command, RELAY_CORE};
use crate::registry::listen::origin::{Incoming, Origin};
use crate::registry::local::as_asked;
use crate::registry::local::port_need::Need;
use crate::registry::memory::connection::{Connection, Relay, Stage};
use crate::registry::memory::region::Use;
use crate::registry::memory::slot_key::SlotKey;
use crate::registry::relay::Outcome;
use crate::registry::relay::endpoint::End;
use crate::registry::{Answer, Registry};
use control::{AcceptRecord, KernelReason, RegionInfo, Reply};
use queue::stream::{close_for, raise, watch};
use shm::Side;
use shm::half_flags::{NEAR, OPEN, READ_CLOSED, RELEASED, RESET};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

impl Registry {
    /// Sets up a connection that the service relays.
    pub fn connect_relay(
        &mut self,
        parties: [u32; 2],
        listener: u32,
        addresses: [SocketAddr; 2],
        asked: SocketAddr,
    ) -> Answer {
        let Some(own) = self.own_region(parties[0]) else {
            return Answer::kernel(KernelReason::NotMapped);
        };
        let Some(home) = self.listeners.all.get(&listener).map(|l| l.home.region) else {
            return Answer::Silent;
        };
        let id = self.new_relay_id();
        let regions = [own, home];
        let Some(slots) = self.take_relay_slots(id, regions) else {
            return Answer::kernel(KernelReason::ApplicationRegionFull);
        };
        let places = [SlotKey { region: own, slot: slots[0] }, SlotKey { region: home, slot: slots[1] }];
        let ends =
            [0, 1].map(|i| self.regions.get(&regions[i]).map(|r| End::new(r.memory.clone(), slots[i])));
        let [Some(first), Some(second)] = ends else { return Answer::Silent };
        self.command(RELAY_CORE, Command::Open(id, Box::new([first, second])));
        let connection = Connection { addresses, applications: parties, stage: Stage::Pending, grant: None };
        self.relays.insert(id, Relay::new(places, connection));
        self.count_sockets(parties, 1);
        let [peer, local] = addresses;
        let record = AcceptRecord { region: home, slot: slots[1], side: 1, local, peer };
        self.arrive(listener, (Origin::Relay(id), record));
        self.accelerated(parties[0], |p| &mut p.connected, 1);
        let Some(region) = self.regions.get(&own) else { return Answer::Silent };
        let info = RegionInfo::of(&region.memory.region().layout().params, Side::One, true);
        let local = as_asked(addresses[0], asked);
        Answer::plain(Reply::Connecting { region: info, slot: slots[0], local, lent: None })
    }

    /// A slot with cleared halves in each of the two regions (which may be the same one), or no slot at all.
    fn take_relay_slots(&mut self, relay: u32, regions: [u32; 2]) -> Option<[u32; 2]> {
        let mut slots = [0; 2];
        for end in 0..2 {
            let taken =
                self.regions.get_mut(&regions[end]).and_then(|r| r.slots.take(Use::Relay(relay, end)).ok());
            let Some(slot) = taken else {
                if end == 1 {
                    self.regions.get_mut(&regions[0]).and_then(|r| r.slots.release(slots[0]));
                }
                return None;
            };
            slots[end] = slot;
            let lines = self.regions.get(&regions[end])?.memory.region().slot(slot)?;
            lines.half.iter().for_each(shm::Half::clear);
            raise(&lines.half[0], NEAR);
            watch(&lines.half[0], Some(RELAY_CORE as u32));
        }
        Some(slots)
    }

    /// The record is in the accept queue: marks one end established. The acceptor's end, 1, must come before the connector's, 0: once its
    /// end is established the connector may tell other processes.
    pub fn establish(&mut self, origin: Origin, end: usize) {
        self.set_stage(origin, Stage::Queued);
        match origin {
            Origin::Pair(region, slot) => {
                let Some(pair) = self.pairs.get(region) else { return };
                let Some(lines) = pair.region.slot(slot) else { return };
                raise(&lines.half[end ^ 1], OPEN);
                if let Some(family) = self.family_of(pair.parties[0]).filter(|_| end == 0) {
                    self.ring(&pair.region, Side::Zero, family, slot);
                }
            }
            // Of a plain connection the slow path has done that.
            Origin::Flow(region, slot) => self.establish_channel(region, slot, end),
            Origin::Relay(id) => {
                let place = self.relays.get(&id).and_then(|relay| relay.place(end));
                let Some(SlotKey { region, slot }) = place else { return };
                let Some(memory) = self.regions.get(&region).map(|r| &r.memory) else { return };
                if let Some((own, _)) = memory.halves(slot) {
                    raise(own, OPEN);
                    self.tell(memory, slot);
                }
            }
        }
    }

    /// Sets the stage of a connection inside this host.
    pub fn set_stage(&mut self, origin: Origin, stage: Stage) {
        match origin {
            Origin::Pair(region, slot) => {
                self.pairs.get_mut(region).into_iter().for_each(|pair| pair.set_stage(slot, stage));
            }
            Origin::Relay(id) => {
                self.relays.get_mut(&id).into_iter().for_each(|relay| relay.connection.stage = stage);
            }
            Origin::Flow(..) => {}
        }
    }

    /// The connection of this host with its connector's end in that slot.
    pub fn origin_at(&self, region: u32, slot: u32) -> Origin {
        match self.regions.get(&region).and_then(|r| r.slots.get(slot)) {
            Some(Use::Relay(relay, _)) => Origin::Relay(*relay),
            _ => Origin::Pair(region, slot),
        }
    }

    /// The service's record of a connection inside this host; `None`: there is none.
    pub fn connection_of(&self, origin: Origin) -> Option<&Connection> {
        match origin {
            Origin::Pair(region, slot) => self.pairs.get(region)?.connection(slot),
            Origin::Relay(id) => self.relays.get(&id).map(|relay| &relay.connection),
            // Only the slow path knows it.
            Origin::Flow(..) => None,
        }
    }

    /// The flags of the connector's half. Hostile. An end of a relay that is gone has closed.
    pub fn connector_flags(&self, origin: Origin) -> Option<u32> {
        let half = match origin {
            Origin::Pair(region, slot) => &self.pairs.get(region)?.region.slot(slot)?.half[0],
            Origin::Relay(id) => {
                let Some(SlotKey { region, slot }) = self.relays.get(&id)?.place(0) else {
                    return Some(RELEASED);
                };
                self.regions.get(&region)?.memory.halves(slot)?.1
            }
            Origin::Flow(..) => return None,
        };
        Some(half.flags.load(Ordering::Acquire))
    }

    /// True when the connector has closed before the connection was established. A later close does not matter: as on Linux it can still be
    /// accepted.
    pub fn is_given_up(&self, origin: Origin) -> bool {
        let is_pending = self.connection_of(origin).is_some_and(|c| c.stage == Stage::Pending);
        is_pending && self.connector_flags(origin).is_some_and(|flags| flags & RELEASED != 0)
    }

    /// Resets a connection after its listener ended without accepting it.
    pub fn reset_unaccepted(&mut self, (origin, record): Incoming) {
        match origin {
            Origin::Pair(region, slot) => {
                let Some(pair) = self.pairs.get(region) else { return };
                let Some(lines) = pair.region.slot(slot) else { return };
                raise(&lines.half[1], RESET | READ_CLOSED | RELEASED);
                self.ring(&pair.region, Side::Zero, self.family_at(pair, Side::Zero), slot);
            }
            // The relay may have become part of another one.
            Origin::Relay(_) => {
                let used = self.regions.get(&record.region).and_then(|r| r.slots.get(record.slot));
                if let Some(Use::Relay(id, end)) = used {
                    self.close_relay_end(*id, *end, true);
                }
            }
            Origin::Flow(region, slot) => self.close_flow(region, slot, true),
        }
    }

    /// Closes one end of a relay as Linux does when a process dies: by a reset if bytes are unread, else by a FIN.
    pub fn close_relay_end(&self, id: u32, end: usize, reset: bool) {
        let place = self.relays.get(&id).and_then(|relay| relay.place(end));
        let Some(SlotKey { region, slot }) = place else { return };
        let Some((own, app)) = self.regions.get(&region).and_then(|r| r.memory.halves(slot)) else { return };
        close_for(app, own, reset);
        self.look_at_relay(id);
    }

    /// Tells the core to look at a relay again.
    pub fn look_at_relay(&self, id: u32) {
        self.command(RELAY_CORE, Command::Look(id));
    }

    /// Handles what the cores' relays have reported.
    pub fn hear_cores(&mut self) {
        let outcomes: Vec<Outcome> = self.cores.iter().flat_map(|core| core.outcomes.try_iter()).collect();
        for outcome in outcomes {
            match outcome {
                Outcome::EndGone(id, end) => self.relay_end_gone(id, end),
                Outcome::Joined { outer, inner } => self.joined(outer, inner),
                Outcome::Violation(region, violation) => {
                    if let Some(owner) = self.regions.get(&region).map(|r| r.owner) {
                        self.doom(owner, format!("in a relayed connection: {violation}"));
                    }
                }
                Outcome::MemoryShort(region) => self.grow(region),
                Outcome::Channels(told) => self.channel_told(told),
            }
        }
    }

    fn relay_end_gone(&mut self, id: u32, end: usize) {
        self.deputy_gone(id, end);
        let Some(relay) = self.relays.get_mut(&id) else { return };
        let Some(SlotKey { region, slot }) = relay.end(end) else { return };
        let ends = relay.connection.addresses;
        let halves = self.regions.get(&region).and_then(|r| r.memory.halves(slot));
        let need = halves
            .map(|(own, app)| Need::of(app.flags.load(Ordering::Acquire), own.flags.load(Ordering::Acquire)));
        self.ports.rest(&ends, end, need.unwrap_or(Need::Nothing), self.now);
        let party = relay.connection.applications[end];
        if relay.is_over() {
            self.relays.remove(&id);
        }
        self.regions.get_mut(&region).and_then(|r| r.slots.release(slot));
        self.forget_trusts_at(SlotKey { region, slot });
        self.uncount_sockets([party]);
    }
}
