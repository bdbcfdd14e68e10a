//! Cubic (RFC 9438). The datapath follows the curve for each acknowledgement; the agent takes the cube root, which the datapath cannot.

use ccp_agent::{Algorithm, Datapath, Failure, Flow, FlowInfo, Outcome, Report};

use crate::{grown, named};

/// Segments per cubed second (section 5.1).
const C: f64 = 0.4;
/// What is left of the window after a loss (section 4.6).
const BETA: f64 = 0.7;

/// The algorithm, which flows choose as `cubic`.
#[derive(Clone, Copy, Debug)]
pub struct Cubic;

struct CubicFlow {
    datapath: Datapath,
    mss: u64,
    /// The window at which the last curve was flat.
    w_max: u64,
}

impl Algorithm for Cubic {
    fn name(&self) -> &str {
        "cubic"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![named("cubic", include_str!("programs/cubic.ccp"))]
    }

    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        let mut fields = vec![("mss", info.mss)];
        if let Some(window) = grown(info) {
            // Congestion avoidance without a loss before it: K is 0, and the curve and Reno's window begin here (section 4.8).
            fields.extend([("ssthresh", window), ("w_max", window), ("est", 1000 * window)]);
        }
        datapath.set_program("cubic", &fields)?;
        Ok(Box::new(CubicFlow { datapath, mss: info.mss, w_max: 0 }))
    }
}

impl Flow for CubicFlow {
    /// A loss: the datapath has taken its part of the window, and grows as Reno until it knows the new curve.
    fn on_report(&mut self, report: &Report) -> Outcome {
        if report.get("timeout")? != 0 {
            // Section 4.8: after slow start K is 0, which the program has set.
            self.w_max = 0;
            return Ok(());
        }
        let prior = report.get("prior")?;
        // Section 4.7, fast convergence: a flow that lost before it came back to its plateau leaves room to others.
        let plateau = if prior < self.w_max { (prior as f64 * (1.0 + BETA) / 2.0) as u64 } else { prior };
        self.w_max = plateau;
        let segments = (plateau as f64 - prior as f64 * BETA).max(0.0) / self.mss as f64;
        let k_ms = (1000.0 * (segments / C).cbrt()) as u64;
        self.datapath.update(&[("w_max", plateau), ("k_ms", k_ms), ("is_waiting", 0)])?;
        Ok(())
    }
}
