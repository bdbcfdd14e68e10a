//! The time limit of bytes that programs hold back within one host (`TCP_CORK`, `MSG_MORE`). The program has no thread that could release
//! them in time, so the control thread does.
//!
//! ```text
//!   program: writes, sets its bit in HELD_CONTEXT --first--> waker --> looked at every TICK --> nothing for a while: asleep again
//! ```
//! After the first wake-up a program that holds bytes back makes no system call until the control thread sleeps again. All input here is
//! hostile: a look costs as much as bits are set and sockets hold back, at most one of each per slot; what is released is a position of the
//! program's own stream, which the reader checks as always.

use crate::registry::Registry;
use crate::registry::local::holds::Hold;
use crate::registry::memory::region::Use;
use crate::registry::memory::slot_key::SlotKey;
use crate::registry::reaper::side_named;
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

/// The connection of a socket block that holds bytes back.
struct Holder<'a> {
    own: &'a Half,
    block: &'a SockBlock,
    place: SlotKey,
    to: To,
}

/// The reader of the held bytes.
enum To {
    /// A process of that family, on that side of the pair region.
    Family(u32, Side),
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
        let is_awake = self.held.awake.contains_key(&region);
        if !is_awake && self.collect(region, now + LIMIT) > 0 {
            self.held.awake.insert(region, 0);
            self.held.tick.get_or_insert(now + TICK);
        }
    }

    fn held_bell(&self, region: u32) -> Option<(Doorbell<'_>, u32)> {
        let region = self.regions.get(&region)?.memory.region();
        Some((Doorbell::of(region, Side::Zero, HELD_CONTEXT)?, region.layout().params.slots))
    }

    /// Reads and clears the bits of a region's sockets that hold bytes back, with time limit `due`. Returns the number of bits.
    fn collect(&mut self, region: u32, due: Instant) -> usize {
        let Some((bell, slots)) = self.held_bell(region) else { return 0 };
        let mut blocks = Vec::new();
        bell.drain(slots, |index| blocks.push(index));
        for &index in &blocks {
            let holder = self.holder(region, index);
            if let Some(from) = holder.and_then(|holder| held_from(holder.own, holder.block)) {
                self.held.holds.entry((region, index)).or_insert(Hold { from, due });
            }
        }
        blocks.len()
    }

    /// Looks at every socket that holds bytes back, and releases them when their time is over.
    pub fn look_at_held(&mut self) {
        let now = self.now;
        if self.held.tick.is_none_or(|at| now < at) {
            return;
        }
        // A hold found now began after the last look, at most one tick ago.
        let due = now + LIMIT - TICK;
        let awake: Vec<u32> = self.held.awake.keys().copied().collect();
        let found: Vec<usize> = awake.iter().map(|region| self.collect(*region, due)).collect();
        let mut holds = std::mem::take(&mut self.held.holds);
        holds.retain(|(region, index), hold| self.is_still_held(*region, *index, hold, now, due));
        self.held.holds = holds;
        for (region, found) in awake.into_iter().zip(found) {
            let is_idle = found == 0 && !self.held.holds.keys().any(|(holder, _)| *holder == region);
            let quiet = if is_idle { self.held.awake.get(&region).map_or(0, |quiet| quiet + 1) } else { 0 };
            self.held.awake.insert(region, quiet);
            // After `prepare_sleep` the next hold rings the bell.
            if quiet >= QUIET && self.held_bell(region).is_none_or(|(bell, _)| bell.prepare_sleep()) {
                self.held.awake.remove(&region);
            }
        }
        self.held.tick = (!self.held.awake.is_empty()).then(|| now + TICK);
    }

    /// Looks at one hold, and releases it if its time is over. False: nothing is held back there any more.
    fn is_still_held(&self, region: u32, index: u32, hold: &mut Hold, now: Instant, due: Instant) -> bool {
        let Some(holder) = self.holder(region, index) else { return false };
        let Some(from) = held_from(holder.own, holder.block) else { return false };
        if from != hold.from {
            // The bytes held before were sent; these are others.
            *hold = Hold { from, due };
        } else if now >= hold.due {
            if let_go_for(holder.own, holder.block, from, || holder.is_its()) {
                self.tell_of(&holder);
            }
            return false;
        }
        true
    }

    fn tell_of(&self, holder: &Holder<'_>) {
        match holder.to {
            To::Relay(relay) => self.look_at_relay(relay),
            To::Family(family, side) => {
                if let Some(pair) = self.pairs.get(holder.place.region) {
                    self.ring(&pair.region, side, family, holder.place.slot);
                }
            }
        }
    }

    /// The connection of block `index` in application region `home`, if the block says that it holds bytes back.
    fn holder(&self, home: u32, index: u32) -> Option<Holder<'_>> {
        let home = self.regions.get(&home)?;
        let block = home.memory.region().sock(index)?;
        if block.state.load(Ordering::Acquire) & HELD == 0 {
            return None;
        }
        let place @ SlotKey { region, slot } = SlotKey::in_block(block);
        let family = self.family_of(home.owner)?;
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
        let family = self.family_of(pair.parties[side ^ 1])?;
        Some(Holder { own, block, place, to: To::Family(family, other) })
    }
}
