//! Copa (Arun and Balakrishnan, NSDI 2018): a rate of one segment for each `delta` times the queueing delay, and a mode for paths that others
//! keep full.

use std::collections::VecDeque;

use ccp_agent::{Algorithm, Datapath, Duration, Failure, Flow, FlowInfo, INFINITY, Instant, Outcome, Report};

use crate::{ROUND, named};

/// 1 / delta in the default mode: two segments in the queue on average.
const DEFAULT_INVERSE_DELTA: f64 = 2.0;
/// The least round-trip time counts so long.
const RTT_AGE: Duration = Duration::from_secs(10);
/// Round trips without a nearly empty queue after which others are taken to fill it (section 2.2).
const ROUNDS_FULL: f64 = 5.0;
/// A queue below this part of its largest delay is nearly empty.
const NEARLY_EMPTY: f64 = 0.1;
/// Rounds in one direction before the velocity doubles.
const ROUNDS_STRAIGHT: u32 = 3;

/// The algorithm, which flows choose as `copa`.
#[derive(Clone, Copy, Debug)]
pub struct Copa;

struct CopaFlow {
    datapath: Datapath,
    mss: f64,
    cwnd: f64,
    is_slow_start: bool,
    /// Round-trip times of reports with their times, each longer than the one before; the first one is the least.
    least: VecDeque<(Instant, u64)>,
    /// All of them, of the last round trips.
    recent: VecDeque<(Instant, u64)>,
    inverse_delta: f64,
    velocity: f64,
    is_rising: bool,
    rounds_straight: u32,
    /// The window and the time at which the present round trip began.
    round_cwnd: f64,
    round_at: Instant,
    /// When the queue was nearly empty last.
    empty_at: Instant,
}

impl Algorithm for Copa {
    fn name(&self) -> &str {
        "copa"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![named("round", ROUND)]
    }

    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        datapath.set_program("round", &[("interval_us", 10_000)])?;
        let (now, cwnd) = (datapath.now(), info.cwnd as f64);
        Ok(Box::new(CopaFlow {
            datapath,
            mss: info.mss as f64,
            cwnd,
            is_slow_start: true,
            least: VecDeque::new(),
            recent: VecDeque::new(),
            inverse_delta: DEFAULT_INVERSE_DELTA,
            velocity: 1.0,
            is_rising: true,
            rounds_straight: 0,
            round_cwnd: cwnd,
            round_at: now,
            empty_at: now,
        }))
    }
}

impl CopaFlow {
    fn rtt_min(&self) -> u64 {
        self.least.front().map_or(INFINITY, |(_, rtt)| *rtt)
    }

    /// The mode (section 2.2): the queue of a path with Copa flows only runs nearly empty within five round trips.
    fn note_queue(&mut self, now: Instant, rtt: u64) {
        while self.least.back().is_some_and(|(_, other)| *other >= rtt) {
            self.least.pop_back();
        }
        self.least.push_back((now, rtt));
        self.recent.push_back((now, rtt));
        while self.least.front().is_some_and(|(at, _)| now.since(*at) > RTT_AGE) {
            self.least.pop_front();
        }
        while self.recent.front().is_some_and(|(at, _)| now.since(*at).as_us() > 4 * rtt) {
            self.recent.pop_front();
        }
        let least = self.rtt_min();
        let largest = self.recent.iter().map(|(_, rtt)| *rtt).max().unwrap_or(rtt);
        if (rtt - least) as f64 <= NEARLY_EMPTY * (largest - least) as f64 {
            self.empty_at = now;
        }
    }

    fn is_competing(&self, now: Instant, rtt: u64) -> bool {
        now.since(self.empty_at).as_us() as f64 > ROUNDS_FULL * rtt as f64
    }

    /// Once for each round trip: velocity and delta.
    fn end_round(&mut self, now: Instant, rtt: u64) {
        let is_rising = self.cwnd > self.round_cwnd;
        if is_rising == self.is_rising && !self.is_slow_start {
            self.rounds_straight += 1;
        } else {
            (self.rounds_straight, self.velocity) = (0, 1.0);
        }
        if self.rounds_straight >= ROUNDS_STRAIGHT {
            self.velocity *= 2.0;
        }
        self.is_rising = is_rising;
        self.inverse_delta =
            if self.is_competing(now, rtt) { self.inverse_delta + 1.0 } else { DEFAULT_INVERSE_DELTA };
        (self.round_cwnd, self.round_at) = (self.cwnd, now);
    }

    /// Moves the window towards the target rate by what `acked` bytes allow.
    fn steer(&mut self, rtt: u64, acked: f64) {
        let queued_us = (rtt - self.rtt_min()) as f64;
        let present = self.cwnd / self.mss / rtt as f64;
        let is_below = queued_us * present <= self.inverse_delta;
        if self.is_slow_start {
            self.is_slow_start = is_below;
            // The window has doubled since the segments left that show the queue.
            self.cwnd = if is_below { self.cwnd + acked } else { self.cwnd / 2.0 };
            return;
        }
        // No faster than slow start.
        let step = (self.velocity * self.inverse_delta * acked * self.mss / self.cwnd).min(acked);
        if is_below {
            self.cwnd += step;
        } else if self.is_rising && self.velocity > 1.0 {
            // The direction has changed: the next step is a small one.
            self.velocity = 1.0;
            self.rounds_straight = 0;
        } else {
            self.cwnd -= step.min(self.cwnd / 4.0);
        }
    }
}

impl Flow for CopaFlow {
    fn on_report(&mut self, report: &Report) -> Outcome {
        let (now, rtt, acked) = (self.datapath.now(), report.get("rtt")?, report.get("acked")? as f64);
        if report.get("timeout")? != 0 {
            (self.cwnd, self.is_slow_start) = (self.mss, true);
        } else if report.get("lost")? > 0 && rtt != INFINITY && self.is_competing(now, rtt) {
            self.inverse_delta = (self.inverse_delta / 2.0).max(DEFAULT_INVERSE_DELTA);
        }
        if rtt != INFINITY && rtt > 0 {
            self.note_queue(now, rtt);
            self.steer(rtt, acked);
            if now.since(self.round_at).as_us() >= rtt {
                self.end_round(now, rtt);
            }
        }
        self.cwnd = self.cwnd.max(2.0 * self.mss);
        let rtt = if rtt == INFINITY { 100_000 } else { rtt.max(1) };
        // Two windows for each round trip: a burst never fills the queue by itself (section 2.1).
        let rate = 2.0 * self.cwnd * 1e6 / rtt as f64;
        let fields = [("Cwnd", self.cwnd as u64), ("Rate", rate as u64), ("interval_us", rtt / 2)];
        self.datapath.update(&fields)?;
        Ok(())
    }
}
