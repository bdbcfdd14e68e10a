//! Regions that two processes share, each with the connections in it.

use crate::registry::memory::connection::{Connection, GrantKey, Stage};
use crate::registry::memory::size::Size;
use crate::registry::memory::slots::Slots;
use crate::registry::process::descriptors::Charge;
use rustix::fd::OwnedFd;
use shm::half_flags::RELEASED;
use shm::{Half, Kind, Params, Region, RegionError, TRUST_CONTEXT};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

/// All pair regions, by id. New connections of two processes go to one of them; no more once one of its sides has died.
#[derive(Debug, Default)]
pub struct Pairs {
    all: HashMap<u32, PairRegion>,
    /// The regions for new connections, by connector and acceptor.
    of: HashMap<[u32; 2], u32>,
}

impl Pairs {
    /// The region of that id.
    pub fn get(&self, id: u32) -> Option<&PairRegion> {
        self.all.get(&id)
    }

    /// The region of that id, mutable.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut PairRegion> {
        self.all.get_mut(&id)
    }

    /// Id of the region for new connections of a connector and an acceptor.
    pub fn of(&self, parties: [u32; 2]) -> Option<u32> {
        self.of.get(&parties).copied()
    }

    /// All regions with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &PairRegion)> {
        self.all.iter().map(|(id, pair)| (*id, pair))
    }

    /// All regions.
    pub fn values(&self) -> impl Iterator<Item = &PairRegion> {
        self.all.values()
    }

    /// The ids of all regions.
    pub fn ids(&self) -> Vec<u32> {
        self.all.keys().copied().collect()
    }

    /// Adds a region: new connections of its parties go there.
    pub fn add(&mut self, id: u32, pair: PairRegion) {
        self.of.insert(pair.parties, id);
        self.all.insert(id, pair);
    }

    /// No process lives on that side any more, or, with `both`, on either.
    pub fn end_side(&mut self, id: u32, side: usize, both: bool) {
        let Some(pair) = self.all.get_mut(&id) else { return };
        pair.dead[side] = true;
        pair.dead[side ^ 1] |= both;
        if self.of.get(&pair.parties) == Some(&id) {
            self.of.remove(&pair.parties);
        }
    }

    /// Removes a region with a dead side when its last connection has ended, or both sides are dead.
    pub fn remove_if_over(&mut self, id: u32) -> Option<PairRegion> {
        let pair = self.all.get(&id)?;
        let is_over = pair.dead == [true; 2] || pair.has_dead_side() && pair.used() == 0;
        if is_over { self.all.remove(&id) } else { None }
    }
}

/// The region of one ordered pair of processes: the first connects, the second accepts.
#[derive(Debug)]
pub struct PairRegion {
    /// The service's mapping of the region.
    pub region: Arc<Region>,
    /// The memfd of the region.
    pub fd: Arc<OwnedFd>,
    /// Ids of the connector and of the acceptor.
    pub parties: [u32; 2],
    /// The parties that have mapped it.
    mapped: [bool; 2],
    is_sealed: bool,
    /// Sides on which no process lives any more.
    dead: [bool; 2],
    /// Connections and lent slots, by slot.
    slots: Slots<Connection>,
    /// Number of lent slots among them.
    lent: u32,
    /// Accept queues for which no slot could be lent, by their ids, and when that may be tried again.
    pauses: HashMap<u32, Instant>,
    /// Eventfds by which one side wakes a context of the other. Key: the sleeper's side and its context.
    wakers: HashMap<(usize, u32), Arc<OwnedFd>>,
    /// For the memfd and the eventfds.
    pub charges: Vec<Charge>,
}

impl PairRegion {
    /// True when no slot is to be lent for that accept queue now.
    pub fn is_paused(&self, queue: u32, now: Instant) -> bool {
        self.pauses.get(&queue).is_some_and(|until| now < *until)
    }

    /// No slot could be lent for that accept queue: that is not tried again before `until`.
    pub fn pause(&mut self, queue: u32, now: Instant, until: Instant) {
        self.pauses.retain(|_, until| now < *until);
        self.pauses.insert(queue, until);
    }

    /// Makes a region for two processes: the connector and the acceptor.
    pub fn create(id: u32, parties: [u32; 2], Size { slots, data_len }: Size) -> Result<Self, RegionError> {
        let params = Params { kind: Kind::Pair, id: u64::from(id), slots, data_len };
        let (region, fd) = Region::create(params)?;
        Ok(Self {
            region: Arc::new(region),
            fd: Arc::new(fd),
            parties,
            mapped: [false; 2],
            is_sealed: false,
            dead: [false; 2],
            pauses: HashMap::new(),
            slots: Slots::new(0, slots),
            lent: 0,
            wakers: HashMap::new(),
            charges: Vec::new(),
        })
    }

    /// A process has mapped the region. Returns whether both parties have.
    pub fn note_mapped(&mut self, by: u32) -> bool {
        for (mapped, party) in self.mapped.iter_mut().zip(self.parties) {
            *mapped |= party == by;
        }
        self.mapped == [true; 2]
    }

    /// True once no further writable mapping can be made, and no hole can be punched.
    pub fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// The memfd was sealed.
    pub fn note_sealed(&mut self) {
        self.is_sealed = true;
    }

    /// True when no process lives on that side any more.
    pub fn is_dead(&self, side: usize) -> bool {
        self.dead[side]
    }

    /// True when no process of one side, or of both, lives.
    pub fn has_dead_side(&self) -> bool {
        self.dead != [false; 2]
    }

    /// Takes a slot with cleared halves. Returns the connection when no slot is free.
    pub fn take(&mut self, connection: Connection) -> Result<u32, Connection> {
        let is_lent = connection.stage == Stage::Lent;
        let slot = self.slots.take(connection)?;
        self.lent += u32::from(is_lent);
        self.region.slot(slot).iter().flat_map(|slot| &slot.half).for_each(Half::clear);
        Ok(slot)
    }

    /// Frees a slot and returns its connection, if it had one.
    pub fn release(&mut self, slot: u32) -> Option<Connection> {
        let connection = self.slots.release(slot)?;
        self.lent -= u32::from(connection.stage == Stage::Lent);
        Some(connection)
    }

    /// The connection at a slot.
    pub fn connection(&self, slot: u32) -> Option<&Connection> {
        self.slots.get(slot)
    }

    /// Connections and lent slots, by slot.
    pub fn connections(&self) -> impl Iterator<Item = (u32, &Connection)> {
        self.slots.iter()
    }

    /// The slots from this number on have never been used.
    pub fn slots_end(&self) -> u32 {
        self.slots.end_used()
    }

    /// How far the connection at a slot has come.
    pub fn set_stage(&mut self, slot: u32, stage: Stage) {
        if let Some(connection) = self.slots.get_mut(slot) {
            self.lent -= u32::from(connection.stage == Stage::Lent);
            self.lent += u32::from(stage == Stage::Lent);
            connection.stage = stage;
        }
    }

    /// Sets the grant of a lent slot. Returns the one that it had.
    pub fn set_grant(&mut self, slot: u32, grant: Option<GrantKey>) -> Option<GrantKey> {
        std::mem::replace(&mut self.slots.get_mut(slot)?.grant, grant)
    }

    /// Number of slots with connections, and of lent ones.
    pub fn used(&self) -> u32 {
        self.slots.used()
    }

    /// Number of lent slots.
    pub fn lent(&self) -> u32 {
        self.lent
    }

    /// True when the service may free a slot. While both parties live, a lent slot stays lent. With a dead party it ends, whatever its
    /// flags say, unless a socket is in it or can be (`is_used`).
    pub fn is_over(&self, slot: u32, is_used: impl FnOnce() -> bool) -> bool {
        let released = |half: &Half| half.flags.load(SeqCst) & RELEASED != 0;
        let both = || self.region.slot(slot).is_some_and(|s| s.half.iter().all(released));
        match self.slots.get(slot) {
            // First and cheap: there may be very many lent slots, and each is checked at every sweep.
            Some(c) if c.stage == Stage::Lent && !self.has_dead_side() => false,
            Some(c) if c.stage == Stage::Lent => both() || !is_used(),
            _ => both(),
        }
    }

    /// The eventfd by which the other side wakes that context of `side`.
    pub fn waker(&self, side: usize, context: u32) -> Option<&Arc<OwnedFd>> {
        self.wakers.get(&(side, context))
    }

    /// Adds an eventfd by which the other side wakes that context of `side`.
    pub fn add_waker(&mut self, side: usize, context: u32, eventfd: Arc<OwnedFd>) {
        self.wakers.insert((side, context), eventfd);
    }

    /// The eventfds that wake the core that relays.
    pub fn relays_wakers(&self) -> impl Iterator<Item = &Arc<OwnedFd>> {
        (0..2).filter_map(|side| self.waker(side, TRUST_CONTEXT))
    }
}
