//! News from applications: visits the slots with a set doorbell bit, and only those.

use crate::core::Core;
use crate::meter::{Meter, Part};
use crate::predict::Predicted;
use crate::setup::{Home, Miss, NEWS_MAX, State, Work};
use base::Duration;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use flow::{Consumer, event, state};
use port::Port;
use queue::{Doorbell, Ring};
use shm::{Half, Side, half_flags};

/// An application that has had no news and rung no news for this time rests; see [`Core::rest`].
pub const REST: Duration = Duration::from_ms(1);
/// Payload is prefetched this many slots ahead: the slots' halves have arrived in the cache by then.
const AHEAD: usize = 4;

impl Home {
    /// The doorbell on which this application rings for core `index`.
    #[inline]
    pub(crate) fn doorbell(&self, index: u32) -> Option<Doorbell<'_>> {
        Doorbell::of(self.region.region(), Side::Zero, index)
    }

    /// Hints the processor to fetch the cache line `back` bytes before the end of what `half`'s side has produced; if `back` > 0 also
    /// the line before it, so that all of a small message is fetched.
    #[inline]
    pub(crate) fn prefetch_end(&self, side: Side, half: &Half, back: u64) {
        let i = usize::from(half.start[1].load(Relaxed) >= half.start[0].load(Relaxed));
        let (ring, head) = (half.ring[i].load(Relaxed), half.tx_head.load(Relaxed));
        let region = self.region.region();
        let Some(at) = Ring::hint(ring, head.wrapping_sub(back), region.layout().params.data_len) else {
            return;
        };
        region.prefetch(side, at, back == 0);
        if back > 0 {
            region.prefetch(side, at.saturating_sub(63), false);
        }
    }

    /// Hints the processor to fetch the line of `ring` that takes the service's next byte, in case that ring is lent to the slot.
    #[inline]
    pub(crate) fn prefetch_start(&self, ring: Ring, own: &Half) {
        let region = self.region.region();
        if let Some(at) =
            Ring::hint(ring.packed(), own.tx_head.load(Relaxed), region.layout().params.data_len)
        {
            region.prefetch(Side::Zero, at, true);
        }
    }
}

impl Core {
    /// Takes the bits of every application that rang, then looks at the slots.
    pub(crate) fn applications<P: Port + ?Sized>(&mut self, port: &mut P, meter: &mut impl Meter) -> u32 {
        let Self { index, flows, homes, awake, rung, strangers, state, .. } = self;
        if !state.roused.is_empty() {
            awake.append(&mut state.roused);
        }
        rung.clear();
        for region in awake.iter() {
            let Some(Home { region: memory, heard_at, .. }) = homes[usize::from(*region)].as_mut() else {
                continue;
            };
            let shared = memory.region();
            let bell = Doorbell::of(shared, Side::Zero, *index);
            let Some(bell) = bell.filter(|bell| bell.has_news()) else { continue };
            *heard_at = state.now;
            let slots = shared.layout().params.slots;
            bell.drain(slots, |slot| {
                if rung.len() == NEWS_MAX {
                    // Set our own bit again: the next round handles the slot. We are awake, so no eventfd is written.
                    let _ = bell.ring(slot);
                    return;
                }
                shared.prefetch_half(Side::One, slot, false);
                let owner = memory.flow_of(slot);
                rung.push((*region, slot, owner));
                if let Some(id) = owner {
                    flows.prefetch(id);
                    state.lists.acks.prefetch(id.0);
                }
            });
        }
        meter.enter(Part::Transmit);
        for &(region, slot, _) in rung.iter().take(AHEAD) {
            prefetch_data(homes, region, slot);
        }
        for (i, (region, slot, owner)) in rung.iter().copied().enumerate() {
            if let Some(&(region, slot, _)) = rung.get(i + AHEAD) {
                prefetch_data(homes, region, slot);
            }
            match owner {
                Some(id) => match state.with(flows, homes, id, |state, w| state.rung(w, port)) {
                    Ok(()) | Err(Miss::Gone) => {}
                    Err(Miss::Busy) => retry(homes, *index, region, slot),
                    Err(Miss::Elsewhere(core)) => state.pass_bell_on(homes, region, slot, core),
                },
                None if strangers.len() < NEWS_MAX => strangers.push((region, slot)),
                None => retry(homes, *index, region, slot),
            }
        }
        let count = rung.len() as u32;
        state.counters.doorbells += u64::from(count);
        count
    }

    /// Announces sleep. True: no work waits; from now on an application's ring or a slow-path command is followed by a write to
    /// this core's eventfd. False: poll again.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        self.rest();
        let Self { index, homes, awake, commands, inboxes, state, .. } = self;
        let bells = || awake.iter().filter_map(|r| homes[usize::from(*r)].as_ref()?.doorbell(*index));
        let sleeps = state.wakes.is_empty()
            && state.roused.is_empty()
            && state.lists.told.is_empty()
            && !state.others.is_late()
            && state.stalled.is_none()
            && commands.prepare_sleep()
            && inboxes.iter_mut().all(Consumer::prepare_sleep)
            && bells().all(Doorbell::prepare_sleep);
        if !sleeps {
            commands.awake();
            inboxes.iter_mut().for_each(Consumer::awake);
            bells().for_each(Doorbell::awake);
        }
        sleeps
    }

    /// Withdraws the announcement of [`prepare_sleep`](Self::prepare_sleep): the core polls again.
    pub fn awake(&mut self) {
        self.commands.awake();
        self.inboxes.iter_mut().for_each(Consumer::awake);
        for region in &self.awake {
            if let Some(bell) = self.homes[usize::from(*region)].as_ref().and_then(|h| h.doorbell(self.index))
            {
                bell.awake();
            }
        }
    }

    /// From now on the core does not look at the doorbells of applications that have been silent for [`REST`]: so a round, and a sleep, cost
    /// nothing for them. The caller must call [`rouse`](Self::rouse) when it sees that the core's eventfd for a region was written.
    pub fn rest(&mut self) {
        let Self { index, homes, awake, state, .. } = self;
        awake.retain(|region| {
            let Some(home) = homes[usize::from(*region)].as_mut() else { return false };
            let is_silent = state.now.since(home.heard_at) >= REST;
            home.is_resting = is_silent && home.doorbell(*index).is_some_and(Doorbell::prepare_sleep);
            state.resting += u32::from(home.is_resting);
            !home.is_resting
        });
    }

    /// True when the core does not look at the doorbell of every application that it serves.
    #[must_use]
    pub fn has_resting(&self) -> bool {
        self.state.resting > 0
    }

    /// The caller's own eventfd was written, perhaps for news of resting applications: the core looks at the doorbells that have rung.
    pub fn rouse_rung(&mut self) {
        for region in 0..self.homes.len() {
            let Some(home) = &self.homes[region] else { continue };
            if home.is_resting && home.doorbell(self.index).is_some_and(Doorbell::has_news) {
                self.rouse(region as u16);
            }
        }
    }

    /// The core's eventfd for that region was written: the core looks at its doorbell again.
    pub fn rouse(&mut self, region: u16) {
        self.state.rouse(&mut self.homes, region);
    }
}

/// Hints the processor to fetch the end of what a slot's application has written: all of a small message.
#[inline]
fn prefetch_data(homes: &[Option<Home>], region: u16, slot: u32) {
    let Some(Some(home)) = homes.get(usize::from(region)) else { return };
    let Some((_, peer)) = home.region.halves(slot) else { return };
    home.prefetch_end(Side::One, peer, 1);
}

/// Sets the slot's bit in our own doorbell, so that the next round visits it again.
fn retry(homes: &[Option<Home>], index: u32, region: u16, slot: u32) {
    if let Some(bell) = homes[usize::from(region)].as_ref().and_then(|home| home.doorbell(index)) {
        let _ = bell.ring(slot);
    }
}

impl State {
    /// The application of that region rests no longer, if it did.
    #[cold]
    pub(crate) fn rouse(&mut self, homes: &mut [Option<Home>], region: u16) {
        let home = homes.get_mut(usize::from(region)).and_then(Option::as_mut);
        let Some(home) = home.filter(|home| home.is_resting) else { return };
        home.is_resting = false;
        home.heard_at = self.now;
        if let Some(bell) = home.doorbell(u32::from(self.index)) {
            bell.awake();
        }
        self.resting -= 1;
        self.roused.push(region);
    }

    /// Handles the doorbell of a flow's slot: the application has written, consumed, closed or reset.
    #[inline]
    pub(crate) fn rung<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        match self.answer(w, port) {
            Predicted::Done => {}
            Predicted::Finish => self.finish(w, port),
            Predicted::No => self.hear(w, port),
        }
    }

    #[inline(never)]
    fn hear<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        if w.f.rx.has(state::LEAVING) {
            return self.leave(w);
        }
        if !self.refresh(w) {
            return self.report(w);
        }
        self.settle(w);
        if w.f.rx.has(state::WANT_SPACE) {
            self.note_consumed(w);
            if w.f.rx.unread() == 0 || self.has_space_again(w) {
                self.want_no_space(w);
            }
        }
        self.is_rung = true;
        self.note_flags(w, port);
        self.finish(w, port);
        self.is_rung = false;
    }

    /// Turns the application's RELEASED and RESET flags into events, each once.
    #[inline]
    fn note_flags<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        let flags = w.peer.flags.load(Acquire);
        if flags & (half_flags::RESET | half_flags::RELEASED | half_flags::WANT_SPACE) == 0 {
            return;
        }
        if flags & half_flags::RESET != 0 && !w.f.rx.has(state::APP_RESET) {
            self.note_reset(w, port);
        }
        let rx = &mut *w.f.rx;
        if flags & half_flags::WANT_SPACE != 0 {
            rx.events |= event::SENT;
        }
        if flags & half_flags::RELEASED != 0 && !rx.has(state::APP_CLOSED) {
            rx.set(state::APP_CLOSED);
            rx.events |= event::APP_CLOSED;
        }
    }

    /// The application resets the flow. Linux sends what a program writes at once, as far as the windows allow: that leaves before the RST.
    #[cold]
    fn note_reset<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        if w.f.tx.snd_nxt == w.f.tx.snd_max {
            self.transmit(w, port);
        }
        w.f.rx.set(state::APP_RESET);
        w.f.rx.events |= event::APP_RESET;
    }
}
