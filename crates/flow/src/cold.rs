//! The side record of a flow: round-trip times, congestion state, out-of-order intervals, counters.

use crate::{AccurateEcn, Ahead, Challenged, Config, Delays, FlowProgram, Recovery, Timeouts};
use base::{Duration, Instant, SeqNumber};
use congestion::{RateLaw, Window};

/// Initial `rcv_mss`: every host accepts segments of this size (RFC 9293 section 3.7.1), so bulk senders use no smaller ones.
const RCV_MSS_MIN: u16 = 536;
/// Number of lone full segments acknowledged at once at the beginning, for the sender's slow start: 16 as Linux.
pub const QUICK_SEGMENTS: u8 = 16;
/// log2 of the nanoseconds after which the search for the least round-trip time begins anew: 137 s. The least of one such period
/// counts until the end of the next, because routes change: "a windowed min-filtered value of recent RTT measurements" (RFC 8985
/// section 6.2 step 1). Linux's window is 300 s.
const RTT_EPOCH_LOG2: u32 = 37;
/// Bytes: two full segments of Ethernet.
const RECEIVE_MIN: u32 = 2 * 1460;

/// A range of sequence numbers: `[left, right)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Interval {
    /// First sequence number of the range.
    pub left: SeqNumber,
    /// First sequence number after the range.
    pub right: SeqNumber,
}

/// A segment longer than the flow's MSS, sent to learn whether the path takes it (RFC 4821).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct PathProbe {
    /// Sequence number after its last byte.
    pub end: SeqNumber,
    /// Payload bytes of the probe; 0 when none was sent.
    pub len: u16,
    /// Some byte of it was retransmitted.
    pub is_lost: bool,
}

impl PathProbe {
    /// Notes that `len` bytes from `seq` on were retransmitted.
    pub fn sent_again(&mut self, seq: SeqNumber, len: u32) {
        let start = self.end.minus(u32::from(self.len));
        self.is_lost |= self.len > 0 && seq.is_before(self.end) && start.is_before(seq.plus(len));
    }
}

/// Counters of one flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Counters {
    /// Segments received, modulo 2^32; a super-frame is one.
    pub segments_in: u32,
    /// Segments sent, modulo 2^32.
    pub segments_out: u32,
    /// Segments received with data, modulo 2^32.
    pub data_in: u32,
    /// Segments sent with data, modulo 2^32.
    pub data_out: u32,
    /// Payload bytes retransmitted so far.
    pub retransmitted_bytes: u64,
    /// Number of segments retransmitted.
    pub retransmits: u32,
    /// Number of fast recoveries begun.
    pub recoveries: u32,
    /// Number of retransmission timeouts; the slow path counts them.
    pub timeouts: u32,
    /// Number of segments received out of order.
    pub out_of_order: u32,
    /// Bytes acknowledged by segments with ECE.
    pub marked_bytes: u64,
}

/// The side record of a flow, beside its two hot lines.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Cold {
    /// The congestion algorithm's state.
    pub window: Window,
    /// When a segment of the peer last came.
    pub heard_at: Instant,
    /// When `snd_una` last moved, or the first byte of an idle flow was sent: the retransmission timeout counts from here.
    pub progress_at: Instant,
    /// When the segment being timed (it ends at `rtt_seq`) was sent, microseconds modulo 2^32.
    pub rtt_at: u32,
    /// End of the segment being timed.
    pub rtt_seq: SeqNumber,
    /// Added to the millisecond clock in our timestamps, so that they do not tell our uptime.
    pub ts_offset: u32,
    /// Smoothed round-trip time, microseconds; 0 before the first sample.
    pub srtt_us: u32,
    /// Variation of the round-trip time, microseconds.
    pub rttvar_us: u32,
    /// Least round-trip time of the last minutes, microseconds; `u32::MAX` before the first sample.
    pub rtt_us_min: u32,
    /// Least round-trip time of the present period of 137 s, microseconds; becomes `rtt_us_min` in the next period.
    pub rtt_us_min_next: u32,
    /// Low half of `tx_una` when the segment that ends at `rtt_seq` was sent.
    pub rtt_una: u32,
    /// Bytes per second acknowledged while the segment last timed was in flight; 0 before the first.
    pub delivery_rate: u64,
    /// Retransmission timeout without backoff.
    pub rto: Duration,
    /// Pacing rate, bytes per second; 0: no pacing. See [`set_pace`](Cold::set_pace).
    pub pace_rate: u64,
    /// Nanoseconds during which data was in flight, up to `progress_at`.
    pub busy_ns: u64,
    /// The packed receive ring before the current one, or 0.
    pub rx_old: u64,
    /// When `ts_recent` was last updated.
    pub ts_recent_at: Instant,
    /// Start of the round trip over which the application's consumption is measured.
    pub epoch_at: Instant,
    /// `ReceiveLine::rx_tail` at `epoch_at`.
    pub epoch_tail: u32,
    /// Bound of the receive window, bytes (`SO_RCVBUF`). See [`limit_receive`](Cold::limit_receive).
    pub receive_most: u32,
    /// Payload bytes of the largest segment received so far: full-sized segments are counted by it.
    pub rcv_mss: u16,
    /// Number of consecutive timeouts or unanswered probes; the slow path counts them.
    pub backoff: u8,
    /// Number (modulo 256) of the 137 s period that `rtt_us_min_next` belongs to.
    pub rtt_epoch: u8,
    /// When the data in flight after the last mark was sent, microseconds modulo 2^32.
    pub sent_at: u32,
    /// Number of runs of the scoreboard in use.
    pub runs: u16,
    /// The loss record that the flow has borrowed from its core: 1 + its index, or 0.
    pub loss_record: u16,
    /// Most bytes in flight since the segment being timed was sent, i.e. over a round trip, or longer if no more was sent: data
    /// in flight that only drains says nothing about how much of the window is used.
    pub flight_max: u32,
    /// Numbers of segments and bytes.
    pub counters: Counters,
    /// The range received twice since the last acknowledgement, while `state::REPORT_DUPLICATE` is set.
    pub duplicate: Interval,
    /// When the peer was last told the right edge `window_end`; `ZERO`: never.
    pub window_at: Instant,
    /// A right edge of the receive window, see [`sample_window`](Cold::sample_window).
    pub window_end: SeqNumber,
    /// Smoothed round-trip time measured as a receiver, microseconds; 0: not measured. See [`sample_receiver`](Cold::sample_receiver).
    pub rcv_rtt_us: u32,
    /// Number of lone full segments still to be acknowledged at once: at the beginning, and after a pause.
    pub quick: u8,
    /// Round trips in a row in which much was received, up to a number that the core counts as bulk.
    pub rounds: u8,
    /// Data ahead of gaps.
    pub ahead: Ahead,
    /// Sequence number of a FIN that came before missing data.
    pub fin_at: SeqNumber,
    /// Bound of the application's send buffer, as published in `Sending::buffer`, bytes; 0: no bound.
    pub send_buffer: u32,
    /// When an unacceptable segment was last answered.
    pub challenged: Challenged,
    /// When the flow was established.
    pub opened_at: Instant,
    /// Low half of the stream position from which on the application has held bytes back.
    pub held_from: u32,
    /// Sequence number at which the present super-frame ends; behind `snd_max` when there is none.
    pub burst_end: SeqNumber,
    /// Our FIN was sent before the peer's came.
    pub closed_first: bool,
    /// Our FIN was sent without data.
    pub is_fin_alone: bool,
    /// Bits of `rare` not yet handed to the slow path, while `event::RARE` is set.
    pub rare_events: u8,
    /// The counter of the peer's address (`FlowTable::peer`), by which records of a core are shared out.
    pub peer: u16,
    /// Errno to report if the flow times out: the last soft error (ICMP); 0: none. The slow path sets it.
    pub soft_error: u16,
    /// The counts of accurate ECN, if both ends have agreed on it.
    pub accurate: AccurateEcn,
    /// Times during which sending was held up.
    pub delays: Delays,
    /// When the pacer allows the next segment.
    pub pace_at: Instant,
    /// The application's own limit (`SO_MAX_PACING_RATE`), bytes per second; 0: none.
    pub pace_most: u64,
    /// The path probe in flight.
    pub path_probe: PathProbe,
    /// Number and duration of repairs after timeouts.
    pub timeouts: Timeouts,
    /// The program that steers the flow, if one does: then [`Window::is_programmed`] holds. The slow path gives and takes it.
    pub program: Option<Box<FlowProgram>>,
    /// The state of loss recovery.
    pub recovery: Recovery,
    /// The state of an algorithm that decides a rate; other flows never touch it.
    pub law: RateLaw,
}

// Packets in order touch only the first three lines of these.
const _: () = assert!(size_of::<Cold>() <= 1088 && size_of::<RateLaw>() <= 112 && size_of::<Window>() <= 48);

impl Cold {
    /// The side record of a new flow.
    #[must_use]
    pub fn new(window: Window, now: Instant) -> Self {
        Self {
            window,
            heard_at: now,
            progress_at: now,
            rtt_at: 0,
            busy_ns: 0,
            rtt_seq: SeqNumber(0),
            ts_offset: 0,
            srtt_us: 0,
            rttvar_us: 0,
            rtt_us_min: u32::MAX,
            rtt_us_min_next: u32::MAX,
            rtt_epoch: rtt_epoch(now),
            rtt_una: 0,
            flight_max: 0,
            delivery_rate: 0,
            // RFC 6298 (2.1): one second before the first measurement.
            rto: Duration::from_secs(1),
            pace_rate: 0,
            pace_at: Instant::ZERO,
            pace_most: 0,
            duplicate: Interval::default(),
            window_at: Instant::ZERO,
            window_end: SeqNumber(0),
            rcv_rtt_us: 0,
            quick: QUICK_SEGMENTS,
            rounds: 0,
            ahead: Ahead::NONE,
            sent_at: 0,
            runs: 0,
            loss_record: 0,
            peer: 0,
            recovery: Recovery::new(window),
            law: RateLaw::None,
            fin_at: SeqNumber(0),
            epoch_tail: 0,
            receive_most: u32::MAX,
            epoch_at: now,
            rx_old: 0,
            ts_recent_at: now,
            challenged: Challenged::NEVER,
            backoff: 0,
            rcv_mss: RCV_MSS_MIN,
            soft_error: 0,
            opened_at: now,
            held_from: 0,
            burst_end: SeqNumber(0),
            closed_first: false,
            is_fin_alone: false,
            rare_events: 0,
            send_buffer: 0,
            delays: Delays::default(),
            path_probe: PathProbe::default(),
            timeouts: Timeouts::default(),
            accurate: AccurateEcn::default(),
            program: None,
            counters: Counters::default(),
        }
    }

    /// Takes in a sample of the round-trip time, microseconds (RFC 6298 section 2).
    #[inline]
    pub fn sample_rtt(&mut self, rtt_us: u32, config: &Config) {
        let rtt = rtt_us.max(1);
        if self.srtt_us == 0 {
            (self.srtt_us, self.rttvar_us) = (rtt, rtt / 2);
        } else {
            // "RTTVAR <- (1 - beta) * RTTVAR + beta * |SRTT - R'|", then "SRTT <- (1 - alpha) * SRTT + alpha * R'",
            // "alpha=1/8 and beta=1/4".
            let error = self.srtt_us.abs_diff(rtt);
            self.rttvar_us = self.rttvar_us - self.rttvar_us / 4 + error / 4;
            self.srtt_us = self.srtt_us - self.srtt_us / 8 + rtt / 8;
        }
        // (2.3) "RTO <- SRTT + max (G, K*RTTVAR)". As in Linux, `rto_min` is a lower bound of the variation term, not of the sum:
        // on a long and steady path an RTO barely longer than the round trip would fire too early.
        let patience = (4_000 * u64::from(self.rttvar_us)).max(config.rto_min.as_ns());
        self.rto =
            Duration::from_ns((1_000 * u64::from(self.srtt_us)).saturating_add(patience)).min(config.rto_max);
    }

    /// Takes in a sample for the least round-trip time of the last two to four and a half minutes, microseconds.
    #[inline]
    pub fn sample_least_rtt(&mut self, rtt_us: u32, now: Instant) {
        let epoch = rtt_epoch(now);
        if epoch != self.rtt_epoch {
            self.begin_rtt_epoch(epoch);
        }
        // Keep `rtt_us_min` no larger than `rtt_us_min_next`.
        if rtt_us < self.rtt_us_min_next {
            self.rtt_us_min_next = rtt_us.max(1);
            self.rtt_us_min = self.rtt_us_min.min(self.rtt_us_min_next);
        }
    }

    #[cold]
    fn begin_rtt_epoch(&mut self, epoch: u8) {
        let is_next = epoch.wrapping_sub(self.rtt_epoch) == 1;
        self.rtt_us_min = if is_next { self.rtt_us_min_next } else { u32::MAX };
        (self.rtt_us_min_next, self.rtt_epoch) = (u32::MAX, epoch);
    }

    /// Takes in a round-trip time measured as a receiver, microseconds. As in Linux, delays only lengthen such a sample, so a shorter one
    /// counts at once, and a longer one by an eighth, and only if it `may_grow`.
    pub fn sample_receiver(&mut self, rtt_us: u32, may_grow: bool) {
        let (old, rtt) = (self.rcv_rtt_us, rtt_us.max(1));
        if old == 0 || rtt < old {
            self.rcv_rtt_us = rtt;
        } else if may_grow {
            self.rcv_rtt_us = old - old / 8 + rtt / 8;
        }
    }

    /// Called when data beyond `window_end` begins to arrive; the right edge is at `edge` now. The peer could send it only after it was
    /// told a further edge, so at least a round trip has passed since `window_at`: a sample without timestamps, or with too coarse ones.
    #[inline(never)]
    pub fn sample_window(&mut self, now: Instant, edge: SeqNumber) {
        if self.window_at != Instant::ZERO {
            let us = now.since(self.window_at).as_us();
            self.sample_receiver(us.min(u64::from(u32::MAX)) as u32, false);
        }
        (self.window_at, self.window_end) = (now, edge);
    }

    /// True when a tail loss probe is to be sent before the timeout (RFC 8985 section 7.2). `flags` are the receive line's.
    #[must_use]
    pub const fn is_probe_due(&self, flags: u32) -> bool {
        let is_calm = matches!(self.recovery.episode, crate::Episode::None)
            && self.runs == 0
            && !self.recovery.is_probe_unmeasured;
        let is_able = flags & (crate::state::PROBED | crate::state::SACK) == crate::state::SACK;
        is_calm && is_able && self.backoff == 0 && self.srtt_us != 0
    }

    /// From when the retransmission timeout counts. "When an ACK is received that acknowledges new data, restart the retransmission
    /// timer" (RFC 6298 section 5.3), and, as Linux, a retransmission restarts it (5.1). A flow that [repairs one segment in a round
    /// trip](Self::is_impatient) restarts it no more. `flags` are the receive line's.
    #[must_use]
    pub fn timeout_from(&self, flags: u32) -> Instant {
        let again = self.recovery.restart_at;
        if self.is_impatient(flags) { again } else { again.max(self.progress_at) }
    }

    /// Fast recovery without SACK repairs one segment in a round trip, and after a loss of hundreds would go on for as many round trips.
    /// Therefore the timer is restarted for the first partial acknowledgement only: "when a large number of packets were dropped from a
    /// window of data, the TCP data sender's retransmit timer will ultimately expire" (RFC 6582 section 4).
    #[must_use]
    pub const fn is_impatient(&self, flags: u32) -> bool {
        matches!(self.recovery.episode, crate::Episode::Fast) && flags & crate::state::SACK == 0
    }

    /// Bounds the receive window by `bytes` from now on (`SO_RCVBUF`; 0: no bound but the configuration's). Bytes promised to the
    /// peer stay promised. The bound is at least two full segments, and two units of the window scale `shift`.
    pub fn limit_receive(&mut self, bytes: u32, shift: u8) {
        let least = RECEIVE_MIN.max(2u32 << shift.min(14));
        self.receive_most = if bytes == 0 { u32::MAX } else { bytes.max(least) };
    }

    /// Sets the pacing rate to the congestion window's `rate`, bytes per second, as far as the application's limit allows.
    pub fn set_pace(&mut self, rate: u64) {
        self.pace_rate = match (rate, self.pace_most) {
            (0, most) => most,
            (rate, 0) => rate,
            (rate, most) => rate.min(most),
        };
    }

    /// As [`set_pace`](Self::set_pace), for an algorithm that decides the rate: what the pacer's bucket owes is owed at the new rate, and a
    /// bucket that begins is empty, because the initial window has gone at once.
    #[cold]
    pub fn change_pace(&mut self, rate: u64, now: Instant) {
        let before = self.pace_rate;
        self.set_pace(rate);
        let owed = self.pace_at.as_ns().saturating_sub(now.as_ns());
        if before == 0 {
            self.pace_at = self.pace_at.max(now);
        } else if owed > 0 && self.pace_rate > 0 {
            let scaled = u128::from(owed) * u128::from(before) / u128::from(self.pace_rate);
            self.pace_at = now.plus(Duration::from_ns(scaled.min(u128::from(u64::MAX >> 1)) as u64));
        }
    }

    /// Sets the application's limit (`SO_MAX_PACING_RATE`), bytes per second; 0: no limit.
    pub fn limit_pace(&mut self, most: u64) {
        self.pace_most = most;
        let rate = match &self.program {
            Some(program) => program.rate(),
            None if self.window.decides_rate() => self.law.pace_rate(),
            None => self.window.pace_rate(self.srtt_us),
        };
        self.set_pace(rate);
    }

    /// Our timestamp at `now`: milliseconds (RFC 7323 section 5.4) with the flow's own origin.
    #[must_use]
    #[inline]
    pub const fn timestamp(&self, now: Instant) -> u32 {
        (now.as_ms() as u32).wrapping_add(self.ts_offset)
    }
}

const fn rtt_epoch(now: Instant) -> u8 {
    (now.as_ns() >> RTT_EPOCH_LOG2) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_packets_in_order_touch_lies_in_three_lines() {
        let counters = core::mem::offset_of!(Cold, counters);
        assert!(counters + 16 <= 192 && counters > core::mem::offset_of!(Cold, rx_old));
        assert!(
            core::mem::offset_of!(Recovery, runs) >= 56,
            "what a look at a waiting flow asks lies in one"
        );
    }

    #[test]
    fn a_path_probe_is_lost_when_any_byte_of_it_is_sent_again() {
        let sent = PathProbe { end: SeqNumber(500), len: 1400, is_lost: false };
        let after = |seq: u32, len| {
            let mut probe = sent;
            probe.sent_again(SeqNumber(seq), len);
            probe.is_lost
        };
        let start = 500u32.wrapping_sub(1400);
        assert!(after(start, 1000) && after(499, 1) && after(start.wrapping_sub(1), 2));
        assert!(!after(500, 1000) && !after(start.wrapping_sub(1000), 1000));
    }

    #[test]
    fn the_least_round_trip_time_is_that_of_the_last_minutes() {
        let window = Window::new(congestion::Algorithm::Reno, 1448, Instant::ZERO);
        let mut cold = Cold::new(window, Instant::ZERO);
        let mut least = |s, us| {
            cold.sample_least_rtt(us, Instant::ZERO.plus(Duration::from_secs(s)));
            cold.rtt_us_min
        };
        assert_eq!((least(1, 30), least(130, 20), least(136, 50)), (30, 20, 20));
        assert_eq!((least(140, 60), least(270, 40)), (20, 20), "for two minutes at least");
        assert_eq!(least(280, 70), 40, "for five at most");
        assert_eq!(least(3600, 90), 90, "after a pause nothing is known");
    }

    #[test]
    fn a_receivers_round_trip_time_is_the_least_and_grows_by_eighths() {
        let window = Window::new(congestion::Algorithm::Reno, 1448, Instant::ZERO);
        let mut cold = Cold::new(window, Instant::ZERO);
        let mut sample = |us, may_grow| {
            cold.sample_receiver(us, may_grow);
            cold.rcv_rtt_us
        };
        assert_eq!(
            (sample(8_000, false), sample(4_000, false), sample(12_000, false)),
            (8_000, 4_000, 4_000)
        );
        assert_eq!((sample(12_000, true), sample(0, true)), (5_000, 1));
    }

    #[test]
    fn a_windows_worth_is_a_round_trip_from_the_second_edge_on() {
        let window = Window::new(congestion::Algorithm::Reno, 1448, Instant::ZERO);
        let mut cold = Cold::new(window, Instant::ZERO);
        let mut rtt = |ms, edge| {
            cold.sample_window(Instant::ZERO.plus(Duration::from_ms(ms)), SeqNumber(edge));
            (cold.rcv_rtt_us, cold.window_end.0)
        };
        assert_eq!((rtt(50, 100), rtt(90, 200)), ((0, 100), (40_000, 200)));
        assert_eq!((rtt(110, 300), rtt(500, 400)), ((20_000, 300), (20_000, 400)));
    }

    #[test]
    fn round_trip_times_smooth_as_rfc_6298_says() {
        let window = Window::new(congestion::Algorithm::Reno, 1448, Instant::ZERO);
        let (mut cold, config) = (Cold::new(window, Instant::ZERO), Config::default());
        assert_eq!(cold.rto, Duration::from_secs(1));
        cold.sample_rtt(300_000, &config);
        assert_eq!((cold.srtt_us, cold.rttvar_us, cold.rto), (300_000, 150_000, Duration::from_ms(900)));
        cold.sample_rtt(100_000, &config);
        assert_eq!((cold.srtt_us, cold.rttvar_us), (275_000, 162_500));
        (0..100).for_each(|_| cold.sample_rtt(50, &config));
        assert_eq!(cold.rto, config.rto_min.plus(Duration::from_us(u64::from(cold.srtt_us))));
    }
}
