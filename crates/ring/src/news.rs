//! From doorbells to connections: which regions bring news to a ring, and which connection each slot is.

use control::CONTROL_SLOT;
use endpoint::region::Mapped;
use queue::stream::watch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A region that brings news.
#[derive(Debug)]
struct Watch {
    mapped: Arc<Mapped>,
    /// By slot: 1 + the connection's index; 0: none.
    by_slot: Vec<u32>,
    count: u32,
    /// The region's end was told to all its connections.
    is_dead: bool,
}

/// All regions that bring news to one ring. The first is the process's application region, in which the service brings news, too.
#[derive(Debug)]
pub(crate) struct Watches(Vec<Watch>);

impl Watches {
    /// Only the application region.
    pub(crate) fn new(home: &Arc<Mapped>) -> Self {
        Self(vec![Watch::new(home)])
    }

    /// From now on news of `slot` is that of connection `index`, and rings `context`.
    pub(crate) fn add(&mut self, mapped: &Arc<Mapped>, slot: u32, index: u32, context: u32) {
        let found = self.0.iter().position(|watch| Arc::ptr_eq(&watch.mapped, mapped));
        let at = found.unwrap_or_else(|| {
            self.0.push(Watch::new(mapped));
            self.0.len() - 1
        });
        let region = &mut self.0[at];
        let slot_at = slot as usize;
        if region.by_slot.len() <= slot_at {
            region.by_slot.resize(slot_at + 1, 0);
        }
        region.by_slot[slot_at] = index + 1;
        region.count += 1;
        // What came before rang no bell: the caller looks at the connection afterwards.
        watch(mapped.halves(slot).0, Some(context));
    }

    /// No more news of `slot` is wanted.
    pub(crate) fn remove(&mut self, mapped: &Arc<Mapped>, slot: u32) {
        let Some(at) = self.0.iter().position(|watch| Arc::ptr_eq(&watch.mapped, mapped)) else { return };
        if let Some(index) = self.0[at].by_slot.get_mut(slot as usize) {
            *index = 0;
        }
        self.0[at].count -= 1;
        if at > 0 && self.0[at].count == 0 {
            self.0.swap_remove(at);
        }
    }

    /// Takes all news: calls `found` with each connection that has some. True: the service has written to the control line.
    pub(crate) fn drain(&mut self, context: u32, mut found: impl FnMut(u32)) -> bool {
        let mut is_told = false;
        for (at, watch) in self.0.iter_mut().enumerate() {
            let Some(bell) = watch.mapped.own_bell(context) else { continue };
            let by_slot = &watch.by_slot;
            bell.drain(u32::MAX, |slot| {
                is_told |= at == 0 && slot == CONTROL_SLOT;
                if let Some(index) = by_slot.get(slot as usize).and_then(|index| index.checked_sub(1)) {
                    found(index);
                }
            });
            if !watch.is_dead && watch.mapped.dead.load(Ordering::Acquire) {
                watch.is_dead = true;
                by_slot.iter().filter_map(|index| index.checked_sub(1)).for_each(&mut found);
            }
        }
        is_told
    }

    /// True when there may be news.
    #[inline]
    pub(crate) fn any(&self, context: u32) -> bool {
        self.0.iter().any(|watch| {
            let has_died = !watch.is_dead && watch.mapped.dead.load(Ordering::Relaxed);
            has_died || watch.mapped.own_bell(context).is_some_and(|bell| bell.has_news())
        })
    }

    /// Announces sleep in every region. False: there is news.
    pub(crate) fn prepare_sleep(&self, context: u32) -> bool {
        let mut is_quiet = true;
        for watch in &self.0 {
            is_quiet &= watch.mapped.own_bell(context).is_none_or(|bell| bell.prepare_sleep());
            is_quiet &= watch.is_dead || !watch.mapped.dead.load(Ordering::Acquire);
        }
        is_quiet
    }

    /// Takes the announcement back.
    pub(crate) fn awake(&self, context: u32) {
        self.0.iter().filter_map(|watch| watch.mapped.own_bell(context)).for_each(|bell| bell.awake());
    }

    /// True when the other side of some region sends no wake-ups.
    pub(crate) fn is_mute(&self) -> bool {
        self.0.iter().any(|watch| watch.mapped.is_mute())
    }
}

impl Watch {
    fn new(mapped: &Arc<Mapped>) -> Self {
        Self { mapped: mapped.clone(), by_slot: Vec::new(), count: 0, is_dead: false }
    }
}
