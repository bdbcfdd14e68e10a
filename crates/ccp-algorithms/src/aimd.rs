//! The AIMD of the CCP paper, section 4.2: half the window after a loss, one segment more for each window without. All of it in the agent.

use ccp_agent::{Algorithm, Datapath, Failure, Flow, FlowInfo, Outcome, Report};

use crate::{ROUND, is_used, named};

/// The algorithm, which flows choose as `aimd`.
#[derive(Clone, Copy, Debug)]
pub struct Aimd;

struct AimdFlow {
    datapath: Datapath,
    cwnd: u64,
    mss: u64,
}

impl Algorithm for Aimd {
    fn name(&self) -> &str {
        "aimd"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![named("round", ROUND)]
    }

    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        datapath.set_program("round", &[])?;
        Ok(Box::new(AimdFlow { datapath, cwnd: info.cwnd, mss: info.mss }))
    }
}

impl Flow for AimdFlow {
    fn on_report(&mut self, report: &Report) -> Outcome {
        if report.get("lost")? > 0 {
            self.cwnd = (self.cwnd / 2).max(2 * self.mss);
        } else if is_used(self.cwnd, report.get("flight")?, self.mss, false) {
            self.cwnd += report.get("acked")? * self.mss / self.cwnd;
        }
        let rtt = report.get("rtt")?.min(100_000);
        self.datapath.update(&[("Cwnd", self.cwnd), ("interval_us", rtt)])?;
        Ok(())
    }
}
