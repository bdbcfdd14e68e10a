//! One end of a relay: a slot, and in whose name the service acts there. At its own side of an application region it is the
//! service; where a process has let a connection go, it is that process's deputy, on the side that was the process's.

use crate::bells::Bells;
use crate::memory::Memory;
use crate::present::Pages;
use crate::registry::write_eventfd;
use control::TRUST_CONTEXT;
use queue::pages::Pool;
use queue::stream::{Sender, raise, watch, watcher};
use queue::{Doorbell, Ring, Violation, Wake, urgent};
use rustix::fd::{AsFd, OwnedFd};
use shm::application_flags::{CORK, MORE, NODELAY, PUSHED_SHIFT, QUICKACK};
use shm::half_flags::{ERRNO_SHIFT, FAILED, FIN, READ_CLOSED, RELEASED, RESET, WANT_SPACE};
use shm::{Half, Region, Side, application_flags};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What an application says to the service's TCP about its segments.
pub const ADVICE: u64 = NODELAY | QUICKACK | CORK | MORE;

/// A side of a region: its id and the side's index.
pub type Seat = (u32, usize);

/// Who is at the other side.
#[derive(Clone, Debug)]
enum Other {
    /// Application region, we are the service: the application.
    Application(Arc<Memory>),
    /// Application region, we are a deputy: the service. These are its cores' own bells, which no application has.
    Service(Arc<Memory>, Vec<Arc<OwnedFd>>),
    /// Pair region, we are a deputy: an application of that family.
    Party(Arc<Region>, Arc<OwnedFd>, u32),
}

/// Where an end lies.
#[derive(Clone, Debug)]
pub struct Place {
    /// The region.
    pub region_id: u32,
    side: Side,
    other: Other,
}

impl Place {
    /// At the service's own side.
    pub fn of_service(memory: Arc<Memory>) -> Self {
        Self { region_id: memory.id, side: Side::Zero, other: Other::Application(memory) }
    }

    /// In an application's name, in its own region.
    pub fn of_application(memory: Arc<Memory>, bells: Vec<Arc<OwnedFd>>) -> Self {
        Self { region_id: memory.id, side: Side::One, other: Other::Service(memory, bells) }
    }

    /// In the name of one party of a pair region, opposite to `family`.
    pub fn of_party(
        region_id: u32,
        side: Side,
        (region, fd): (Arc<Region>, Arc<OwnedFd>),
        family: u32,
    ) -> Self {
        Self { region_id, side, other: Other::Party(region, fd, family) }
    }

    /// True when the service stands for a process here.
    pub fn is_deputy(&self) -> bool {
        !matches!(self.other, Other::Application(_))
    }

    /// Which side is the service's, or the process's for which it stands.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Its seat.
    pub fn seat(&self) -> Seat {
        (self.region_id, self.side.index())
    }

    /// The application region, where it is one.
    pub fn memory(&self) -> Option<&Arc<Memory>> {
        match &self.other {
            Other::Application(memory) | Other::Service(memory, _) => Some(memory),
            Other::Party(..) => None,
        }
    }

    /// The mapping.
    pub fn region(&self) -> &Region {
        match &self.other {
            Other::Application(memory) | Other::Service(memory, _) => memory.region(),
            Other::Party(region, ..) => region,
        }
    }

    /// Bytes of a data area.
    pub fn data_len(&self) -> u64 {
        self.region().layout().params.data_len
    }

    /// Our half and the other side's.
    pub fn halves(&self, slot: u32) -> Option<(&Half, &Half)> {
        let halves = &self.region().slot(slot)?.half;
        Some((&halves[self.side.index()], &halves[self.side.other().index()]))
    }

    /// The bell on which a deputy is told.
    pub fn bell(&self) -> Option<Doorbell<'_>> {
        let block = self.region().context(self.side, TRUST_CONTEXT).filter(|_| self.is_deputy())?;
        Some(Doorbell::new(block, self.region().layout().words_per_group))
    }

    /// Slots of the region.
    pub fn slots(&self) -> u32 {
        self.region().layout().params.slots
    }

    /// Tells the other side that `slot` has news.
    fn tell(&self, bells: &Bells, slot: u32) {
        let Some(context) = self.halves(slot).and_then(|(_, other)| watcher(other)) else { return };
        let region = self.region();
        let Some(block) = region.context(self.side.other(), context) else { return };
        if Doorbell::new(block, region.layout().words_per_group).ring(slot) == Wake::NotNeeded {
            return;
        }
        match &self.other {
            Other::Application(memory) => bells.wake(memory.index, context),
            Other::Party(_, _, family) => bells.wake_in(*family, context),
            Other::Service(_, own) => {
                // Connections have news for cores only: the slow path is told of accept queues.
                own.get(context as usize).into_iter().for_each(|bell| write_eventfd(bell.as_fd()));
            }
        }
    }

    /// Bytes of our data area that may be written. A deputy in a pair region may be the first to touch its pages: the service
    /// pays for what it writes there, bounded as the rings are.
    pub fn own_bytes(&self) -> u64 {
        match &self.other {
            Other::Application(memory) | Other::Service(memory, _) => memory.area.lendable(),
            Other::Party(..) => self.data_len(),
        }
    }

    /// Lends a ring of our side.
    pub fn lend(&self, pool: &mut Pool, class: usize) -> Option<Ring> {
        if let Other::Application(memory) = &self.other {
            return memory.lend(pool, class);
        }
        let pages = (self.own_bytes() / u64::from(base::limits::RING_MIN)) as usize;
        pool.lend(class, pages, |i| self.word(i))
    }

    /// Takes a ring back.
    pub fn give_back(&self, pool: &mut Pool, ring: Ring) {
        match &self.other {
            Other::Application(memory) => memory.give_back(pool, ring),
            _ => pool.give_back(ring, |i| self.word(i)),
        }
    }

    /// Returns every warm ring.
    pub fn flush(&self, pool: &mut Pool) {
        match &self.other {
            Other::Application(memory) => memory.flush(pool),
            _ => pool.flush(|i| self.word(i)),
        }
    }

    fn word(&self, i: usize) -> &std::sync::atomic::AtomicU64 {
        self.region().page_word(self.side, i).expect("the pool stays inside the bitmap")
    }

    /// Checks that bytes of the other side's may be read: the service must not pay for pages by reading.
    pub fn check(&self, ring: Ring, spans: &[(usize, usize); 2]) -> Result<(), Violation> {
        let violation = Err(Violation::Ring(ring.packed()));
        match &self.other {
            Other::Application(memory) => memory.check_ring(ring),
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

    /// Copies the other side's bytes out.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        self.region().read(self.side.other(), at, out);
    }

    /// Up to where the other side's stream is urgent, if anything of it ever was.
    pub fn urgent(&self, slot: u32) -> Option<u64> {
        urgent::up(self.region(), self.side.other(), slot)
    }

    /// The same of our side's, as announced.
    pub fn announced(&self, slot: u32) -> Option<u64> {
        urgent::up(self.region(), self.side, slot)
    }

    /// Announces that our side's stream is urgent up to `position`.
    pub fn announce(&self, slot: u32, position: u64) {
        urgent::announce(self.region(), self.side, slot, position);
        if let (Other::Service(..), Some((own, _))) = (&self.other, self.halves(slot)) {
            own.extra.fetch_or(application_flags::URGENT, Ordering::AcqRel);
        }
    }

    /// Copies bytes in, to our side.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.region().write(self.side, at, bytes);
    }
}

/// One end, as the core uses it.
#[derive(Debug)]
pub struct End {
    /// Where.
    pub place: Place,
    /// The slot there.
    pub slot: u32,
    /// Our stream.
    pub sender: Sender,
    /// Consumed of what the other side produced.
    pub tail: u64,
    /// The other side's FIN has been passed on, or no more of its bytes will be.
    pub ended: bool,
    /// The slot is no longer looked at.
    pub gone: bool,
}

impl End {
    /// A fresh end at the service's own side.
    pub fn new(memory: Arc<Memory>, slot: u32) -> Self {
        let place = Place::of_service(memory);
        Self { place, slot, sender: Sender::default(), tail: 0, ended: false, gone: false }
    }

    /// A deputy that goes on where a process stopped. From here on it is told.
    pub fn deputy(place: Place, slot: u32, sender: Sender) -> Self {
        let tail = place.halves(slot).map_or(0, |(own, _)| {
            watch(own, Some(TRUST_CONTEXT));
            own.rx_tail.load(Ordering::Acquire)
        });
        Self { place, slot, sender, tail, ended: false, gone: false }
    }

    /// The other side's flags.
    pub fn flags(&self) -> u32 {
        // The slot of an end that is gone may be another connection's by now.
        if self.gone {
            return FIN | READ_CLOSED | RELEASED;
        }
        self.place.halves(self.slot).map_or(RESET, |(_, other)| other.flags.load(Ordering::Acquire))
    }

    /// Raises flags of our half and tells.
    pub fn raise(&self, bells: &Bells, flags: u32) {
        if let Some((own, _)) = self.place.halves(self.slot).filter(|_| !self.gone) {
            raise(own, flags);
            self.tell(bells);
        }
    }

    /// The slot has news for the other side.
    pub fn tell(&self, bells: &Bells) {
        self.place.tell(bells, self.slot);
    }

    /// By what in `flags` of the other side the connection is cut, as it is passed on; 0: it is not.
    pub fn cut(&self, flags: u32) -> u32 {
        match flags {
            _ if flags & RESET != 0 => RESET,
            // TCP over the port gives the reason as an errno.
            _ if flags & FAILED != 0 && self.place.is_deputy() => flags & (FAILED | 0xfff << ERRNO_SHIFT),
            _ => 0,
        }
    }

    /// A deputy tells the service's TCP what the connection's new holder, at `near`, wants of it.
    pub fn advise(&self, near: &Self, bells: &Bells) {
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
        // What was sent before `TCP_NODELAY` was set is held back no longer.
        let pushed = match wanted & !before & NODELAY {
            0 => before & !u64::from(u32::MAX),
            _ => own.tx_head.load(Ordering::Relaxed) << PUSHED_SHIFT,
        };
        own.extra.store(before & u64::from(u32::MAX) & !ADVICE | wanted | pushed, Ordering::Release);
        self.tell(bells);
    }

    /// Leaves the slot; what is kept of it is returned.
    pub fn leave(&mut self) -> Self {
        self.gone = true;
        let sender = std::mem::take(&mut self.sender);
        Self { place: self.place.clone(), slot: self.slot, sender, tail: self.tail, ended: true, gone: true }
    }

    /// A deputy lets go, as the process would have done by closing.
    pub fn release(&self, bells: &Bells) {
        let unread = self.place.halves(self.slot).is_some_and(|(own, other)| {
            own.flags.load(Ordering::Relaxed) & RESET == 0
                && other.tx_head.load(Ordering::Acquire) != self.tail
        });
        let end = if unread { RESET } else { 0 };
        // Whoever consumes the rest says so: the rings are needed no more then.
        self.raise(bells, end | READ_CLOSED | WANT_SPACE | RELEASED);
    }

    /// True when a deputy that has let go may take its rings back: everything was consumed, nobody reads any more, or the slot
    /// is another connection's.
    pub fn is_over(&self) -> bool {
        let Some((own, other)) = self.place.halves(self.slot) else { return true };
        other.rx_tail.load(Ordering::Acquire) >= self.sender.head
            || other.flags.load(Ordering::Acquire) & (RELEASED | RESET | FAILED) != 0
            || own.tx_head.load(Ordering::Acquire) != self.sender.head
    }
}
