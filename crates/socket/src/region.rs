//! A mapped region as one party uses it: its side, its ring pool, the eventfds that wake the other side.

use crate::anew::Anew;
use crate::fork;
use crate::growth::Growth;
use crate::hold::Held;
use crate::internal::Internal;
use crate::sys::signal::Deferred;
use crate::warm::Warm;
use crate::ways::Lease;
use base::limits::RING_MIN;
use control::{HELD_CONTEXT, SLOW_CONTEXT};
use queue::pages::{CLASSES, Pool};
use queue::stream::{Sender, watcher};
use queue::{Doorbell, Ring, Wake};
use shm::{CONTEXTS, Half, Region, Side, half_flags};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};

/// Rings that stay lent until the other side has read up to `head`: a closed socket's, and one in whose place a longer one is.
#[derive(Debug)]
struct Kept {
    slot: u32,
    head: u64,
    is_closed: bool,
    rings: [Option<Ring>; 3],
}

/// Class of the longest rings that are lent as long as there is any memory.
const SHORT: usize = 1;

/// Where `Half::extra` says when its side rang.
const MOMENT_SHIFT: u32 = 32;

/// See [`Mapped::may_collect`].
const COLLECT_EVERY_NS: u64 = 2_000_000;

/// So few are not worth a look.
const DUE_AT_LEAST: usize = 8;

/// All that are kept.
#[derive(Debug, Default)]
struct Lingering {
    kept: Vec<Kept>,
    /// Looked through when there are so many.
    due: usize,
}

/// A region, seen from one side.
#[derive(Debug)]
pub struct Mapped {
    /// The service's name for it.
    pub id: u32,
    /// Ours.
    pub side: Side,
    /// Between two applications.
    pub pair: bool,
    /// The memory.
    pub region: Arc<Region>,
    /// Every connection in it is over: the service is gone or has revoked it.
    pub dead: AtomicBool,
    /// See [`Self::is_mute`].
    mute: AtomicBool,
    /// The generation of the process that it belongs to: see [`Self::is_own`].
    generation: u32,
    /// How much of our side may be lent.
    pub growth: Growth,
    pool: Mutex<Anew<Pool>>,
    warm: Warm,
    wakers: Box<[OnceLock<Internal>]>,
    lingering: Mutex<Anew<Lingering>>,
    /// When it was looked for what was left lent: nanoseconds.
    collected: AtomicU64,
    /// Of a pair region in which we connect: slots that are ours.
    pub lease: Lease,
    /// Of a pair region in which we accept: slots that the connector uses without asking, and the addresses of their connections, ours
    /// first.
    pub granted: Mutex<HashMap<u32, [SocketAddr; 2]>>,
}

impl Mapped {
    /// `pages` of our data area may be lent from the start.
    #[must_use]
    pub fn new(id: u32, side: Side, pair: bool, region: Arc<Region>, pages: usize) -> Self {
        Self {
            id,
            side,
            pair,
            region,
            dead: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            generation: fork::generation(),
            growth: Growth::new(pages as u64 * u64::from(RING_MIN)),
            pool: Mutex::default(),
            warm: Warm::default(),
            wakers: (0..CONTEXTS).map(|_| OnceLock::new()).collect(),
            lingering: Mutex::default(),
            collected: AtomicU64::new(0),
            lease: Lease::default(),
            granted: Mutex::default(),
        }
    }

    /// The same of a region that belongs to the process that has forked this one, or to one before it.
    #[must_use]
    pub const fn inherited(mut self) -> Self {
        self.generation = u32::MAX;
        self
    }

    /// True when it goes with this process. In one of an ancestor's no memory is kept for later: it would stay lent when this process
    /// is gone.
    #[inline]
    pub fn is_own(&self) -> bool {
        self.generation == fork::generation()
    }

    /// True once in a while: looking for what was left lent takes up to a millisecond.
    pub fn may_collect(&self) -> bool {
        let (now, before) = (cycles::now_ns(), self.collected.load(Ordering::Relaxed));
        let is_due = now.saturating_sub(before) >= COLLECT_EVERY_NS;
        if is_due {
            self.collected.store(now, Ordering::Relaxed);
        }
        is_due
    }

    /// Our half and the other's of `slot`.
    ///
    /// # Panics
    /// Never: slots are checked against the region before a socket is made of them.
    #[inline]
    pub fn halves(&self, slot: u32) -> (&Half, &Half) {
        let halves = &self.region.slot(slot).expect("a socket's slot was checked when it was made").half;
        (&halves[self.side.index()], &halves[self.side.other().index()])
    }

    /// True when the other side rings nobody: whoever waits for its news has to look.
    #[inline]
    pub fn is_mute(&self) -> bool {
        self.mute.load(Ordering::Relaxed)
    }

    /// It has said so.
    pub fn fall_silent(&self) {
        self.mute.store(self.pair, Ordering::Relaxed);
    }

    /// True when `slot` exists.
    #[must_use]
    pub fn has(&self, slot: u32) -> bool {
        slot < self.region.layout().params.slots
    }

    /// Bytes of a data area.
    #[inline]
    pub fn data_len(&self) -> u64 {
        self.region.layout().params.data_len
    }

    /// The doorbell of `context` of `side`.
    #[inline]
    pub fn bell(&self, side: Side, context: u32) -> Option<Doorbell<'_>> {
        let block = self.region.context(side, context)?;
        Some(Doorbell::new(block, self.region.layout().words_per_group))
    }

    /// Our own doorbell for `context`.
    #[inline]
    pub fn own_bell(&self, context: u32) -> Option<Doorbell<'_>> {
        self.bell(self.side, context)
    }

    /// Tells whoever watches `slot` on the other side that there is news. `Some(c)`: context `c` sleeps and nobody has the
    /// eventfd yet.
    #[inline]
    #[must_use]
    pub fn tell(&self, slot: u32) -> Option<u32> {
        self.tell_of(self.halves(slot).1, slot)
    }

    /// The same, for who has looked up the other side's half of `slot`.
    #[inline]
    #[must_use]
    pub fn tell_of(&self, peer: &Half, slot: u32) -> Option<u32> {
        let context = watcher(peer)?;
        let bell = self.bell(self.side.other(), context)?;
        let note = || {
            if self.pair {
                self.halves(slot)
                    .0
                    .extra
                    .store(u64::from(cycles::moment()) << MOMENT_SHIFT, Ordering::Relaxed);
            }
        };
        match bell.ring_noting(slot as usize / 64, 1 << (slot % 64), note) {
            Wake::NotNeeded => None,
            Wake::Needed => match self.wakers[context as usize].get() {
                Some(waker) => {
                    waker.ring();
                    None
                }
                None => Some(context),
            },
        }
    }

    /// How long before `now` news of `slot` came, as [`cycles::moment`] counts; of what the service brings nobody knows, and it took its
    /// time. The other side's word.
    #[inline]
    pub fn age(&self, slot: u32, now: u32) -> u32 {
        let peer = self.region.slot(slot).map(|slot| &slot.half[self.side.other().index()]);
        let rung = |half: &Half| (half.extra.load(Ordering::Relaxed) >> MOMENT_SHIFT) as u32;
        peer.filter(|_| self.pair).map_or(u32::MAX, |half| now.wrapping_sub(rung(half)))
    }

    /// Tells the service that the socket of block `index` holds bytes back; ours is the application region.
    pub fn note_held(&self, index: u32) {
        let Some(bell) = self.bell(Side::Zero, HELD_CONTEXT) else { return };
        if bell.ring(index) == Wake::Needed
            && let Some(waker) = self.wakers[SLOW_CONTEXT as usize].get()
        {
            waker.ring();
        }
    }

    /// Remembers the eventfd that wakes `context` of the other side.
    pub fn learn_waker(&self, context: u32, waker: Internal) {
        if let Some(place) = self.wakers.get(context as usize) {
            // Somebody was quicker: theirs is the same eventfd.
            let _ = place.set(waker);
        }
    }

    /// Lends a ring of `class` of our side; a long one only as long as one page in `leaving` is left.
    pub fn lend(&self, class: usize, leaving: usize) -> Option<Ring> {
        if let Some(ring) = self.warm.take(class) {
            return Some(ring);
        }
        let pages = self.pages();
        let leave = if class > SHORT { pages / leaving } else { 0 };
        let word = |i| self.word(i);
        match self.pool.try_lock() {
            Ok(mut pool) => pool.get().lend_leaving(class, pages, leave, word),
            // Another thread, or a call that this signal handler interrupted: straight from the bitmap.
            Err(TryLockError::WouldBlock) => Pool::default().lend_leaving(class, pages, leave, word),
            Err(TryLockError::Poisoned(pool)) => {
                pool.into_inner().get().lend_leaving(class, pages, leave, word)
            }
        }
    }

    /// Takes a ring back.
    pub fn give_back(&self, ring: Ring) {
        if !self.is_own() {
            Pool::release(ring, |i| self.word(i));
        } else if !self.warm.keep(ring) {
            self.give_back_to_pool(ring);
        }
    }

    fn give_back_to_pool(&self, ring: Ring) {
        let word = |i| self.word(i);
        match self.pool.try_lock() {
            Ok(mut pool) => pool.get().give_back(ring, word),
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

    /// Pages that may be lent.
    pub fn pages(&self) -> usize {
        self.growth.present() as usize / RING_MIN as usize
    }

    /// Before a fork.
    pub fn hold(self: &Arc<Self>, held: &mut Held) {
        held.take(self, |m| &m.lingering);
        held.take(self, |m| &m.pool);
        held.take(self, |m| m.lease.lock());
        held.take(self, |m| &m.granted);
    }

    /// Keeps a closed socket's rings, and the table of its `records`, until the bytes are read.
    pub fn linger(&self, slot: u32, mut sender: Sender, records: Option<Ring>) {
        let is_read = sender.is_empty();
        sender
            .give_back()
            .into_iter()
            .chain(records.filter(|_| is_read))
            .for_each(|ring| self.give_back(ring));
        if sender.ring.is_some() || sender.old.is_some() {
            let rings = [sender.ring, sender.old, records.filter(|_| !is_read)];
            self.keep_lent(Kept { slot, head: sender.head, is_closed: true, rings });
        }
    }

    /// Keeps a ring that an open socket does without, until the bytes before `head` are read.
    pub fn retire(&self, slot: u32, head: u64, ring: Ring) {
        self.keep_lent(Kept { slot, head, is_closed: false, rings: [Some(ring), None, None] });
    }

    fn keep_lent(&self, rings: Kept) {
        let _deferred = Deferred::begin();
        let mut lingering = self.lingering.lock().unwrap_or_else(PoisonError::into_inner);
        let lingering = lingering.get();
        lingering.kept.push(rings);
        if lingering.kept.len() >= lingering.due {
            self.sweep_through(lingering);
        }
    }

    /// Gives back the rings that were kept and nobody reads any more: consumed, let go by the other side, or the slot is
    /// another connection's already.
    pub fn sweep(&self) {
        let _deferred = Deferred::begin();
        self.sweep_through(self.lingering.lock().unwrap_or_else(PoisonError::into_inner).get());
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
        // Each that is kept is so looked at a few times in all, however many others are.
        lingering.due = (lingering.kept.len() * 2).max(DUE_AT_LEAST);
    }

    /// Pages of our side that are lent now, warm rings of the pool not counted: they go back first.
    #[must_use]
    pub fn lent_pages(&self) -> usize {
        self.sweep();
        let warm = (0..CLASSES).find_map(|class| self.warm.take(class));
        warm.into_iter().for_each(|ring| self.give_back_to_pool(ring));
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).get().flush(|i| self.word(i));
        (0..self.region.page_words())
            .map(|i| self.word(i).load(Ordering::Relaxed).count_ones() as usize)
            .sum()
    }

    /// True when nothing of a closed socket is unread.
    pub fn is_swept(&self) -> bool {
        self.lingering.lock().unwrap_or_else(PoisonError::into_inner).get().kept.is_empty()
    }
}
