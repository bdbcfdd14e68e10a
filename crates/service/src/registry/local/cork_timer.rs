//! The time limit of bytes that programs hold back within one host (`TCP_CORK`, `MSG_MORE`). The program has no thread that could release
//! them in time, so the control thread does.
//!
//! ```text
//!   program: writes, sets its bit in HELD_CONTEXT --first--> waker --> looked at every TICK --> nothing for a while: asleep again
//! ```
//! After the first wake-up a program that holds bytes back makes no system call until the control thread sleeps again. All input here is
//! hostile: a look takes pieces, between which the control loop has other events, and so few of one region that it does not keep another's
//! waiting; the region's owner pays for them. What is released is a position of the program's own stream, which the reader checks as always.

use crate::registry::Registry;
use crate::registry::local::holds::{Hold, Look};
use crate::registry::memory::region::Use;
use crate::registry::memory::slot_key::SlotKey;
use crate::registry::output::Output;
use crate::registry::reaper::side_named;
use base::limits::PAGE;
use queue::Doorbell;
use queue::held::{held_from, let_go_for};
use shm::sock_state::HELD;
use shm::{HELD_CONTEXT, Half, MOVED, Side, SockBlock};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// "there is a 200 millisecond ceiling on the time for which output is corked" (tcp(7)).
const LIMIT: Duration = Duration::from_millis(200);
/// Pause between two looks.
const TICK: Duration = Duration::from_millis(50);
/// Looks that find nothing in a region before its program must write the waker again.
const QUIET: u32 = 10;
/// Most bits and holds that one piece of a look takes, of one region or several.
const PIECE: usize = 512;
/// Most holds of one region: what is held back beyond that waits, as bits, until some of them are over.
const HOLDS_MAX: usize = 1024;
/// Time that a bit or a hold costs, for the account of the region's owner.
const ENTRY: Duration = Duration::from_nanos(500);
/// Socket blocks in a page.
const BLOCKS: u32 = (PAGE / size_of::<SockBlock>()) as u32;

/// The connection of a socket block that holds bytes back.
struct Holder<'a> {
    own: &'a Half,
    block: &'a SockBlock,
    place: SlotKey,
    to: To,
}

/// The reader of the held bytes.
enum To {
    /// A process on that side of the pair region.
    Party(Side),
    /// The core that runs that relay.
    Relay(u32),
}

impl Holder<'_> {
    fn is_its(&self) -> bool {
        self.place == SlotKey::in_block(self.block) && self.block.tx_lock.load(Ordering::Acquire) != MOVED
    }
}

impl Registry {
    /// The slow-path waker of a region was written, perhaps because bytes are held back there.
    pub fn hear_held(&mut self, region: u32) {
        let now = self.now;
        if self.held.awake.contains_key(&region) {
            return;
        }
        let (found, holds) = self.collect(region, now + LIMIT, PIECE);
        if found > 0 {
            self.held.awake.entry(region).or_default().holds.extend(holds);
            self.held.tick.get_or_insert(now + TICK);
            self.charge_look(region, found);
        }
    }

    /// The owner of that region pays for a look at so many bits and holds.
    fn charge_look(&self, region: u32, entries: usize) {
        if let Some(r) = self.regions.get(&region) {
            self.outputs.add(Output::Spent(r.uid, ENTRY * entries as u32));
        }
    }

    fn held_bell(&self, region: u32) -> Option<(Doorbell<'_>, u32)> {
        let region = self.regions.get(&region)?.memory.region();
        Some((Doorbell::of(region, Side::Zero, HELD_CONTEXT)?, region.layout().params.slots))
    }

    /// Reads and clears at most `most` bits of a region's sockets that hold bytes back. Returns the number of bits, and the new holds with time
    /// limit `due`.
    fn collect(&self, region: u32, due: Instant, most: usize) -> (usize, Vec<(u32, Hold)>) {
        let (Some((bell, slots)), Some(r)) = (self.held_bell(region), self.regions.get(&region)) else {
            return (0, Vec::new());
        };
        let family = self.family_of_region(region);
        let mut blocks = Vec::new();
        let found = bell.drain_some(slots, most, |index| blocks.push(index));
        // Many blocks lie in one page.
        let (mut page, mut is_present) = (u32::MAX, false);
        let mut holds = Vec::new();
        for index in blocks {
            if index / BLOCKS != page {
                (page, is_present) = (index / BLOCKS, r.has_block(index));
            }
            let holder = family.filter(|_| is_present).and_then(|family| self.holder(region, family, index));
            if let Some(from) = holder.and_then(|holder| held_from(holder.own, holder.block)) {
                holds.push((index, Hold { from, due }));
            }
        }
        (found, holds)
    }

    /// Looks at the sockets that hold bytes back, and releases them when their time is over: takes one piece of the look, if one is due.
    pub fn look_at_held(&mut self) {
        let now = self.now;
        let is_time = self.held.tick.is_some_and(|at| at <= now);
        // A hold found by a look that begins now began after the last one, at most one tick ago.
        let new = is_time.then_some(Look { due: now + LIMIT - TICK, region: 0, from: None, found: 0 });
        let Some(mut look) = self.held.look.take().or(new) else { return };
        let mut left = PIECE;
        while left > 0 {
            let Some(region) = self.held.awake.range(look.region..).next().map(|(region, _)| *region) else {
                self.held.tick = (!self.held.awake.is_empty()).then(|| now + TICK);
                return;
            };
            if region != look.region {
                look = Look { region, from: None, found: 0, ..look };
            }
            left = left.saturating_sub(1 + self.look_at_region(&mut look, left));
        }
        self.held.look = Some(look);
    }

    /// Goes on with the look at its region, for at most `most` bits and holds. Returns how many it has looked at.
    fn look_at_region(&mut self, look: &mut Look, most: usize) -> usize {
        let Look { region, due, .. } = *look;
        let known = self.held.awake.get(&region).map_or(0, |awake| awake.holds.len());
        let (found, new) = match look.from {
            // The bits of others stay set until there is a place for them.
            None => self.collect(region, due, most.min(HOLDS_MAX.saturating_sub(known))),
            Some(_) => (0, Vec::new()),
        };
        look.found += found;
        let Some(awake) = self.held.awake.get_mut(&region) else { return found };
        for (index, hold) in new {
            awake.holds.entry(index).or_insert(hold);
        }
        let room = most - found;
        let holds = awake.holds.range(look.from.unwrap_or(0)..).take(room);
        let holds: Vec<(u32, Hold)> = holds.map(|(index, hold)| (*index, *hold)).collect();
        let family = self.family_of_region(region);
        for (index, hold) in &holds {
            let left = family.and_then(|family| self.still_held(region, family, *index, *hold, due));
            let Some(awake) = self.held.awake.get_mut(&region) else { break };
            match left {
                Some(hold) => drop(awake.holds.insert(*index, hold)),
                None => drop(awake.holds.remove(index)),
            }
        }
        self.charge_look(region, found + holds.len());
        match holds.last() {
            Some((last, _)) if holds.len() == room => look.from = Some(last + 1),
            None if room == 0 => look.from = Some(0),
            _ => {
                self.end_look_at(region, look.found);
                *look = Look { region: region + 1, from: None, found: 0, ..*look };
            }
        }
        found + holds.len()
    }

    /// A region was looked at, and `found` bits were set. If nothing is held back there for a while its program is to ring again.
    fn end_look_at(&mut self, region: u32, found: usize) {
        let Some(awake) = self.held.awake.get_mut(&region) else { return };
        awake.quiet = if found == 0 && awake.holds.is_empty() { awake.quiet + 1 } else { 0 };
        // After `prepare_sleep` the next hold rings the bell.
        if awake.quiet >= QUIET && self.held_bell(region).is_none_or(|(bell, _)| bell.prepare_sleep()) {
            self.held.awake.remove(&region);
        }
    }

    /// Looks at one hold, and releases it if its time is over. `None`: nothing is held back there any more.
    fn still_held(&self, region: u32, family: u32, index: u32, hold: Hold, due: Instant) -> Option<Hold> {
        let holder = self.holder(region, family, index)?;
        let from = held_from(holder.own, holder.block)?;
        if from != hold.from {
            // The bytes held before were sent; these are others.
            return Some(Hold { from, due });
        }
        if self.now < hold.due {
            return Some(hold);
        }
        if let_go_for(holder.own, holder.block, from, || holder.is_its()) {
            self.tell_of(&holder);
        }
        None
    }

    fn tell_of(&self, holder: &Holder<'_>) {
        match holder.to {
            To::Relay(relay) => self.look_at_relay(relay),
            To::Party(side) => {
                if let Some(pair) = self.pairs.get(holder.place.region) {
                    self.ring(&pair.region, side, self.family_at(pair, side), holder.place.slot);
                }
            }
        }
    }

    /// The family that an application region is of. It is looked for among all if the region's owner has died, so once for many blocks.
    fn family_of_region(&self, region: u32) -> Option<u32> {
        self.family_of(self.regions.get(&region)?.owner)
    }

    /// The connection of block `index` in application region `home` of that family, if the block says that it holds bytes back.
    fn holder(&self, home: u32, family: u32, index: u32) -> Option<Holder<'_>> {
        let home = self.regions.get(&home)?;
        let block = home.memory.region().sock(index)?;
        if block.state.load(Ordering::Acquire) & HELD == 0 {
            return None;
        }
        let place @ SlotKey { region, slot } = SlotKey::in_block(block);
        let is_relative = |id| self.families.get(&family).is_some_and(|f| f.member(id).is_some());
        if let Some(r) = self.regions.get(&region).filter(|r| is_relative(r.owner)) {
            let Some(Use::Relay(relay, _)) = r.slots.get(slot) else { return None };
            let (_, own) = r.memory.halves(slot)?;
            return Some(Holder { own, block, place, to: To::Relay(*relay) });
        }
        let pair = self.pairs.get(region)?;
        let side = side_named(pair, slot, block.ports.load(Ordering::Relaxed), is_relative)?;
        let own = &pair.region.slot(slot)?.half[side];
        let other = Side::from_index(side as u8 ^ 1)?;
        Some(Holder { own, block, place, to: To::Party(other) })
    }
}
