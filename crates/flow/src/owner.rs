//! An application region with the service's own state of it, which the application cannot reach.

use crate::{BulkFlows, FlowId, Limits};
use base::limits::FIRST_WINDOWS;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use queue::{Doorbell, Ring, Violation, Wake, nap, stream};
use shm::{Half, Region, Side, Slot};

/// The service's view of an application region.
#[derive(Debug)]
pub struct AppRegion {
    region: shm::Region,
    /// Bitmap of the service side's pages that are lent as rings.
    pages: Box<[AtomicU64]>,
    /// Bytes of each side's data area known to be populated: nothing beyond is lent or read.
    watermark: [AtomicU64; 2],
    /// The flow of each slot, plus 1; 0: none.
    flows: Box<[AtomicU32]>,
    /// Number of slots that have a flow.
    open: AtomicU32,
    /// Bytes by which the windows of this application's flows exceed the initial window, summed.
    granted: AtomicU64,
    bulk: BulkFlows,
    /// 1 after a shortage was reported for the present watermark.
    short: AtomicU32,
    limits: Limits,
}

/// Threads of an application that sleep and must be woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct News {
    /// Index of the region.
    pub region: u16,
    /// How the caller wakes them.
    pub sleeper: Sleeper,
}

/// What threads of an application sleep on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleeper {
    /// The eventfd of that context: the caller writes it.
    Context(u32),
    /// The word in the application's half of that slot ([`queue::nap`]): the caller wakes all that sleep on it.
    Slot(u32),
}

impl AppRegion {
    /// Wraps `region`, with nothing populated yet. The application's sending is not bounded.
    // SETUP: called when an application registers.
    #[must_use]
    pub fn new(region: Region) -> Self {
        Self::with_limits(region, Limits::none())
    }

    /// As [`new`](Self::new); `limits` bound the application's sending.
    // SETUP: called when an application registers.
    #[must_use]
    pub fn with_limits(region: Region, limits: Limits) -> Self {
        let slots = region.layout().params.slots;
        Self {
            pages: (0..region.page_words()).map(|_| AtomicU64::new(0)).collect(),
            watermark: [AtomicU64::new(0), AtomicU64::new(0)],
            flows: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            open: AtomicU32::new(0),
            granted: AtomicU64::new(0),
            bulk: BulkFlows::default(),
            short: AtomicU32::new(0),
            limits,
            region,
        }
    }

    /// The shared memory region.
    #[must_use]
    #[inline]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// What bounds the application's sending.
    #[must_use]
    #[inline]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The application's bulk flows that receive.
    #[must_use]
    #[inline]
    pub const fn bulk(&self) -> &BulkFlows {
        &self.bulk
    }

    /// Notes that the first `bytes` of both sides' data areas are populated, as `mincore` has confirmed.
    pub fn set_watermark(&self, bytes: u64) {
        for watermark in &self.watermark {
            watermark.store(bytes.min(self.data_len()), Ordering::Release);
        }
        self.short.store(0, Ordering::Release);
    }

    /// Notes that the watermark is too low. True the first time.
    #[must_use]
    pub fn note_shortage(&self) -> bool {
        self.short.load(Ordering::Relaxed) == 0 && self.short.swap(1, Ordering::Relaxed) == 0
    }

    /// Undoes [`note_shortage`](Self::note_shortage): the shortage could not be reported.
    pub fn forget_shortage(&self) {
        self.short.store(0, Ordering::Relaxed);
    }

    /// Grants `bytes` more of window to one of the application's flows, which makes its window `window` bytes. False if all windows
    /// together would exceed the service side's data area; or if this one would exceed both its share of `most` and what all windows
    /// leave of `most`. So a flow that comes late finds something, and all that want more get the same (dynamic thresholds: Choudhury and
    /// Hahne, 1998).
    #[must_use]
    pub fn grant(&self, bytes: u64, window: u64, most: u64) -> bool {
        // Relaxed: a sum, which orders nothing.
        let granted = self.granted.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let fits = granted <= self.data_len() && !self.is_greedy(window, most);
        if !fits {
            self.ungrant(bytes);
        }
        fits
    }

    /// True when a flow with that window, already granted, has more than its share of `most` and more than is left of it for all others.
    #[must_use]
    pub fn is_greedy(&self, window: u64, most: u64) -> bool {
        let most = most.min(self.data_len());
        let share = most / u64::from(self.open.load(Ordering::Relaxed)).max(1);
        window > share && self.granted().saturating_add(window) > most
    }

    /// True when present memory holds all windows beyond `initial` bytes, and the first `initial` bytes of the first flows' windows: at
    /// least half of what may become present is for the former.
    #[must_use]
    pub fn is_backed(&self, initial: u32) -> bool {
        let present = self.lendable();
        let first = u64::from(self.open.load(Ordering::Relaxed).min(FIRST_WINDOWS)) * u64::from(initial);
        self.granted() + first.min(self.data_len() / 2) <= present
    }

    fn data_len(&self) -> u64 {
        self.region.layout().params.data_len
    }

    /// Returns `bytes` of a grant.
    pub fn ungrant(&self, bytes: u64) {
        self.granted.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes of window granted now.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.granted.load(Ordering::Relaxed)
    }

    /// Bytes of the service side's data area that may be lent.
    #[must_use]
    #[inline]
    pub fn lendable(&self) -> u64 {
        self.watermark[0].load(Ordering::Acquire)
    }

    /// Bytes of the service side lent now, warm rings of pools included.
    #[must_use]
    pub fn lent(&self) -> u64 {
        let pages: u32 = self.pages.iter().map(|w| w.load(Ordering::Relaxed).count_ones()).sum();
        u64::from(pages) * base::limits::PAGE as u64
    }

    /// Word `index` of the bitmap of lent pages.
    #[must_use]
    #[inline]
    pub fn page_word(&self, index: usize) -> &AtomicU64 {
        &self.pages[index]
    }

    /// Checks that a ring of the application's lies in populated memory.
    ///
    /// # Errors
    /// [`Violation::Ring`], when it does not: reading it would make the service pay for the pages.
    #[inline]
    pub fn check_ring(&self, ring: Ring) -> Result<(), Violation> {
        let populated = self.watermark[1].load(Ordering::Acquire);
        if ring.offset() + ring.size() <= populated { Ok(()) } else { Err(Violation::Ring(ring.packed())) }
    }

    /// The flow of `slot`, until the slow path has noted its end.
    #[must_use]
    #[inline]
    pub fn flow_of(&self, slot: u32) -> Option<FlowId> {
        let word = self.flows.get(slot as usize)?.load(Ordering::Acquire);
        word.checked_sub(1).map(FlowId)
    }

    /// Sets the flow of a slot. Only the slow path calls it.
    pub fn set_flow(&self, slot: u32, flow: Option<FlowId>) {
        let Some(word) = self.flows.get(slot as usize) else { return };
        let before = word.swap(flow.map_or(0, |f| f.0 + 1), Ordering::Release);
        match (before > 0, flow.is_some()) {
            (false, true) => self.open.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.open.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
    }

    /// Both halves of `slot`: (the service's, the application's).
    #[must_use]
    #[inline]
    pub fn halves(&self, slot: u32) -> Option<(&Half, &Half)> {
        let Slot { half: [own, peer] } = self.region.slot(slot)?;
        Some((own, peer))
    }
}

/// Rings for `slot`, if its application watches it. `Some`: it sleeps.
#[inline]
pub fn tell(region: &AppRegion, index: u16, slot: u32) -> Option<News> {
    let (_, peer) = region.halves(slot)?;
    ring(region, index, stream::watcher(peer)?, slot / 64, 1 << (slot % 64))
}

/// Rings the application's `context` for the slots of `bits`; bit 0 is slot `64 * word`. All must be below the region's number of
/// slots. `Some`: the context, or a thread at one of the slots, sleeps.
#[inline]
pub fn ring(region: &AppRegion, index: u16, context: u32, word: u32, bits: u64) -> Option<News> {
    let Some(bell) = Doorbell::of(&region.region, Side::One, context) else {
        return rouse(region, index, word, bits);
    };
    match bell.ring_many(word as usize, bits) {
        Wake::Needed => Some(News { region: index, sleeper: Sleeper::Context(context) }),
        Wake::NotNeeded => None,
    }
}

/// As [`ring`], where threads nap. Slots in one word have different names for their naps, so that `bits` is one slot; of a process that
/// names them alike only one is woken.
#[cold]
fn rouse(region: &AppRegion, index: u16, word: u32, bits: u64) -> Option<News> {
    let slot = word * 64 + bits.trailing_zeros();
    let (_, peer) = region.halves(slot)?;
    nap::rouse(peer).then_some(News { region: index, sleeper: Sleeper::Slot(slot) })
}

/// Raises `flag` (for `FAILED` with an errno in its bits) in the service's half of `slot`, and rings for the slot.
pub fn raise(region: &AppRegion, index: u16, slot: u32, flag: u32) -> Option<News> {
    let (own, _) = region.halves(slot)?;
    stream::raise(own, flag);
    tell(region, index, slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::{CONTEXTS, Kind, NAP, Params};

    const SLOT: u32 = 67;

    fn region() -> AppRegion {
        let params = Params { kind: Kind::Application, id: 1, slots: 128, data_len: 1 << 20 };
        AppRegion::new(Region::create(params).unwrap().0)
    }

    #[test]
    fn a_thread_that_naps_is_woken_at_its_slot_and_once() {
        let region = region();
        let own = region.halves(SLOT).unwrap().1;
        assert!(nap::is_nap(nap::begin(own, SLOT)));
        let news = News { region: 9, sleeper: Sleeper::Slot(SLOT) };
        assert_eq!([tell(&region, 9, SLOT), tell(&region, 9, SLOT)], [Some(news), None]);
    }

    #[test]
    fn whatever_an_application_writes_as_its_watcher_rings_nothing_else() {
        let region = region();
        let own = region.halves(SLOT).unwrap().1;
        for word in [CONTEXTS as u32 + 1, NAP - 1, u32::MAX >> 1] {
            own.context.store(word, Ordering::SeqCst);
            assert_eq!(tell(&region, 9, SLOT), None, "{word:#x}");
        }
        for word in [NAP, u32::MAX] {
            own.context.store(word, Ordering::SeqCst);
            assert!(tell(&region, 9, SLOT).is_some() && own.context.load(Ordering::SeqCst) == 0);
        }
    }
}
