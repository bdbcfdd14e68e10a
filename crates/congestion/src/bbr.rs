//! BBR version 1 (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016; draft-cardwell-iccrg-bbr-congestion-
//! control-00): a rate and a window from a model of the path, its bandwidth and its least round-trip time.
//!
//! ```text
//! Startup --bandwidth rises by < 25 % in 3 rounds--> Drain --in flight <= BDP--> ProbeBandwidth: 8 phases of one round trip each
//!    ^                                                                             |        ^
//!    |      no lower round-trip time for 10 s: ProbeRoundTrip, 4 segments for 200 ms        |
//!    +------- the pipe was not full before -------------+---------- it was ----------------+
//! ```
//! It wants every acknowledgement, also in fast recovery, and its rate must be enforced.

mod model;

use crate::rate::{Rate, Stamp};
use crate::{CWND_MAX, Decision, Event, INITIAL_SEGMENTS, Signals};
use base::Instant;
use model::Model;

/// Gains are fractions of this.
const ONE: u32 = 1 << 10;
/// 2 / ln 2 = 2.885: the smallest gain with which the rate can double in each round (draft, section 4.3.2).
const GAIN_STARTUP: u32 = 2_955;
/// ln 2 / 2: the inverse of [`GAIN_STARTUP`] drains in one round the queue that startup has made.
const GAIN_DRAIN: u32 = 355;
/// Pacing gains of the phases of `ProbeBandwidth`: 5/4, 3/4, then 1 six times (section 4.3.4.2).
const GAINS_CYCLE: [u32; 8] = [ONE / 4 * 5, ONE / 4 * 3, ONE, ONE, ONE, ONE, ONE, ONE];
/// The window's gain in `ProbeBandwidth`: 2, for delayed and stretched acknowledgements.
const GAIN_WINDOW: u32 = 2 * ONE;
/// The least window, in segments: BBRMinPipeCwnd (section 4.2.3.3).
const SEGMENTS_MIN: u32 = 4;
/// How long at most `SEGMENTS_MIN` are in flight, to measure the least round trip (section 4.3.5): 200 ms.
const PROBE_ROUND_TRIP_US: u32 = 200_000;
/// Rounds in which the bandwidth has to rise by a quarter, or the pipe counts as full.
const ROUNDS_FLAT: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Startup,
    Drain,
    ProbeBandwidth {
        /// Index of the gain in `GAINS_CYCLE`.
        phase: u8,
        since: Stamp,
    },
    ProbeRoundTrip {
        /// Since when at most four segments are in flight; `None`: more are in flight yet.
        since: Option<Stamp>,
        /// A round has passed since few segments are in flight.
        has_round: bool,
    },
}

/// Progress in the repair of losses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Repair {
    No,
    /// The first round of it: as many bytes are sent as are delivered.
    Conserving,
    Later,
}

/// The state of one flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bbr {
    model: Model,
    mode: Mode,
    repair: Repair,
    pace: Rate,
    cwnd: u32,
    /// The window before a repair or `ProbeRoundTrip`.
    cwnd_before: u32,
    /// The bandwidth that the growth of later rounds is compared with.
    full_rate: Rate,
    flat_rounds: u8,
    is_full: bool,
    /// The flow sends again after a pause: an old round-trip time is no reason to probe, because the pause has emptied the queue.
    is_resuming: bool,
    mss: u16,
}

impl Bbr {
    /// A new flow of segments of `mss` bytes; 0 counts as 1.
    #[must_use]
    pub fn new(mss: u16, now: Instant) -> Self {
        let mss = mss.max(1);
        let cwnd = INITIAL_SEGMENTS * u32::from(mss);
        Self {
            model: Model::new(now),
            mode: Mode::Startup,
            repair: Repair::No,
            pace: Rate::from_kbit(0),
            cwnd,
            cwnd_before: cwnd,
            full_rate: Rate::from_kbit(0),
            flat_rounds: 0,
            is_full: false,
            is_resuming: false,
            mss,
        }
    }

    /// The rate in force; 0 until a round trip is known.
    pub(crate) fn pace(&self) -> Rate {
        self.pace
    }

    /// Takes an event with the flow's state at that time. Before the first round-trip time the pace rate is 0: the initial window goes at
    /// once.
    pub fn on(&mut self, event: Event<'_>, s: &Signals) -> Decision {
        match event {
            Event::Ack | Event::Partial => self.on_ack(s),
            Event::Lost => self.begin_repair(Repair::Conserving, s.in_flight.saturating_add(s.acked_bytes)),
            Event::Timeout { .. } => self.begin_repair(Repair::Later, 0),
            Event::Recovered { .. } | Event::Undo { .. } => self.end_repair(),
            Event::Idle { .. } => {
                self.is_resuming = true;
                self.model.forget_sample();
            }
            Event::Mtu { mss } => self.mss = mss.max(1),
            Event::Duplicate { .. } => {}
        }
        self.cwnd = self.cwnd.clamp(u32::from(self.mss), CWND_MAX);
        if let Event::Idle { .. } = event
            && let Mode::ProbeBandwidth { .. } = self.mode
        {
            // Section 4.3.4.4: the first round after a pause finds an empty pipe, so it is filled at the bandwidth, and no faster.
            self.pace = self.paced(ONE);
        }
        Decision { cwnd: self.cwnd, pace_rate: self.pace.bytes_per_second(), is_echo_answered: false }
    }

    fn on_ack(&mut self, s: &Signals) {
        let is_round = self.model.note(s);
        let is_stale = self.model.note_round_trip(s);
        if is_round && self.repair == Repair::Conserving {
            self.repair = Repair::Later;
        }
        self.advance_cycle(s);
        self.judge_pipe(is_round, s.is_app_limited);
        self.drain(s);
        self.probe_round_trip(s, is_stale, is_round);
        self.set_pace(s);
        self.set_cwnd(s);
    }

    /// Section 4.3.4.3: a phase lasts one least round trip; 5/4 lasts until it has filled the pipe by as much, 3/4 at most until the queue
    /// is gone.
    fn advance_cycle(&mut self, s: &Signals) {
        let Mode::ProbeBandwidth { phase, since } = self.mode else { return };
        let in_flight = s.in_flight.saturating_add(s.acked_bytes);
        let is_long = since.passed_us(s.now) > self.model.round_trip_us();
        let is_over = match GAINS_CYCLE[usize::from(phase)] {
            ONE => is_long,
            gain if gain > ONE => is_long && (self.repair != Repair::No || in_flight >= self.inflight(gain)),
            _ => is_long || in_flight <= self.inflight(ONE),
        };
        if is_over {
            self.mode = Mode::ProbeBandwidth {
                phase: (phase + 1) % GAINS_CYCLE.len() as u8,
                since: Stamp::of(s.now),
            };
        }
    }

    /// Section 4.3.2.2: three rounds in which the bandwidth does not rise by a quarter show that the pipe is full.
    fn judge_pipe(&mut self, is_round: bool, is_app_limited: bool) {
        if self.is_full || !is_round || is_app_limited {
            return;
        }
        let bandwidth = self.model.bandwidth();
        if u64::from(bandwidth.kbit()) * 4 >= u64::from(self.full_rate.kbit()) * 5 {
            (self.full_rate, self.flat_rounds) = (bandwidth, 0);
            return;
        }
        self.flat_rounds += 1;
        self.is_full = self.flat_rounds >= ROUNDS_FLAT;
    }

    fn drain(&mut self, s: &Signals) {
        if self.mode == Mode::Startup && self.is_full {
            self.mode = Mode::Drain;
        }
        if self.mode == Mode::Drain && s.in_flight <= self.inflight(ONE) {
            self.probe_bandwidth(s.now);
        }
    }

    /// Begins the cycle at any phase but 3/4, so that flows do not probe together (section 4.3.4.3). Which one comes from the present time
    /// in microseconds, instead of a random number.
    fn probe_bandwidth(&mut self, now: Instant) {
        let pick = (now.as_us() % 7) as u8;
        self.mode =
            Mode::ProbeBandwidth { phase: if pick == 0 { 0 } else { pick + 1 }, since: Stamp::of(now) };
    }

    /// Section 4.3.5: if the least round-trip time is `is_stale`, empties the pipe to measure it again.
    fn probe_round_trip(&mut self, s: &Signals, is_stale: bool, is_round: bool) {
        if is_stale && !self.is_resuming && !matches!(self.mode, Mode::ProbeRoundTrip { .. }) {
            self.save_cwnd();
            self.mode = Mode::ProbeRoundTrip { since: None, has_round: false };
        }
        self.is_resuming = false;
        let least = SEGMENTS_MIN * u32::from(self.mss);
        let Mode::ProbeRoundTrip { since, has_round } = &mut self.mode else { return };
        // The low rates of this time say nothing about the path (section 4.3.5).
        self.model.limit(s.in_flight);
        let Some(began) = *since else {
            if s.in_flight <= least {
                *since = Some(Stamp::of(s.now));
                self.model.begin_round(s.in_flight);
            }
            return;
        };
        *has_round |= is_round;
        if *has_round && began.passed_us(s.now) > PROBE_ROUND_TRIP_US {
            self.model.renew(s.now);
            self.cwnd = self.cwnd.max(self.cwnd_before);
            if self.is_full { self.probe_bandwidth(s.now) } else { self.mode = Mode::Startup }
        }
    }

    fn gain(&self) -> u32 {
        match self.mode {
            Mode::Startup => GAIN_STARTUP,
            Mode::Drain => GAIN_DRAIN,
            Mode::ProbeBandwidth { phase, .. } => GAINS_CYCLE[usize::from(phase)],
            Mode::ProbeRoundTrip { .. } => ONE,
        }
    }

    fn paced(&self, gain: u32) -> Rate {
        self.model.bandwidth().times(u64::from(gain), u64::from(ONE))
    }

    /// Section 4.2.1: until the pipe is full the rate only rises; it begins with an initial window for each round trip, times the gain.
    fn set_pace(&mut self, s: &Signals) {
        if self.pace.kbit() == 0 && s.srtt_us > 0 {
            let initial = Rate::of(u64::from(INITIAL_SEGMENTS * u32::from(self.mss)), s.srtt_us);
            self.pace = initial.times(u64::from(GAIN_STARTUP), u64::from(ONE));
        }
        let rate = self.paced(self.gain());
        if rate.kbit() > 0 && (self.is_full || rate > self.pace) {
            self.pace = rate;
        }
    }

    /// BBR.send_quantum (section 4.2.2): what goes at once, bytes.
    fn quantum(&self) -> u32 {
        let mss = u32::from(self.mss);
        match self.pace.kbit() {
            0..1_200 => mss,
            1_200..24_000 => 2 * mss,
            _ => (self.pace.bytes_per_second() / 1_000).min(64 << 10) as u32,
        }
    }

    /// BBRInflight(gain) (section 4.2.3.2): the bandwidth-delay product times the gain, and three quanta for hosts that send and
    /// acknowledge in batches.
    fn inflight(&self, gain: u32) -> u32 {
        let initial = u64::from(INITIAL_SEGMENTS * u32::from(self.mss));
        let bytes = self.model.product().map_or(initial, |bdp| {
            let share = u128::from(bdp) * u128::from(gain) / u128::from(ONE);
            share.min(u128::from(CWND_MAX)) as u64 + 3 * u64::from(self.quantum())
        });
        bytes.min(u64::from(CWND_MAX)) as u32
    }

    /// Section 4.2.3.4, 4.2.3.5 and 4.2.3.6.
    fn set_cwnd(&mut self, s: &Signals) {
        let least = SEGMENTS_MIN * u32::from(self.mss);
        let grown = self.cwnd.saturating_add(s.acked_bytes);
        let gain = if let Mode::Startup | Mode::Drain = self.mode { GAIN_STARTUP } else { GAIN_WINDOW };
        let target = self.inflight(gain);
        self.cwnd = match self.repair {
            Repair::Conserving => self.cwnd.max(s.in_flight.saturating_add(s.acked_bytes)),
            _ if self.is_full => grown.min(target),
            _ if self.cwnd < target => grown,
            _ => self.cwnd,
        };
        self.cwnd = self.cwnd.max(least);
        if let Mode::ProbeRoundTrip { .. } = self.mode {
            self.cwnd = self.cwnd.min(least);
        }
    }

    /// Section 4.2.3.4: in the first round of a repair the window is what is in flight; after a timeout it is one segment.
    fn begin_repair(&mut self, repair: Repair, in_flight: u32) {
        self.save_cwnd();
        self.repair = repair;
        self.cwnd = in_flight.max(u32::from(self.mss));
        if repair == Repair::Conserving {
            self.model.begin_round(in_flight);
        }
    }

    fn end_repair(&mut self) {
        if self.repair != Repair::No {
            self.repair = Repair::No;
            self.cwnd = self.cwnd.max(self.cwnd_before);
        }
    }

    /// Keeps the window for the end of a repair or a probe (section 4.2.3.4).
    fn save_cwnd(&mut self) {
        let is_plain = self.repair == Repair::No && !matches!(self.mode, Mode::ProbeRoundTrip { .. });
        self.cwnd_before = if is_plain { self.cwnd } else { self.cwnd_before.max(self.cwnd) };
    }
}

#[cfg(test)]
mod tests;
