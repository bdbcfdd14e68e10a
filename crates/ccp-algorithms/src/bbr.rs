//! BBR as in the CCP paper, section 4.3 (and Cardwell and others, ACM Queue 2016): a rate at the largest rate of delivery, a window of two
//! bandwidth-delay products. The datapath pulses the rate; the agent filters and changes phases.

use std::collections::VecDeque;

use ccp_agent::{Algorithm, Datapath, Duration, Failure, Flow, FlowInfo, INFINITY, Instant, Outcome, Report};

use crate::named;

/// The rate at which a flow begins to double (2 / ln 2).
const STARTUP_GAIN: f64 = 2.885;
/// Rounds over which the largest rate counts.
const ROUNDS: u64 = 10;
/// The least round-trip time counts so long, and is then looked for by a small window for so long.
const RTT_AGE: Duration = Duration::from_secs(10);
const PROBE_RTT: Duration = Duration::from_ms(200);

/// The algorithm, which flows choose as `bbr`.
#[derive(Clone, Copy, Debug)]
pub struct Bbr;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Startup,
    Drain,
    ProbeBandwidth,
    ProbeRtt,
}

struct BbrFlow {
    datapath: Datapath,
    mss: u64,
    phase: Phase,
    round: u64,
    /// Largest rates, each with its round, the largest first.
    rates: VecDeque<(u64, u64)>,
    rtt_min: u64,
    rtt_min_at: Instant,
    /// The rate that startup has reached, and rounds without growth since.
    full_rate: u64,
    rounds_full: u32,
}

impl Algorithm for Bbr {
    fn name(&self) -> &str {
        "bbr"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![
            named("measure", include_str!("programs/measure.ccp")),
            named("pulse", include_str!("programs/pulse.ccp")),
        ]
    }

    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        datapath.set_program("measure", &[])?;
        let rtt_min_at = datapath.now();
        Ok(Box::new(BbrFlow {
            datapath,
            mss: info.mss,
            phase: Phase::Startup,
            round: 0,
            rates: VecDeque::new(),
            rtt_min: INFINITY,
            rtt_min_at,
            full_rate: 0,
            rounds_full: 0,
        }))
    }
}

impl BbrFlow {
    /// The largest rate of the last rounds.
    fn bandwidth(&self) -> u64 {
        self.rates.front().map_or(0, |(_, rate)| *rate)
    }

    fn bdp(&self) -> u64 {
        self.bandwidth() * self.rtt_min / 1_000_000
    }

    fn filter(&mut self, rate: u64, rtt: u64) {
        self.round += 1;
        while self.rates.back().is_some_and(|(_, other)| *other <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((self.round, rate));
        while self.rates.front().is_some_and(|(round, _)| round + ROUNDS <= self.round) {
            self.rates.pop_front();
        }
        if rtt < self.rtt_min || (self.phase == Phase::ProbeRtt && rtt != INFINITY) {
            self.rtt_min = rtt;
            self.rtt_min_at = self.datapath.now();
        }
    }

    /// Window and rate for two gains.
    fn set(&self, rate_gain: f64, window_gain: f64) -> Outcome {
        let rate = (self.bandwidth() as f64 * rate_gain) as u64;
        let cwnd = ((self.bdp() as f64 * window_gain) as u64).max(4 * self.mss);
        self.datapath.update(&[("Rate", rate), ("Cwnd", cwnd), ("interval_us", self.rtt_min)])?;
        Ok(())
    }

    /// Startup ends when three rounds did not bring a quarter more.
    fn is_full(&mut self) -> bool {
        if self.bandwidth() > self.full_rate + self.full_rate / 4 {
            self.full_rate = self.bandwidth();
            self.rounds_full = 0;
        } else {
            self.rounds_full += 1;
        }
        self.rounds_full >= 3
    }

    fn pulse(&mut self) -> Outcome {
        self.phase = Phase::ProbeBandwidth;
        let (bw, cwnd) = (self.bandwidth(), (2 * self.bdp()).max(4 * self.mss));
        let fields = [("bw", bw), ("interval_us", self.rtt_min), ("Cwnd", cwnd), ("Rate", bw)];
        self.datapath.set_program("pulse", &fields)?;
        Ok(())
    }
}

impl Flow for BbrFlow {
    fn on_report(&mut self, report: &Report) -> Outcome {
        let (rate, rtt) = (report.get("rate")?, report.get("rtt")?);
        if rate == 0 || rtt == INFINITY {
            return Ok(());
        }
        self.filter(rate, rtt);
        let age = self.datapath.now().since(self.rtt_min_at);
        let is_full = self.phase == Phase::Startup && self.is_full();
        match self.phase {
            Phase::Startup if is_full => {
                self.phase = Phase::Drain;
                self.set(1.0 / STARTUP_GAIN, STARTUP_GAIN)
            }
            Phase::Startup => self.set(STARTUP_GAIN, STARTUP_GAIN),
            Phase::Drain if report.get("in_flight")? <= self.bdp() => self.pulse(),
            Phase::Drain | Phase::ProbeRtt => Ok(()),
            Phase::ProbeBandwidth if age > RTT_AGE => {
                self.phase = Phase::ProbeRtt;
                let fields = [("Cwnd", 4 * self.mss), ("interval_us", self.rtt_min)];
                self.datapath.set_program("measure", &fields)?;
                self.datapath.set_timer(PROBE_RTT)?;
                Ok(())
            }
            Phase::ProbeBandwidth => {
                let cwnd = (2 * self.bdp()).max(4 * self.mss);
                let fields = [("bw", self.bandwidth()), ("interval_us", self.rtt_min), ("Cwnd", cwnd)];
                self.datapath.update(&fields)?;
                Ok(())
            }
        }
    }

    /// The small window has shown the least round-trip time.
    fn on_timer(&mut self) -> Outcome {
        self.rtt_min_at = self.datapath.now();
        self.pulse()
    }
}
