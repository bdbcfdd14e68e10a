//! News of the applications' ends, told for a whole batch of sockets: one barrier serves all positions published before it, one locked
//! operation rings for up to 64 slots, and each sleeping context is woken once, at the end of the engine's work.

use super::{AppEnd, Ends};
use flow::News;
use queue::stream::{barrier, note_consumed, note_produced, raise, wants_space, watcher};
use shm::half_flags::RELEASED;
use std::sync::Arc;

/// What the application of an end is to be told with the next [`Ends::announce`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Untold {
    /// Bytes or flags for the application.
    has_news: bool,
    /// Bytes of the application were confirmed: it is told if it waits for space.
    has_space: bool,
}

/// Bits collected for one word of the doorbell of one context.
#[derive(Default)]
struct Bell {
    region: Option<Arc<flow::AppRegion>>,
    index: u16,
    context: u32,
    word: u32,
    bits: u64,
}

impl Bell {
    /// Rings for the slots collected so far. `Some`: their context sleeps.
    fn ring(&mut self) -> Option<News> {
        let bits = std::mem::take(&mut self.bits);
        let region = self.region.as_ref().filter(|_| bits != 0)?;
        flow::ring(region, self.index, self.context, self.word, bits)
    }

    /// Adds the slot of `end`; rings first if that slot lies in another word.
    fn add(&mut self, end: &AppEnd, context: u32, wakes: &mut Vec<News>) {
        let (Some(memory), slot) = (end.end.place.memory(), end.end.slot) else { return };
        if (self.index, self.context, self.word) != (memory.index, context, slot / 64)
            || self.region.is_none()
        {
            wakes.extend(self.ring());
            *self = Self {
                region: Some(memory.area.clone()),
                index: memory.index,
                context,
                word: slot / 64,
                bits: 0,
            };
        }
        self.bits |= 1 << (slot % 64);
    }
}

impl Ends {
    /// Publishes the peer's bytes before `to`. False: the application has let go of the slot, and nothing reads them.
    pub fn publish(&mut self, tag: u64, to: u64) -> bool {
        let Some(end) = self.get(tag) else { return true };
        if end.end.flags() & RELEASED != 0 {
            return false;
        }
        let Some((own, _)) = end.end.place.halves(end.end.slot) else { return false };
        end.end.sender.head = end.end.sender.head.max(to);
        note_produced(own, end.end.sender.head);
        self.note(tag, Untold { has_news: true, has_space: false });
        true
    }

    /// The peer's socket has the application's bytes before `to`.
    pub fn acked(&mut self, tag: u64, to: u64) {
        let Some(end) = self.get(tag) else { return };
        let Some((own, _)) = end.end.place.halves(end.end.slot) else { return };
        end.end.tail = to;
        note_consumed(own, to);
        self.note(tag, Untold { has_news: false, has_space: true });
    }

    /// Raises flags of the service's half.
    pub fn raise(&mut self, tag: u64, flags: u32) {
        let Some(end) = self.get(tag) else { return };
        if let Some((own, _)) = end.end.place.halves(end.end.slot) {
            raise(own, flags);
        }
        self.note(tag, Untold { has_news: true, has_space: false });
    }

    fn note(&mut self, tag: u64, more: Untold) {
        let Some(end) = self.get(tag) else { return };
        let before = end.untold;
        end.untold.has_news |= more.has_news;
        end.untold.has_space |= more.has_space;
        if !(before.has_news || before.has_space) {
            self.told.push(tag);
        }
    }

    /// Rings the applications of all ends with news since the last call. Those that sleep are woken by the caller: [`Ends::wakes`].
    pub fn announce(&mut self) {
        if self.told.is_empty() {
            return;
        }
        barrier();
        let (mut told, mut bell) = (std::mem::take(&mut self.told), Bell::default());
        let mut wakes = std::mem::take(&mut self.wakes);
        for tag in told.drain(..) {
            let Some(end) = self.get(tag) else { continue };
            let untold = std::mem::take(&mut end.untold);
            let Some((_, app)) = end.end.place.halves(end.end.slot) else { continue };
            if let Some(context) = watcher(app).filter(|_| untold.has_news || wants_space(app)) {
                bell.add(end, context, &mut wakes);
            }
        }
        wakes.extend(bell.ring());
        (self.told, self.wakes) = (told, wakes);
    }

    /// The contexts of applications that sleep and have news: the caller writes the eventfd of each.
    pub fn wakes(&mut self) -> impl Iterator<Item = News> {
        self.wakes.drain(..)
    }
}
