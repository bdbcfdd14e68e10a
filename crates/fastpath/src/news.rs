//! News for applications: collected while flows have their turns, then published together.
//!
//! After a position is published, a full barrier must come before the check whether the application waits for it; and setting a
//! doorbell bit is a locked operation on a line that its owner polls. One barrier serves all positions published before it, and one
//! locked operation serves 64 slots.

use crate::flow_lists::{TOLD_MAX, Told};
use crate::setup::{Home, Miss, State, WAKES_MAX, Work};
use flow::{FlowId, Flows, News, event, state};
use queue::stream;

impl State {
    /// Notes that the application has news: its doorbell rings together with the others', once per flow and batch.
    #[inline]
    pub(crate) fn tell(&mut self, w: &mut Work<'_>) {
        if self.wakes.len() + self.lists.told.len() >= WAKES_MAX {
            // The caller has yet to write WAKES_MAX eventfds: tell in the next round.
            return self.lists.acks.push_front(w.id.0, self.now.as_ns());
        }
        w.f.rx.clear(state::TELL);
        self.note(w, true, false);
    }

    /// Publishes that bytes of the application were acknowledged. If it waits for space, it is told at the end of the turn, when it is
    /// known how many new bytes were sent.
    #[inline]
    pub(crate) fn acknowledge_bytes(&mut self, w: &mut Work<'_>) {
        stream::note_consumed(w.own, w.f.tx.tx_una);
        if self.lists.told.len() == TOLD_MAX {
            stream::barrier();
        }
        if stream::wants_space(w.peer) {
            w.f.rx.events |= event::SPACE;
        } else if self.lists.told.len() < TOLD_MAX {
            // The application may begin to wait at this moment: `announce` checks again after its barrier.
            self.note(w, false, true);
        }
    }

    #[inline(always)]
    pub(crate) fn note(&mut self, w: &Work<'_>, has_news: bool, is_acknowledged: bool) {
        match self.lists.told.last_mut() {
            Some(last) if last.flow == w.id => {
                last.has_news |= has_news;
                last.is_acknowledged |= is_acknowledged;
            }
            _ => self.lists.told.push(Told {
                flow: w.id,
                slot: w.f.rx.slot,
                region: w.f.rx.region,
                has_news,
                is_acknowledged,
            }),
        }
    }

    /// Publishes all collected news.
    #[inline]
    pub(crate) fn announce(&mut self, flows: &Flows, homes: &mut [Option<Home>]) {
        let (mut next, mut kept) = (0, 0);
        // `tell_of_space` adds entries behind the others: they are announced in the next pass.
        while next < self.lists.told.len() {
            let end = self.lists.told.len();
            stream::barrier();
            let mut bell = Bell::default();
            for i in next..end {
                let told = self.lists.told[i];
                if self.resting > 0 {
                    // An application with news rings soon.
                    self.rouse(homes, told.region);
                }
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
                    self.lists.told[kept] = Told { has_news: false, ..told };
                    kept += 1;
                }
            }
            self.wakes.extend(bell.ring(homes));
            next = end;
        }
        self.lists.told.truncate(kept);
    }

    /// Adds the slot's bit to `bell`; if it lies in another word than the bits collected, rings for these first.
    #[inline]
    fn ring(&mut self, homes: &[Option<Home>], bell: &mut Bell, told: &Told, context: u32) {
        let (region, word) = (told.region, told.slot / 64);
        if (bell.region, bell.context, bell.word) != (region, context, word) {
            self.wakes.extend(bell.ring(homes));
            *bell = Bell { region, context, word, bits: 0 };
        }
        bell.bits |= 1 << (told.slot % 64);
    }

    /// The application began to wait for space while its bytes were acknowledged: reports it now.
    #[cold]
    fn tell_of_space(&mut self, flows: &Flows, homes: &mut [Option<Home>], flow: FlowId) -> Result<(), Miss> {
        self.with(flows, homes, flow, |state, w| {
            w.f.rx.events |= event::SPACE;
            state.report(w);
        })
    }
}

/// Bits collected for one word of a doorbell.
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
