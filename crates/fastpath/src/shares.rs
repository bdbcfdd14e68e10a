//! What the windows of an application's bulk flows may sum to while other applications receive in bulk, too: the same for each, however
//! many flows it has, up to 256 of them. No window falls below `LEAST`.
//!
//! A flow is bulk when it has received much for several round trips in a row, and until it pauses. All other flows keep their first window:
//! no request waits because of what this file decides. The windows of a single application are not touched.

use crate::lend::IDLE;
use crate::setup::{State, Work};
use base::Duration;
use base::limits::{RING_MAX, RING_MAX_DEFAULT, RING_MIN};

/// Round trips in a row for which a flow must receive three eighths of a first window until it is bulk: more than a first window in sum.
const ROUNDS: u8 = 4;
/// A round trip that took so long, and four round-trip times, was none: the flow has paused.
const PAUSE: Duration = Duration::from_ms(20);
/// A bulk flow may be without bytes for so many such pauses. It waits for the other flows of its application, which may be many.
const PAUSES: u64 = 5;
/// Most bytes that the windows of an application's bulk flows sum to beside others, on paths with round trips shorter than twice `NEAR`;
/// in proportion on longer ones, so that it is at least 1 Gbit/s. As much as a single flow may have on a short path: so a thousand are
/// offered as much as one.
const SHARE: u64 = RING_MAX_DEFAULT as u64;
const NEAR: Duration = Duration::from_ms(16);
/// Least window of a bulk flow, bytes. With two segments a thousand flows lose three quarters of their throughput, with half of this two
/// thirds, with this a quarter, and the other application gets none of it (over veth, two processors).
const LEAST: u32 = 16 << 10;

/// True when the flow receives in bulk.
#[inline]
pub(crate) fn is_bulk(w: &Work<'_>) -> bool {
    w.f.cold.rounds == ROUNDS
}

impl State {
    /// Notes that a round trip of the flow `took` so long, and that its application has consumed so many bytes in it.
    pub(crate) fn note_round(&mut self, w: &mut Work<'_>, took: Duration, consumed: u32) {
        let window = self.config.receive_buffer_initial.min(1 << w.f.rx.window_log2);
        let is_much = consumed >= window / 8 * 3;
        let cold = &mut *w.f.cold;
        let rtt = Duration::from_us(cold.srtt_us.max(cold.rcv_rtt_us).into());
        let pause = PAUSE.max(rtt.times(4));
        match (is_much && took < pause, cold.rounds) {
            (_, ROUNDS) if took >= pause.times(PAUSES) => return self.end_bulk(w),
            (_, ROUNDS) => {}
            (true, rounds) => {
                cold.rounds = rounds + 1;
                if is_bulk(w) {
                    w.region.bulk().add(1 << w.f.rx.window_log2, &self.receivers);
                    self.lists.grown.push_back(w.id.0, self.now.plus(IDLE).as_ns());
                }
            }
            (false, _) => cold.rounds = 0,
        }
        if is_bulk(w) {
            let known = [w.f.cold.rtt_us_min, w.f.cold.rcv_rtt_us].into_iter().filter(|us| *us > 0);
            known.for_each(|us| w.region.bulk().note_rtt(us));
        }
    }

    /// The flow is not bulk any more, if it was: it is offered the first window again.
    pub(crate) fn end_bulk(&mut self, w: &mut Work<'_>) {
        let was_bulk = is_bulk(w);
        w.f.cold.rounds = 0;
        if !was_bulk {
            return;
        }
        w.region.bulk().remove(1 << w.f.rx.window_log2, &self.receivers);
        let first = self.config.receive_buffer_initial.clamp(RING_MIN, RING_MAX).ilog2() as u8;
        if w.f.rx.window_log2 < first {
            self.set_window(w, first);
        }
    }

    /// Halves the window of a bulk flow that has more than its part of its application's share. True when it did.
    pub(crate) fn yield_window(&self, w: &mut Work<'_>) -> bool {
        let log2 = w.f.rx.window_log2;
        let must = is_bulk(w) && log2 > least_log2(w) && self.is_greedy(w, log2, 0);
        if must {
            self.set_window(w, log2 - 1);
        }
        must
    }

    /// True when the flow's window may grow to `1 << log2` bytes: it is not bulk and grows to its first window, or its application's share
    /// allows it.
    pub(crate) fn may_widen(&self, w: &Work<'_>, log2: u8) -> bool {
        let counted = if is_bulk(w) { 1 << w.f.rx.window_log2 } else { 0 };
        let is_first = counted == 0 && 1 << log2 <= self.config.receive_buffer_initial;
        is_first || !self.is_greedy(w, log2, (1 << log2) - counted)
    }

    /// True when the flow has, or would have, more than its part of its application's share with a window of `1 << log2` bytes, `more` of
    /// which are not counted yet, and other applications receive in bulk, too.
    fn is_greedy(&self, w: &Work<'_>, log2: u8, more: u32) -> bool {
        self.receivers.are_several() && w.region.bulk().is_greedy(1 << log2, more, share(w))
    }
}

/// Most bytes that the windows of the bulk flows of the flow's application may sum to beside other applications. By the least round trip:
/// the bytes that wait here lengthen round trips, and must not lengthen them further.
fn share(w: &Work<'_>) -> u64 {
    let rtt_us = w.region.bulk().rtt_us_min().unwrap_or(0);
    SHARE * (u64::from(rtt_us) / NEAR.as_us()).max(1)
}

/// log2 of the least window of a bulk flow: `LEAST`, and at least two full segments and a unit of the scale, because a sender waits with a
/// segment that does not fit, and half of a window must be worth an acknowledgement.
fn least_log2(w: &Work<'_>) -> u8 {
    let segments = 2 * u32::from(w.f.cold.rcv_mss) + (1 << w.f.rx.rcv_shift);
    segments.max(LEAST).next_power_of_two().ilog2() as u8
}
