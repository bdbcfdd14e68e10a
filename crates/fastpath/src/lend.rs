//! Receive rings: lent on the first byte, larger ones as a flow proves that it needs them, given back when read empty.
//!
//! An idle flow owns nothing. The first small message gets the smallest ring that holds it, warm from the pool; whatever does
//! not fit there gets one of the size of the advertised window, so that what was advertised can be stored. Without memory it
//! is dropped, and sent again by the peer.

use crate::classify::Miss;
use crate::setup::{Home, State, Work};
use base::limits::PAGE;
use base::{Duration, Instant};
use flow::{Exception, FlowId, Flows, state};
use queue::Ring;
use queue::pages::class_of;
use shm::half_flags;

/// The first ring of a flow is made for a message up to this size; more is the beginning of a stream.
const SMALL: usize = 2048;
/// Rings up to this size go back to the pool as soon as they are empty; larger ones linger with their flow.
const PROMPT: u64 = 64 << 10;
/// Least span over which the delivery rate is measured.
const EPOCH_MIN: Duration = Duration::from_ms(1);

impl State {
    /// Makes room for `need` bytes from `rcv_nxt` on, if it can. Returns how many fit.
    #[inline]
    pub(crate) fn space_for(&mut self, w: &mut Work<'_>, need: usize) -> usize {
        let space = w.f.rx.sender(w.f.cold.rx_old).space();
        if need <= space { space } else { self.lend(w, need) }
    }

    /// A ring under the stream that holds `need` bytes from here, or what there is.
    fn lend(&mut self, w: &mut Work<'_>, need: usize) -> usize {
        let mut sender = w.f.rx.sender(w.f.cold.rx_old);
        // What lies ahead of a gap lies in the present ring.
        if w.f.rx.intervals > 0 || !sender.may_lend() {
            return sender.space();
        }
        let is_first = sender.ring.is_none() && need <= SMALL;
        let wanted = if is_first { need } else { need.max(1 << w.f.rx.window_log2) };
        let at_least = class_of(sender.space() + 1);
        let Some(ring) = self.take_ring(w.home, wanted, at_least, w.f.rx.region) else {
            return sender.space();
        };
        if ring.size() < wanted as u64 {
            w.f.rx.window_log2 = ring.size().ilog2() as u8;
        }
        let Some((own, _)) = w.home.region.halves(w.f.rx.slot) else { return 0 };
        let before = sender.lend(own, ring);
        w.f.cold.rx_old = w.f.rx.store_sender(&sender);
        if let Some(before) = before {
            give_back(w, before);
        }
        self.lent.push_back(w.id.0, self.now.plus(self.config.ring_linger).as_ns());
        sender.space()
    }

    /// The smallest ring that holds `wanted` bytes, or a smaller one down to class `at_least`.
    fn take_ring(&mut self, home: &mut Home, wanted: usize, at_least: usize, index: u16) -> Option<Ring> {
        let Home { region, pool } = home;
        let pages = region.lendable() as usize / PAGE;
        let best = class_of(wanted);
        let found =
            (at_least..=best).rev().find_map(|class| pool.lend(class, pages, |word| region.page_word(word)));
        let is_short = found.is_none_or(|ring| class_of(ring.size() as usize) < best);
        if is_short && region.note_shortage() {
            // When this is lost, the next watermark clears the note, and a flow that is still short says it again.
            let _ = self.exceptions.push(Exception::MemoryShort { region: index });
        }
        found
    }

    /// Doubles the window of a flow that fills it in less than two round trips and whose application keeps up.
    ///
    /// A sender limited by our window delivers one window per round trip, so half a window per round trip means that it could
    /// soon use more.
    #[inline]
    pub(crate) fn measure(&mut self, w: &mut Work<'_>, bytes: u32) {
        let cold = &mut *w.f.cold;
        cold.epoch_bytes = cold.epoch_bytes.saturating_add(bytes);
        let round = Duration::from_us(u64::from(cold.srtt_us)).max(EPOCH_MIN);
        if self.now.since(cold.epoch_at) < round {
            return;
        }
        let window = 1u32 << w.f.rx.window_log2;
        let is_wanting = cold.epoch_bytes >= window / 2 && w.f.rx.unread() <= window / 2;
        (cold.epoch_bytes, cold.epoch_at) = (0, self.now);
        let may_grow = window < self.config.receive_buffer_max && w.f.rx.window_log2 < 16 + w.f.rx.rcv_shift;
        if is_wanting && may_grow {
            self.grow(w);
        }
    }

    /// Doubles the window, with a ring that holds it.
    fn grow(&mut self, w: &mut Work<'_>) {
        let wanted = 2usize << w.f.rx.window_log2;
        w.f.rx.window_log2 += 1;
        if w.f.rx.sender(w.f.cold.rx_old).ring.is_some_and(|ring| ring.size() < wanted as u64) {
            self.lend(w, wanted);
        }
        let holds = w.f.rx.sender(w.f.cold.rx_old).ring.map_or(0, Ring::size);
        if holds != 0 && holds < wanted as u64 {
            // A ring is still being read, or memory is short: another time.
            w.f.rx.window_log2 = holds.ilog2().min(wanted.ilog2() - 1) as u8;
        }
    }

    /// Gives the ring back when the application has read everything: at once when small, else after a while.
    #[inline]
    pub(crate) fn settle(&mut self, w: &mut Work<'_>) {
        let mut sender = w.f.rx.sender(w.f.cold.rx_old);
        let (Some(ring), true) = (sender.ring, sender.is_empty() && w.f.rx.intervals == 0) else { return };
        if ring.size() >= PROMPT && !self.is_quiet(w) {
            return;
        }
        if let Some(ring) = sender.give_back() {
            w.f.cold.rx_old = w.f.rx.store_sender(&sender);
            give_back(w, ring);
            self.lent.remove(w.id.0);
        }
    }

    fn is_quiet(&self, w: &Work<'_>) -> bool {
        w.f.cold.heard_at.plus(self.config.ring_linger) <= self.now
    }

    /// Looks after rings whose time has come: back to the pool, or a note that the application shall tell when it has read.
    pub(crate) fn sweep_lent(&mut self, flows: &Flows, homes: &mut [Option<Home>]) {
        for _ in 0..crate::setup::TIMERS_MAX {
            let Some(flow) = self.lent.pop_due(self.now.as_ns()) else { return };
            if self.with(flows, homes, FlowId(flow), Self::sweep) == Err(Miss::Busy) {
                self.lent.push_back(flow, self.now.plus(self.config.ring_linger).as_ns());
            }
        }
    }

    fn sweep(&mut self, w: &mut Work<'_>) {
        if !self.refresh(w) {
            return;
        }
        self.settle(w);
        if w.f.rx.sender(0).ring.is_none() {
            return;
        }
        if w.f.rx.intervals > 0 || !self.is_quiet(w) {
            self.lent.push_back(w.id.0, self.now.plus(self.config.ring_linger).as_ns());
        } else {
            self.want_space(w);
        }
    }

    /// Asks the application to tell when it consumes. Afterwards looks once more, because what it consumed before it saw the
    /// wish rang nobody.
    pub(crate) fn want_space(&mut self, w: &mut Work<'_>) {
        let Some((own, _)) = w.home.region.halves(w.f.rx.slot) else { return };
        if !w.f.rx.has(state::WANT_SPACE) {
            queue::stream::raise(own, half_flags::WANT_SPACE);
            w.f.rx.set(state::WANT_SPACE);
            if self.refresh(w) {
                self.settle(w);
            }
        }
    }

    /// No longer: the window is wide open again, or there is nothing left to consume.
    pub(crate) fn want_no_space(&self, w: &mut Work<'_>) {
        let Some((own, _)) = w.home.region.halves(w.f.rx.slot) else { return };
        if w.f.rx.has(state::WANT_SPACE) {
            own.flags.fetch_and(!half_flags::WANT_SPACE, core::sync::atomic::Ordering::Relaxed);
            w.f.rx.clear(state::WANT_SPACE);
        }
    }

    /// When unfinished work makes another round necessary: at once, or when somebody else has made room.
    pub(crate) fn debt_deadline(&self) -> Instant {
        if self.ready.front().is_some() && !self.is_port_full {
            return self.now;
        }
        let owes = self.owed.front().is_some() || self.ready.front().is_some();
        if owes { self.now.plus(Duration::from_us(100)) } else { Instant::NEVER }
    }
}

/// Gives a ring of the service's side back.
pub(crate) fn give_back(w: &mut Work<'_>, ring: Ring) {
    let Home { region, pool } = &mut *w.home;
    pool.give_back(ring, |word| region.page_word(word));
}
