//! A mapped region as one party uses it: its side, its ring pool, the eventfds that wake the other side.

use crate::host::{Host, Waker};
use crate::per_process::PerProcess;
use crate::populate::Growth;
use crate::ring_cache::Warm;
use crate::slot_grant::Lease;
use base::limits::RING_MIN;
use queue::pages::{CLASSES, Pool};
use queue::stream::{Sender, watcher};
use queue::{Doorbell, Ring, Wake, nap};
use shm::{CONTEXTS, HELD_CONTEXT, Half, Kind, Region, SLOW_CONTEXT, Side, half_flags};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};

/// Rings that stay lent until the other side has read up to `head`: those of a closed socket, or one that a longer ring replaced.
#[derive(Debug)]
struct Kept {
    slot: u32,
    head: u64,
    is_closed: bool,
    rings: [Option<Ring>; 2],
}

/// Size class of the longest rings that are lent while any page is free; longer ones leave some pages free (`lend`).
const SHORT: usize = 1;

/// Bit position in `Half::extra` of the time at which that side rang last.
const MOMENT_SHIFT: u32 = 32;

/// Shortest time between two collections, in nanoseconds (see [`Mapped::may_collect`]).
const COLLECT_EVERY_NS: u64 = 2_000_000;

/// Fewer kept entries than this are not swept.
const DUE_AT_LEAST: usize = 8;

/// All rings of this process that wait in the region until they have been read.
#[derive(Debug, Default)]
struct Lingering {
    kept: Vec<Kept>,
    /// The list is swept when it has this many entries.
    due: usize,
}

/// A word of a doorbell of the other side, and the bits that are to be set there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bell {
    /// The context that watches the slots.
    pub context: u32,
    /// The number of the word: that of the slots divided by 64.
    pub word: u32,
    /// The slots with news.
    pub bits: u64,
}

/// A region, seen from one side.
#[derive(Debug)]
pub struct Mapped {
    /// The service's number of the region.
    pub id: u32,
    /// The side of this process.
    pub side: Side,
    /// True for a pair region (between two applications); false for an application region (with the service).
    pub pair: bool,
    /// The shared memory, mapped.
    pub region: Arc<Region>,
    /// True when every connection in the region is over: the service is gone or has revoked the region.
    pub dead: AtomicBool,
    /// True when the other side sends no wake-ups (see [`Self::is_mute`]).
    mute: AtomicBool,
    /// The process around the region.
    pub host: &'static Host,
    /// The generation of the process that the region belongs to (see [`Self::is_own`]).
    generation: u32,
    /// How many bytes of this side's data area may be lent.
    pub growth: Growth,
    pool: Mutex<PerProcess<Pool>>,
    warm: Warm,
    wakers: Box<[OnceLock<Box<dyn Waker>>]>,
    lingering: Mutex<PerProcess<Lingering>>,
    /// Time of the last collection of rings left behind, in nanoseconds.
    collected: AtomicU64,
    /// Slots granted to this process; used in a pair region in which it connects.
    pub lease: Lease,
}

impl Mapped {
    /// A region in which the first `pages` pages of this side's data area may be lent from the start.
    #[must_use]
    pub fn new(host: &'static Host, side: Side, region: Arc<Region>, pages: usize) -> Self {
        let params = region.layout().params;
        Self {
            host,
            // The service numbers regions by 32 bits.
            id: params.id as u32,
            side,
            pair: params.kind == Kind::Pair,
            region,
            dead: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            generation: host.generation(),
            growth: Growth::new(host, pages as u64 * u64::from(RING_MIN)),
            pool: Mutex::default(),
            warm: Warm::default(),
            wakers: (0..CONTEXTS).map(|_| OnceLock::new()).collect(),
            lingering: Mutex::default(),
            collected: AtomicU64::new(0),
            lease: Lease::new(host),
        }
    }

    /// Marks the region as that of an ancestor of this forked process.
    #[must_use]
    pub const fn inherited(mut self) -> Self {
        self.generation = u32::MAX;
        self
    }

    /// True when the region belongs to this process and ends with it. In an ancestor's region no ring is kept for later use: it would stay
    /// lent after this process ends.
    #[inline]
    pub fn is_own(&self) -> bool {
        self.generation == self.host.generation()
    }

    /// True if `COLLECT_EVERY_NS` have passed since it last was: collecting rings left behind takes up to a millisecond.
    pub fn may_collect(&self) -> bool {
        let (now, before) = (cycles::now_ns(), self.collected.load(Ordering::Relaxed));
        let is_due = now.saturating_sub(before) >= COLLECT_EVERY_NS;
        if is_due {
            self.collected.store(now, Ordering::Relaxed);
        }
        is_due
    }

    /// This side's half of `slot`, then the other side's.
    ///
    /// # Panics
    /// Never: slots are checked against the region before a socket is made of them.
    #[inline]
    pub fn halves(&self, slot: u32) -> (&Half, &Half) {
        let halves = &self.region.slot(slot).expect("a socket's slot was checked when it was made").half;
        (&halves[self.side.index()], &halves[self.side.other().index()])
    }

    /// True when the other side sends no wake-ups: a thread that waits for its news has to poll.
    #[inline]
    pub fn is_mute(&self) -> bool {
        self.mute.load(Ordering::Relaxed)
    }

    /// Notes that the other side has said so; ignored in an application region.
    pub fn fall_silent(&self) {
        self.mute.store(self.pair, Ordering::Relaxed);
    }

    /// True when `slot` exists.
    #[must_use]
    pub fn has(&self, slot: u32) -> bool {
        slot < self.region.layout().params.slots
    }

    /// Bytes of one side's data area.
    #[inline]
    pub fn data_len(&self) -> u64 {
        self.region.layout().params.data_len
    }

    /// The doorbell of `context` of `side`.
    #[inline]
    pub fn bell(&self, side: Side, context: u32) -> Option<Doorbell<'_>> {
        Doorbell::of(&self.region, side, context)
    }

    /// This side's doorbell for `context`.
    #[inline]
    pub fn own_bell(&self, context: u32) -> Option<Doorbell<'_>> {
        self.bell(self.side, context)
    }

    /// Rings the context of the other side that watches `slot`. `Some(c)`: context `c` sleeps, and the eventfd that wakes it is not known
    /// here yet.
    #[inline]
    #[must_use]
    pub fn tell(&self, slot: u32) -> Option<u32> {
        self.tell_of(self.halves(slot).1, slot)
    }

    /// Wakes the threads of the other side that nap at the slot of its half `peer`.
    #[cold]
    fn rouse(&self, peer: &Half) {
        if nap::rouse(peer) {
            self.host.process.rouse(peer);
        }
    }

    /// [`Self::tell`] for a caller that has the other side's half of `slot`.
    #[inline]
    #[must_use]
    pub fn tell_of(&self, peer: &Half, slot: u32) -> Option<u32> {
        let context = watcher(peer)?;
        let Some(bell) = self.bell(self.side.other(), context) else {
            self.rouse(peer);
            return None;
        };
        let note = || {
            if self.pair {
                self.halves(slot)
                    .0
                    .extra
                    .store(u64::from(cycles::moment()) << MOMENT_SHIFT, Ordering::Relaxed);
            }
        };
        self.wake(bell.ring_noting(slot as usize / 64, 1 << (slot % 64), note), context)
    }

    /// Notes the `moment` at which the owner of half `own` rings for its slot alone, as [`Self::tell_of`] does. Call it before [`Self::ring`].
    #[inline]
    pub fn note_moment(&self, own: &Half, bell: Bell, moment: u32) {
        let is_pending =
            || self.other_bell(bell).is_none_or(|other| other.is_pending(bell.word as usize, bell.bits));
        if self.pair && !is_pending() {
            own.extra.store(u64::from(moment) << MOMENT_SHIFT, Ordering::Relaxed);
        }
    }

    fn other_bell(&self, bell: Bell) -> Option<Doorbell<'_>> {
        self.bell(self.side.other(), bell.context)
    }

    /// Rings for several slots, which one context of the other side watches. `Some(c)`: as of [`Self::tell`].
    #[inline]
    #[must_use]
    pub fn ring(&self, bell: Bell) -> Option<u32> {
        let Some(other) = self.other_bell(bell) else {
            self.rouse_all(bell);
            return None;
        };
        let wake = other.ring_many(bell.word as usize, bell.bits);
        self.wake(wake, bell.context)
    }

    /// As [`Self::rouse`], at the slots of `bell`.
    #[cold]
    fn rouse_all(&self, bell: Bell) {
        let slots = (0..64).filter(|i| bell.bits & 1 << i != 0).map(|i| bell.word * 64 + i);
        slots.filter(|slot| self.has(*slot)).for_each(|slot| self.rouse(self.halves(slot).1));
    }

    /// Wakes `context` of the other side if it is to be. `Some(c)`: as of [`Self::tell`].
    #[inline]
    fn wake(&self, wake: Wake, context: u32) -> Option<u32> {
        if wake == Wake::NotNeeded {
            return None;
        }
        let Some(waker) = self.wakers[context as usize].get() else { return Some(context) };
        waker.ring();
        None
    }

    /// Time from the last news of `slot` until `now`, in units of [`cycles::moment`]. The time is the other side's word; `u32::MAX` in an
    /// application region, where it is not known and the news took longer anyway.
    #[inline]
    pub fn age(&self, slot: u32, now: u32) -> u32 {
        let peer = self.region.slot(slot).map(|slot| &slot.half[self.side.other().index()]);
        let rung = |half: &Half| (half.extra.load(Ordering::Relaxed) >> MOMENT_SHIFT) as u32;
        peer.filter(|_| self.pair).map_or(u32::MAX, |half| now.wrapping_sub(rung(half)))
    }

    /// Tells the service that the socket of block `index` holds bytes back (cork); for an application region.
    pub fn note_held(&self, index: u32) {
        let Some(bell) = self.bell(Side::Zero, HELD_CONTEXT) else { return };
        if bell.ring(index) == Wake::Needed
            && let Some(waker) = self.wakers[SLOW_CONTEXT as usize].get()
        {
            waker.ring();
        }
    }

    /// Remembers the eventfd that wakes `context` of the other side.
    pub fn learn_waker(&self, context: u32, waker: Box<dyn Waker>) {
        if let Some(place) = self.wakers.get(context as usize) {
            // If another thread has set it already, that is the same eventfd.
            let _ = place.set(waker);
        }
    }

    /// Lends a ring of size class `class` from this side's pages; a ring longer than `SHORT` only if 1/`leaving` of the pages stays free.
    pub fn lend(&self, class: usize, leaving: usize) -> Option<Ring> {
        if let Some(ring) = self.warm.take(self.host, class) {
            return Some(ring);
        }
        let pages = self.pages();
        let leave = if class > SHORT { pages / leaving } else { 0 };
        let word = |i| self.word(i);
        match self.pool.try_lock() {
            Ok(mut pool) => pool.get(self.host.generation()).lend_leaving(class, pages, leave, word),
            // Another thread has the pool, or this is a signal handler that interrupted it: lend straight from the bitmap.
            Err(TryLockError::WouldBlock) => Pool::default().lend_leaving(class, pages, leave, word),
            Err(TryLockError::Poisoned(pool)) => {
                pool.into_inner().get(self.host.generation()).lend_leaving(class, pages, leave, word)
            }
        }
    }

    /// Takes a ring back.
    pub fn give_back(&self, ring: Ring) {
        let host = self.host;
        if self.generation != host.generation() {
            Pool::release(ring, |i| self.word(i));
        } else if !self.warm.keep(self.generation, &host.threads, ring) {
            self.give_back_to_pool(ring);
        }
    }

    fn give_back_to_pool(&self, ring: Ring) {
        let word = |i| self.word(i);
        match self.pool.try_lock() {
            Ok(mut pool) => pool.get(self.host.generation()).give_back(ring, word),
            Err(_) => {
                let mut pool = Pool::default();
                pool.give_back(ring, word);
                pool.flush(word);
            }
        }
    }

    /// # Panics
    /// Never: the pool asks for words below its page count, and rings come from the pool.
    fn word(&self, i: usize) -> &std::sync::atomic::AtomicU64 {
        self.region.page_word(self.side, i).expect("the pool stays inside the bitmap")
    }

    /// Number of this side's pages that may be lent.
    pub fn pages(&self) -> usize {
        self.growth.present() as usize / RING_MIN as usize
    }

    /// The lock of the rings that wait to be read, to be taken before a fork, before [`Self::pool_lock`].
    pub const fn lingering_lock(&self) -> &Mutex<impl Sized + use<>> {
        &self.lingering
    }

    /// The lock of the rings that may be lent, to be taken before a fork.
    pub const fn pool_lock(&self) -> &Mutex<impl Sized + use<>> {
        &self.pool
    }

    /// Keeps the rings of a closed socket until the bytes are read.
    pub fn linger(&self, slot: u32, mut sender: Sender) {
        sender.give_back().into_iter().for_each(|ring| self.give_back(ring));
        if sender.ring.is_some() || sender.old.is_some() {
            let rings = [sender.ring, sender.old];
            self.keep_lent(Kept { slot, head: sender.head, is_closed: true, rings });
        }
    }

    /// Keeps a ring that an open socket no longer writes to, until the bytes before `head` are read.
    pub fn retire(&self, slot: u32, head: u64, ring: Ring) {
        self.keep_lent(Kept { slot, head, is_closed: false, rings: [Some(ring), None] });
    }

    fn keep_lent(&self, rings: Kept) {
        let mut rings = Some(rings);
        self.host.process.put_off_signals(&mut || {
            let mut lingering = self.lingering.lock().unwrap_or_else(PoisonError::into_inner);
            let lingering = lingering.get(self.host.generation());
            lingering.kept.extend(rings.take());
            if lingering.kept.len() >= lingering.due {
                self.sweep_through(lingering);
            }
        });
    }

    /// Gives back kept rings that are no longer read: their bytes are consumed, the other side has released the slot, or another connection
    /// uses the slot already.
    pub fn sweep(&self) {
        self.host.process.put_off_signals(&mut || {
            let mut lingering = self.lingering.lock().unwrap_or_else(PoisonError::into_inner);
            self.sweep_through(lingering.get(self.host.generation()));
        });
    }

    fn sweep_through(&self, lingering: &mut Lingering) {
        lingering.kept.retain(|l| {
            let (own, peer) = self.halves(l.slot);
            let head = own.tx_head.load(Ordering::Acquire);
            let reused = if l.is_closed { head != l.head } else { head < l.head };
            let let_go = peer.flags.load(Ordering::Acquire) & half_flags::RELEASED != 0;
            let consumed = peer.rx_tail.load(Ordering::Acquire) >= l.head;
            let over = reused || let_go || consumed;
            if over {
                l.rings.into_iter().flatten().for_each(|ring| self.give_back(ring));
            }
            !over
        });
        // Doubling the threshold bounds the work: each entry is looked at only a few times on average.
        lingering.due = (lingering.kept.len() * 2).max(DUE_AT_LEAST);
    }

    /// Number of this side's pages that are lent now. Rings kept warm and in the pool go back first, so they do not count.
    #[must_use]
    pub fn lent_pages(&self) -> usize {
        self.sweep();
        let warm = (0..CLASSES).find_map(|class| self.warm.take(self.host, class));
        warm.into_iter().for_each(|ring| self.give_back_to_pool(ring));
        self.pool
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(self.host.generation())
            .flush(|i| self.word(i));
        (0..self.region.page_words())
            .map(|i| self.word(i).load(Ordering::Relaxed).count_ones() as usize)
            .sum()
    }

    /// True when the other side has read all bytes of closed sockets.
    pub fn is_swept(&self) -> bool {
        self.lingering
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(self.host.generation())
            .kept
            .is_empty()
    }
}
