//! Relays: the service copies from ring to ring between two applications that must not share memory. No I/O and no clock: the core that
//! owns the relays calls `news` and `work`.
//!
//! ```text
//!   end 0's region                     service                     end 1's region
//!   half[1] (application) --bytes--> copy, at most TURN at once --> half[0] (service); the other direction likewise
//! ```
//! To its application each end behaves like a connection over a network: a FIN follows the bytes, and a full ring on one side fills the ring
//! of the other. A RESET follows the bytes that were published before it, as far as the receiver's ring has room for them; the others are
//! lost with the reset, as on Linux, so a receiver that does not read keeps no relay. Only while a receiver has no ring at all, and can get
//! memory for one, the relay waits for that memory.
//! A connection that was passed to another process also goes through a relay; one end is then a deputy, which acts for the process that
//! passed it on.

pub(crate) mod endpoint;
pub(crate) mod proxy;

use crate::cores::wakers::Wakers;
use crate::registry::channels::engine::Told;
use crate::registry::relay::endpoint::{End, Seat};
use crate::registry::relay::proxy::Deputies;
use queue::Violation;
use queue::pages::{Pool, class_of};
use queue::stream::{consumed, readable};
use shm::half_flags::{FIN, RELEASED, RESET, URGENT, WANT_SPACE};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

mod join;

/// Bytes copied for one relay and direction in its turn: some ten microseconds.
const TURN: usize = 64 << 10;
/// Bytes that a relay may have to copy and still go before the relays that wait for their turn.
const EXPRESS: usize = 16 << 10;
/// Bytes of the largest ring that a relay fills.
const RING_MOST: usize = 256 << 10;
/// Bytes copied at once: both copies stay in the second-level cache.
const PIECE: usize = 32 << 10;

/// Report of a relay to the control thread.
#[derive(Debug)]
pub enum Outcome {
    /// That end of that relay no longer uses its slot, which is free again.
    EndGone(u32, usize),
    /// The application of that region broke the rules.
    Violation(u32, Violation),
    /// The application of that region must populate more memory for what it receives.
    MemoryShort(u32),
    /// Two relays in a row have become one: the inner.
    Joined {
        /// The relay that has ended.
        outer: u32,
        /// The relay that now leads to the outer one's end.
        inner: u32,
    },
    /// Report of the channels' engine.
    Channels(Told),
}

/// How one direction's turn ended.
enum Flowed {
    /// Nothing more to do until an end's doorbell rings.
    Done,
    /// The turn is over, and more bytes are there.
    More,
    /// The receiving end's region has no memory for a ring.
    Starved,
    /// The application of that end broke the rules.
    Broken(usize, Violation),
}

/// All relays of one core.
#[derive(Debug, Default)]
pub struct Relays {
    all: HashMap<u32, [End; 2]>,
    by_slot: HashMap<(u16, u32), u32>,
    /// Pools of warm rings by seat, each with the number of ends there.
    pools: HashMap<Seat, (Pool, usize)>,
    /// Relays with news since they were last served.
    queue: VecDeque<u32>,
    /// Relays with more to copy than they might at once, in the order of their turns.
    backlog: VecDeque<u32>,
    /// The relays in either of the two.
    queued: HashSet<u32>,
    /// Relays that wait for memory, by region.
    starved: HashMap<u32, HashSet<u32>>,
    scratch: Vec<u8>,
    /// The ends that are deputies.
    pub deputies: Deputies,
    /// Bytes copied so far; read by the control thread.
    pub bytes: Arc<AtomicU64>,
}

impl Relays {
    /// Begins to relay between two ends.
    pub fn open(&mut self, id: u32, ends: [End; 2]) {
        for end in &ends {
            let seat = end.place.seat();
            match end.place.memory().filter(|_| !end.place.is_deputy()) {
                Some(memory) => {
                    self.by_slot.insert((memory.index, end.slot), id);
                }
                None => self.deputies.add(id, end),
            }
            self.pools.entry(seat).or_default().1 += 1;
        }
        self.all.insert(id, ends);
        self.look(id);
    }

    /// The application has rung for a slot of its region: serves that relay in the next `work`.
    pub fn news(&mut self, region: u16, slot: u32) {
        if let Some(id) = self.by_slot.get(&(region, slot)) {
            self.look(*id);
        }
    }

    /// Reads the doorbells of deputies.
    pub fn listen(&mut self) {
        if let Some(relays) = self.deputies.listen() {
            relays.into_iter().for_each(|id| self.look(id));
            self.sweep();
        }
    }

    /// Takes back the rings of closed deputies after their streams were read.
    fn sweep(&mut self) {
        self.deputies.over().into_iter().for_each(|end| self.leave_seat(end));
    }

    /// Gives back the rings of an end that is over, and its seat when no other end is there.
    fn leave_seat(&mut self, mut end: End) {
        let seat = end.place.seat();
        let Some((pool, ends)) = self.pools.get_mut(&seat) else { return };
        end.give_rings_back(pool);
        *ends -= 1;
        if *ends == 0 {
            end.place.flush(pool);
            self.pools.remove(&seat);
        }
        if end.place.is_deputy() {
            self.deputies.leave_seat(seat);
        }
        self.fed(seat.0);
    }

    /// Serves that relay in the next `work`.
    pub fn look(&mut self, id: u32) {
        if self.queued.insert(id) {
            self.queue.push_back(id);
        }
    }

    /// Numbers of relays, of slots with a relay, of pools, of relays that wait for their turn, and of seats with deputies.
    #[cfg(test)]
    pub fn leftovers(&self) -> [usize; 5] {
        let deputies = usize::from(self.deputies.any());
        [self.all.len(), self.by_slot.len(), self.pools.len(), self.queued.len(), deputies]
    }

    /// True when no relay waits for `work`.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.backlog.is_empty()
    }

    /// Serves each relay that has news once, and one of those with more to copy: what has news meanwhile waits for one turn.
    pub fn work(&mut self, wakers: &Wakers, out: &mut Vec<Outcome>) {
        for _ in 0..self.queue.len() {
            let Some(id) = self.queue.pop_front() else { break };
            self.turn(id, EXPRESS, wakers, out);
        }
        if let Some(id) = self.backlog.pop_front() {
            self.turn(id, TURN, wakers, out);
        }
        self.sweep();
    }

    /// Serves a relay, with at most `most` bytes in each direction. If there is more it waits for its turn.
    fn turn(&mut self, id: u32, most: usize, wakers: &Wakers, out: &mut Vec<Outcome>) {
        self.queued.remove(&id);
        let Some(mut ends) = self.all.remove(&id) else { return };
        if self.serve(id, &mut ends, most, wakers, out) && self.queued.insert(id) {
            self.backlog.push_back(id);
        }
        self.retire(id, &mut ends, wakers, out);
        if !ends.iter().all(|end| end.gone) {
            self.all.insert(id, ends);
            self.join(id, out);
        }
    }

    /// News of the slot of `end` no longer concerns this relay.
    fn forget(&mut self, id: u32, end: &End) {
        match end.place.memory().filter(|_| !end.place.is_deputy()) {
            Some(memory) => {
                let place = (memory.index, end.slot);
                if self.by_slot.get(&place) == Some(&id) {
                    self.by_slot.remove(&place);
                }
            }
            None => self.deputies.forget(id, end),
        }
    }

    /// Copies at most `most` bytes in each direction. True: there is more to do.
    fn serve(
        &mut self,
        id: u32,
        ends: &mut [End; 2],
        most: usize,
        wakers: &Wakers,
        out: &mut Vec<Outcome>,
    ) -> bool {
        let mut more = false;
        ends[0].advise(&ends[1], wakers);
        for from in 0..2 {
            match self.direction(ends, from, most, wakers) {
                Flowed::Done => {}
                Flowed::More => more = true,
                Flowed::Starved => {
                    let to = from ^ 1;
                    let is_freed = self.starve(id, &mut ends[to], out);
                    more |= is_freed;
                    // No memory can come any more: what has found none is lost with the reset.
                    if let Some(cut) = ends[from].cut
                        && !is_freed
                        && !ends[to].place.may_grow()
                    {
                        cut_off(ends, to, cut.flags, wakers);
                    }
                }
                Flowed::Broken(end, violation) => {
                    out.push(Outcome::Violation(ends[end].place.region_id, violation));
                    ends.iter_mut().for_each(|e| {
                        e.ended = true;
                        e.raise(wakers, RESET);
                    });
                    return false;
                }
            }
        }
        more
    }

    fn direction(&mut self, ends: &mut [End; 2], from: usize, most: usize, wakers: &Wakers) -> Flowed {
        let to = from ^ 1;
        if ends[from].ended {
            return Flowed::Done;
        }
        // Flags before bytes: an end seen here was raised after the last byte that `copy` has to find.
        let (flags, peer) = (ends[from].flags(), ends[to].flags());
        let (cut, peer_cut) = (ends[from].note_cut(flags), ends[to].note_cut(peer));
        if let Some(peer_cut) = peer_cut {
            match cut {
                Some(cut) => cut_off(ends, to, cut.flags, wakers),
                None if ends[to].ended => cut_off(ends, from, peer_cut.flags, wakers),
                // The receiver takes no more. The other direction passes its last bytes on, then its reset.
                None => {}
            }
            return Flowed::Done;
        }
        let copied = match self.copy(ends, from, most, wakers) {
            Ok(copied) => copied,
            Err((end, violation)) => return Flowed::Broken(end, violation),
        };
        match (copied, cut) {
            (Copied::Turn, _) => return Flowed::More,
            (Copied::Starved, _) => return Flowed::Starved,
            (Copied::Empty, Some(cut)) => {
                // With all bytes a FIN that came before the reset is passed on, too: then the reader finds the end of the stream.
                let fin = if cut.flags & RESET != 0 { flags & FIN } else { 0 };
                cut_off(ends, to, cut.flags | fin, wakers);
            }
            (Copied::Full | Copied::Refused, Some(cut)) => cut_off(ends, to, cut.flags, wakers),
            (Copied::Empty, None) if flags & FIN != 0 => {
                ends[from].ended = true;
                ends[to].raise(wakers, FIN);
            }
            // Linux answers data for a closed socket with a RST.
            (Copied::Refused, None) => cut_off(ends, from, RESET, wakers),
            (Copied::Empty | Copied::Full, None) => {}
        }
        Flowed::Done
    }

    fn copy(
        &mut self,
        ends: &mut [End; 2],
        from: usize,
        most: usize,
        wakers: &Wakers,
    ) -> Result<Copied, (usize, Violation)> {
        let to = from ^ 1;
        self.scratch.resize(PIECE, 0);
        let [first, second] = ends;
        let (source, sink) = if from == 0 { (first, second) } else { (second, first) };
        let places = (source.place.clone(), sink.place.clone());
        let (Some((source_own, source_app)), Some((sink_own, sink_app))) =
            (places.0.halves(source.slot), places.1.halves(sink.slot))
        else {
            return Ok(Copied::Empty);
        };
        let data_len = source.place.data_len();
        if sink.flags() & RELEASED != 0 {
            let found = readable(source_app, source.tail, data_len).map_err(|v| (from, v))?;
            let is_refused = found.is_some_and(|found| source.passable(found.total) > 0);
            return Ok(if is_refused { Copied::Refused } else { Copied::Empty });
        }
        let Some((pool, _)) = self.pools.get_mut(&sink.place.seat()) else { return Ok(Copied::Empty) };
        let (mut left, mut told) = (most, false);
        let result = loop {
            if left == 0 {
                break Copied::Turn;
            }
            let found = readable(source_app, source.tail, data_len).map_err(|v| (from, v))?;
            let Some(found) = found else { break Copied::Empty };
            let there = source.passable(found.total);
            if there == 0 {
                break Copied::Empty;
            }
            if there > left && most < TURN && !self.backlog.is_empty() {
                break Copied::Turn;
            }
            if source_app.flags.load(Ordering::Relaxed) & URGENT != 0 {
                pass_urgent(source, sink);
            }
            let room = make_room(sink, pool, sink_own, sink_app, there, RING_MOST).map_err(|v| (to, v))?;
            if room > 0 {
                want_no_space(sink_own);
            }
            let Some(ring) = sink.sender.ring.filter(|_| room > 0) else {
                // A reader that waits for more bytes than there are (`SO_RCVLOWAT`) must read them, because the ring is full.
                told |= shm::low_water(sink_app.flags.load(Ordering::Relaxed)) > 1;
                break if sink.sender.is_empty() { Copied::Starved } else { Copied::Full };
            };
            let n = found.len.min(there).min(room).min(PIECE).min(left);
            let piece = &mut self.scratch[..n];
            source.place.check(found.ring, &found.ring.spans(source.tail, n)).map_err(|v| (from, v))?;
            source.place.read_ring(found.ring, source.tail, piece);
            sink.place.write_ring(ring, sink.sender.head, piece);
            source.tail += n as u64;
            left -= n;
            sink.sender.publish(sink_own, n);
            if consumed(source_own, source_app, source.tail) {
                source.tell(wakers);
            }
            told = true;
        };
        self.bytes.fetch_add((most - left) as u64, Ordering::Relaxed);
        if told {
            sink.tell(wakers);
        }
        Ok(result)
    }

    /// The region of `sink` has no memory for a ring. Takes back rings that other streams into the region no longer need. True: some came
    /// back; else the relay waits until the application has populated more.
    fn starve(&mut self, id: u32, sink: &mut End, out: &mut Vec<Outcome>) -> bool {
        let seat = sink.place.seat();
        let Some((pool, _)) = self.pools.get_mut(&seat) else { return false };
        let mut freed = false;
        for end in self.all.values_mut().flatten().filter(|end| end.place.seat() == seat && !end.gone) {
            let place = end.place.clone();
            let Some((_, app)) = place.halves(end.slot) else { continue };
            // Violations are found when that end's own relay is served.
            let old = end.sender.update(app).ok().flatten();
            for ring in old.into_iter().chain(end.sender.give_back()) {
                place.give_back(pool, ring);
                freed = true;
            }
        }
        // Rings of other sizes that the pool keeps warm are free memory, too.
        sink.place.flush(pool);
        if freed {
            return true;
        }
        self.starved.entry(seat.0).or_default().insert(id);
        if sink.place.memory().is_some_and(|memory| memory.area.note_shortage()) {
            out.push(Outcome::MemoryShort(seat.0));
        }
        false
    }

    /// The application of that region has populated more: serves the relays that waited for it.
    pub fn fed(&mut self, region: u32) {
        self.starved.remove(&region).into_iter().flatten().for_each(|id| self.look(id));
    }

    /// Leaves the slots of ends that are closed and have passed everything on, then those of the deputies opposite to them.
    fn retire(&mut self, id: u32, ends: &mut [End; 2], wakers: &Wakers, out: &mut Vec<Outcome>) {
        // The other end first: a deputy, always end 0 (see `Command::Open`), closes after it.
        for i in (0..2).rev() {
            let is_deputy = ends[i].place.is_deputy();
            let lets_go = match is_deputy {
                true => ends[i ^ 1].gone,
                false => ends[i].ended && ends[i].flags() & RELEASED != 0,
            };
            if ends[i].gone || !lets_go {
                continue;
            }
            if is_deputy {
                ends[i].release(wakers);
            }
            let rest = ends[i].leave();
            self.forget(id, &rest);
            if is_deputy && !rest.is_over() {
                self.deputies.linger(rest);
            } else {
                self.leave_seat(rest);
            }
            out.push(Outcome::EndGone(id, i));
        }
    }
}

enum Copied {
    /// All bytes that were there.
    Empty,
    /// The receiving end's ring is full.
    Full,
    /// No memory for a ring, and no bytes in flight, so that no reader will ring.
    Starved,
    /// The turn is over.
    Turn,
    /// The receiving application has closed.
    Refused,
}

/// Ends a relay in both directions, and raises `flags` at the end `told`.
fn cut_off(ends: &mut [End; 2], told: usize, flags: u32, wakers: &Wakers) {
    ends.iter_mut().for_each(|end| end.ended = true);
    ends[told].raise(wakers, flags);
}

/// Announces to the reader how far the urgent bytes ahead of it reach.
#[cold]
fn pass_urgent(source: &End, sink: &End) {
    let ahead = source.place.urgent(source.slot).map_or(0, |up| up.saturating_sub(source.tail));
    let position = sink.sender.head.saturating_add(ahead);
    if ahead > 0 && sink.place.announced(sink.slot).is_none_or(|before| before < position) {
        sink.place.announce(sink.slot, position);
    }
}

/// Withdraws the sender's wish to be rung when the reader has read.
pub fn want_no_space(own: &shm::Half) {
    if own.flags.load(Ordering::Relaxed) & WANT_SPACE != 0 {
        own.flags.fetch_and(!WANT_SPACE, Ordering::Relaxed);
    }
}

/// Room in the sink's ring; lends a larger ring, of at most `most` bytes, when the stream has filled its ring. 0: there is none, and the
/// reader will ring.
pub fn make_room(
    sink: &mut End,
    pool: &mut Pool,
    own: &shm::Half,
    app: &shm::Half,
    wanted: usize,
    most: usize,
) -> Result<usize, Violation> {
    let freed = sink.sender.update(app)?;
    freed.into_iter().for_each(|ring| sink.place.give_back(pool, ring));
    let space = sink.sender.space();
    if space > 0 {
        return Ok(space);
    }
    if sink.sender.may_lend() {
        // At least twice the last ring: the reader is behind.
        let last = sink.sender.ring.map_or(0, |ring| 2 * ring.size() as usize);
        let class = class_of(wanted.max(last).min(most));
        let grows = sink.sender.ring.is_none_or(|ring| class > class_of(ring.size() as usize));
        // Without a ring a smaller one is welcome; an existing ring is replaced by a larger one only.
        let classes = if sink.sender.ring.is_none() { 0..=class } else { class..=class };
        let lent = || classes.rev().find_map(|class| sink.place.lend(pool, class));
        if let Some(ring) = if grows { lent() } else { None } {
            let old = sink.sender.lend(own, ring);
            old.into_iter().for_each(|ring| sink.place.give_back(pool, ring));
            return Ok(sink.sender.space());
        }
    }
    let mut freed = None;
    let waits = sink.sender.want_space(own, app, |ring| freed = Some(ring))?;
    freed.into_iter().for_each(|ring| sink.place.give_back(pool, ring));
    Ok(if waits { 0 } else { sink.sender.space() })
}
