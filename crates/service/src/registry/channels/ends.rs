//! The applications' ends of virtual sockets: slots of application regions on one side, byte streams by position on the other. Knows no
//! session and no channel.
//!
//! ```text
//!   application's ring    acked .. seen            bytes stay there until the peer's socket has them     Streams::read
//!   service's ring        head (published) .. furthest .. edge (credit)                                  Streams::write
//! ```
//! Every byte of credit has its place in a lent ring: what the peer may send can always be stored.

mod announce;

use crate::registry::memory::Memory;
use crate::registry::relay::endpoint::{End, Place};
use crate::registry::relay::want_no_space;
use base::Instant;
use base::limits::RING_MAX;
use channel::bytes::{Input, Room};
use channel::{SessionId, Streams};
use queue::pages::{Pool, class_of};
use queue::stream::readable;
use queue::{Ring, Violation};
use shm::half_flags::{FIN, RELEASED, RESET, WANT_SPACE};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Bytes of the first ring for what the peer sends: a few requests. It grows when the peer uses its credit up.
const RING_FIRST: usize = 16 << 10;
/// Bytes copied at once from one ring to a larger one.
const PIECE: usize = 4 << 10;
/// What goes to the peer of an application that broke the rules.
static ZEROS: [u8; PIECE] = [0; PIECE];

/// Where a virtual socket is: its session, and its identifier there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct At {
    /// The session of the socket.
    pub session: SessionId,
    /// The identifier of the socket in the session.
    pub socket: u32,
}

/// One application's end of a virtual socket.
#[derive(Debug)]
pub struct AppEnd {
    end: End,
    /// The socket that this end belongs to.
    pub at: At,
    /// End of the application's stream as the session was told.
    seen: u64,
    /// End of the bytes of the peer that are stored, also of those ahead of the published ones.
    furthest: u64,
    /// End of the credit that the session was told.
    edge: u64,
    /// Bytes of window granted of the region's budget.
    granted: u64,
    /// The session was told that the application's stream ends.
    is_finished: bool,
    /// The session has no such socket any more.
    pub is_over: bool,
    /// The program wants no plain TCP instead.
    pub is_required: bool,
    /// Waits to be looked at.
    is_queued: bool,
    /// What the application is to be told.
    untold: announce::Untold,
    /// When the end was last seen to make progress after its application closed it.
    pub progress_at: Instant,
    /// The position that was confirmed then.
    pub progress: u64,
}

impl AppEnd {
    /// True when the application has closed the connection: only bytes under way keep it.
    pub fn is_orphan(&self) -> bool {
        self.progress_at != Instant::ZERO
    }
}

/// What the application has done since the last look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// The application has written up to this position.
    pub written: Option<u64>,
    /// The application's stream ends there.
    pub is_finished: bool,
    /// The application has reset the connection.
    pub is_reset: bool,
    /// The application has let go of the slot.
    pub is_released: bool,
    /// There is room for the peer's bytes up to this position.
    pub edge: Option<u64>,
}

/// Where an end is in the table; another end is there when the generations differ.
#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    end: Option<AppEnd>,
}

impl Entry {
    /// The name of the end at this `place` of the table.
    fn tag(&self, place: u32) -> u64 {
        u64::from(self.generation) << 32 | u64::from(place)
    }

    /// The end, if it has that name.
    fn named(&mut self, tag: u64) -> Option<&mut AppEnd> {
        self.end.as_mut().filter(|_| u64::from(self.generation) == tag >> 32)
    }
}

/// All ends of one engine.
#[derive(Debug, Default)]
pub struct Ends {
    table: Vec<Entry>,
    free: Vec<u32>,
    /// Places in the table plus 1, by region index and slot; 0: none.
    by_slot: Vec<Vec<u32>>,
    /// Pools of warm rings by region id, each with the number of ends there.
    pools: HashMap<u32, (Pool, usize)>,
    /// Ends to look at.
    news: std::collections::VecDeque<u64>,
    /// Ends with something to tell their applications.
    told: Vec<u64>,
    /// Contexts of applications that sleep and have news.
    wakes: Vec<flow::News>,
    /// Applications that broke the rules, by region id.
    pub broken: Vec<(u64, Violation)>,
    /// Regions, by id, where more memory must be present.
    pub short: Vec<u32>,
    /// Largest ring for what one peer sends, bytes.
    ring_most: usize,
    /// Writes outside the credit: an error of the session. The simulator checks that there are none.
    pub beyond_credit: u64,
    /// Ends with bytes that could not be stored, though the session counts them as come: their sockets must be reset.
    pub unstored: Vec<u64>,
}

impl Ends {
    /// No ends yet; rings for what one peer sends have at most `ring_most` bytes.
    pub fn new(ring_most: usize) -> Self {
        Self { ring_most, ..Self::default() }
    }

    /// Adds an end at that slot. Returns its name, and the first credit.
    pub fn add(&mut self, memory: Arc<Memory>, slot: u32, at: At, is_required: bool) -> (u64, u64) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.table.push(Entry::default());
            self.table.len() as u32 - 1
        });
        let slots = memory.region().layout().params.slots as usize;
        let index = usize::from(memory.index);
        if self.by_slot.len() <= index {
            self.by_slot.resize_with(index + 1, Vec::new);
        }
        self.by_slot[index].resize(slots, 0);
        self.by_slot[index][slot as usize] = place + 1;
        self.pools.entry(memory.id).or_default().1 += 1;
        let entry = &mut self.table[place as usize];
        entry.end = Some(AppEnd {
            end: End::new(memory, slot),
            at,
            seen: 0,
            furthest: 0,
            edge: 0,
            granted: 0,
            is_finished: false,
            is_over: false,
            is_required,
            is_queued: false,
            untold: announce::Untold::default(),
            progress_at: Instant::ZERO,
            progress: 0,
        });
        let tag = entry.tag(place);
        let edge = self.more_credit(tag).unwrap_or(0);
        (tag, edge)
    }

    /// The end with that name.
    pub fn get(&mut self, tag: u64) -> Option<&mut AppEnd> {
        self.table.get_mut(tag as u32 as usize)?.named(tag)
    }

    /// All ends, for reports.
    pub fn iter(&self) -> impl Iterator<Item = &AppEnd> {
        self.table.iter().filter_map(|entry| entry.end.as_ref())
    }

    /// The application has rung for that slot. False: no end is there.
    pub fn news(&mut self, region: u16, slot: u32) -> bool {
        let slots = self.by_slot.get(usize::from(region));
        let place = slots.and_then(|slots| slots.get(slot as usize)).copied().unwrap_or(0);
        let Some(place) = place.checked_sub(1) else { return false };
        self.look_at(self.table[place as usize].tag(place));
        true
    }

    /// Has the end looked at in the next round.
    pub fn look_at(&mut self, tag: u64) {
        if let Some(end) = self.get(tag).filter(|end| !end.is_queued) {
            end.is_queued = true;
            self.news.push_back(tag);
        }
    }

    /// The next end with news.
    pub fn next_news(&mut self) -> Option<u64> {
        let tag = self.news.pop_front()?;
        if let Some(end) = self.get(tag) {
            end.is_queued = false;
        }
        Some(tag)
    }

    /// True when ends wait to be looked at.
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// The application of that region has populated more: all its ends may grow.
    pub fn fed(&mut self, region: u32) {
        let tags = self.tags(|end| end.end.place.region_id == region);
        tags.into_iter().for_each(|tag| self.look_at(tag));
    }

    /// The names of the ends for which `is` holds.
    pub fn tags(&self, is: impl Fn(&AppEnd) -> bool) -> Vec<u64> {
        let named = self.table.iter().enumerate().filter(|(_, entry)| entry.end.as_ref().is_some_and(&is));
        named.map(|(place, entry)| entry.tag(place as u32)).collect()
    }

    /// Rings of that region concern no end any more: its index may be another region's soon.
    pub fn forget_region(&mut self, index: u16) {
        self.by_slot.get_mut(usize::from(index)).into_iter().for_each(Vec::clear);
    }

    /// Reads what the application has done.
    pub fn look(&mut self, tag: u64) -> Look {
        let edge = self.renew(tag);
        let Some(end) = self.get(tag) else { return Look::default() };
        // Flags before bytes: a FIN seen here was raised after the last byte.
        let flags = end.end.flags();
        let Some((_, app)) = end.end.place.halves(end.end.slot) else { return Look::default() };
        let head = app.tx_head.load(Ordering::Acquire);
        let mut look = Look {
            is_reset: flags & RESET != 0,
            is_released: flags & RELEASED != 0,
            edge: edge.filter(|edge| *edge > end.edge),
            ..Look::default()
        };
        if let Some(edge) = look.edge {
            end.edge = edge;
        }
        if head < end.seen || head - end.end.tail > 2 * RING_MAX as u64 {
            let violation = Violation::Position { known: end.seen, found: head };
            self.broken.push((tag, violation));
            return Look { is_reset: true, ..look };
        }
        if head > end.seen {
            end.seen = head;
            look.written = Some(head);
        }
        if flags & FIN != 0 && !end.is_finished {
            end.is_finished = true;
            look.is_finished = true;
        }
        look
    }

    /// The credit after bytes were published, if there is more than before.
    pub fn more_credit(&mut self, tag: u64) -> Option<u64> {
        let edge = self.renew(tag)?;
        let end = self.get(tag)?;
        (edge > end.edge).then(|| {
            end.edge = edge;
            edge
        })
    }

    /// Removes an end: its slot is free for another connection. Returns the ids of region and slot.
    pub fn remove(&mut self, tag: u64) -> Option<(u32, u32)> {
        self.get(tag)?;
        let entry = &mut self.table[tag as u32 as usize];
        entry.generation = entry.generation.wrapping_add(1);
        let mut end = entry.end.take()?;
        self.free.push(tag as u32);
        let (region, slot) = (end.end.place.region_id, end.end.slot);
        if let Some(memory) = end.end.place.memory() {
            memory.area.ungrant(end.granted);
            let slots = self.by_slot.get_mut(usize::from(memory.index));
            let known = slots.and_then(|slots| slots.get_mut(slot as usize));
            // Another region may have the index by now.
            known.into_iter().filter(|place| **place == tag as u32 + 1).for_each(|place| *place = 0);
        }
        if let Some((pool, ends)) = self.pools.get_mut(&region) {
            end.end.give_rings_back(pool);
            *ends -= 1;
            if *ends == 0 {
                end.end.place.flush(pool);
                self.pools.remove(&region);
            }
        }
        Some((region, slot))
    }

    /// Reads how far the application has read, lends a ring or a larger one where the peer needs it, and returns the credit that there is
    /// now. `None`: none, or the application broke the rules.
    fn renew(&mut self, tag: u64) -> Option<u64> {
        let ring_most = self.ring_most;
        let end = self.table.get_mut(tag as u32 as usize)?.named(tag)?;
        match end.update() {
            Ok(None) => {}
            Ok(Some(ring)) => give_back(&mut self.pools, &end.end.place, ring),
            Err(violation) => {
                self.broken.push((tag, violation));
                return None;
            }
        }
        let size = end.end.sender.ring.map_or(0, Ring::size);
        if size == 0 || end.is_limiting(size) {
            let region = end.end.place.region_id;
            let (pool, _) = self.pools.get_mut(&region)?;
            let is_lent = if size == 0 { lend_first(end, pool) } else { widen(end, pool, ring_most) };
            if !is_lent && end.end.place.memory().is_some_and(|memory| memory.area.note_shortage()) {
                self.short.push(region);
            }
        }
        if let Some(ring) = end.watch_reader() {
            give_back(&mut self.pools, &end.end.place, ring);
        }
        end.end.sender.ring?;
        Some(end.end.sender.head + end.end.sender.space() as u64)
    }
}

fn give_back(pools: &mut HashMap<u32, (Pool, usize)>, place: &Place, ring: Ring) {
    if let Some((pool, _)) = pools.get_mut(&place.region_id) {
        place.give_back(pool, ring);
    }
}

/// Lends the first ring, a smaller one where memory is short. False: there is none.
fn lend_first(end: &mut AppEnd, pool: &mut Pool) -> bool {
    let place = end.end.place.clone();
    let Some((own, _)) = place.halves(end.end.slot) else { return false };
    let ring = (0..=class_of(RING_FIRST)).rev().find_map(|class| place.lend(pool, class));
    let Some(ring) = ring else { return false };
    let before = end.end.sender.lend(own, ring);
    before.into_iter().for_each(|ring| place.give_back(pool, ring));
    true
}

/// Lends a ring of twice the size, if the region's budget of windows allows, with the bytes that are ahead of the published ones. False:
/// there is no memory for it.
fn widen(end: &mut AppEnd, pool: &mut Pool, most: usize) -> bool {
    let place = end.end.place.clone();
    let (Some(memory), Some((own, _)), Some(ring)) =
        (place.memory(), place.halves(end.end.slot), end.end.sender.ring)
    else {
        return true;
    };
    let size = 2 * ring.size();
    if size > most as u64 || !end.end.sender.may_lend() {
        return true;
    }
    if !memory.area.grant(ring.size(), size, memory.area.lendable()) {
        return memory.area.lendable() == place.data_len();
    }
    let Some(larger) = place.lend(pool, class_of(size as usize)) else {
        memory.area.ungrant(ring.size());
        return false;
    };
    end.granted += ring.size();
    let (mut at, mut piece) = (end.end.sender.head, [0; PIECE]);
    while at < end.furthest {
        let n = (end.furthest - at).min(PIECE as u64) as usize;
        let [(a, an), (b, bn)] = ring.spans(at, n);
        place.region().read(place.side(), a, &mut piece[..an]);
        place.region().read(place.side(), b, &mut piece[an..an + bn]);
        place.write_ring(larger, at, &piece[..n]);
        at += n as u64;
    }
    let before = end.end.sender.lend(own, larger);
    before.into_iter().for_each(|ring| place.give_back(pool, ring));
    true
}

impl AppEnd {
    /// True when the peer has used its credit up, though the application reads what comes: only the ring's size holds the peer back.
    fn is_limiting(&self, size: u64) -> bool {
        let sender = &self.end.sender;
        let unread = sender.head - sender.tail;
        self.edge > 0 && self.edge - sender.head < size / 4 && unread <= size / 2
    }

    /// Reads how far the application has read. Returns a ring that is no longer in use.
    fn update(&mut self) -> Result<Option<Ring>, Violation> {
        let End { place, slot, sender, .. } = &mut self.end;
        place.halves(*slot).map_or(Ok(None), |(_, app)| sender.update(app))
    }

    /// Has the application ring when it reads, while less than half of the ring is free. Returns a ring that is no longer in use.
    fn watch_reader(&mut self) -> Option<Ring> {
        let End { place, slot, sender, .. } = &mut self.end;
        let ((own, app), ring) = (place.halves(*slot)?, sender.ring?);
        if sender.space() as u64 > ring.size() / 2 {
            want_no_space(own);
            return None;
        }
        own.flags.fetch_or(WANT_SPACE, Ordering::SeqCst);
        // Pairs with the barrier of the application that reads: it sees the flag, or this thread sees what it has read.
        fence(Ordering::SeqCst);
        // A violation is found when the end is looked at next.
        sender.update(app).ok().flatten()
    }

    /// The ids of the end's region and slot.
    pub fn place(&self) -> (u32, u32) {
        (self.end.place.region_id, self.end.slot)
    }

    /// Credit that the peer has left, and bytes that the peer's socket does not have yet.
    pub fn report(&self) -> (u64, u64) {
        (self.edge - self.end.sender.head, self.seen - self.end.tail)
    }

    /// Position up to which the peer's socket has the application's bytes.
    pub fn acked(&self) -> u64 {
        self.end.tail
    }

    /// The session believes in a credit that there is not: what a test does to an end.
    #[cfg(test)]
    pub fn take_credit(&mut self) {
        self.edge = self.end.sender.head;
    }

    /// Clears the service's half, for a connection that begins anew in this slot by other means.
    pub fn clear(&self) {
        if let Some((own, _)) = self.end.place.halves(self.end.slot) {
            own.clear();
        }
    }
}

impl Streams for Ends {
    fn read<R: Room + ?Sized>(&mut self, tag: u64, position: u64, len: usize, room: &mut R, at: usize) {
        let copied = self.get(tag).map_or(Ok(()), |end| copy_out(&end.end, position, len, room, at));
        if let Err(violation) = copied {
            // What lies in the room from before goes to the application's peer, until its registration ends: zeros, not others' bytes.
            (0..len).step_by(ZEROS.len()).for_each(|from| {
                room.put(at + from, &ZEROS[..ZEROS.len().min(len - from)]);
            });
            self.broken.push((tag, violation));
        }
    }

    fn write(&mut self, tag: u64, position: u64, bytes: Input<'_>) {
        let Some(end) = self.get(tag) else { return };
        let last = position + bytes.len() as u64;
        let is_within = position >= end.end.sender.start && last <= end.edge;
        let Some(ring) = end.end.sender.ring.filter(|_| is_within) else {
            // The session keeps to the credit. If it did not, the bytes would lie on others that the program has not read.
            self.beyond_credit += 1;
            return self.unstored.push(tag);
        };
        match bytes {
            Input::Own(bytes) => end.end.place.write_ring(ring, position, bytes),
            Input::Shared(bytes) => end.end.place.write_ring_shared(ring, position, bytes),
        }
        end.furthest = end.furthest.max(last);
    }
}

/// Copies `len` bytes out of the application's rings, from `position` on, to the place `at` of `room`. The error: what makes no sense.
fn copy_out<R: Room + ?Sized>(
    end: &End,
    position: u64,
    len: usize,
    room: &mut R,
    at: usize,
) -> Result<(), Violation> {
    let (place, mut done) = (&end.place, 0);
    let (_, app) = place.halves(end.slot).ok_or(Violation::NoRing(position))?;
    while done < len {
        let from = position + done as u64;
        // The application has announced these bytes before.
        let found = readable(app, from, place.data_len())?.ok_or(Violation::NoRing(from))?;
        let n = found.len.min(len - done);
        place.check(found.ring, &found.ring.spans(from, n))?;
        for bytes in place.shared_ring(found.ring, from, n) {
            room.put_shared(at + done, bytes);
            done += bytes.len();
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "ends_tests.rs"]
mod tests;
