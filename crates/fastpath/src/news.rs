//! What applications are told: collected while flows have their turns, announced together.
//!
//! Between the publication of a position and the question who wants to know of it lies a full barrier, and a doorbell is a locked
//! operation on a line that its owner polls. One barrier serves all that was published before it, and one operation 64 slots.

use crate::classify::Miss;
use crate::setup::{Home, State, WAKES_MAX, Work};
use flow::{FlowId, Flows, News, event, state};
use queue::stream;

/// Room for what is told: news and acknowledgements of as many flows as may have a turn in one round.
pub(crate) const TOLD_MAX: usize = 2 * WAKES_MAX;

/// Somebody to tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    flow: FlowId,
    slot: u32,
    region: u16,
    /// Something has come.
    has_news: bool,
    /// What was sent has been acknowledged, and nobody was seen to wait for that.
    is_acknowledged: bool,
}

impl State {
    /// The application has news: its doorbell rings with the others', once per flow and batch.
    #[inline]
    pub(crate) fn tell(&mut self, w: &mut Work<'_>) {
        if self.wakes.len() + self.told.len() >= WAKES_MAX {
            // The caller has yet to write that many eventfds: tell in the next round.
            return self.acks.push_front(w.id.0, self.now.as_ns());
        }
        w.f.rx.clear(state::TELL);
        self.note(w, true, false);
    }

    /// The application's bytes have been acknowledged: when it waits for space it is told at the end of the turn. By then it is known
    /// what was sent in their place.
    #[inline]
    pub(crate) fn acknowledge_bytes(&mut self, w: &mut Work<'_>) {
        stream::note_consumed(w.own, w.f.tx.tx_una);
        if self.told.len() == TOLD_MAX {
            stream::barrier();
        }
        if stream::wants_space(w.peer) {
            w.f.rx.events |= event::SPACE;
        } else if self.told.len() < TOLD_MAX {
            // Who says so at this moment is seen behind the barrier.
            self.note(w, false, true);
        }
    }

    #[inline(always)]
    pub(crate) fn note(&mut self, w: &Work<'_>, has_news: bool, is_acknowledged: bool) {
        match self.told.last_mut() {
            Some(last) if last.flow == w.id => {
                last.has_news |= has_news;
                last.is_acknowledged |= is_acknowledged;
            }
            _ => self.told.push(Told {
                flow: w.id,
                slot: w.f.rx.slot,
                region: w.f.rx.region,
                has_news,
                is_acknowledged,
            }),
        }
    }

    /// Tells them all.
    #[inline]
    pub(crate) fn announce(&mut self, flows: &Flows, homes: &mut [Option<Home>]) {
        let (mut next, mut kept) = (0, 0);
        // Whoever is told of space is told of it behind the others.
        while next < self.told.len() {
            let end = self.told.len();
            stream::barrier();
            let mut bell = Bell::default();
            for i in next..end {
                let told = self.told[i];
                let Some(Some(home)) = homes.get(usize::from(told.region)) else { continue };
                let Some((_, peer)) = home.region.halves(told.slot) else { continue };
                if told.has_news
                    && let Some(context) = stream::watcher(peer)
                {
                    self.ring(homes, &mut bell, &told, context);
                }
                if told.is_acknowledged
                    && stream::wants_space(peer)
                    && self.tell_of_space(flows, homes, told.flow) == Err(Miss::Busy)
                {
                    self.told[kept] = Told { has_news: false, ..told };
                    kept += 1;
                }
            }
            self.wakes.extend(bell.ring(homes));
            next = end;
        }
        self.told.truncate(kept);
    }

    /// Adds the slot to those whose bits lie in one word, after the others if it is another word.
    #[inline]
    fn ring(&mut self, homes: &[Option<Home>], bell: &mut Bell, told: &Told, context: u32) {
        let (region, word) = (told.region, told.slot / 64);
        if (bell.region, bell.context, bell.word) != (region, context, word) {
            self.wakes.extend(bell.ring(homes));
            *bell = Bell { region, context, word, bits: 0 };
        }
        bell.bits |= 1 << (told.slot % 64);
    }

    /// The application began to wait for space while its bytes were acknowledged.
    #[cold]
    fn tell_of_space(&mut self, flows: &Flows, homes: &mut [Option<Home>], flow: FlowId) -> Result<(), Miss> {
        self.with(flows, homes, flow, |state, w| {
            w.f.rx.events |= event::SPACE;
            state.report(w);
        })
    }
}

/// Bits of one word of a doorbell.
#[derive(Default)]
struct Bell {
    region: u16,
    context: u32,
    word: u32,
    bits: u64,
}

impl Bell {
    #[inline]
    fn ring(&self, homes: &[Option<Home>]) -> Option<News> {
        let home = homes.get(usize::from(self.region)).filter(|_| self.bits != 0)?.as_ref()?;
        flow::ring(&home.region, self.region, self.context, self.word, self.bits)
    }
}
