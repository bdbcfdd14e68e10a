//! The congestion window: the part common to all algorithms, and the choice of the algorithm where they differ.

use crate::cubic::{BETA_TENTHS, Epoch};
use crate::dctcp::Marks;
use crate::hystart::{Growth, HyStart};
use crate::{Algorithm, Decision, Event, Signals};
use base::{Duration, Instant};

/// The largest window: TCP cannot express more (RFC 7323 section 2.3).
pub const CWND_MAX: u32 = 1 << 30;
/// The initial window in segments (RFC 6928).
pub const INITIAL_SEGMENTS: u32 = 10;
/// "The initial value of ssthresh SHOULD be set arbitrarily high" (RFC 5681 section 3.1).
const SSTHRESH_NONE: u32 = u32::MAX;
/// Percentage of the window kept after an echo of congestion in congestion avoidance: "beta_ecn ... 0.8" for Reno, "0.85" for Cubic
/// (RFC 8511 section 3.1 and its appendix), because a network that marks keeps its queues short.
const ECHO_RENO_PERCENT: u64 = 80;
const ECHO_CUBIC_PERCENT: u64 = 85;
/// Microseconds: paths with shorter round trips are not paced. A turn of the core and a wake-up take a tenth of this, and the queues of
/// such paths can hold a window's burst.
const PACE_RTT_US_MIN: u32 = 2_000;
/// Bytes: smaller windows are not paced. RFC 6928 lets the initial window go at once; these are at most twice as large.
const PACE_CWND_MIN: u32 = 32 << 10;

/// The congestion window of one flow: takes events, answers with decisions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    cwnd: u32,
    ssthresh: u32,
    /// Acknowledged bytes that have not made the window grow yet.
    carry: u32,
    /// After a reduction for an echo of congestion: bytes in flight then that are not acknowledged yet; 0: none.
    echo_left: u32,
    /// When data was last acknowledged, in milliseconds modulo 2^32.
    active_ms: u32,
    mss: u16,
    rtt_ms: u16,
    law: Law,
}

const _: () = assert!(size_of::<Window>() <= 48);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Law {
    Reno,
    CubicSlowStart(HyStart),
    /// Slow start after a timeout, with the epoch before it.
    CubicAgain(Epoch),
    Cubic(Epoch),
    Constant,
    // The laws from here on want every acknowledgement; one comparison asks for all.
    Dctcp(Marks),
    /// The state of this algorithm is a [`RateLaw`](crate::RateLaw) beside the window.
    Beside(Algorithm),
    /// A program decides; without it this algorithm would.
    Program(Algorithm),
}

impl Window {
    /// A new flow's window. `mss` is the payload of a full segment; 0 counts as 1.
    #[must_use]
    pub fn new(algorithm: Algorithm, mss: u16, now: Instant) -> Self {
        let mss = mss.max(1);
        let (law, cwnd) = match algorithm {
            Algorithm::Reno => (Law::Reno, initial(mss)),
            Algorithm::Cubic => (Law::CubicSlowStart(HyStart::NEW), initial(mss)),
            Algorithm::Dctcp => (Law::Dctcp(Marks::NEW), initial(mss)),
            Algorithm::Constant(bytes) => (Law::Constant, bytes.clamp(u32::from(mss), CWND_MAX)),
            Algorithm::RateDctcp | Algorithm::Timely | Algorithm::Bbr | Algorithm::Rate(_) => {
                (Law::Beside(algorithm), initial(mss))
            }
        };
        let active_ms = now.as_ms() as u32;
        Self { cwnd, ssthresh: SSTHRESH_NONE, carry: 0, echo_left: 0, active_ms, mss, rtt_ms: 0, law }
    }

    /// Congestion window: most bytes in flight.
    #[must_use]
    #[inline]
    pub fn cwnd(&self) -> u32 {
        self.cwnd
    }

    /// Bytes of window at which slow start ends; `u32::MAX` before the first congestion.
    #[must_use]
    #[inline]
    pub fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    /// True while the window is below the threshold.
    #[must_use]
    #[inline]
    pub fn is_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// True when the flow's rate is the decision, and the window only bounds what is in flight: the caller asks
    /// the [`RateLaw`](crate::RateLaw) beside it about every acknowledgement, also in fast recovery, enforces the rate strictly, and tells
    /// the window by [`follow`](Self::follow).
    #[must_use]
    #[inline]
    pub fn decides_rate(&self) -> bool {
        matches!(self.law, Law::Beside(_))
    }

    /// True when every acknowledgement's round-trip time is wanted, because slow start ends when the delay rises: "SHOULD use HyStart++
    /// only for the initial slow start (when the ssthresh is at its initial value of arbitrarily high)" (RFC 9406 section 4.3).
    #[must_use]
    #[inline]
    pub fn watches_delay(&self) -> bool {
        self.ssthresh == SSTHRESH_NONE && matches!(self.law, Law::CubicSlowStart(_))
    }

    /// The algorithm of this window.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self.law {
            Law::Reno => Algorithm::Reno,
            Law::CubicSlowStart(_) | Law::CubicAgain(_) | Law::Cubic(_) => Algorithm::Cubic,
            Law::Dctcp(_) => Algorithm::Dctcp,
            Law::Constant => Algorithm::Constant(self.cwnd),
            Law::Beside(algorithm) | Law::Program(algorithm) => algorithm,
        }
    }

    /// True while a program decides about window and rate.
    #[must_use]
    #[inline(always)]
    pub fn is_programmed(&self) -> bool {
        matches!(self.law, Law::Program(_))
    }

    /// A program decides from now on: no event changes the window, except that it is never below one segment.
    pub fn give_to_program(&mut self) {
        self.law = Law::Program(self.algorithm());
    }

    /// The decision of the flow's program: a window of `bytes`, which become at least a segment and at most [`CWND_MAX`].
    #[inline]
    pub fn set_programmed(&mut self, bytes: u64) {
        debug_assert!(self.is_programmed(), "only a program sets a window");
        self.cwnd = bytes.clamp(u64::from(self.mss), u64::from(CWND_MAX)) as u32;
    }

    /// The program decides no more: the algorithm goes on in congestion avoidance. Nothing is known of the window that the program has left,
    /// so the new one is no larger than the `in_flight` bytes, which the path carries now, or than a new connection's: "we define the restart
    /// window (RW) to be equal to min(IW,cwnd)" (RFC 5681 section 4.1). It is never larger than the program's. `is_unheard`: timeouts have
    /// expired since the last acknowledgement, and one segment is all that may be assumed (the loss window of section 3.1).
    pub fn take_from_program(&mut self, now: Instant, in_flight: u32, is_unheard: bool) {
        let Law::Program(default) = self.law else { return };
        let fresh = Self::new(default, self.mss, now);
        let restart = if is_unheard { 0 } else { initial(self.mss) };
        let cwnd = self.cwnd.min(in_flight.max(restart)).max(u32::from(self.mss));
        *self = if fresh.law == Law::Constant { fresh } else { Self { cwnd, ssthresh: cwnd, ..fresh } };
    }

    /// True when what decides lies outside this window: a law beside it, or a program. It is asked about every acknowledgement, also in
    /// fast recovery.
    #[must_use]
    #[inline(always)]
    pub fn is_decided_outside(&self) -> bool {
        matches!(self.law, Law::Beside(_) | Law::Program(_))
    }

    /// True when no event but that of a new segment size changes the window.
    fn is_fixed(&self) -> bool {
        matches!(self.law, Law::Constant | Law::Beside(_) | Law::Program(_))
    }

    /// The window after a handshake in which more than one SYN or SYN-ACK was lost: one segment. One loss is no reason: "it is
    /// RECOMMENDED that implementations refrain from resetting the initial window to 1 segment, unless there have been more than one SYN
    /// or SYN/ACK retransmissions" (RFC 6928 section 2, which replaces RFC 5681 section 3.1 here).
    #[must_use]
    pub fn after_lost_handshake(self) -> Self {
        let is_constant = self.law == Law::Constant;
        Self { cwnd: if is_constant { self.cwnd } else { u32::from(self.mss) }, ..self }
    }

    /// Switches to another algorithm; window and threshold stay. While a program decides, it goes on, and the algorithm is the one that
    /// follows it.
    pub fn switch(&mut self, algorithm: Algorithm, now: Instant) {
        if self.is_programmed() {
            self.law = Law::Program(algorithm);
            return;
        }
        let fresh = Self::new(algorithm, self.mss, now);
        (self.law, self.carry) = (fresh.law, 0);
        if let Law::Constant = self.law {
            self.cwnd = fresh.cwnd;
        }
    }

    /// Tells of `event` and the state of the flow at that time, `s`. The decision holds until the next event.
    #[inline]
    pub fn on(&mut self, event: Event<'_>, s: &Signals) -> Decision {
        if let Event::Ack = event {
            return self.on_ack(s);
        }
        self.on_rare(event, s)
    }

    /// Follows the `decision` of the law beside the window about `event`, when [`decides_rate`](Self::decides_rate).
    pub fn follow(&mut self, event: Event<'_>, s: &Signals, decision: &Decision) {
        match event {
            Event::Ack | Event::Partial => self.note_ack(s.now, s.rtt_us),
            Event::Idle { .. } => self.active_ms = s.now.as_ms() as u32,
            Event::Mtu { mss } => self.mss = mss.max(1),
            _ => {}
        }
        self.cwnd = decision.cwnd;
    }

    /// The events that do not come with most packets.
    #[cold]
    fn on_rare(&mut self, event: Event<'_>, s: &Signals) -> Decision {
        match event {
            Event::Ack => return self.on_ack(s),
            Event::Mtu { mss } => self.set_mss(mss),
            _ if self.is_fixed() => {}
            Event::Duplicate { segments } => self.on_duplicate_ack(segments),
            Event::Partial => self.on_partial_ack(s.acked_bytes),
            Event::Recovered { is_inflated: true } => self.on_recovered(s.in_flight),
            Event::Recovered { is_inflated: false } => {}
            Event::Lost => self.on_fast_retransmit(s.now, s.in_flight),
            Event::Timeout { is_reduced } => self.on_timeout(s.now, s.in_flight, is_reduced),
            Event::Idle { rto } => self.restart(s.now, rto),
            Event::Undo { before } => self.undo(before),
        }
        Decision { cwnd: self.cwnd, pace_rate: self.pace_rate(s.srtt_us), is_echo_answered: false }
    }

    /// Sets the segment size to `mss` bytes. The window stays, but is at least one segment.
    fn set_mss(&mut self, mss: u16) {
        self.mss = mss.max(1);
        self.cwnd = self.cwnd.max(u32::from(self.mss));
    }

    /// True when the algorithm counts every acknowledgement, also those that cannot change the window.
    #[inline]
    fn wants_every_ack(&self) -> bool {
        matches!(self.law, Law::Dctcp(_) | Law::Beside(_) | Law::Program(_))
    }

    /// As `Event::Ack` without marks, in fewer instructions, for an application that uses at most half of the window, so that the window
    /// cannot grow: returns the pace rate. `None`, and nothing done, when the window is used more, or the algorithm wants every
    /// acknowledgement: call [`on`](Self::on). A single request and its reply come here.
    #[inline]
    pub fn on_ack_unused(
        &mut self,
        now: Instant,
        flight_max: u32,
        rtt_us: Option<u32>,
        srtt_us: u32,
    ) -> Option<u64> {
        let is_unused = !self.wants_every_ack()
            && u64::from(self.cwnd) >= 2 * u64::from(flight_max).max(u64::from(self.mss));
        if !is_unused || self.echo_left > 0 {
            return None;
        }
        self.stand_still(now);
        self.note_ack(now, rtt_us);
        Some(self.pace_rate(srtt_us))
    }

    /// The window is not used, so Cubic's curve stands still since the last acknowledgement: "it is required that t in Figure 1 not include
    /// application-limited periods" (RFC 9438 section 5.8); else the window would jump when it is used again. Before [`note_ack`](Self::note_ack).
    #[inline]
    fn stand_still(&mut self, now: Instant) {
        let since_ms = self.idle_ms(now);
        if let Law::Cubic(epoch) = &mut self.law {
            epoch.shift(since_ms);
        }
    }

    #[inline]
    fn note_ack(&mut self, now: Instant, rtt_us: Option<u32>) {
        self.active_ms = now.as_ms() as u32;
        if let Some(rtt_us) = rtt_us {
            self.rtt_ms = (rtt_us / 1_000).min(u32::from(u16::MAX)) as u16;
        }
    }

    /// `Event::Ack`: counts marks, and reduces the window for an echo of congestion, or lets it grow.
    fn on_ack(&mut self, s: &Signals) -> Decision {
        let is_used = self.is_used(s);
        if !is_used {
            self.stand_still(s.now);
        }
        self.note_ack(s.now, s.rtt_us);
        if let Law::Dctcp(marks) = &mut self.law {
            marks.on_ack(s.acked_bytes, s.marked_bytes, s.in_flight);
        }
        let was_reduced = self.echo_left > 0;
        self.echo_left = self.echo_left.saturating_sub(s.acked_bytes);
        // "TCP should not react to congestion indications more than once every window of data" (RFC 3168 section 6.1.2).
        let is_echo_answered = s.marked_bytes > 0 && !was_reduced && !self.is_fixed();
        if is_echo_answered {
            self.on_echo(s.now, s.in_flight, s.acked_bytes);
        } else if !was_reduced && is_used {
            self.grow(s);
        }
        Decision { cwnd: self.cwnd, pace_rate: self.pace_rate(s.srtt_us), is_echo_answered }
    }

    /// True when the window is used: if not, "cwnd MUST NOT be increased" (RFC 9438 section 5.8 in short; RFC 7661). In slow start, as in
    /// Linux, the window may grow to twice the most bytes in flight in a round trip; after it, only if at most a segment of the window
    /// was unused.
    fn is_used(&self, s: &Signals) -> bool {
        let most = u64::from(s.flight_max);
        let used = if self.is_slow_start() { 2 * most } else { most + u64::from(self.mss) };
        !s.is_app_limited || u64::from(self.cwnd) < used
    }

    /// Pace rate in bytes per second, for a round trip of `srtt_us` microseconds: two windows per round trip in slow start, so that the
    /// window can double, 1.2 after it, so that the rate is never the limit. 0 (no pacing) where pacing would not help.
    #[must_use]
    #[inline]
    pub fn pace_rate(&self, srtt_us: u32) -> u64 {
        if srtt_us < PACE_RTT_US_MIN || self.cwnd < PACE_CWND_MIN || self.law == Law::Constant {
            return 0;
        }
        let per_rtt = u64::from(self.cwnd) * if self.is_slow_start() { 2_000_000 } else { 1_200_000 };
        per_rtt / u64::from(srtt_us)
    }

    /// Reduces the window after three duplicate acknowledgements, or a loss found by SACK.
    fn on_fast_retransmit(&mut self, now: Instant, in_flight: u32) {
        self.reduce(now, in_flight, None);
        self.cwnd = self.ssthresh;
    }

    /// Duplicate acknowledgements in recovery: so many segments have left the network (RFC 5681 section 3.2 steps 3, 4).
    fn on_duplicate_ack(&mut self, segments: u32) {
        self.cwnd = self.cwnd.saturating_add(segments.saturating_mul(u32::from(self.mss))).min(CWND_MAX);
    }

    /// An acknowledgement in recovery that does not end it: "deflate the congestion window by the amount of new data
    /// acknowledged ... if the partial ACK acknowledges at least one SMSS, add back SMSS" (RFC 6582 section 3.2).
    fn on_partial_ack(&mut self, acked_bytes: u32) {
        let mss = u32::from(self.mss);
        let back = if acked_bytes >= mss { mss } else { 0 };
        self.cwnd = self.cwnd.saturating_sub(acked_bytes).saturating_add(back).clamp(mss, CWND_MAX);
    }

    /// All data sent before the recovery is acknowledged (RFC 6582 section 3.2 step 3, option 1: no burst).
    fn on_recovered(&mut self, in_flight: u32) {
        let mss = u32::from(self.mss);
        self.cwnd = self.ssthresh.min(in_flight.max(mss).saturating_add(mss)).clamp(mss, CWND_MAX);
    }

    /// The retransmission timer expired. "cwnd MUST be set to no more than the loss window, LW, which equals 1 full-sized
    /// segment" (RFC 5681 section 3.1).
    ///
    /// `is_reduced`: a fast recovery that this timeout interrupts has lowered the threshold already for losses of the same
    /// window.
    fn on_timeout(&mut self, now: Instant, in_flight: u32, is_reduced: bool) {
        let mss = u32::from(self.mss);
        // "When ... the given segment has already been retransmitted by way of the retransmission timer at least once,
        // the value of ssthresh is held constant": an acknowledgement in between would have grown the window.
        if self.cwnd > mss && !is_reduced {
            self.reduce(now, in_flight, None);
        }
        (self.cwnd, self.carry, self.echo_left) = (mss, 0, 0);
        if let Law::Cubic(epoch) = self.law {
            self.law = Law::CubicAgain(epoch);
        }
    }

    /// Undoes the reduction since `before`, because nothing was lost. "cwnd <- max (cwnd, pipe_prev); ssthresh <- pipe_prev" in
    /// the spirit of RFC 4015 section 3.3 step 4, with all state from before. DCTCP keeps its estimate. If the application has switched
    /// to another algorithm since, that one stays, with its own state.
    fn undo(&mut self, before: &Self) {
        if before.is_fixed() {
            return;
        }
        self.cwnd = self.cwnd.max(before.cwnd).min(CWND_MAX);
        self.ssthresh = self.ssthresh.max(before.ssthresh);
        if self.algorithm() == before.algorithm() {
            self.carry = before.carry;
            if !matches!(self.law, Law::Dctcp(_)) {
                self.law = before.law;
            }
        }
    }

    /// True when nothing was acknowledged for longer than `rto`, so that `Event::Idle` is to be told before the flow sends again.
    #[must_use]
    #[inline(always)]
    pub fn is_restart_due(&self, now: Instant, rto: Duration) -> bool {
        let idle_ms = self.idle_ms(now);
        // If `now` went backwards, that is no pause of 49 days.
        idle_ms <= u32::MAX / 2 && u64::from(idle_ms) > rto.as_ms() && !self.is_fixed()
    }

    #[inline(always)]
    fn idle_ms(&self, now: Instant) -> u32 {
        (now.as_ms() as u32).wrapping_sub(self.active_ms)
    }

    /// Before sending after a pause: the window halves for every `rto` of the pause, down to the initial one, and the threshold keeps
    /// 3/4 of it (RFC 2861; RFC 5681 section 4.1 bounds the restart).
    fn restart(&mut self, now: Instant, rto: Duration) {
        if !self.is_restart_due(now, rto) {
            return;
        }
        let idle_ms = self.idle_ms(now);
        self.active_ms = now.as_ms() as u32;
        if let Law::Cubic(epoch) = &mut self.law {
            epoch.shift(idle_ms);
        }
        let floor = initial(self.mss).min(self.cwnd);
        let halvings = (u64::from(idle_ms) / rto.as_ms().max(1)).min(31) as u32;
        if self.ssthresh != SSTHRESH_NONE {
            self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
        }
        self.cwnd = (self.cwnd >> halvings).max(floor);
        self.carry = 0;
    }

    fn grow(&mut self, s: &Signals) {
        let acked = if self.is_slow_start() { self.slow_start(s) } else { s.acked_bytes };
        if acked > 0 && !self.is_slow_start() {
            self.avoid(s.now, acked);
        }
        self.cwnd = self.cwnd.min(CWND_MAX);
    }

    /// Grows by the bytes acknowledged, however many segments one acknowledgement covers: both ends acknowledge once per
    /// batch, and a limit (RFC 3465) would slow them down. Returns the bytes acknowledged beyond the threshold.
    fn slow_start(&mut self, s: &Signals) -> u32 {
        let growth = match &mut self.law {
            Law::Constant | Law::Beside(_) | Law::Program(_) => return 0,
            Law::CubicSlowStart(hystart) if self.ssthresh == SSTHRESH_NONE => {
                let window = (!s.is_app_limited).then_some(self.cwnd);
                hystart.on_ack(s.acked_bytes, s.rtt_us, s.in_flight, window)
            }
            Law::Reno | Law::CubicSlowStart(_) | Law::CubicAgain(_) | Law::Cubic(_) | Law::Dctcp(_) => {
                Growth::By(s.acked_bytes)
            }
        };
        match growth {
            Growth::Leave => {
                self.ssthresh = self.cwnd;
                self.law = Law::Cubic(Epoch::after_slow_start(s.now.as_ms() as u32, self.cwnd, self.cwnd));
                0
            }
            Growth::By(bytes) => {
                let room = self.ssthresh.min(CWND_MAX).saturating_sub(self.cwnd);
                self.cwnd += bytes.min(room);
                bytes - bytes.min(room)
            }
        }
    }

    fn avoid(&mut self, now: Instant, acked: u32) {
        let (now_ms, mss) = (now.as_ms() as u32, u32::from(self.mss));
        match &mut self.law {
            Law::Constant | Law::Beside(_) | Law::Program(_) => {}
            // "cwnd += SMSS for each cwnd bytes acknowledged" (RFC 5681 section 3.1, counted in bytes).
            Law::Reno | Law::Dctcp(_) => {
                self.carry = self.carry.saturating_add(acked);
                if self.carry >= self.cwnd {
                    self.carry = (self.carry - self.cwnd).min(self.cwnd);
                    self.cwnd = self.cwnd.saturating_add(mss);
                }
            }
            Law::CubicSlowStart(_) => {
                self.carry = 0;
                self.law = Law::Cubic(Epoch::after_slow_start(now_ms, self.cwnd, self.cwnd));
            }
            Law::CubicAgain(before) => {
                self.carry = 0;
                self.law = Law::Cubic(Epoch::after_slow_start(now_ms, self.cwnd, before.cwnd_prior()));
            }
            Law::Cubic(epoch) => {
                let rtt_ms = u32::from(self.rtt_ms);
                self.cwnd = epoch.grow(now_ms, rtt_ms, mss, self.cwnd, acked, &mut self.carry);
            }
        }
    }

    /// A mark came in a round trip without marks before it; `outstanding` bytes may carry marks of the same congestion.
    fn on_echo(&mut self, now: Instant, outstanding: u32, acked: u32) {
        if let Law::Dctcp(marks) = self.law {
            // "cwnd = cwnd * (1 - DCTCP.Alpha / 2)" (RFC 8257 section 3.3).
            self.cwnd = marks.reduced(self.cwnd).max(2 * u32::from(self.mss));
            self.ssthresh = self.cwnd;
            self.carry = 0;
        } else {
            // RFC 8511 changes congestion avoidance only: a mark in slow start means that the window is about twice too large.
            let percent = match self.law {
                _ if self.is_slow_start() => None,
                Law::Cubic(_) => Some(ECHO_CUBIC_PERCENT),
                _ => Some(ECHO_RENO_PERCENT),
            };
            self.reduce(now, outstanding.saturating_add(acked), percent);
            self.cwnd = self.ssthresh;
        }
        self.echo_left = outstanding;
    }

    /// Sets the threshold: "ssthresh = max (FlightSize / 2, 2*SMSS)" (RFC 5681 equation 4), or Cubic's share; or `percent`. Cubic
    /// takes its share of the window, as Linux, not of the bytes in flight: "implementations that use cwnd MUST use other measures to
    /// prevent cwnd from growing when the volume of bytes in flight is smaller than cwnd" (RFC 9438 section 4.6 in short): `is_used`.
    fn reduce(&mut self, now: Instant, in_flight: u32, percent: Option<u64>) {
        let least = 2 * u32::from(self.mss);
        // More bytes in flight than the window (sent before a reduction) do not raise the threshold.
        let flight = match &self.law {
            Law::Cubic(_) | Law::CubicAgain(_) | Law::CubicSlowStart(_) => self.cwnd.max(least),
            _ => in_flight.min(self.cwnd.max(least)),
        };
        self.carry = 0;
        let keep = |percent: u64| (u64::from(flight) * percent / 100).max(u64::from(least)) as u32;
        let last_max = match &self.law {
            Law::Cubic(epoch) | Law::CubicAgain(epoch) => Some(epoch.w_max()),
            Law::CubicSlowStart(_) => None,
            Law::Reno | Law::Dctcp(_) | Law::Constant | Law::Beside(_) | Law::Program(_) => {
                self.ssthresh = keep(percent.unwrap_or(50));
                return;
            }
        };
        self.ssthresh = keep(percent.unwrap_or(10 * u64::from(BETA_TENTHS)));
        let (mss, prior) = (u32::from(self.mss), flight.max(least));
        self.law = Law::Cubic(Epoch::reduced(now.as_ms() as u32, mss, prior, self.ssthresh, last_max));
    }
}

fn initial(mss: u16) -> u32 {
    INITIAL_SEGMENTS * u32::from(mss)
}

#[cfg(test)]
mod tests;
