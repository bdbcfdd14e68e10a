//! One end of a relay: a slot, and the side of its region on which the service acts. In an application region that is the service's own
//! side; as a deputy the service acts on the side of a process that has passed its connection on.

use crate::cores::wakers::{Wakers, rouse, write_eventfd};
use crate::registry::memory::Memory;
use crate::registry::memory::residency::Pages;
use flow::{News, Sleeper};
use queue::pages::Pool;
use queue::stream::{Sender, closing, raise, watch, watcher};
use queue::{Doorbell, Ring, Violation, Wake, urgent};
use rustix::fd::{AsFd, OwnedFd};
use shm::application_flags::{self, CORK, MORE, NODELAY, PUSHED_SHIFT, QUICKACK};
use shm::half_flags::{ERRNO_SHIFT, FAILED, FIN, READ_CLOSED, RELEASED, RESET, WANT_SPACE};
use shm::{Half, Region, Side, TRUST_CONTEXT};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Flags by which an application tells the service's TCP when to send segments.
pub const ADVICE: u64 = NODELAY | QUICKACK | CORK | MORE;

/// One side of a region: the region's id and the side's index.
pub type Seat = (u32, usize);

/// The other side of the slot.
#[derive(Clone, Debug)]
enum Other {
    /// An application region, and the end is the service's own: the application.
    Application(Arc<Memory>),
    /// An application region, and the end is a deputy: the service. The eventfds are its cores' own; no application has them.
    Service(Arc<Memory>, Arc<[Arc<OwnedFd>]>),
    /// A pair region, and the end is a deputy: a process of that family, the last field.
    Party(Arc<Region>, Arc<OwnedFd>, u32),
}

/// One side of one region, with what it takes to reach the other side.
#[derive(Clone, Debug)]
pub struct Place {
    /// Id of the region.
    pub region_id: u32,
    side: Side,
    other: Other,
}

impl Place {
    /// The service's own side of an application region.
    pub fn of_service(memory: Arc<Memory>) -> Self {
        Self { region_id: memory.id, side: Side::Zero, other: Other::Application(memory) }
    }

    /// The application's side of an application region, for a deputy. `wakers` are the cores' eventfds.
    pub fn of_application(memory: Arc<Memory>, wakers: Arc<[Arc<OwnedFd>]>) -> Self {
        Self { region_id: memory.id, side: Side::One, other: Other::Service(memory, wakers) }
    }

    /// One party's side of a pair region, for a deputy; `family` is on the other side.
    pub fn of_party(region_id: u32, side: Side, region: Arc<Region>, fd: Arc<OwnedFd>, family: u32) -> Self {
        Self { region_id, side, other: Other::Party(region, fd, family) }
    }

    /// True when the service acts for a process here.
    pub fn is_deputy(&self) -> bool {
        !matches!(self.other, Other::Application(_))
    }

    /// The side on which the service acts.
    pub fn side(&self) -> Side {
        self.side
    }

    /// The region and the side, as a key.
    pub fn seat(&self) -> Seat {
        (self.region_id, self.side.index())
    }

    /// The application region; `None`: it is a pair region.
    pub fn memory(&self) -> Option<&Arc<Memory>> {
        match &self.other {
            Other::Application(memory) | Other::Service(memory, _) => Some(memory),
            Other::Party(..) => None,
        }
    }

    /// The mapping of the region.
    pub fn region(&self) -> &Region {
        match &self.other {
            Other::Application(memory) | Other::Service(memory, _) => memory.region(),
            Other::Party(region, ..) => region,
        }
    }

    /// Bytes of one side's data area.
    pub fn data_len(&self) -> u64 {
        self.region().layout().params.data_len
    }

    /// This side's half of the slot, and the other side's.
    pub fn halves(&self, slot: u32) -> Option<(&Half, &Half)> {
        let halves = &self.region().slot(slot)?.half;
        Some((&halves[self.side.index()], &halves[self.side.other().index()]))
    }

    /// The doorbell that reaches a deputy; `None`: the end is no deputy.
    pub fn bell(&self) -> Option<Doorbell<'_>> {
        Doorbell::of(self.region(), self.side, TRUST_CONTEXT).filter(|_| self.is_deputy())
    }

    /// Number of slots in the region.
    pub fn slots(&self) -> u32 {
        self.region().layout().params.slots
    }

    /// Rings the other side's doorbell for `slot`, and wakes the process or core behind it if it sleeps.
    fn tell(&self, wakers: &Wakers, slot: u32) {
        let Some(context) = self.halves(slot).and_then(|(_, other)| watcher(other)) else { return };
        let Some(bell) = Doorbell::of(self.region(), self.side.other(), context) else {
            return rouse(self.region(), self.side.other(), slot);
        };
        if bell.ring(slot) == Wake::NotNeeded {
            return;
        }
        match &self.other {
            Other::Application(memory) => {
                wakers.wake(News { region: memory.index, sleeper: Sleeper::Context(context) });
            }
            Other::Party(_, _, family) => wakers.wake_in(*family, context),
            Other::Service(_, own) => {
                // Contexts here are cores: the slow path's waker is written for accept queues only.
                own.get(context as usize).into_iter().for_each(|waker| write_eventfd(waker.as_fd()));
            }
        }
    }

    /// Bytes of this side's data area that may be written. A deputy in a pair region may be the first to touch its pages: the service then
    /// pays for them, as far as rings may grow.
    pub fn own_bytes(&self) -> u64 {
        match &self.other {
            Other::Application(memory) | Other::Service(memory, _) => memory.area.lendable(),
            Other::Party(..) => self.data_len(),
        }
    }

    /// True when the process behind the region can make more memory present for this side's rings.
    pub fn may_grow(&self) -> bool {
        self.memory().is_some_and(|memory| memory.area.lendable() < self.data_len())
    }

    /// Lends a ring in this side's data area.
    pub fn lend(&self, pool: &mut Pool, class: usize) -> Option<Ring> {
        if let Other::Application(memory) = &self.other {
            return memory.lend(pool, class);
        }
        let pages = (self.own_bytes() / u64::from(base::limits::RING_MIN)) as usize;
        pool.lend(class, pages, |i| self.word(i))
    }

    /// Returns a ring of this side to the pool.
    pub fn give_back(&self, pool: &mut Pool, ring: Ring) {
        match &self.other {
            Other::Application(memory) => memory.give_back(pool, ring),
            _ => pool.give_back(ring, |i| self.word(i)),
        }
    }

    /// Returns every ring that the pool keeps warm.
    pub fn flush(&self, pool: &mut Pool) {
        match &self.other {
            Other::Application(memory) => memory.flush(pool),
            _ => pool.flush(|i| self.word(i)),
        }
    }

    fn word(&self, i: usize) -> &std::sync::atomic::AtomicU64 {
        self.region().page_word(self.side, i).expect("the pool stays inside the bitmap")
    }

    /// Checks that these bytes of the other side may be read. Reading an absent page would make the service pay for it.
    pub fn check(&self, ring: Ring, spans: &[(usize, usize); 2]) -> Result<(), Violation> {
        let violation = Err(Violation::Ring(ring.packed()));
        match &self.other {
            Other::Application(memory) => memory.check_ring(ring, spans),
            Other::Service(memory, _) if ring.offset() + ring.size() <= memory.area.lendable() => Ok(()),
            Other::Service(..) => violation,
            Other::Party(region, fd, _) => {
                let start = region.layout().data[self.side.other().index()];
                let there = |(at, n): &(usize, usize)| {
                    let pages = Pages { region, fd: fd.as_fd() };
                    pages.is_present(&((start + at) as u64..(start + at + n) as u64))
                };
                if spans.iter().all(there) { Ok(()) } else { violation }
            }
        }
    }

    /// Copies bytes out of the other side's data area.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        self.region().read(self.side.other(), at, out);
    }

    /// End of the urgent data in the other side's stream; `None`: there never was any.
    pub fn urgent(&self, slot: u32) -> Option<u64> {
        urgent::up(self.region(), self.side.other(), slot)
    }

    /// End of the urgent data in this side's stream, as announced.
    pub fn announced(&self, slot: u32) -> Option<u64> {
        urgent::up(self.region(), self.side, slot)
    }

    /// Announces that this side's stream is urgent up to `position`.
    pub fn announce(&self, slot: u32, position: u64) {
        urgent::announce(self.region(), self.side, slot, position);
        if let (Other::Service(..), Some((own, _))) = (&self.other, self.halves(slot)) {
            own.extra.fetch_or(application_flags::URGENT, Ordering::AcqRel);
        }
    }

    /// Copies bytes into this side's data area.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.region().write(self.side, at, bytes);
    }

    /// Copies the bytes of the other side's stream from `position` on out of its `ring`.
    pub fn read_ring(&self, ring: Ring, position: u64, out: &mut [u8]) {
        let [(a, an), (b, bn)] = ring.spans(position, out.len());
        self.read(a, &mut out[..an]);
        self.read(b, &mut out[an..an + bn]);
    }

    /// The bytes of the other side's stream from `position` on in its `ring`, where they lie.
    pub fn shared_ring(&self, ring: Ring, position: u64, len: usize) -> [&[AtomicU8]; 2] {
        ring.spans(position, len).map(|(at, n)| self.region().shared(self.side.other(), at, n))
    }

    /// Copies shared bytes, which belong to this side's stream from `position` on, into its `ring`.
    pub fn write_ring_shared(&self, ring: Ring, position: u64, bytes: &[AtomicU8]) {
        let [(a, an), (b, bn)] = ring.spans(position, bytes.len());
        self.region().write_shared(self.side, a, &bytes[..an]);
        self.region().write_shared(self.side, b, &bytes[an..an + bn]);
    }

    /// Copies the bytes of this side's stream from `position` on into its `ring`.
    pub fn write_ring(&self, ring: Ring, position: u64, bytes: &[u8]) {
        let [(a, an), (b, bn)] = ring.spans(position, bytes.len());
        self.write(a, &bytes[..an]);
        self.write(b, &bytes[an..an + bn]);
    }
}

/// An abrupt end of the connection, as one end's other side has announced it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// The flags to pass on: RESET, or FAILED with its errno.
    pub flags: u32,
    /// The position where the stream of that side ends. A process may publish more bytes after its reset; they are not passed on.
    pub end: u64,
}

/// One end of a relay, as its core uses it.
#[derive(Debug)]
pub struct End {
    /// The side of a region where it is.
    pub place: Place,
    /// The slot in that region.
    pub slot: u32,
    /// The stream that this end sends.
    pub sender: Sender,
    /// Position up to which the other side's stream was read.
    pub tail: u64,
    /// The other side's FIN was passed on, or no more of its bytes will be.
    pub ended: bool,
    /// The other side has cut the connection, and bytes that it published before may still have to be passed on. `None`: it has not.
    pub cut: Option<Cut>,
    /// The slot is no longer used by this end.
    pub gone: bool,
}

impl End {
    /// A new end at the service's own side.
    pub fn new(memory: Arc<Memory>, slot: u32) -> Self {
        let place = Place::of_service(memory);
        Self { place, slot, sender: Sender::default(), tail: 0, ended: false, cut: None, gone: false }
    }

    /// A deputy that goes on where a process stopped. From here on its doorbell is rung.
    pub fn deputy(place: Place, slot: u32, sender: Sender) -> Self {
        let tail = place.halves(slot).map_or(0, |(own, _)| {
            watch(own, Some(TRUST_CONTEXT));
            own.rx_tail.load(Ordering::Acquire)
        });
        Self { place, slot, sender, tail, ended: false, cut: None, gone: false }
    }

    /// Flags of the other side's half.
    pub fn flags(&self) -> u32 {
        // The slot of an end that is gone may be another connection's by now.
        if self.gone {
            return FIN | READ_CLOSED | RELEASED;
        }
        self.place.halves(self.slot).map_or(RESET, |(_, other)| other.flags.load(Ordering::Acquire))
    }

    /// Raises flags in this side's half and rings the other side.
    pub fn raise(&self, wakers: &Wakers, flags: u32) {
        if let Some((own, _)) = self.place.halves(self.slot).filter(|_| !self.gone) {
            raise(own, flags);
            self.tell(wakers);
        }
    }

    /// Rings the other side: the slot has news.
    pub fn tell(&self, wakers: &Wakers) {
        self.place.tell(wakers, self.slot);
    }

    /// Notes it when the other side's `flags` cut the connection. Returns the cut that was noted now or before.
    pub fn note_cut(&mut self, flags: u32) -> Option<Cut> {
        let found = match flags {
            _ if flags & RESET != 0 => RESET,
            // TCP over the port gives an errno as the reason.
            _ if flags & FAILED != 0 && self.place.is_deputy() => flags & (FAILED | 0xfff << ERRNO_SHIFT),
            _ => 0,
        };
        if found != 0 && self.cut.is_none() {
            let halves = self.place.halves(self.slot);
            let end = halves.map_or(self.tail, |(_, other)| other.tx_head.load(Ordering::Acquire));
            self.cut = Some(Cut { flags: found, end });
        }
        self.cut
    }

    /// Number of published bytes, out of `found` at this end's position, that may be passed on.
    pub fn passable(&self, found: usize) -> usize {
        self.cut.map_or(found, |cut| found.min(cut.end.saturating_sub(self.tail) as usize))
    }

    /// Passes the options of the connection's new holder, at `near`, on to the service's TCP, which this deputy faces.
    pub fn advise(&self, near: &Self, wakers: &Wakers) {
        if !matches!(self.place.other, Other::Service(..)) || self.gone || near.gone {
            return;
        }
        let (Some((own, _)), Some((_, app))) = (self.place.halves(self.slot), near.place.halves(near.slot))
        else {
            return;
        };
        let wanted = app.extra.load(Ordering::Relaxed) & ADVICE;
        let before = own.extra.load(Ordering::Relaxed);
        if before & ADVICE == wanted {
            return;
        }
        // Setting `TCP_NODELAY` also releases the bytes that were sent before.
        let pushed = match wanted & !before & NODELAY {
            0 => before & !u64::from(u32::MAX),
            _ => own.tx_head.load(Ordering::Relaxed) << PUSHED_SHIFT,
        };
        own.extra.store(before & u64::from(u32::MAX) & !ADVICE | wanted | pushed, Ordering::Release);
        self.tell(wakers);
    }

    /// Returns the stream's rings to the pool.
    pub fn give_rings_back(&mut self, pool: &mut Pool) {
        let rings = [self.sender.ring.take(), self.sender.old.take()];
        rings.into_iter().flatten().for_each(|ring| self.place.give_back(pool, ring));
    }

    /// Leaves the slot. Returns an end with the stream's rings.
    pub fn leave(&mut self) -> Self {
        self.gone = true;
        let sender = std::mem::take(&mut self.sender);
        Self {
            place: self.place.clone(),
            slot: self.slot,
            sender,
            tail: self.tail,
            ended: true,
            cut: self.cut,
            gone: true,
        }
    }

    /// Closes a deputy's end as the process would have.
    pub fn release(&self, wakers: &Wakers) {
        let Some((own, other)) = self.place.halves(self.slot) else { return };
        let is_unread = other.tx_head.load(Ordering::Acquire) != self.tail;
        let bits = closing(own.flags.load(Ordering::Relaxed), self.flags(), is_unread, false);
        // WANT_SPACE has the reader ring when it has read the rest: then the rings can be taken back.
        self.raise(wakers, bits | WANT_SPACE);
    }

    /// True when the rings of a closed deputy may be taken back: all was read, the reader has closed, or the slot has another connection.
    pub fn is_over(&self) -> bool {
        let Some((own, other)) = self.place.halves(self.slot) else { return true };
        other.rx_tail.load(Ordering::Acquire) >= self.sender.head
            || other.flags.load(Ordering::Acquire) & (RELEASED | RESET | FAILED) != 0
            || own.tx_head.load(Ordering::Acquire) != self.sender.head
    }
}
