//! Vegas (Brakmo, O'Malley, Peterson: SIGCOMM 1994): keep between two and four segments in the queue, as the round-trip time shows them.

use ccp_agent::{Algorithm, Datapath, Failure, Flow, FlowInfo, INFINITY, Outcome, Report};

use crate::{ROUND, is_used, named};

/// Segments in the queue at least and at most (the paper's alpha and beta), and where slow start ends (gamma).
const ALPHA: f64 = 2.0;
const BETA: f64 = 4.0;
const GAMMA: f64 = 1.0;

/// The algorithm, which flows choose as `vegas`.
#[derive(Clone, Copy, Debug)]
pub struct Vegas;

struct VegasFlow {
    datapath: Datapath,
    cwnd: u64,
    mss: u64,
    rtt_min: u64,
    is_slow_start: bool,
    /// Slow start doubles every other round trip, so that the one between shows what the window does.
    is_growing: bool,
}

impl Algorithm for Vegas {
    fn name(&self) -> &str {
        "vegas"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![named("round", ROUND)]
    }

    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        datapath.set_program("round", &[])?;
        Ok(Box::new(VegasFlow {
            datapath,
            cwnd: info.cwnd,
            mss: info.mss,
            rtt_min: INFINITY,
            is_slow_start: true,
            is_growing: false,
        }))
    }
}

impl VegasFlow {
    fn steer(&mut self, rtt: u64, flight: u64) {
        // What of the window the path does not hold lies in the queue.
        let queued = self.cwnd as f64 / self.mss as f64 * (rtt - self.rtt_min) as f64 / rtt as f64;
        // Slow start doubles the whole window at once, so all of it must have been used.
        let is_used = is_used(self.cwnd, flight, self.mss, false);
        if self.is_slow_start {
            self.is_slow_start = queued <= GAMMA;
            self.is_growing = !self.is_growing;
            if self.is_slow_start && self.is_growing && is_used {
                self.cwnd *= 2;
            }
        } else if queued < ALPHA {
            self.cwnd += if is_used { self.mss } else { 0 };
        } else if queued > BETA {
            self.cwnd -= self.mss;
        }
    }
}

impl Flow for VegasFlow {
    fn on_report(&mut self, report: &Report) -> Outcome {
        let rtt = report.get("rtt")?;
        if report.get("lost")? > 0 {
            self.is_slow_start = false;
            self.cwnd = if report.get("timeout")? != 0 { self.mss } else { self.cwnd * 3 / 4 };
        } else if rtt != INFINITY && rtt > 0 {
            self.rtt_min = self.rtt_min.min(rtt);
            self.steer(rtt, report.get("flight")?);
        }
        self.cwnd = self.cwnd.max(2 * self.mss);
        let interval = if rtt == INFINITY { 100_000 } else { rtt };
        self.datapath.update(&[("Cwnd", self.cwnd), ("interval_us", interval)])?;
        Ok(())
    }
}
