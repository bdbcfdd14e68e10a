//! DCTCP (RFC 8257) in the datapath: a round trip with marks takes half the marked part of the window. The agent notes `alpha`.

use ccp_agent::{Algorithm, Datapath, Failure, Flow, FlowInfo, Outcome, Report};

use crate::{grown, named};

/// The algorithm, which flows choose as `dctcp`. It needs a receiver that echoes marks exactly.
#[derive(Clone, Copy, Debug)]
pub struct Dctcp;

struct DctcpFlow(Datapath);

impl Algorithm for Dctcp {
    fn name(&self) -> &str {
        "dctcp"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![named("dctcp", include_str!("programs/dctcp.ccp"))]
    }

    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        let mut fields = vec![("mss", info.mss)];
        fields.extend(grown(info).map(|window| ("ssthresh", window)));
        datapath.set_program("dctcp", &fields)?;
        Ok(Box::new(DctcpFlow(datapath)))
    }
}

impl Flow for DctcpFlow {
    fn on_report(&mut self, report: &Report) -> Outcome {
        if report.get("marked")? > 0 {
            self.0.note("marked", &[("alpha_1024", report.get("alpha")?), ("cwnd", report.get("cwnd")?)]);
        }
        Ok(())
    }
}
