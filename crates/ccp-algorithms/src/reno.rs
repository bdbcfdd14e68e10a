//! Reno (RFC 5681) in the datapath, for each acknowledgement. The agent only writes losses into its log.

use ccp_agent::{Algorithm, Datapath, Failure, Flow, FlowInfo, Outcome, Report};

use crate::{grown, named};

/// The algorithm, which flows choose as `reno`.
#[derive(Clone, Copy, Debug)]
pub struct Reno;

struct RenoFlow(Datapath);

impl Algorithm for Reno {
    fn name(&self) -> &str {
        "reno"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![named("reno", include_str!("programs/reno.ccp"))]
    }

    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        let mut fields = vec![("mss", info.mss)];
        fields.extend(grown(info).map(|window| ("ssthresh", window)));
        datapath.set_program("reno", &fields)?;
        Ok(Box::new(RenoFlow(datapath)))
    }
}

impl Flow for RenoFlow {
    fn on_report(&mut self, report: &Report) -> Outcome {
        let values: Vec<(&str, u64)> = report.iter().collect();
        self.0.note("reduced", &values);
        Ok(())
    }
}
