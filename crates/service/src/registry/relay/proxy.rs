//! Deputies: ends of relays where the service acts in the name of a process that has passed its connection on. This file keeps the
//! doorbells that reach them, and the rings of deputies that have closed. Moves no bytes.

use crate::registry::relay::endpoint::{End, Place, Seat};
use queue::Doorbell;
use std::collections::HashMap;

/// All deputies of one core. A seat is one side of one region.
#[derive(Debug, Default)]
pub struct Deputies {
    /// One place of each seat, and the number of deputies there.
    seats: HashMap<Seat, (Place, usize)>,
    /// Relays by their deputy's seat and slot.
    by_slot: HashMap<(Seat, u32), u32>,
    /// Deputies that have closed while their rings are still read.
    lingering: Vec<End>,
}

impl Deputies {
    /// Adds `end`, which is a deputy of that relay.
    pub fn add(&mut self, relay: u32, end: &End) {
        self.by_slot.insert((end.place.seat(), end.slot), relay);
        self.sit(end);
    }

    /// Counts one more deputy at the seat of `end`.
    pub fn sit(&mut self, end: &End) {
        self.seats.entry(end.place.seat()).or_insert_with(|| (end.place.clone(), 0)).1 += 1;
    }

    /// True when there is a deputy.
    pub fn any(&self) -> bool {
        !self.seats.is_empty()
    }

    /// The relay with a deputy at that seat and slot.
    pub fn at(&self, seat: Seat, slot: u32) -> Option<u32> {
        self.by_slot.get(&(seat, slot)).copied()
    }

    /// Reads the doorbells of all seats. `None`: none has rung; else the relays that have news.
    pub fn listen(&self) -> Option<Vec<u32>> {
        if self.seats.is_empty() {
            return None;
        }
        let (mut rung, mut relays) = (false, Vec::new());
        for (seat, (place, _)) in &self.seats {
            if let Some(bell) = place.bell() {
                rung |= bell.drain(place.slots(), |slot| relays.extend(self.by_slot.get(&(*seat, slot)))) > 0;
            }
        }
        rung.then_some(relays)
    }

    /// Announces sleep on all doorbells. False: one has rung, and the core stays awake.
    pub fn prepare_sleep(&self) -> bool {
        let sleeps = self.bells().all(Doorbell::prepare_sleep);
        if !sleeps {
            self.awake();
        }
        sleeps
    }

    /// Announces on all doorbells that the core is awake.
    pub fn awake(&self) {
        self.bells().for_each(Doorbell::awake);
    }

    fn bells(&self) -> impl Iterator<Item = Doorbell<'_>> {
        self.seats.values().filter_map(|(place, _)| place.bell())
    }

    /// Rings at the slot of `end` no longer concern that relay.
    pub fn forget(&mut self, relay: u32, end: &End) {
        let place = (end.place.seat(), end.slot);
        if self.by_slot.get(&place) == Some(&relay) {
            self.by_slot.remove(&place);
        }
    }

    /// Keeps a deputy that has closed until its rings were read.
    pub fn linger(&mut self, end: End) {
        self.lingering.push(end);
    }

    /// Removes and returns the closed deputies with rings that were read to their end.
    pub fn over(&mut self) -> Vec<End> {
        let (over, rest) = std::mem::take(&mut self.lingering).into_iter().partition(End::is_over);
        self.lingering = rest;
        over
    }

    /// Counts one deputy less at `seat`.
    pub fn leave_seat(&mut self, seat: Seat) {
        if let Some((_, ends)) = self.seats.get_mut(&seat) {
            *ends -= 1;
            if *ends == 0 {
                self.seats.remove(&seat);
            }
        }
    }
}
