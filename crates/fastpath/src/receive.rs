//! A received segment of a flow: a list of named questions, then acknowledgement, data, FIN (RFC 9293 section 3.10.7.4).

use crate::classify::Frame;
use crate::counters::Cause;
use crate::out_of_order::note_duplicate;
use crate::setup::{State, Work};
use base::{Duration, SeqNumber};
use flow::{FlowMut, ResetVerdict, event, rare, state};
use port::Port;
use shm::half_flags;
use wire::{Ecn, TcpFlags, TcpPacket};

/// RFC 7323 section 5.5: a `ts_recent` older than 24 days is not compared, because the peer's clock may have wrapped.
const TS_OUTDATED: Duration = Duration::from_secs(24 * 24 * 3600);

impl State {
    /// Takes in one segment. Work that follows from it is noted in the record's flags and events; `finish` does it.
    pub(crate) fn receive<P: Port + ?Sized>(
        &mut self,
        w: &mut Work<'_>,
        p: &TcpPacket,
        frame: Frame<'_>,
        port: &mut P,
    ) {
        if p.header.flags.intersects(TcpFlags::RST | TcpFlags::SYN | TcpFlags::URG) {
            self.receive_rare(w, p, frame, port);
        } else if self.admits(w, p) {
            self.take_in(w, p, frame, port);
        }
    }

    /// Takes in a segment with RST, SYN or URG.
    #[cold]
    fn receive_rare<P: Port + ?Sized>(
        &mut self,
        w: &mut Work<'_>,
        p: &TcpPacket,
        frame: Frame<'_>,
        port: &mut P,
    ) {
        if p.header.flags.intersects(TcpFlags::RST | TcpFlags::SYN) {
            let is_for_us = frame.bytes.get(..6) == Some(&self.mac.0);
            if is_for_us && p.header.flags.contains(TcpFlags::RST) {
                self.take_reset(&mut w.f, p.header.seq);
            } else if is_for_us {
                greet_again(&mut w.f, p);
                // "TCP endpoints MUST send a 'challenge ACK' to the remote peer", whatever its number (RFC 5961 section 4.2).
                self.owe_challenge(&mut w.f);
            } else {
                self.counters.drop(wire::DropReason::ForeignMac);
            }
        } else if self.admits(w, p) {
            self.note_urgent(w, &p.header);
            self.take_in(w, p, frame, port);
        }
    }

    /// Takes in a RST. Its sender does not repeat it, so its effect is noted in the record, which cannot overflow.
    fn take_reset(&mut self, f: &mut FlowMut<'_>, seq: SeqNumber) {
        match f.rx.judge_reset(seq) {
            ResetVerdict::Exact => Self::owe(f, rare::PEER_RESET),
            ResetVerdict::Possible => {
                self.counters.count(Cause::Unacceptable);
                self.owe_challenge(f);
            }
            ResetVerdict::Stray => self.counters.count(Cause::Unacceptable),
        }
    }

    /// Has the slow path challenge the sender of a SYN or RST, if the connection was not challenged a moment ago.
    fn owe_challenge(&mut self, f: &mut FlowMut<'_>) {
        if f.cold.challenged.take(self.now) {
            Self::owe(f, rare::CHALLENGE);
        }
    }

    /// True when the segment passes all questions.
    #[inline]
    fn admits(&mut self, w: &mut Work<'_>, p: &TcpPacket) -> bool {
        let h = &p.header;
        let len = p.payload.len() as u32;
        self.counters.segments_in += 1;
        let counters = &mut w.f.cold.counters;
        counters.segments_in = counters.segments_in.wrapping_add(1);
        counters.data_in = counters.data_in.wrapping_add(u32::from(len > 0));
        w.f.cold.heard_at = self.now;
        let fin = u32::from(h.flags.contains(TcpFlags::FIN));
        self.is_recent(&mut w.f, p, len + fin)
            && self.is_acceptable(&mut w.f, h.seq, len + fin)
            && self.is_ack_good(&mut w.f, h.ack, h.flags)
            && self.refresh(w)
    }

    /// Takes in an admitted segment: acknowledgement, data, FIN.
    #[inline]
    fn take_in<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, p: &TcpPacket, frame: Frame<'_>, port: &mut P) {
        let h = &p.header;
        let fin = h.flags.contains(TcpFlags::FIN);
        let len = p.payload.len() as u32;
        if w.f.rx.has(state::ECN) {
            take_counts(&mut w.f, p, frame);
        }
        self.take_timestamp(&mut w.f, p);
        self.acknowledged(w, p, len + u32::from(fin));
        if len == 0 && !fin {
            return;
        }
        if w.f.rx.has(state::APP_CLOSED) && len > 0 {
            return Self::owe(&mut w.f, rare::LATE_DATA);
        }
        if w.f.rx.has(state::ECN) {
            self.note_marks(w, p.ip.ecn, h.flags, port);
        }
        let whole = len == 0 || self.take_data(w, h.seq, p.payload.of(frame.bytes), frame.merged);
        let echo = p.options.timestamps.filter(|_| w.f.rx.has(state::TIMESTAMPS)).map(|ts| ts.echo);
        self.measure(w, echo, len);
        if fin && whole {
            take_fin(&mut w.f, h.seq.plus(len));
        }
        self.reach_fin(w);
    }

    /// PAWS: "if there is a Timestamps option in the arriving segment, SEG.TSval < TS.Recent, TS.Recent is valid ... then
    /// treat the arriving segment as not acceptable: send an acknowledgment in reply ... and drop the segment" (RFC 7323
    /// section 5.3 R1). A segment without the option is accepted, as in Linux, though section 3.2 would rather drop it. An
    /// acknowledgement that says nothing new was overtaken, and is counted as a duplicate only, as on Linux.
    #[inline]
    fn is_recent(&mut self, f: &mut FlowMut<'_>, p: &TcpPacket, len: u32) -> bool {
        let Some(ts) = p.options.timestamps.filter(|_| f.rx.has(state::TIMESTAMPS)) else { return true };
        let is_older = SeqNumber(ts.value).is_before(SeqNumber(f.rx.ts_recent));
        if is_older && self.now.since(f.cold.ts_recent_at) < TS_OUTDATED {
            let is_known = len == 0 && p.header.ack.is_at_or_before(f.tx.snd_una);
            self.turn_away(f, p.header.seq, len, if is_known { Cause::Duplicate } else { Cause::Paws });
            return false;
        }
        true
    }

    /// "If SEG.TSval >= TS.Recent and SEG.SEQ <= Last.ACK.sent, then record SEG.TSval in TS.Recent" (RFC 7323 section 4.3).
    #[inline]
    fn take_timestamp(&mut self, f: &mut FlowMut<'_>, p: &TcpPacket) {
        let Some(ts) = p.options.timestamps.filter(|_| f.rx.has(state::TIMESTAMPS)) else { return };
        if p.header.seq.is_at_or_before(f.rx.last_ack) {
            f.rx.ts_recent = ts.value;
            f.cold.ts_recent_at = self.now;
        }
    }

    /// True when some of the segment lies in the window. If not: "an acknowledgment should be sent in reply" (RFC 9293 section
    /// 3.10.7.4), which is also the reply that a keepalive or a window probe wants.
    #[inline]
    fn is_acceptable(&mut self, f: &mut FlowMut<'_>, seq: SeqNumber, len: u32) -> bool {
        let (end, window) = (seq.plus(len), f.rx.rcv_edge.since(f.rx.rcv_nxt));
        let acceptable = if len == 0 {
            // Up to the edge itself: a sender that has used up its window sends its acknowledgements with that number.
            seq.is_within(f.rx.rcv_nxt, window + 1)
        } else {
            // Not wholly old, not wholly beyond the edge. With a closed window only a segment at the edge is accepted: the
            // acknowledgement of a window probe counts, and its byte is cut off.
            f.rx.rcv_nxt.is_before(end) && seq.is_at_or_before(f.rx.rcv_edge)
        };
        if acceptable {
            return true;
        }
        self.turn_away(f, seq, len, Cause::Unacceptable);
        false
    }

    /// Drops a segment for `cause`, or as a duplicate if all its data has come before, and answers it.
    fn turn_away(&mut self, f: &mut FlowMut<'_>, seq: SeqNumber, len: u32, cause: Cause) {
        let end = seq.plus(len);
        let is_old = len > 0 && end.is_at_or_before(f.rx.rcv_nxt);
        if is_old {
            note_duplicate(f, seq, end);
        }
        self.counters.count(if is_old { Cause::Duplicate } else { cause });
        self.challenge(f, len > 0);
    }

    /// "The ACK value is considered acceptable only if it is in the range of ((SND.UNA - MAX.SND.WND) <= SEG.ACK <=
    /// SND.NXT). All incoming segments whose ACK value doesn't satisfy the above condition MUST be discarded and an ACK sent
    /// back" (RFC 5961 section 5.2).
    #[inline]
    fn is_ack_good(&mut self, f: &mut FlowMut<'_>, ack: SeqNumber, flags: TcpFlags) -> bool {
        if !flags.contains(TcpFlags::ACK) {
            self.counters.count(Cause::BadAck);
            return false;
        }
        let window_max = 2u32 << f.tx.window_log2_max.min(30);
        let oldest = f.tx.snd_una.minus(window_max);
        if ack.is_at_or_before(f.tx.snd_max) && oldest.is_at_or_before(ack) {
            return true;
        }
        self.counters.count(Cause::BadAck);
        self.challenge(f, false);
        false
    }

    /// Notes congestion marks for the echo. RFC 3168 section 6.1.3 latches the echo until CWR; the first mark is acknowledged at once,
    /// so that the sender reduces its window in time.
    ///
    /// For DCTCP (RFC 8257 section 3.2) each acknowledgement says exactly whether the data it covers was marked: at every change of
    /// CE "send an immediate ACK" for the data before, with the old state, and then one for the data that brought the change.
    fn note_marks<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, ecn: Ecn, flags: TcpFlags, port: &mut P) {
        if w.f.cold.accurate.is_agreed() {
            return;
        }
        let (was, is) = (w.f.rx.has(state::ECHO_CE), ecn == Ecn::Ce);
        if w.f.rx.has(state::EXACT_ECN) {
            if was != is {
                if w.f.rx.rcv_nxt != w.f.rx.last_ack {
                    // If the port has no room, these bytes are acknowledged together with the next ones, in their state.
                    self.send_ack(w, port);
                }
                w.f.rx.flags ^= state::ECHO_CE;
                w.f.rx.set(state::ACK_NOW);
            }
            return;
        }
        if flags.contains(TcpFlags::CWR) {
            w.f.rx.clear(state::ECHO_CE);
        }
        if is && !w.f.rx.has(state::ECHO_CE) {
            w.f.rx.set(state::ECHO_CE | state::ACK_NOW);
        }
    }

    /// Answers an unacceptable segment: always if `always` (data is no part of a loop of acknowledgements, and its sender must learn that it has
    /// come before), else as often as the connection may be challenged.
    fn challenge(&mut self, f: &mut FlowMut<'_>, always: bool) {
        if always || f.cold.challenged.take(self.now) {
            f.rx.set(state::ACK_NOW);
        }
    }

    /// Takes in the FIN when all data before it has come.
    #[inline]
    fn reach_fin(&mut self, w: &mut Work<'_>) {
        let f = &mut w.f;
        if f.rx.has(state::FIN_AHEAD) && f.cold.fin_at == f.rx.rcv_nxt {
            f.rx.clear(state::FIN_AHEAD);
            f.cold.closed_first = f.rx.has(state::FIN_SENT);
            f.rx.set(state::FIN_RECEIVED | state::ACK_NOW | state::TELL);
            f.rx.rcv_nxt = f.rx.rcv_nxt.plus(1);
            f.rx.rcv_edge = f.rx.rcv_edge.later_of(f.rx.rcv_nxt);
            f.rx.events |= event::FIN_RECEIVED;
            queue::stream::raise(w.own, half_flags::FIN);
            if w.f.rx.has_ahead > 0 {
                self.drop_ahead(w);
            }
        }
    }
}

/// The peer has sent its SYN-ACK again, and no data: "The TCP Client MUST also use the handshake encoding for the pure ACK of any
/// retransmitted SYN/ACK that confirms that the TCP Server supports AccECN" (RFC 9768 section 3.2.2.1).
fn greet_again(f: &mut FlowMut<'_>, p: &TcpPacket) {
    let is_repeated = p.header.flags.contains(TcpFlags::ACK) && p.header.seq.plus(1) == f.rx.rcv_nxt;
    if is_repeated && f.rx.has(state::ECN) && f.cold.accurate.is_agreed() {
        f.cold.accurate.greet_again(p.ip.ecn, true);
    }
}

/// Takes in what an acceptable segment says by accurate ECN, if the flow uses it: the mark of the segment itself, and the peer's count.
#[inline(never)]
fn take_counts(f: &mut FlowMut<'_>, p: &TcpPacket, frame: Frame<'_>) {
    if !f.cold.accurate.is_agreed() {
        return;
    }
    let len = p.payload.len();
    let packets = frame.merged.map_or(1, |gso| len.div_ceil(usize::from(gso.segment_size.max(1))).max(1));
    let is_waiting = f.rx.rcv_nxt != f.rx.last_ack;
    if f.cold.accurate.receive(p.ip.ecn == Ecn::Ce, packets as u32, len > 0, is_waiting) {
        f.rx.set(state::ACK_NOW);
    }
    let is_advance = f.tx.snd_una.is_before(p.header.ack);
    let times = p.options.timestamps.filter(|_| f.rx.has(state::TIMESTAMPS));
    let is_later = times.is_some_and(|ts| SeqNumber(f.rx.ts_recent).is_before(SeqNumber(ts.value)));
    // "it first checks whether it has already been superseded by another ACK in which case it ignores the ECN feedback" (section 3.2.2.2):
    // as in Linux, what neither acknowledges anything nor has a later timestamp may have been overtaken.
    if is_advance || is_later {
        let acked = if is_advance { p.header.ack.since(f.tx.snd_una) } else { 0 };
        let news = acked.saturating_sub(f.cold.recovery.held);
        let mss = f.tx.mss.max(1);
        f.cold.accurate.hear(p.header.flags.ace(), news.div_ceil(u32::from(mss)), mss);
    }
}

/// Notes that the peer's stream ends at `at`.
fn take_fin(f: &mut FlowMut<'_>, at: SeqNumber) {
    if !f.rx.has(state::FIN_RECEIVED) && f.rx.rcv_nxt.is_at_or_before(at) {
        f.cold.fin_at = at;
        f.rx.set(state::FIN_AHEAD | state::ACK_NOW);
    }
}
