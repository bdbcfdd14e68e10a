//! Acknowledgements we send: when they are due, and the window in them.

use crate::segment::Out;
use crate::setup::{Home, Miss, State, TIMERS_MAX, Work};
use crate::task::Task;
use core::sync::atomic::Ordering::Relaxed;
use flow::{FlowId, FlowMut, Flows, state};
use port::Port;
use shm::application_flags;
use wire::TcpFlags;

/// With a scaled window, 1/32 of it is not offered: the reserve that rounding the window field up may use.
const RESERVE_LOG2: u32 = 5;

impl State {
    /// At the end of a flow's turn: sends the acknowledgement that is due now, or lets it wait for data to carry it.
    ///
    /// "an ACK SHOULD be generated for at least every second full-sized segment, and MUST be generated within 500 ms of the
    /// arrival of the first unacknowledged packet" (RFC 5681 section 4.2).
    #[inline]
    pub(crate) fn acknowledge<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        let rx = &mut *w.f.rx;
        let waiting = rx.rcv_nxt.since(rx.last_ack);
        if waiting >= 2 * u32::from(w.f.cold.rcv_mss) {
            rx.set(state::ACK_NOW);
            if w.f.cold.window_end.is_before(rx.rcv_nxt) {
                w.f.cold.sample_window(self.now, rx.rcv_edge);
            }
        }
        if waiting >= u32::from(w.f.cold.rcv_mss.max(w.f.tx.mss))
            && w.f.cold.quick > 0
            && !rx.has(state::ACK_NOW)
        {
            // A lone full segment at the start of a connection is rarely a whole request, and a sender in slow start waits for its ACK.
            w.f.cold.quick -= 1;
            rx.set(state::ACK_NOW);
        }
        if !rx.has(state::ACK_NOW) {
            if waiting == 0 || rx.has(state::ACK_DUE) {
                return;
            }
            if !rx.has(state::QUICK) && !is_quickack(w) {
                let rx = &mut *w.f.rx;
                rx.set(state::ACK_DUE);
                return self.lists.acks.push_back(w.id.0, self.now.plus(self.config.delayed_ack).as_ns());
            }
        }
        if !self.send_ack(w, port) {
            w.f.rx.set(state::ACK_NOW);
            self.lists.acks.push_front(w.id.0, self.now.as_ns());
        }
    }

    /// Sends a segment without data that acknowledges `rcv_nxt`. False when the port is full.
    pub(crate) fn send_ack<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) -> bool {
        // After `rewind` `snd_nxt` is an old number; a bare acknowledgement carries the newest one.
        let seq = w.f.tx.snd_max;
        self.emit(w, port, &Out::bare(seq, TcpFlags::ACK))
    }

    /// Sends the delayed acknowledgements that are due by now.
    pub(crate) fn acknowledge_due<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        port: &mut P,
    ) {
        for _ in 0..TIMERS_MAX {
            let Some(flow) = self.lists.acks.pop_due(self.now.as_ns()) else { return };
            let done = self.with(flows, homes, FlowId(flow), |state, w| {
                if w.f.rx.has(state::ACK_DUE) {
                    // The application did not reply in time. A peer that sends small pieces in one direction, each delayed by Nagle's
                    // rule until the one before is acknowledged, would wait for this timer at every piece: from now on acknowledge at once.
                    w.f.rx.clear(state::ACK_DUE);
                    w.f.rx.set(state::ACK_NOW | state::QUICK);
                }
                if w.f.rx.has(state::LEAVING) {
                    state.leave(w);
                } else {
                    state.finish(w, port);
                }
            });
            match done {
                Ok(()) | Err(Miss::Gone) => {}
                Err(Miss::Busy) => self.lists.acks.push_front(flow, self.now.as_ns()),
                // A packet, or a command to let go of the flow, came for a record that was busy, after the flow had moved.
                Err(Miss::Elsewhere(core)) => self.others.pass_on(core, Task::Drop(FlowId(flow))),
            }
            if self.lists.acks.front().is_some_and(|front| front.0 == flow) {
                // The record is busy or the port is full: trying the other flows now is useless.
                return;
            }
        }
    }

    /// Computes the window field of the next segment and moves `rcv_edge`, the right edge promised to the peer, accordingly.
    ///
    /// The edge never moves left; it moves right only by a worthwhile step (RFC 9293 section 3.8.6.2.2: at least the smaller
    /// of half the buffer and a segment). Windows are rounded up to the scale's unit, because rounding down would withdraw
    /// bytes already promised; a reserve covers the rounding. Rounding up moves the edge with every acknowledgement, so once the
    /// reserve is used up the field is rounded down: the peer sees less than one unit withdrawn, as RFC 7323 section 2.4 allows,
    /// and if the peer sends those bytes they are still accepted.
    #[inline(always)]
    pub(crate) fn window_field(f: &mut FlowMut<'_>) -> u16 {
        let (edge, window) = (edge_wanted(f), window(f));
        let step = (window / 2).min(u32::from(f.tx.mss));
        let rx = &mut *f.rx;
        if rx.rcv_edge.is_before(edge) && edge.since(rx.rcv_edge) >= step {
            rx.rcv_edge = edge;
        }
        let (promised, shift) = (rx.promised(), rx.rcv_shift);
        let up = (promised + (1 << shift) - 1) >> shift;
        let fits = up << shift <= window.saturating_sub(rx.unread());
        let field = if fits { up } else { promised >> shift }.min(0xFFFF);
        rx.rcv_edge = rx.rcv_edge.later_of(rx.rcv_nxt.plus(field << rx.rcv_shift));
        field as u16
    }

    /// The application has consumed bytes: a window update is due if the window can move by a worthwhile step and the peer
    /// knows only a small window.
    pub(crate) fn note_consumed(&mut self, w: &mut Work<'_>) {
        let f = &mut w.f;
        let (edge, window) = (edge_wanted(f), window(f));
        let is_small = f.rx.promised() < window / 2;
        let step = if f.rx.rcv_edge.is_before(edge) { edge.since(f.rx.rcv_edge) } else { 0 };
        let is_update = is_small && step >= (window / 4).min(2 * u32::from(f.tx.mss));
        if is_update && !f.rx.has(state::FIN_RECEIVED) {
            f.rx.set(state::ACK_NOW);
        }
    }

    /// After an acknowledgement with a small window: asks the application to ring when it consumes bytes.
    pub(crate) fn watch_window(&mut self, w: &mut Work<'_>) {
        let rx = &w.f.rx;
        let is_small = rx.promised() < window(&w.f) / 2;
        let is_news = rx.unread() > 0 && !rx.has(state::WANT_SPACE) && !rx.has(state::FIN_RECEIVED);
        if is_small && is_news && !self.is_waited_for(w) {
            self.want_space(w);
            self.note_consumed(w);
        }
    }
}

/// True when the application has set `TCP_QUICKACK`.
#[inline]
fn is_quickack(w: &Work<'_>) -> bool {
    w.peer.extra.load(Relaxed) & application_flags::QUICKACK != 0
}

/// Size of the receive window now, in bytes, unread bytes included.
#[inline]
pub(crate) fn window(f: &FlowMut<'_>) -> u32 {
    (1u32 << f.rx.window_log2).min(f.cold.receive_most)
}

/// The largest right edge that the window allows with the bytes that are unread now.
#[inline(always)]
fn edge_wanted(f: &FlowMut<'_>) -> base::SeqNumber {
    let rx = &f.rx;
    let window = window(f);
    let reserve = if rx.rcv_shift == 0 { 0 } else { (1 << rx.rcv_shift).max(window >> RESERVE_LOG2) };
    rx.rcv_nxt.plus(window.saturating_sub(rx.unread() + reserve))
}
