//! A mapped region as one party uses it: its side, its ring pool, the eventfds that wake the other side.

use crate::hold::Held;
use crate::internal::Internal;
use queue::pages::Pool;
use queue::stream::{Sender, watcher};
use queue::{Doorbell, Ring, Wake};
use shm::{CONTEXTS, Half, Region, Side, half_flags};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};

/// A closed socket's rings: they stay lent until the other side has read them.
#[derive(Debug)]
struct Lingering {
    slot: u32,
    sender: Sender,
    records: Option<Ring>,
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
    /// Pages of our side that may be lent.
    pages: AtomicUsize,
    pool: Mutex<Pool>,
    wakers: Box<[OnceLock<Internal>]>,
    lingering: Mutex<Vec<Lingering>>,
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
            pages: AtomicUsize::new(pages),
            pool: Mutex::new(Pool::default()),
            wakers: (0..CONTEXTS).map(|_| OnceLock::new()).collect(),
            lingering: Mutex::new(Vec::new()),
        }
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
        let (_, peer) = self.halves(slot);
        let context = watcher(peer)?;
        let bell = self.bell(self.side.other(), context)?;
        match bell.ring(slot) {
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

    /// Remembers the eventfd that wakes `context` of the other side.
    pub fn learn_waker(&self, context: u32, waker: Internal) {
        if let Some(place) = self.wakers.get(context as usize) {
            // Somebody was quicker: theirs is the same eventfd.
            let _ = place.set(waker);
        }
    }

    /// Lends a ring of `class` of our side.
    pub fn lend(&self, class: usize) -> Option<Ring> {
        let pages = self.pages.load(Ordering::Relaxed);
        let word = |i| self.word(i);
        match self.pool.try_lock() {
            Ok(mut pool) => pool.lend(class, pages, word),
            // Another thread, or a call that this signal handler interrupted: straight from the bitmap.
            Err(TryLockError::WouldBlock) => Pool::default().lend(class, pages, word),
            Err(TryLockError::Poisoned(pool)) => pool.into_inner().lend(class, pages, word),
        }
    }

    /// Takes a ring back.
    pub fn give_back(&self, ring: Ring) {
        let word = |i| self.word(i);
        match self.pool.try_lock() {
            Ok(mut pool) => pool.give_back(ring, word),
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
        self.pages.load(Ordering::Relaxed)
    }

    /// Raises how many pages may be lent.
    pub fn set_pages(&self, pages: usize) {
        self.pages.fetch_max(pages.min(self.region.page_words() * 64), Ordering::Relaxed);
    }

    /// Before a fork.
    pub fn hold(self: &Arc<Self>, held: &mut Held) {
        held.take(self, |m| &m.lingering);
        held.take(self, |m| &m.pool);
    }

    /// In a forked child: warm rings and closed sockets' rings are the parent's to give back.
    pub fn forget(&self) {
        // A lock that is held belongs to a thread of the parent that does not exist here.
        if let Ok(mut pool) = self.pool.try_lock() {
            pool.forget();
        }
        if let Ok(mut lingering) = self.lingering.try_lock() {
            lingering.clear();
        }
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
            let mut lingering = self.lingering.lock().unwrap_or_else(PoisonError::into_inner);
            lingering.push(Lingering { slot, sender, records: records.filter(|_| !is_read) });
        }
        self.sweep();
    }

    /// Gives back closed sockets' rings that nobody reads any more: consumed, let go by the other side, or the slot is
    /// another connection's already.
    pub fn sweep(&self) {
        let mut lingering = self.lingering.lock().unwrap_or_else(PoisonError::into_inner);
        lingering.retain(|l| {
            let (own, peer) = self.halves(l.slot);
            let reused = own.tx_head.load(Ordering::Acquire) != l.sender.head;
            let let_go = peer.flags.load(Ordering::Acquire) & half_flags::RELEASED != 0;
            let consumed = peer.rx_tail.load(Ordering::Acquire) >= l.sender.head;
            let over = reused || let_go || consumed;
            if over {
                let rings = [l.sender.ring, l.sender.old, l.records];
                rings.into_iter().flatten().for_each(|ring| self.give_back(ring));
            }
            !over
        });
    }

    /// Pages of our side that are lent now, warm rings of the pool not counted: they go back first.
    #[must_use]
    pub fn lent_pages(&self) -> usize {
        self.sweep();
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).flush(|i| self.word(i));
        (0..self.region.page_words())
            .map(|i| self.word(i).load(Ordering::Relaxed).count_ones() as usize)
            .sum()
    }

    /// True when nothing of a closed socket is unread.
    pub fn is_swept(&self) -> bool {
        self.lingering.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}
