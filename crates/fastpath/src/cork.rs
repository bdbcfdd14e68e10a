//! Partial segments that the application holds back: `TCP_CORK`, and `MSG_MORE` for what one call has sent.
//!
//! As on Linux, whole segments are sent at once. A partial one is released by the end of the stream, by an application that waits for
//! space, by a `TCP_NODELAY` set anew, and by a timer that runs while nothing is in flight. `MSG_MORE` concerns one call only: after
//! the next segment from the peer, Nagle's rule alone decides.

use crate::setup::{Home, Miss, State, TIMERS_MAX, Work};
use base::Duration;
use core::sync::atomic::Ordering::Relaxed;
use flow::{FlowId, Flows, state};
use port::Port;
use shm::{application_flags, half_flags};

/// "there is a 200 millisecond ceiling on the time for which output is corked" (tcp(7)). The kernel waits for its probe timer: a
/// retransmission timeout, but 200 ms at least.
const HOLD_MIN: Duration = Duration::from_ms(200);
/// Longer timeouts are cut to this: flows wait in order of arrival, so a longer one would delay the flows behind it.
const HOLD_MAX: Duration = Duration::from_ms(250);

impl State {
    /// True when the partial segment that ends at stream position `end` is held back; then its time limit runs.
    #[cold]
    pub(crate) fn holds(&mut self, w: &mut Work<'_>, advice: u64, end: u32) -> bool {
        let pushed_to = (advice >> application_flags::PUSHED_SHIFT) as u32;
        let is_word_over = advice & application_flags::CORK == 0 && !self.is_rung;
        let is_urgent = self.urgent_of == w.id.0;
        if self.is_pushing || pushed_to == end || is_word_over || is_urgent || is_starved(w) {
            self.lists.held.remove(w.id.0);
            return false;
        }
        if w.f.tx.in_flight() > 0 {
            // The timer starts when the data in flight is acknowledged.
            self.lists.held.remove(w.id.0);
            return true;
        }
        let from = w.f.tx.tx_una as u32;
        if w.f.cold.held_from != from || !self.lists.held.contains(w.id.0) {
            w.f.cold.held_from = from;
            self.lists.held.remove(w.id.0);
            let time = w.f.cold.rto.max(HOLD_MIN).min(HOLD_MAX);
            self.lists.held.push_back(w.id.0, self.now.plus(time).as_ns());
        }
        true
    }

    /// Sends the partial segments that were held back for their full time limit.
    #[inline]
    pub(crate) fn release_held<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        port: &mut P,
    ) {
        for _ in 0..TIMERS_MAX {
            let Some(flow) = self.lists.held.pop_due(self.now.as_ns()) else { return };
            let done = self.with(flows, homes, FlowId(flow), |state, w| {
                let is_same = w.f.tx.in_flight() == 0 && w.f.tx.tx_una as u32 == w.f.cold.held_from;
                if is_same && !w.f.rx.has(state::LEAVING) {
                    state.is_pushing = true;
                    state.finish(w, port);
                    state.is_pushing = false;
                }
            });
            if done == Err(Miss::Busy) {
                return self.lists.held.push_front(flow, self.now.as_ns());
            }
        }
    }
}

/// True when the application waits for space: if its ring is shorter than a segment, it would otherwise wait for ever.
fn is_starved(w: &Work<'_>) -> bool {
    w.peer.flags.load(Relaxed) & half_flags::WANT_SPACE != 0
}
