//! Header prediction: a segment or doorbell of the common kind is recognised by a few comparisons and handled here. All others go
//! to `receive`, `transmit` and `finish`, which have the same effect on the common kind but check everything.

use crate::flow_lists::TOLD_MAX;
use crate::payload::{data_len, read};
use crate::setup::{State, WAKES_MAX, Work};
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use flow::{FlowMut, ReceiveLine, state};
use port::Port;
use queue::Ring;
use queue::stream::{self, readable};
use shm::{application_flags, half_flags};
use wire::{CommonHeaders, CommonSegment, Ecn, TcpFlags, TcpHeader};

/// Result of header prediction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Predicted {
    /// Not the common kind: nothing was changed.
    No,
    /// Taken in; the flow's turn has more to do than usual: the caller calls `finish`.
    Finish,
    /// Handled completely: nothing is left to do.
    Done,
}

/// Flags of `ReceiveLine` that are compared with [`CALM`].
const ASKED: u32 = state::LIVE
    | state::LEAVING
    | state::V6
    | state::TIMESTAMPS
    | state::FIN_QUEUED
    | state::FIN_SENT
    | state::FIN_RECEIVED
    | state::FIN_AHEAD
    | state::RECOVERY
    | state::RESEND
    | state::PROBED
    | state::BLOCKED
    | state::WINDOW_FULL
    | state::WANT_SPACE
    | state::ECHO_CE
    | state::REPORT_DUPLICATE
    | state::APP_CLOSED
    | state::APP_RESET
    | state::POISONED;
/// Value of the flags [`ASKED`] in an established IPv4 flow with timestamps and nothing unusual.
const CALM: u32 = state::LIVE | state::TIMESTAMPS;
/// Flags that are compared with [`CALM`] when the flow is to send.
const ASKED_TO_SEND: u32 = ASKED | state::SEND_CWR | state::TELL;
/// Advice of an application that affects more of a segment than when it is sent: not the common kind.
const ADVISES: u64 = application_flags::HOLD | application_flags::WATCH | application_flags::URGENT;
/// Flags of an application's half that need handling: not the common kind if any is set.
const SPEAKS: u32 = half_flags::FIN | half_flags::RESET | half_flags::RELEASED | half_flags::WANT_SPACE;

const _: () = assert!(WAKES_MAX <= TOLD_MAX);

/// True when no data is missing, in either direction.
#[inline]
fn is_calm(f: &FlowMut<'_>, asked: u32) -> bool {
    let FlowMut { rx, tx, cold, .. } = f;
    rx.flags & asked == CALM
        && rx.has_ahead | rx.dup_acks == 0
        && tx.snd_nxt == tx.snd_max
        && cold.runs == 0
        && cold.rx_old == 0
}

/// True when the window is not small: see `State::watch_window`.
#[inline]
fn is_open(rx: &ReceiveLine) -> bool {
    rx.promised() >= 1 << rx.window_log2 >> 1
}

impl State {
    /// Takes in the next in-order segment of a calm flow, of at most `longest` bytes. `put` copies the payload to a position of a ring
    /// that has room for it; it returns false when the port cannot provide the bytes.
    #[inline]
    pub(crate) fn arrive(
        &mut self,
        w: &mut Work<'_>,
        segment: &CommonSegment<'_>,
        is_last: bool,
        longest: u32,
        put: impl FnOnce(&Work<'_>, Ring, u64) -> bool,
    ) -> Predicted {
        let FlowMut { rx, tx, cold, .. } = &mut w.f;
        let len = segment.payload.len() as u32;
        let acked = segment.ack().since(tx.snd_una);
        let timestamps = segment.timestamps();
        let is_expected = rx.core == self.index
            && (segment.src(), segment.dst()) == (tx.peer_v4, tx.local_v4)
            && segment.ports() == (tx.peer_port, tx.local_port)
            && segment.is_plain()
            && segment.seq() == rx.rcv_nxt
            && acked <= tx.in_flight()
            && acked | len != 0
            && timestamps.value.wrapping_sub(rx.ts_recent) <= i32::MAX as u32
            && len <= longest.min(rx.promised())
            && cold.backoff == 0
            && w.peer.flags.load(Acquire) & SPEAKS == 0
            && self.lists.told.len() + self.wakes.len() < WAKES_MAX;
        if !(is_expected && is_calm(&w.f, ASKED)) {
            return Predicted::No;
        }
        // Acquire: pairs with the Release in `stream::consumed`.
        if !w.f.rx.consume(w.peer.rx_tail.load(Acquire)) || self.space_for(w, len as usize) < len as usize {
            return Predicted::No;
        }
        if len > 0 && !w.f.rx.ring().is_some_and(|ring| put(w, ring, w.f.rx.rx_head)) {
            return Predicted::No;
        }
        let rx = &mut *w.f.rx;
        self.counters.segments_in += 1;
        let counters = &mut w.f.cold.counters;
        counters.segments_in = counters.segments_in.wrapping_add(1);
        counters.data_in = counters.data_in.wrapping_add(u32::from(len > 0));
        w.f.cold.heard_at = self.now;
        if segment.seq().is_at_or_before(rx.last_ack) {
            rx.ts_recent = timestamps.value;
            w.f.cold.ts_recent_at = self.now;
        }
        if acked > 0 {
            self.advance_calmly(w, acked);
        }
        self.take_window(&mut w.f, segment.seq(), acked > 0, segment.window());
        let has_news = len > 0;
        if has_news {
            self.store(w, len);
            self.measure(w, Some(timestamps.echo), len);
        }
        if is_last && self.end_turn(w, has_news, acked > 0) {
            return Predicted::Done;
        }
        if has_news {
            w.f.rx.set(state::TELL);
        }
        if acked > 0 {
            self.note(w, false, true);
        }
        if is_last { Predicted::Finish } else { Predicted::Done }
    }

    /// As `advance`, for bytes acknowledged in order by a segment with nothing else to say.
    #[inline(always)]
    fn advance_calmly(&mut self, w: &mut Work<'_>, acked: u32) {
        let f = &mut w.f;
        f.cold.flight_max = f.cold.flight_max.max(f.tx.in_flight());
        f.tx.snd_una = f.tx.snd_una.plus(acked);
        f.tx.tx_una += u64::from(acked);
        if f.tx.snd_una == f.tx.snd_max {
            self.records.take_back(f.cold);
        }
        self.note_progress(f);
        let rtt = self.sample(f).or_else(|| self.burst_rtt(f));
        self.steer(f, acked, rtt, false);
        stream::note_consumed(w.own, f.tx.tx_una);
    }

    /// Accounts for `len` bytes of payload that are in the ring now, and publishes them.
    #[inline(always)]
    fn store(&mut self, w: &mut Work<'_>, len: u32) {
        let rx = &mut *w.f.rx;
        rx.rcv_nxt = rx.rcv_nxt.plus(len);
        rx.rx_head += u64::from(len);
        stream::note_produced(w.own, rx.rx_head);
        self.counters.bytes_in += u64::from(len);
    }

    /// Does what `finish` would do when the application has nothing to send yet and no acknowledgement is due. False, and nothing done,
    /// when `finish` is needed.
    #[inline(always)]
    fn end_turn(&mut self, w: &mut Work<'_>, has_news: bool, is_acknowledged: bool) -> bool {
        let (rx, tx) = (&mut *w.f.rx, &*w.f.tx);
        let waiting = rx.rcv_nxt.since(rx.last_ack);
        let sent = tx.tx_una + u64::from(tx.in_flight());
        let is_usual = rx.flags & (state::ACK_NOW | state::QUICK) == 0
            && rx.events == 0
            && waiting < u32::from(w.f.cold.rcv_mss)
            && is_open(rx)
            && !w.f.cold.window.is_programmed()
            // Acquire: pairs with the Release in `Sender::publish`.
            && w.peer.tx_head.load(Acquire) == sent
            && w.peer.extra.load(Relaxed) & application_flags::QUICKACK == 0;
        if !is_usual {
            return false;
        }
        let was_news = rx.has(state::TELL);
        if was_news {
            rx.clear(state::TELL);
        }
        if has_news || was_news || is_acknowledged {
            self.note(w, has_news || was_news, is_acknowledged);
        }
        let rx = &mut *w.f.rx;
        if waiting > 0 && !rx.has(state::ACK_DUE) {
            rx.set(state::ACK_DUE);
            self.lists.acks.push_back(w.id.0, self.now.plus(self.config.delayed_ack).as_ns());
        }
        true
    }

    /// Sends what the application of a calm flow has written, if it fits in one segment.
    #[inline]
    pub(crate) fn answer<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) -> Predicted {
        if w.f.cold.pace_rate == 0 { self.answer_calm(w, port) } else { self.answer_paced(w, port) }
    }

    /// As `answer`, for a paced flow: a lone request finds its bucket full.
    #[inline(never)]
    fn answer_paced<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) -> Predicted {
        if !self.has_room_in_bucket(w) {
            return Predicted::No;
        }
        let before = w.f.tx.snd_max;
        let done = self.answer_calm(w, port);
        let len = w.f.tx.snd_max.since(before);
        if len > 0 {
            self.pace(w, len);
        }
        done
    }

    #[inline(always)]
    fn answer_calm<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) -> Predicted {
        let is_expected = is_calm(&w.f, ASKED_TO_SEND)
            && !w.f.cold.window.is_programmed()
            && self.urgent_of != w.id.0
            && w.peer.flags.load(Acquire) & SPEAKS == 0
            && w.f.rx.consume(w.peer.rx_tail.load(Acquire));
        if !is_expected {
            return Predicted::No;
        }
        self.settle(w);
        let in_flight = w.f.tx.in_flight();
        let position = w.f.tx.tx_una + u64::from(in_flight);
        let Ok(Some(found)) = readable(w.peer, position, data_len(w)) else { return Predicted::No };
        if found.len < found.total || w.region.check_ring(found.ring).is_err() {
            return Predicted::No;
        }
        let advice = w.peer.extra.load(Relaxed);
        let (tx, len) = (&mut *w.f.tx, found.len as u32);
        let may_go = len <= u32::from(tx.mss)
            && in_flight + len <= tx.cwnd.min(tx.snd_wnd)
            && advice & ADVISES == 0
            && (advice & application_flags::NODELAY != 0 || tx.small_end.is_at_or_before(tx.snd_una));
        if !may_go {
            return Predicted::No;
        }
        let is_first = in_flight == 0;
        if is_first
            && self.config.slow_start_after_idle
            && w.f.cold.window.is_restart_due(self.now, w.f.cold.rto)
        {
            w.f.restart(self.now);
            return Predicted::No;
        }
        if !self.put(w, port, found.ring, position, len) {
            return Predicted::No;
        }
        w.f.rx.clear(state::CWND_FULL);
        let seq = w.f.tx.snd_max;
        if is_first {
            w.f.cold.progress_at = self.now;
        }
        self.note_new(w, seq, len, false, is_first);
        if w.f.rx.events != 0 {
            self.report(w);
        }
        if w.f.rx.unread() == 0 || is_open(w.f.rx) { Predicted::Done } else { Predicted::Finish }
    }

    /// Sends the `len` bytes of `ring` from `position` on as one segment. False when there is no room for it.
    #[inline(always)]
    fn put<P: Port + ?Sized>(
        &mut self,
        w: &mut Work<'_>,
        port: &mut P,
        ring: Ring,
        position: u64,
        len: u32,
    ) -> bool {
        let Some(buf) = port.reserve() else { return false };
        let end = CommonHeaders::LEN + len as usize;
        let Some(payload) = buf.storage_mut().get_mut(CommonHeaders::LEN..end) else { return false };
        read(w, ring, position, payload);
        let f = &mut w.f;
        let header = TcpHeader {
            src_port: f.tx.local_port,
            dst_port: f.tx.peer_port,
            seq: f.tx.snd_max,
            ack: f.rx.rcv_nxt,
            flags: TcpFlags::ACK.with(TcpFlags::PSH),
            window: Self::window_field(f),
            urgent: 0,
        };
        let ecn = if f.rx.has(state::ECN) { Ecn::Ect0 } else { Ecn::NotEct };
        if !self.write_common(f, header, ecn, len, buf) {
            return false;
        }
        port.commit();
        self.count_segment(len);
        self.note_acknowledged(w);
        true
    }
}
