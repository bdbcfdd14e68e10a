//! Ends at which the service stands for a process that has let a connection go: how it hears of their news, and what is kept
//! of those that have let go themselves. Moves no bytes.

use crate::end::{End, Place, Seat};
use queue::Doorbell;
use std::collections::HashMap;

/// All of one core.
#[derive(Debug, Default)]
pub struct Deputies {
    /// A place of each seat, with the number of ends there.
    seats: HashMap<Seat, (Place, usize)>,
    /// Relays by their deputy's slot.
    by_slot: HashMap<(Seat, u32), u32>,
    /// They have let go; their rings are still read.
    lingering: Vec<End>,
}

impl Deputies {
    /// One of that relay's ends is a deputy.
    pub fn add(&mut self, relay: u32, end: &End) {
        self.by_slot.insert((end.place.seat(), end.slot), relay);
        self.sit(end);
    }

    /// One more sits there.
    pub fn sit(&mut self, end: &End) {
        self.seats.entry(end.place.seat()).or_insert_with(|| (end.place.clone(), 0)).1 += 1;
    }

    /// True when there are some.
    pub fn any(&self) -> bool {
        !self.seats.is_empty()
    }

    /// The relay whose deputy stands there.
    pub fn at(&self, seat: Seat, slot: u32) -> Option<u32> {
        self.by_slot.get(&(seat, slot)).copied()
    }

    /// Takes in what they are told: `None` when nothing, else the relays that have news.
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

    /// Announces sleep to those who tell them. False: there is news.
    pub fn prepare_sleep(&self) -> bool {
        let sleeps = self.bells().all(Doorbell::prepare_sleep);
        if !sleeps {
            self.awake();
        }
        sleeps
    }

    /// Awake again.
    pub fn awake(&self) {
        self.bells().for_each(Doorbell::awake);
    }

    fn bells(&self) -> impl Iterator<Item = Doorbell<'_>> {
        self.seats.values().filter_map(|(place, _)| place.bell())
    }

    /// The news of that end's slot are no longer that relay's.
    pub fn forget(&mut self, relay: u32, end: &End) {
        let place = (end.place.seat(), end.slot);
        if self.by_slot.get(&place) == Some(&relay) {
            self.by_slot.remove(&place);
        }
    }

    /// It has let go, and its rings are still read.
    pub fn linger(&mut self, end: End) {
        self.lingering.push(end);
    }

    /// Those whose rings nobody reads any more.
    pub fn over(&mut self) -> Vec<End> {
        let (over, rest) = std::mem::take(&mut self.lingering).into_iter().partition(End::is_over);
        self.lingering = rest;
        over
    }

    /// One fewer sits there.
    pub fn leave_seat(&mut self, seat: Seat) {
        if let Some((_, ends)) = self.seats.get_mut(&seat) {
            *ends -= 1;
            if *ends == 0 {
                self.seats.remove(&seat);
            }
        }
    }
}
