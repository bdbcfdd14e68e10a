//! Processing of the peer's acknowledgements: frees send-ring space, measures round trips, opens windows, finds losses.

use crate::lend::give_back;
use crate::rack::{News, THRESHOLD};
use crate::repair::note_reduced;
use crate::setup::{State, Work};
use base::SeqNumber;
use flow::{Episode, Event, FlowMut, Signals, event, state};
use wire::{TcpFlags, TcpPacket, Timestamps};

/// Least round trip, milliseconds, that is measured by an echoed timestamp: the clock's step of 1 ms is then at most a quarter of it.
const ECHO_MS_MIN: u32 = 4;
/// Milliseconds: an echoed timestamp from the future, or from more than ten minutes ago, is no measurement.
pub(crate) const ECHO_MS_MAX: u32 = 600_000;

/// What the header of an acceptable segment says about our data.
struct Heard {
    /// The flow uses ECN, and the segment says that some of its data was marked.
    echo: bool,
    is_advance: bool,
    /// The segment has SACK blocks and the flow uses SACK.
    has_reports: bool,
    /// RFC 5681 section 2's duplicate, if data is in flight: no data, nothing new acknowledged, the same window.
    is_bare: bool,
}

/// True when a flow that uses ECN hears of a mark, by a segment with these flags.
fn is_echo(f: &FlowMut<'_>, flags: TcpFlags) -> bool {
    if f.cold.accurate.is_agreed() { f.cold.accurate.owed() > 0 } else { flags.contains(TcpFlags::ECE) }
}

/// How many of `bytes` delivered were marked, if congestion is echoed.
#[cold]
fn marked_of(f: &mut FlowMut<'_>, bytes: u32) -> u32 {
    if f.cold.accurate.is_agreed() { f.cold.accurate.pay(bytes) } else { bytes }
}

impl State {
    /// Takes in the acknowledgement and window of an acceptable segment of `sequence_len`.
    #[inline]
    pub(crate) fn acknowledged(&mut self, w: &mut Work<'_>, p: &TcpPacket, sequence_len: u32) {
        let h = &p.header;
        let window = u32::from(h.window) << w.f.tx.snd_shift;
        let is_advance = w.f.tx.snd_una.is_before(h.ack);
        let heard = Heard {
            echo: w.f.rx.has(state::ECN) && is_echo(&w.f, h.flags),
            is_advance,
            has_reports: !p.options.sack.is_empty() && w.f.rx.has(state::SACK),
            is_bare: !is_advance && h.ack == w.f.tx.snd_una && sequence_len == 0 && window == w.f.tx.snd_wnd,
        };
        let flags = w.f.rx.flags & (state::RECOVERY | state::PROBED | state::WINDOW_FULL);
        if w.f.cold.runs != 0 || flags != 0 || heard.has_reports {
            return self.acknowledged_in_trouble(w, p, &heard);
        }
        if is_advance {
            self.advance(w, p, heard.echo, None);
        }
        self.take_window_and_duplicate(w, p, &heard);
    }

    /// As `acknowledged`, when losses are known or suspected (then `News` is collected), or the peer's window holds data back.
    #[cold]
    fn acknowledged_in_trouble(&mut self, w: &mut Work<'_>, p: &TcpPacket, heard: &Heard) {
        if w.f.rx.has(state::WINDOW_FULL) {
            let is_alone = w.f.tx.in_flight() == 0;
            w.f.cold.delays.add_window(self.now, is_alone);
        }
        let is_lossy = w.f.cold.runs != 0 || w.f.rx.flags & (state::RECOVERY | state::PROBED) != 0;
        let mut news = (is_lossy || heard.has_reports).then(|| self.take_news(w, p, heard.is_advance));
        if let Some(news) = &mut news {
            news.is_pure_duplicate = heard.is_bare && !heard.has_reports;
            if let Some(program) = &mut w.f.cold.program {
                program.on_news(news.reported, news.newest);
            }
        }
        if heard.is_advance {
            self.advance(w, p, heard.echo, news.as_ref());
        } else if let Some(news) = news.as_ref().filter(|news| news.is_held_more) {
            self.hear_reports(&mut w.f, news, heard.echo);
        }
        self.take_window_and_duplicate(w, p, heard);
        if let Some(news) = news {
            self.judge(w, &news, heard.is_advance);
        }
        if let Some(program) = &mut w.f.cold.program {
            program.news_end();
        }
    }

    #[inline]
    fn take_window_and_duplicate(&mut self, w: &mut Work<'_>, p: &TcpPacket, heard: &Heard) {
        if p.header.ack == w.f.tx.snd_una {
            self.take_window(&mut w.f, p.header.seq, heard.is_advance, p.header.window);
        }
        if heard.is_bare && !w.f.rx.has(state::SACK) && w.f.tx.in_flight() > 0 {
            self.duplicate(&mut w.f);
        }
    }

    /// The segment acknowledges new data: moves `snd_una` and everything that depends on it.
    fn advance(&mut self, w: &mut Work<'_>, p: &TcpPacket, echo: bool, news: Option<&News>) {
        let ack = p.header.ack;
        let f = &mut w.f;
        let acked = ack.since(f.tx.snd_una);
        let is_fin = f.rx.is_fin_out() && ack == f.tx.snd_max;
        if is_fin {
            f.rx.set(state::FIN_ACKED);
            f.rx.events |= event::FIN_ACKED;
        }
        let bytes = acked - u32::from(is_fin);
        f.tx.snd_una = ack;
        if f.tx.snd_nxt == f.tx.snd_max {
            if ack == f.tx.snd_max {
                self.records.take_back(f.cold);
            }
        } else {
            self.cancel_timeout(f, ack);
        }
        f.tx.tx_una += u64::from(bytes);
        // The window grows by the bytes delivered now, not by bytes that SACK blocks or duplicate ACKs have already reported.
        let delivered = match news {
            Some(news) if f.cold.window.decides_rate() => news.bytes,
            None => bytes.saturating_sub(u32::from(f.rx.dup_acks) * u32::from(f.tx.mss)),
            Some(news) => news.bytes.min(bytes),
        };
        self.note_progress(f);
        let flight = f.tx.in_flight().saturating_add(acked);
        f.cold.flight_max = f.cold.flight_max.max(flight);
        let rtt = match news {
            None if f.rx.dup_acks == 0 => self.sample(f).or_else(|| self.burst_rtt(f)),
            _ => self.sample_repairs(f, news.unwrap_or(&News::default()), p.options.timestamps),
        };
        f.rx.dup_acks = 0;
        self.steer(f, delivered, rtt, echo);
        if bytes > 0 {
            self.acknowledge_bytes(w);
        }
        if w.f.cold.backoff > 0 {
            self.rearm(w);
        }
    }

    /// Adds the time since `progress_at` to `busy_ns`: data was in flight during it.
    #[inline]
    pub(crate) fn note_progress(&self, f: &mut FlowMut<'_>) {
        let time = self.now.as_ns().wrapping_sub(f.cold.progress_at.as_ns());
        (f.cold.busy_ns, f.cold.progress_at) = (f.cold.busy_ns.wrapping_add(time), self.now);
    }

    /// SACK blocks report new data behind a gap: the missing data is lost or late. If segments are known to overtake each other on this
    /// path the window grows by the reported bytes; otherwise, as in Linux, it does not grow until the gap is filled. A rate is decided by
    /// all that is delivered.
    #[cold]
    fn hear_reports(&mut self, f: &mut FlowMut<'_>, news: &News, echo: bool) {
        let rtt = self.sample_repairs(f, news, None);
        if u32::from(f.cold.recovery.reordering) > THRESHOLD || f.cold.window.decides_rate() {
            f.cold.flight_max = f.cold.flight_max.max(f.tx.in_flight());
            self.steer(f, news.bytes, rtt, echo);
        }
    }

    /// Lets congestion control react to `bytes` delivered. In fast recovery PRR governs the window, and only an algorithm that decides a
    /// rate is asked, or a program told.
    #[inline(always)]
    pub(crate) fn steer(&mut self, f: &mut FlowMut<'_>, bytes: u32, rtt: Option<u32>, echo: bool) {
        if f.rx.has(state::RECOVERY) {
            if f.cold.window.is_decided_outside() {
                self.steer_outside(f, bytes, rtt, echo);
            } else if echo {
                // The window is being reduced for this window of data already.
                f.cold.counters.marked_bytes += u64::from(marked_of(f, bytes));
            }
            return;
        }
        if f.tx.recover.is_before(f.tx.snd_una) {
            // `recover` follows close behind `snd_una`, so that it never appears ahead of it when sequence numbers wrap.
            f.tx.recover = f.tx.snd_una;
        }
        let is_plain = !echo && !f.rx.has(state::CWND_FULL);
        if is_plain
            && let Some(pace_rate) =
                f.cold.window.on_ack_unused(self.now, f.cold.flight_max, rtt, f.cold.srtt_us)
        {
            if f.cold.pace_rate != pace_rate {
                f.cold.set_pace(pace_rate);
            }
            return;
        }
        self.steer_used(f, bytes, rtt, echo);
    }

    /// As `steer`, when the flow uses its whole congestion window or the peer echoes congestion.
    #[inline(never)]
    fn steer_used(&mut self, f: &mut FlowMut<'_>, bytes: u32, rtt: Option<u32>, echo: bool) {
        if f.cold.window.is_decided_outside() {
            return self.steer_outside(f, bytes, rtt, echo);
        }
        // A batch's acknowledgements are processed before the data they make room for is sent, so add back what they acknowledged.
        let used = if f.rx.has(state::CWND_FULL) { f.tx.cwnd.saturating_sub(bytes) } else { 0 };
        let in_flight = f.tx.in_flight().max(used);
        self.ask(f, in_flight, bytes, rtt, echo);
    }

    /// Asks congestion control for its decision about `bytes` delivered, with `in_flight` bytes in flight.
    #[inline(always)]
    fn ask(&self, f: &mut FlowMut<'_>, in_flight: u32, bytes: u32, rtt: Option<u32>, echo: bool) {
        let signals = Signals {
            acked_bytes: bytes,
            marked_bytes: if echo { marked_of(f, bytes) } else { 0 },
            in_flight,
            rtt_us: rtt,
            ..f.signals(self.now)
        };
        let decision = f.steer(Event::Ack, &signals);
        if decision.is_echo_answered {
            note_reduced(f);
            f.cold.recovery.may_undo = false;
        }
        f.cold.counters.marked_bytes += u64::from(signals.marked_bytes);
    }

    /// As `steer`, for an algorithm that decides a rate, or a program, which decides later, in the flow's turn.
    #[inline]
    fn steer_outside(&mut self, f: &mut FlowMut<'_>, bytes: u32, rtt: Option<u32>, echo: bool) {
        if f.cold.window.is_programmed() {
            Self::tell_program(f, echo);
        } else {
            self.steer_rate(f, bytes, rtt, echo);
        }
    }

    /// As `steer`, for an algorithm that decides a rate: lost data is not in flight.
    #[cold]
    fn steer_rate(&mut self, f: &mut FlowMut<'_>, bytes: u32, rtt: Option<u32>, echo: bool) {
        let in_flight = f.pipe();
        self.ask(f, in_flight, bytes, rtt, echo);
    }

    /// A round-trip sample for congestion control, microseconds: from the segment being timed, if it is acknowledged now.
    #[inline(always)]
    pub(crate) fn sample(&self, f: &mut FlowMut<'_>) -> Option<u32> {
        if !f.rx.has(state::TIMING) {
            return self.sample_burst(f);
        }
        let us = self.end_timing(f)?;
        f.cold.sample_rtt(us, &self.config);
        f.cold.sample_least_rtt(us, self.now);
        Some(us)
    }

    /// A sample between timed segments, microseconds: HyStart++ wants the delay of each acknowledgement; it comes from burst times.
    #[inline]
    pub(crate) fn burst_rtt(&self, f: &FlowMut<'_>) -> Option<u32> {
        if !f.cold.window.watches_delay() {
            return None;
        }
        let rtt_us = self.first_rtt(f)?;
        // If marks are missing because the pool had no record, data seems to have been sent later than it was: reject such samples.
        let least = f.cold.rtt_us_min;
        (rtt_us > least - least / 16).then_some(rtt_us)
    }

    /// Round-trip time of the byte before `snd_una`, microseconds, by the time at which it was first sent.
    fn first_rtt(&self, f: &FlowMut<'_>) -> Option<u32> {
        let at = self.records.measured_at(f, f.tx.snd_una.minus(1));
        at.map(|at| self.now_us().wrapping_sub(at))
    }

    /// If the segment being timed is acknowledged: its round-trip time, microseconds.
    #[inline(always)]
    fn end_timing(&self, f: &mut FlowMut<'_>) -> Option<u32> {
        if f.tx.snd_una.is_before(f.cold.rtt_seq) {
            return None;
        }
        f.rx.clear(state::TIMING);
        let us = self.now_us().wrapping_sub(f.cold.rtt_at).max(1);
        let delivered = (f.tx.tx_una as u32).wrapping_sub(f.cold.rtt_una);
        f.cold.delivery_rate = u64::from(delivered) * 1_000_000 / u64::from(us);
        Some(us)
    }

    /// No segment is being timed because data was retransmitted: times the data that was sent once by the mark of its burst.
    #[cold]
    fn sample_burst(&self, f: &mut FlowMut<'_>) -> Option<u32> {
        self.sample_repairs(f, &News::timed(self.first_rtt(f)?), None)
    }

    /// A round-trip sample while data is missing or was retransmitted: from data delivered just now that was sent once. The segment
    /// being timed may have arrived long ago, before the gap was filled. Data sent twice is not timed (Karn's rule), unless its
    /// timestamp tells which sending is acknowledged (RFC 7323 section 4.1). Timestamps count milliseconds, so they are the last
    /// resort, and are too coarse for short paths except after a timeout.
    #[cold]
    fn sample_repairs(&self, f: &mut FlowMut<'_>, news: &News, echo: Option<Timestamps>) -> Option<u32> {
        if f.rx.has(state::TIMING) {
            self.end_timing(f);
        }
        if let Some(rtt) = news.rtt {
            f.cold.sample_rtt(rtt.first, &self.config);
            f.cold.sample_least_rtt(rtt.last, self.now);
            return Some(rtt.last);
        }
        let ts = echo.filter(|ts| f.rx.has(state::TIMESTAMPS) && ts.echo != 0)?;
        let ms = f.cold.timestamp(self.now).wrapping_sub(ts.echo);
        let least = if f.cold.recovery.episode == Episode::Timeout { 1 } else { ECHO_MS_MIN };
        if (least..ECHO_MS_MAX).contains(&ms) {
            f.cold.sample_rtt(ms * 1000, &self.config);
        }
        None
    }

    /// "If (SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK)), set SND.WND" (RFC 9293 section 3.10.7.4).
    /// At the same sequence number, an acknowledgement that does not advance `snd_una` may be an older one: only a larger window counts.
    /// One that advances is the newest, even on retransmitted data: keeping the old window would move the right edge beyond what
    /// the peer offers.
    #[inline(always)]
    pub(crate) fn take_window(&mut self, f: &mut FlowMut<'_>, seq: SeqNumber, advanced: bool, field: u16) {
        let tx = &mut f.tx;
        let window = u32::from(field) << tx.snd_shift;
        let is_newer = tx.snd_wl1.is_before(seq);
        let is_larger = tx.snd_wl1 == seq && window > tx.snd_wnd;
        if advanced || is_newer || is_larger {
            tx.snd_wl1 = seq;
            if window != tx.snd_wnd {
                tx.snd_wnd = window;
                tx.window_log2_max = tx.window_log2_max.max(window.max(1).ilog2() as u8);
            }
            if window > 0 && f.rx.has(state::BLOCKED) {
                // Data sent now gets a timer of its own, not the one that the window probes have backed off.
                f.rx.clear(state::BLOCKED | state::TIMER_ARMED);
                f.cold.backoff = 0;
            }
        }
    }

    /// Counts a duplicate ACK of a peer without SACK: a segment has left the network, and another is perhaps lost.
    fn duplicate(&mut self, f: &mut FlowMut<'_>) {
        if let Some(program) = &mut f.cold.program {
            program.on_news(u32::from(f.tx.mss), None);
            program.news_end();
        }
        if f.rx.has(state::RECOVERY) {
            // Packet conservation: the segment that has left the network makes room for a new one.
            f.steer(Event::Duplicate { segments: 1 }, &f.signals(self.now));
            return;
        }
        f.rx.dup_acks = f.rx.dup_acks.saturating_add(1);
        // Three "MUST be used as an indication that a segment has been lost" (RFC 5681 section 3.2 in short).
        if u32::from(f.rx.dup_acks) >= THRESHOLD {
            self.enter(f);
            if f.rx.has(state::RECOVERY) {
                self.lose_first(f);
                f.steer(Event::Duplicate { segments: THRESHOLD }, &f.signals(self.now));
            }
        }
    }

    /// Reads up to where the application has consumed. False when the position is impossible, or the application was found to
    /// break the rules before.
    #[inline]
    pub(crate) fn refresh(&mut self, w: &mut Work<'_>) -> bool {
        if w.f.rx.has(state::POISONED) {
            return false;
        }
        // Acquire: pairs with the Release in `stream::consumed`.
        let tail = w.peer.rx_tail.load(core::sync::atomic::Ordering::Acquire);
        if tail == w.f.rx.consumed() || w.f.cold.rx_old == 0 && w.f.rx.consume(tail) {
            return true;
        }
        self.refresh_rings(w, tail)
    }

    /// As `refresh`, when the application still reads an earlier ring, or gave an impossible position.
    #[inline(never)]
    fn refresh_rings(&mut self, w: &mut Work<'_>, tail: u64) -> bool {
        let mut sender = w.f.rx.sender(w.f.cold.rx_old);
        match sender.acknowledge(tail) {
            Ok(ring) => {
                w.f.cold.rx_old = w.f.rx.store_sender(&sender);
                if let Some(ring) = ring {
                    give_back(w, ring);
                }
                true
            }
            Err(what) => {
                self.violation(w, what);
                false
            }
        }
    }
}
