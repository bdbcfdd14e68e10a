//! New data: from the application's ring to the port, as far as both windows, Nagle's rule and the pacer allow.

use crate::backlog::QUANTUM;
use crate::pacing::{burst_at_rate, burst_left};
use crate::payload::{checked, data_len};
use crate::segment::Out;
use crate::setup::{EXPRESS, State, Work};
use base::SeqNumber;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use flow::{Cold, FlowMut, PathProbe, ReceiveLine, class, event, state};
use port::{Capabilities, Port};
use queue::stream::{Readable, readable};
use queue::{Ring, Violation};
use shm::application_flags;
use shm::{Half, half_flags};
use wire::TcpFlags;

/// The data that the application has written and that was never sent.
struct Supply {
    ring: Option<Ring>,
    /// Bytes in `ring`. The rest lies in the application's next ring.
    in_ring: u32,
    /// Bytes that may form one segment or super-frame: all, or one segment if they are urgent.
    at_once: u32,
    /// Bytes in both rings.
    total: u32,
    /// The application's options: bits of `application_flags`.
    advice: u64,
}

impl Supply {
    /// Low half of the stream position of the end.
    fn end(&self, w: &Work<'_>) -> u32 {
        (w.f.tx.tx_una as u32).wrapping_add(w.f.tx.in_flight()).wrapping_add(self.total)
    }
}

/// True when the congestion flags of the next segment are right in a super-frame. A port that cuts it may be unable to set CWR in the
/// first segment only; and as part of an ACE field (RFC 9768), which belongs to each segment, all ports that cut take that bit away.
#[cold]
fn fits_super_frame(rx: &ReceiveLine, cold: &Cold, capabilities: &Capabilities) -> bool {
    if cold.accurate.is_agreed() {
        return !TcpFlags::NONE.with_ace(cold.accurate.next_field()).contains(TcpFlags::CWR);
    }
    !rx.has(state::SEND_CWR) || capabilities.tso_ecn
}

impl State {
    /// Sends what may be sent now. A flow with more to send than [`EXPRESS`] waits for its turn if others wait for theirs.
    #[inline]
    pub(crate) fn transmit<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        if !self.is_turn && self.lists.backlog.contains(w.id.0) && !self.is_pushing {
            return;
        }
        let is_crowded = !self.is_turn && !self.is_pushing && !self.lists.backlog.is_empty();
        let mut most = match self.is_turn {
            true => QUANTUM,
            false if is_crowded => self.left.min(express_most(w.f.tx.traffic)),
            false => self.left,
        };
        loop {
            if w.f.rx.flags & (state::POISONED | state::APP_RESET | state::LEAVING) != 0 {
                return;
            }
            let Some(out) = self.plan(w, most) else { return };
            if most == 0 || is_crowded && out.len + out.rest > most {
                return self.wait_for_turn(w);
            }
            if !self.may_go(w, out.len) {
                if w.f.cold.window.decides_rate() {
                    // What holds the data back is congestion control's decision, as with a window that is used.
                    w.f.rx.set(state::CWND_FULL);
                }
                return;
            }
            if !self.send(w, &out, port) {
                return self.wait_for_turn(w);
            }
            if out.rest == 0 {
                // The application rings for whatever it writes after this.
                return;
            }
            self.left = self.left.saturating_sub(out.len);
            most = most.saturating_sub(out.len);
            if most < out.len {
                // Another segment of this length does not fit into the turn, and a shorter one would cost as much.
                return self.wait_for_turn(w);
            }
        }
    }

    /// The flow has more to send: it waits behind the other flows of its application.
    #[inline]
    pub(crate) fn wait_for_turn(&mut self, w: &Work<'_>) {
        self.lists.backlog.push(w.id.0, w.f.rx.region);
    }

    /// The next segment, if one may be sent, of at most `most` bytes, or of one MSS if that is more.
    #[inline]
    fn plan(&mut self, w: &mut Work<'_>, most: u32) -> Option<Out> {
        let supply = self.supply(w)?;
        // First, so that the first burst after a pause is one of the restarted window.
        if w.f.tx.in_flight() == 0
            && w.f.tx.snd_wnd > 0
            && self.config.slow_start_after_idle
            && w.f.cold.window.is_restart_due(self.now, w.f.cold.rto)
        {
            w.f.restart(self.now);
        }
        let usable = usable(&w.f);
        let mss = u32::from(w.f.tx.mss);
        let in_flight = w.f.tx.in_flight();
        if supply.total <= usable {
            w.f.rx.clear(state::CWND_FULL | state::WINDOW_FULL);
        } else if usable < w.f.tx.snd_wnd.saturating_sub(in_flight) {
            w.f.rx.set(state::CWND_FULL);
            w.f.rx.clear(state::WINDOW_FULL);
        } else if usable > mss {
            // More than this segment may be sent: the peer's window does not hold any data back yet.
            w.f.rx.clear(state::CWND_FULL | state::WINDOW_FULL);
        } else {
            w.f.rx.clear(state::CWND_FULL);
            self.window_full(w);
        }
        let (rx, tx) = (&mut *w.f.rx, &mut *w.f.tx);
        let mut len = supply.at_once.min(usable);
        if len > mss {
            len = len.min(most.max(mss));
            let burst = if rx.has(state::V6) { self.burst_v6 } else { self.burst_v4 };
            let is_told = rx.flags & (state::SEND_CWR | state::ECHO_CE) != 0;
            if burst <= mss || is_told && !fits_super_frame(rx, w.f.cold, &self.capabilities) {
                len = mss;
            } else {
                let config = &self.config;
                len = burst_at_rate(w.f.cold, len.min(burst), tx.cwnd, mss, config.burst_segments_min);
                len = len.min(burst_left(w.f.cold, tx, self.is_rung));
                len -= if len < supply.at_once { len % mss } else { 0 };
            }
        }
        if len < supply.total {
            if len < mss && len < supply.at_once {
                // The window is too small: wait for more (RFC 9293 section 3.8.6.2.1). With nothing in flight half of the largest
                // window ever seen is enough; for less the slow path's timer is the "override timeout".
                let is_silly = usable < 1 << tx.window_log2_max >> 1 && !self.is_pushing;
                if in_flight == 0 && (usable == 0 || is_silly) {
                    self.block(w);
                }
                if in_flight > 0 || usable == 0 || is_silly {
                    return None;
                }
            }
        } else if len % mss != 0 && !rx.has(state::FIN_QUEUED) {
            // Nagle's rule in Minshall's form: a small segment waits only while another small one is in flight.
            let is_small_out = tx.snd_una.is_before(tx.small_end);
            let is_waiting =
                is_small_out && supply.advice & application_flags::NODELAY == 0 && self.urgent_of != w.id.0;
            let is_held =
                supply.advice & application_flags::HOLD != 0 && self.holds(w, supply.advice, supply.end(w));
            len -= if is_waiting || is_held { len % mss } else { 0 };
        }
        self.segment(w, &supply, len)
    }

    /// The segment of the next `len` bytes, with FIN if it ends the stream.
    #[inline]
    fn segment(&self, w: &mut Work<'_>, supply: &Supply, len: u32) -> Option<Out> {
        let (rx, tx) = (&mut *w.f.rx, &*w.f.tx);
        let is_fin = len == supply.total && rx.has(state::FIN_QUEUED);
        if len == 0 && !is_fin {
            return None;
        }
        let mut flags = TcpFlags::ACK;
        // PSH at the end of the written data. On a super-frame, too, as Linux: the receiver's GRO then passes the
        // burst on at once. Not at an end written with `MSG_MORE`, which in this interface is a SEND without PUSH
        // (RFC 9293 section 3.9.1.2).
        let mut is_pushed = true;
        if supply.advice & (application_flags::MORE | application_flags::WATCH) != 0 {
            is_pushed = supply.advice & application_flags::MORE == 0
                || supply.total > supply.at_once
                || self.is_pushing;
            rx.events |= event::SENT;
        }
        let is_end = len == supply.at_once
            || len > u32::from(tx.mss)
            || self.burst_v4 | self.burst_v6 != 0 && tx.snd_max.plus(len) == w.f.cold.burst_end;
        if len > 0 && is_end && is_pushed {
            flags = flags.with(TcpFlags::PSH);
        }
        if is_fin {
            flags = flags.with(TcpFlags::FIN);
        }
        let position = tx.tx_una + u64::from(tx.in_flight());
        Some(Out {
            seq: tx.snd_max,
            ring: supply.ring.filter(|_| len > 0),
            in_ring: supply.in_ring,
            position,
            len,
            flags,
            is_again: false,
            rest: supply.total - len,
        })
    }

    /// Reads the application's half: the data from `snd_max` on, and whether the stream ends there. `None` when there is nothing
    /// to send, or the application broke the rules.
    #[inline]
    fn supply(&mut self, w: &mut Work<'_>) -> Option<Supply> {
        if w.f.rx.has(state::FIN_SENT) {
            return None;
        }
        let peer = w.peer;
        // The flag before the head: when it is set, the head read after it is the last (pairs with `stream::raise`).
        if !w.f.rx.has(state::FIN_QUEUED) && peer.flags.load(Acquire) & half_flags::FIN != 0 {
            w.f.rx.set(state::FIN_QUEUED);
        }
        let position = w.f.tx.tx_una + u64::from(w.f.tx.in_flight());
        match self.look(w, peer, position) {
            Ok(supply) => (supply.total > 0 || w.f.rx.has(state::FIN_QUEUED)).then_some(supply),
            Err(what) => {
                self.violation(w, what);
                None
            }
        }
    }

    /// The data that the application has written from `position` on.
    #[inline]
    fn look(&mut self, w: &Work<'_>, peer: &Half, position: u64) -> Result<Supply, Violation> {
        let found = checked(w, readable(peer, position, data_len(w))?, position, 0)?;
        // After the head, so that advice given before the bytes were published is seen.
        let advice = peer.extra.load(Relaxed);
        let Some(Readable { ring, len, total }) = found else {
            return Ok(Supply { ring: None, in_ring: 0, at_once: 0, total: 0, advice });
        };
        let mut at_once = total as u32;
        if advice & application_flags::URGENT != 0 {
            at_once = self.at_once(w, advice, at_once);
        }
        Ok(Supply { ring: Some(ring), in_ring: len as u32, at_once, total: total as u32, advice })
    }

    /// As many of `total` bytes as may form one segment: urgent ones go into no super-frame, because each of its segments would need a
    /// pointer of its own.
    #[cold]
    fn at_once(&mut self, w: &Work<'_>, advice: u64, total: u32) -> u32 {
        self.look_for_urgent(w, advice);
        if self.urgent_of == w.id.0 { total.min(u32::from(w.f.tx.mss)) } else { total }
    }

    /// Sends `len` bytes as one segment, longer than the flow's MSS, to learn whether the path takes it (RFC 4821 section 7). Sends
    /// nothing while losses are being repaired, or if too little data follows: its acknowledgements must soon show the probe's loss.
    /// The probe may exceed the congestion window by one segment: with a full window there would never be room for it.
    pub(crate) fn probe_path<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, len: u16, port: &mut P) {
        let mss = w.f.tx.mss;
        let flags = w.f.rx.flags;
        let bad = state::POISONED | state::APP_RESET | state::LEAVING | state::RECOVERY | state::RESEND;
        if flags & bad != 0 || w.f.tx.snd_nxt != w.f.tx.snd_max || len <= mss {
            return;
        }
        let Some(supply) = self.supply(w).filter(|_| self.urgent_of != w.id.0) else { return };
        let (wanted, more) = (u32::from(len), 4 * u32::from(mss));
        let room = w.f.tx.snd_wnd.saturating_sub(w.f.tx.in_flight());
        if supply.at_once < wanted || supply.total < wanted + more || room < wanted {
            return;
        }
        let Some(out) = self.segment(w, &supply, wanted) else { return };
        // `send` must make one segment of it, not several of the usual size.
        w.f.tx.mss = len;
        let is_sent = self.send(w, &out, port);
        w.f.tx.mss = mss;
        if is_sent {
            w.f.cold.path_probe = PathProbe { end: w.f.tx.snd_nxt, len, is_lost: false };
        }
    }

    /// Sends as much as fits into a window that is open but too small to be worthwhile. False when nothing was sent.
    #[must_use]
    pub(crate) fn use_sliver<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) -> bool {
        let before = w.f.tx.snd_max;
        self.is_pushing = true;
        self.transmit(w, port);
        self.is_pushing = false;
        let is_sent = w.f.tx.snd_max != before;
        if is_sent {
            w.f.rx.clear(state::BLOCKED);
        }
        is_sent
    }

    /// Notes that the peer's window holds data back from now on, unless the congestion window does as well.
    #[cold]
    fn window_full(&self, w: &mut Work<'_>) {
        if w.f.tx.cwnd <= w.f.pipe() {
            w.f.rx.clear(state::WINDOW_FULL);
        } else if !w.f.rx.has(state::WINDOW_FULL) {
            w.f.rx.set(state::WINDOW_FULL);
            w.f.cold.delays.window_since = self.now;
        }
    }

    /// Nothing is in flight and the peer's window is closed, or too small to be worthwhile: the slow path sends window probes.
    fn block(&mut self, w: &mut Work<'_>) {
        w.f.rx.set(state::BLOCKED);
        self.arm(w);
    }

    /// Starts the slow path's timer for this flow, unless it runs.
    #[inline]
    fn arm(&mut self, w: &mut Work<'_>) {
        if !w.f.rx.has(state::TIMER_ARMED) {
            w.f.rx.set(state::TIMER_ARMED);
            w.f.rx.events |= event::ACTIVE;
            w.f.cold.progress_at = self.now;
        }
    }

    /// The peer has answered after timeouts: the slow path's timer, which was set for the backed-off timeout, is set for the plain one
    /// again. "When an ACK is received that acknowledges new data, restart the retransmission timer so that it will expire after RTO
    /// seconds" (RFC 6298 section 5.3).
    #[cold]
    pub(crate) fn rearm(&mut self, w: &mut Work<'_>) {
        w.f.cold.backoff = 0;
        w.f.rx.clear(state::TIMER_ARMED);
        if w.f.tx.in_flight() > 0 {
            self.arm(w);
        }
    }

    /// Sends a new segment and accounts for it. False when the port is full.
    #[must_use]
    fn send<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, out: &Out, port: &mut P) -> bool {
        let is_first = w.f.tx.in_flight() == 0;
        if is_first {
            w.f.cold.progress_at = self.now;
        }
        if !self.emit(w, port, out) {
            return false;
        }
        self.note_new(w, out.seq, out.len, out.flags.contains(TcpFlags::FIN), is_first);
        if w.f.cold.window.is_programmed() {
            self.note_programmed(&mut w.f, is_first);
        }
        true
    }

    /// Accounts for new data in flight. `is_first`: nothing was in flight before.
    #[inline(always)]
    pub(crate) fn note_new(
        &mut self,
        w: &mut Work<'_>,
        seq: SeqNumber,
        len: u32,
        is_fin: bool,
        is_first: bool,
    ) {
        let end = seq.plus(len + u32::from(is_fin));
        self.note_sent(&mut w.f, is_first);
        let f = &mut w.f;
        if is_fin {
            f.rx.set(state::FIN_SENT);
            f.cold.is_fin_alone = len == 0;
        }
        let before = f.tx.in_flight();
        (f.tx.snd_nxt, f.tx.snd_max) = (end, end);
        let mss = u32::from(f.tx.mss);
        // A segment shorter than the MSS, or of the MSS, is the usual case and needs no division.
        if len != mss && ((1..mss).contains(&len) || !len.is_multiple_of(mss)) {
            f.tx.small_end = end;
        }
        // This data replies to data of the peer, so the peer waits for replies rather than for acknowledgements.
        let is_soon = || self.now.since(f.cold.heard_at) < self.config.delayed_ack;
        if f.rx.has(state::QUICK) && f.rx.rx_head > 0 && is_soon() {
            f.rx.clear(state::QUICK);
        }
        if f.rx.has(state::RECOVERY) {
            f.cold.recovery.prr_out = f.cold.recovery.prr_out.saturating_add(end.since(seq));
        }
        // While data is missing, the acknowledgement of this segment may wait for it: do not time the segment.
        if !f.rx.has(state::TIMING) && f.cold.runs == 0 {
            f.rx.set(state::TIMING);
            (f.cold.rtt_seq, f.cold.rtt_at, f.cold.rtt_una) = (end, self.now_us(), f.tx.tx_una as u32);
            f.cold.flight_max = f.tx.in_flight();
        }
        self.arm(w);
        self.watch(w, before);
    }

    /// Marks when the data from `snd_max` on is sent, to a sixteenth of a round trip (see `board`).
    #[inline]
    fn note_sent(&mut self, f: &mut FlowMut<'_>, is_first: bool) {
        let now = self.now_us();
        if !is_first {
            if now.wrapping_sub(f.cold.sent_at) <= f.cold.srtt_us >> 4 {
                return;
            }
            self.records.mark(f, f.tx.snd_max);
        }
        f.cold.sent_at = now;
    }

    /// True when there is data that was never sent, and the peer's window has room for it.
    pub(crate) fn has_new(&mut self, w: &mut Work<'_>) -> bool {
        w.f.tx.in_flight() < w.f.tx.snd_wnd && self.supply(w).is_some()
    }

    /// Counts a retransmission. "RTT samples MUST NOT be made using segments that were retransmitted" (RFC 6298 section 3).
    pub(crate) fn count_again(&mut self, w: &mut Work<'_>, seq: SeqNumber, len: u32) {
        w.f.rx.clear(state::TIMING);
        w.f.cold.path_probe.sent_again(seq, len);
        w.f.cold.counters.retransmits += 1;
        w.f.cold.counters.retransmitted_bytes += u64::from(len);
        self.counters.retransmitted_bytes += u64::from(len);
    }
}

/// Bytes that a flow may have to send and still go before the flows that wait for their turn.
#[inline]
const fn express_most(traffic: u8) -> u32 {
    match traffic & !class::DSCP {
        class::EXPRESS => QUANTUM,
        class::BULK => 0,
        _ => EXPRESS,
    }
}

/// Bytes of new data that both windows allow now.
#[inline]
fn usable(f: &FlowMut<'_>) -> u32 {
    let in_flight = f.tx.in_flight();
    // Limited transmit: "upon the arrival of the first two duplicate ACKs ... send one new segment each" (RFC 3042). With a SACK
    // peer the pipe shrinks by the bytes it reports, which has the same effect.
    let extra =
        if f.rx.has(state::RECOVERY) { 0 } else { u32::from(f.rx.dup_acks.min(2)) * u32::from(f.tx.mss) };
    let pipe = f.pipe();
    f.tx.snd_wnd.saturating_sub(in_flight).min(f.tx.cwnd.saturating_add(extra).saturating_sub(pipe))
}
