//! Relays in a row: a process that has passed a connection on is between two relays. When nothing is under way between them they become
//! one, and the slot in the middle is free.
//!
//! ```text
//!   other end <-- inner --> middle | deputy <-- outer --> end        becomes        other end <-- inner --> end
//!                           one slot of a region, its two sides
//! ```

use super::{Outcome, Relays};
use crate::registry::relay::endpoint::End;
use shm::Side;

impl Relays {
    /// Joins a relay with its neighbours in the row, where that is possible now.
    pub(super) fn join(&mut self, id: u32, out: &mut Vec<Outcome>) {
        if !self.deputies.any() {
            return;
        }
        if let Some(inner) = self.inner_of(id) {
            self.join_two(id, inner, out);
        }
        for end in 0..2 {
            if let Some(outer) = self.outer_of(id, end) {
                self.join_two(outer, id, out);
            }
        }
    }

    /// The relay with an end at the service's side of the slot where the deputy of `outer` is.
    fn inner_of(&self, outer: u32) -> Option<u32> {
        let [deputy, _] = self.all.get(&outer)?;
        let memory = deputy.place.memory().filter(|_| deputy.place.is_deputy() && !deputy.gone)?;
        self.by_slot.get(&(memory.index, deputy.slot)).copied()
    }

    /// The relay with a deputy at the application's side of the slot of that end.
    fn outer_of(&self, inner: u32, end: usize) -> Option<u32> {
        let end = self.all.get(&inner)?.get(end)?;
        let is_own = !end.place.is_deputy() && !end.gone;
        is_own.then(|| self.deputies.at((end.place.region_id, Side::One.index()), end.slot))?
    }

    fn join_two(&mut self, outer: u32, inner: u32, out: &mut Vec<Outcome>) {
        let (Some(far), Some(near)) = (self.all.get(&outer), self.all.get(&inner)) else { return };
        let Some(at) = near.iter().position(|end| is_opposite(end, &far[0])) else { return };
        if outer == inner || !is_quiet(far, near, at) {
            return;
        }
        let (Some([deputy, end]), Some(mut ends)) = (self.all.remove(&outer), self.all.remove(&inner)) else {
            return;
        };
        self.forget(outer, &deputy);
        self.forget(inner, &ends[at]);
        if let Some(memory) = end.place.memory() {
            self.by_slot.insert((memory.index, end.slot), inner);
        }
        let middle = std::mem::replace(&mut ends[at], end);
        self.all.insert(inner, ends);
        self.leave_seat(deputy);
        self.leave_seat(middle);
        self.look(inner);
        out.push(Outcome::Joined { outer, inner });
    }

    /// Keeps a deputy that closes at once until its stream was read.
    pub fn linger(&mut self, end: End) {
        self.pools.entry(end.place.seat()).or_default().1 += 1;
        self.deputies.sit(&end);
        self.deputies.linger(end);
        self.sweep();
    }
}

/// True when `end` is the service's own end of the slot where `deputy` is.
fn is_opposite(end: &End, deputy: &End) -> bool {
    let same_slot = (end.place.region_id, end.slot) == (deputy.place.region_id, deputy.slot);
    same_slot && !end.place.is_deputy() && !end.gone
}

/// True when nothing is between the two relays: no bytes, and no FIN that only one of them has passed on.
fn is_quiet([deputy, end]: &[End; 2], near: &[End; 2], at: usize) -> bool {
    let (middle, other) = (&near[at], &near[at ^ 1]);
    let no_byte = deputy.sender.head == middle.tail && middle.sender.head == deputy.tail;
    let no_end = end.ended == middle.ended && other.ended == deputy.ended;
    let is_over = end.gone || other.gone || middle.ended && deputy.ended;
    no_byte && no_end && !is_over
}
