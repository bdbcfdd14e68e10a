//! Receive rings: lent on the first byte, larger ones as a flow proves that it needs them, given back when read empty.
//!
//! An idle flow owns no ring. The first small message gets the smallest ring that holds it, warm from the pool; a larger message
//! gets a ring of the advertised window's size, so that everything advertised can be stored. If no memory is free the payload
//! is dropped, and the peer retransmits it.
//!
//! The window is sized by what the application consumes in a round trip: it doubles while that is at least three eighths of it, up to
//! the configured maximum, the flow's own limit, and what the windows of the application's other flows leave; when these leave little,
//! it halves. Beside other applications that receive in bulk it may fall below the initial window (`shares.rs`). A flow that has been
//! idle is offered the initial window next; the right edge already promised stays. A ring larger than both window and promise is given
//! back as soon as it is read empty.

use crate::acknowledged::ECHO_MS_MAX;
use crate::low_water;
use crate::setup::{Home, Miss, State, Work};
use crate::shares::is_bulk;
use base::limits::{PAGE, RING_MAX, RING_MAX_DEFAULT, RING_MIN};
use base::{Duration, Instant, SeqNumber};
use flow::{Exception, FlowId, Flows, QUICK_SEGMENTS, state};
use queue::Ring;
use queue::pages::class_of;
use shm::half_flags;

/// Bytes: the first ring of a flow is made for a message of at most this size; a longer payload is taken for the start of a stream.
const SMALL: usize = 2048;
/// Bytes. When more than `FEW` flows have rings, rings smaller than this go back to the pool as soon as they are empty, so that a few
/// warm ones serve all; larger ones, and those of few flows, stay with their flow for `ring_linger`.
const PROMPT: u64 = 64 << 10;
/// Flows with rings up to which all rings linger.
const FEW: u32 = 64;
/// Least time over which consumption is measured.
const EPOCH_MIN: Duration = Duration::from_ms(1);
/// Largest window on paths with round trips shorter than `EPOCH_MIN`: enough for 33 Gbit/s, and a larger ring would not fit in the
/// caches.
const SHORT_PATH_MAX: u32 = RING_MAX_DEFAULT;
/// Largest sum, bytes, of an application's windows beyond the initial ones, on paths with round trips up to `SHORT_PATHS`; in proportion
/// on longer ones. Four times what 33 Gbit/s need: each of 100 flows gets 256 KiB. Larger windows only queue data in rings and lengthen
/// the round trips by which windows are measured: 100 windows of 4 MiB are 40 ms of 80 Gbit/s.
const SHORT_PATHS_MAX: u64 = 32 << 20;
const SHORT_PATHS: Duration = Duration::from_ms(2);
/// A flow that consumed nothing for this time, and for two timeouts, is idle: its window shrinks to the initial one.
pub(crate) const IDLE: Duration = Duration::from_secs(1);

impl State {
    /// Makes room for `need` bytes from `rcv_nxt` on, if possible. Returns how many bytes fit.
    #[inline]
    pub(crate) fn space_for(&mut self, w: &mut Work<'_>, need: usize) -> usize {
        let space = w.f.rx.space();
        if need <= space { space } else { self.lend(w, need) }
    }

    /// Lends a small ring for the first message after a pause: no other ring is in use and nothing is unread.
    #[inline]
    fn lend_first(&mut self, w: &mut Work<'_>, need: usize) -> usize {
        let Some(ring) = self.take_ring(w, need, 0) else { return 0 };
        w.f.rx.lend_bare(w.own, ring);
        self.lists.lent.push_back(w.id.0, self.now.plus(self.config.ring_linger).as_ns());
        ring.size() as usize
    }

    /// Lends a ring that holds `need` bytes from `rx_head` on, or a smaller one. Returns how many bytes fit.
    fn lend(&mut self, w: &mut Work<'_>, need: usize) -> usize {
        if w.f.rx.is_bare() && w.f.cold.rx_old == 0 && w.f.rx.has_ahead == 0 && need <= SMALL {
            return self.lend_first(w, need);
        }
        let mut sender = w.f.rx.sender(w.f.cold.rx_old);
        // Bytes received ahead of a gap are in the present ring, so it must stay.
        if w.f.rx.has_ahead > 0 || !sender.may_lend() {
            return sender.space();
        }
        // All bytes promised to the peer must be storable, even if the window offered next is smaller.
        let mut window = (1 << w.f.rx.window_log2).max(w.f.rx.promised() as usize);
        let is_first = sender.ring.is_none() && need <= SMALL;
        if !is_first && low_water::is_waiting(w) {
            // The bytes that the application waits for (`SO_RCVLOWAT`) must be storable, too, with room for the window to move on.
            window = window.max(low_water::wanted(w).saturating_mul(2).min(self.window_most(w)) as usize);
        }
        let wanted = if is_first { need } else { need.max(window) };
        let at_least = class_of(sender.space() + 1);
        let Some(ring) = self.take_ring(w, wanted, at_least) else {
            return sender.space();
        };
        if !is_first && ring.size() < 1 << w.f.rx.window_log2 {
            self.set_window(w, ring.size().ilog2() as u8);
        }
        let before = sender.lend(w.own, ring);
        w.f.cold.rx_old = w.f.rx.store_sender(&sender);
        if let Some(before) = before {
            give_back(w, before);
        }
        self.lists.lent.push_back(w.id.0, self.now.plus(self.config.ring_linger).as_ns());
        sender.space()
    }

    /// Takes the smallest ring that holds `wanted` bytes, or a smaller one down to size class `at_least`.
    fn take_ring(&mut self, w: &mut Work<'_>, wanted: usize, at_least: usize) -> Option<Ring> {
        let Work { region, pool, .. } = w;
        let pages = region.lendable() as usize / PAGE;
        let best = class_of(wanted);
        let found =
            (at_least..=best).rev().find_map(|class| pool.lend(class, pages, |word| region.page_word(word)));
        if found.is_none_or(|ring| class_of(ring.size() as usize) < best) {
            self.want_memory(w);
        }
        found
    }

    /// Asks the application, through the slow path, to make more of its memory present.
    fn want_memory(&mut self, w: &Work<'_>) {
        if w.region.note_shortage() {
            let said = self.exceptions.push(Exception::MemoryShort { region: w.f.rx.region });
            if said.is_err() {
                // The exception ring is full: the next flow that is short of memory reports it again.
                w.region.forget_shortage();
            }
        }
    }

    /// True if present memory suffices to lend a ring for a larger window. First windows of other flows have priority, because they
    /// were promised already, and payload that finds no memory is lost.
    fn may_spread(&mut self, w: &Work<'_>) -> bool {
        let is_backed = w.region.is_backed(self.config.receive_buffer_initial);
        if !is_backed {
            self.want_memory(w);
        }
        is_backed
    }

    /// Once per round trip: measures it, for `TCP_INFO` and window tuning, and doubles the window when the application has consumed
    /// at least three eighths of it and keeps up.
    ///
    /// A sender limited by our window delivers one window per round trip if its data comes spread out, and half of it if its data comes
    /// in one burst, which is acknowledged before it is read; less a reserve. So consuming three eighths per round trip means that the
    /// sender could use more. A round trip is over when the peer echoes a timestamp not older than its beginning; for a peer without
    /// timestamps, the round-trip time comes from the handshake and our own data.
    #[inline]
    pub(crate) fn measure(&mut self, w: &mut Work<'_>, echo: Option<u32>, len: u32) {
        let cold = &mut *w.f.cold;
        let least = if echo.is_some() { 0 } else { u64::from(cold.srtt_us) };
        if self.now.since(cold.epoch_at) < Duration::from_us(least).max(EPOCH_MIN) {
            return;
        }
        self.measure_round(w, echo, len);
    }

    /// As `measure`, when at least `EPOCH_MIN` has passed since the last round.
    #[inline(never)]
    fn measure_round(&mut self, w: &mut Work<'_>, echo: Option<u32>, len: u32) {
        let cold = &mut *w.f.cold;
        let began = SeqNumber(cold.timestamp(cold.epoch_at));
        if echo.is_some_and(|echo| SeqNumber(echo).is_before(began)) {
            return;
        }
        if let Some(echo) = echo.filter(|_| len >= u32::from(cold.rcv_mss)) {
            // A short segment may be a reply that took time to compute. As Linux: less than the clock's step is no measurement, and a
            // longer time than before does not count when the application is behind.
            let ms = cold.timestamp(self.now).wrapping_sub(echo);
            if (1..ECHO_MS_MAX).contains(&ms) {
                cold.sample_receiver(ms * 1000, w.f.rx.unread() <= len);
            }
        }
        let consumed = w.f.rx.rx_tail.wrapping_sub(cold.epoch_tail);
        let took = self.now.since(cold.epoch_at);
        (cold.epoch_tail, cold.epoch_at) = (w.f.rx.rx_tail, self.now);
        let window = 1u32 << w.f.rx.window_log2;
        self.note_round(w, took, consumed);
        if self.yield_window(w) {
            return;
        }
        if window > self.config.receive_buffer_initial
            && w.region.is_greedy(u64::from(window), windows_most(w))
        {
            self.set_window(w, w.f.rx.window_log2 - 1);
            return;
        }
        // Leave out the burst that has just come: it alone may fill a small window.
        let behind = w.f.rx.unread().saturating_sub(len);
        if consumed >= window / 8 * 3 && behind <= window / 2 && window < self.window_most(w) {
            self.grow(w);
        }
    }

    /// The largest window that this flow may have, bytes.
    fn window_most(&self, w: &Work<'_>) -> u32 {
        let cold = &w.f.cold;
        let is_short = cold.srtt_us > 0 && u64::from(cold.srtt_us) < EPOCH_MIN.as_us();
        let bound = if is_short { SHORT_PATH_MAX } else { RING_MAX };
        let sayable = 1 << (16 + w.f.rx.rcv_shift);
        self.config.receive_buffer_max.min(cold.receive_most).min(bound).min(sayable)
    }

    /// Doubles the window for an application that reads nothing until `wanted` bytes are there. False when the window may not grow.
    #[cold]
    pub(crate) fn grow_for(&mut self, w: &mut Work<'_>, wanted: u32) -> bool {
        let before = w.f.rx.window_log2;
        let window = 1u32 << before;
        if window < wanted.saturating_mul(2) && window < self.window_most(w) {
            self.grow(w);
        }
        w.f.rx.window_log2 > before
    }

    /// Doubles the window, and lends a ring that holds it.
    #[cold]
    fn grow(&mut self, w: &mut Work<'_>) {
        let log2 = w.f.rx.window_log2;
        if !self.set_window(w, log2 + 1) {
            return;
        }
        let wanted = 2usize << log2;
        let ring_of = |w: &Work<'_>| w.f.rx.sender(w.f.cold.rx_old).ring;
        let holds = |ring: Ring| ring.size() >= wanted as u64;
        let is_first = wanted <= self.config.receive_buffer_initial as usize;
        let is_backed = is_first || ring_of(w).is_some_and(holds) || self.may_spread(w);
        if is_backed && ring_of(w).is_some_and(|ring| !holds(ring)) {
            self.lend(w, wanted);
        }
        if !is_backed || !ring_of(w).is_none_or(holds) {
            // An earlier ring is still being read, or memory is short: try again later.
            self.set_window(w, log2);
            return;
        }
        self.lists.grown.push_back(w.id.0, self.now.plus(IDLE).as_ns());
    }

    /// Sets the window's size to `1 << log2`, as far as the application's budget allows. False when it does not.
    pub(crate) fn set_window(&self, w: &mut Work<'_>, log2: u8) -> bool {
        // The window field cannot express a window smaller than two units of its scale.
        let log2 = log2.max(w.f.rx.rcv_shift + 1);
        let initial = self.config.receive_buffer_initial;
        let above = |log2: u8| u64::from((1u32 << log2).saturating_sub(initial));
        let (before, after) = (above(w.f.rx.window_log2), above(log2));
        let window = 1u32 << w.f.rx.window_log2;
        if 1 << log2 > window && !self.may_widen(w, log2) {
            return false;
        }
        if after > before && !w.region.grant(after - before, 1 << log2, windows_most(w)) {
            return false;
        }
        w.region.ungrant(before.saturating_sub(after));
        if is_bulk(w) {
            w.region.bulk().resize(window, 1 << log2);
        }
        w.f.rx.window_log2 = log2;
        true
    }

    /// Makes the initial window the one offered next.
    pub(crate) fn shrink(&mut self, w: &mut Work<'_>) {
        self.end_bulk(w);
        let initial = self.config.receive_buffer_initial.clamp(RING_MIN, RING_MAX).ilog2() as u8;
        if initial < w.f.rx.window_log2 {
            self.set_window(w, initial);
        }
        (w.f.cold.epoch_tail, w.f.cold.epoch_at) = (w.f.rx.rx_tail, self.now);
        w.f.cold.quick = QUICK_SEGMENTS;
        self.lists.grown.remove(w.id.0);
    }

    /// Checks the windows that have grown: shrinks those of flows that have become idle.
    pub(crate) fn sweep_grown(&mut self, flows: &Flows, homes: &mut [Option<Home>]) {
        for _ in 0..crate::setup::TIMERS_MAX {
            let Some(flow) = self.lists.grown.pop_due(self.now.as_ns()) else { return };
            let done = self.with(flows, homes, FlowId(flow), |state, w| {
                let patience = IDLE.max(w.f.cold.rto.times(2));
                // The flow is idle, too, if its application has stopped reading and unread data is kept for it.
                let is_paused = w.f.rx.rx_tail == w.f.cold.epoch_tail && !low_water::is_waiting(w);
                let is_idle =
                    (w.f.rx.rx_ring << 1 == 0 || is_paused) && w.f.cold.epoch_at.plus(patience) <= state.now;
                if is_idle {
                    state.shrink(w);
                } else {
                    state.lists.grown.push_back(w.id.0, state.now.plus(IDLE).as_ns());
                }
            });
            if done == Err(Miss::Busy) {
                self.lists.grown.push_back(flow, self.now.plus(IDLE).as_ns());
            }
        }
    }

    /// Gives the ring back when the application has read everything: at once when it is small and many flows have one, else after
    /// `ring_linger`.
    #[inline(always)]
    pub(crate) fn settle(&mut self, w: &mut Work<'_>) {
        let (Some(ring), true) = (w.f.rx.ring(), w.f.rx.unread() == 0 && w.f.rx.has_ahead == 0) else {
            return;
        };
        let lingers = ring.size() >= PROMPT || self.lists.lent.len() <= FEW;
        if lingers && !is_oversized(w, ring) && !self.is_quiet(w) {
            return;
        }
        self.give_ring_back(w);
    }

    #[inline(never)]
    fn give_ring_back(&mut self, w: &mut Work<'_>) {
        if w.f.cold.rx_old == 0
            && let Some(ring) = w.f.rx.give_back()
        {
            give_back(w, ring);
            self.lists.lent.remove(w.id.0);
        }
    }

    /// True when nothing came for longer than the gaps between the bursts of a sender in slow start.
    #[inline]
    fn is_quiet(&self, w: &Work<'_>) -> bool {
        let quiet = self.now.since(w.f.cold.heard_at);
        let linger = Duration::from_us(2 * u64::from(w.f.cold.srtt_us));
        quiet >= self.config.ring_linger.min(IDLE) && quiet >= linger.min(IDLE)
    }

    /// Checks rings that have lingered long enough: gives them back, or asks the application to ring when it has read its data.
    pub(crate) fn sweep_lent(&mut self, flows: &Flows, homes: &mut [Option<Home>]) {
        for _ in 0..crate::setup::TIMERS_MAX {
            let Some(flow) = self.lists.lent.pop_due(self.now.as_ns()) else { return };
            if self.with(flows, homes, FlowId(flow), Self::sweep) == Err(Miss::Busy) {
                self.lists.lent.push_back(flow, self.now.plus(self.config.ring_linger).as_ns());
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
        if w.f.rx.has_ahead > 0 {
            // Data received ahead of a gap stays in its ring until the gap is filled: `close_gap` puts the ring on the list again.
            return;
        }
        if !self.is_quiet(w) || low_water::is_waiting(w) {
            self.lists.lent.push_back(w.id.0, self.now.plus(self.config.ring_linger).as_ns());
        } else {
            self.want_space(w);
        }
    }

    /// Asks the application to ring when it consumes. Then reads its position again, because bytes that it consumed before it saw
    /// the request caused no doorbell.
    pub(crate) fn want_space(&mut self, w: &mut Work<'_>) {
        if !w.f.rx.has(state::WANT_SPACE) {
            queue::stream::raise(w.own, half_flags::WANT_SPACE);
            w.f.rx.set(state::WANT_SPACE);
            if self.refresh(w) {
                self.settle(w);
            }
            self.tell_reader(w);
        }
    }

    /// Withdraws the request of `want_space`: the window is wide open again, or nothing is left to consume.
    pub(crate) fn want_no_space(&self, w: &mut Work<'_>) {
        if w.f.rx.has(state::WANT_SPACE) {
            w.own.flags.fetch_and(!half_flags::WANT_SPACE, core::sync::atomic::Ordering::Relaxed);
            w.f.rx.clear(state::WANT_SPACE);
        }
    }

    /// When unfinished work needs another round: at once, or in 100 us if the slow path or the port must make room first.
    pub(crate) fn debt_deadline(&self) -> Instant {
        if !self.lists.backlog.is_empty() && !self.is_port_full || !self.lists.told.is_empty() {
            return self.now;
        }
        let is_moving = self.others.is_joined() && self.is_moving();
        let owes = is_moving
            || self.lists.owed.front().is_some()
            || !self.lists.backlog.is_empty()
            || self.lists.is_asking
            || !self.late.is_empty();
        if owes { self.now.plus(Duration::from_us(100)) } else { Instant::NEVER }
    }
}

/// Most bytes that all windows of the flow's application, beyond the initial ones, may sum to while this one grows.
fn windows_most(w: &Work<'_>) -> u64 {
    match u64::from(w.f.cold.srtt_us) {
        0 => u64::MAX,
        srtt_us => SHORT_PATHS_MAX * (srtt_us / SHORT_PATHS.as_us()).max(1),
    }
}

/// True when the ring is larger than the window needs, and than what was promised before: other flows can use the memory.
#[inline]
fn is_oversized(w: &Work<'_>, ring: Ring) -> bool {
    let wanted = (1 << w.f.rx.window_log2).max(w.f.rx.promised());
    ring.size() / 2 >= u64::from(wanted) && !low_water::is_waiting(w)
}

/// Returns a ring of the service's side to the pool.
pub(crate) fn give_back(w: &mut Work<'_>, ring: Ring) {
    let Work { region, pool, .. } = w;
    pool.give_back(ring, |word| region.page_word(word));
}
