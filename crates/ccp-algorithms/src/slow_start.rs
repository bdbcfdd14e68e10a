//! Slow start in three places (CCP paper, section 4.4 and Figure 5): in the agent once for each report, in the datapath by the window for each
//! acknowledgement, in the datapath by the rate for each round trip. Each ends at the first loss, and then holds its window.

use ccp_agent::{Algorithm, Datapath, Failure, Flow, FlowInfo, Outcome, Report};

use crate::named;

/// Figure 4: sums of a round trip. A tenth more lets the acknowledgements of one window come into one report.
const BY_AGENT: &str = "(def (Report (volatile acked 0) (volatile lost 0)) (rtt 0))
(when true
    (:= Report.acked (+ Report.acked Ack.bytes_acked))
    (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
    (:= rtt (if (!= Flow.rtt_sample_us +infinity) Flow.rtt_sample_us))
    (fallthrough))
(when (&& (> Report.acked 0) (|| (> Report.lost 0) (> Micros (* 1.1 rtt))))
    (report)
    (reset))";

/// Figure 6: the window grows by what is acknowledged; the agent hears of losses only.
const BY_WINDOW: &str = "(def (Report (volatile lost 0) (cwnd 0)))
(when (== Ack.lost_pkts_sample 0)
    (:= Cwnd (+ Cwnd Ack.bytes_acked)))
(when (> Ack.lost_pkts_sample 0)
    (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
    (:= Report.cwnd Cwnd)
    (report))";

/// The last program of section 4.4: the rate doubles each round trip. The window follows, far enough not to bind.
const BY_RATE: &str = "(def (Report (volatile lost 0) (cwnd 0)))
(when (> Ack.lost_pkts_sample 0)
    (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
    (:= Report.cwnd (/ Cwnd 4))
    (report))
(when (&& (> Timer.Micros Flow.rtt_sample_us) (== Ack.lost_pkts_sample 0))
    (:= Rate (* Rate 2))
    (:= Cwnd (* Cwnd 2))
    (:= Timer.Micros 0))";

/// Holds the window, and reports nothing.
const HOLD: &str = "(def)
(when false
    (:= Cwnd Cwnd))";

/// Where slow start takes place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// In the agent, by reports of a round trip each (Figure 4).
    Agent,
    /// In the datapath, by the window (Figure 6).
    Window,
    /// In the datapath, by the rate.
    Rate,
}

impl Way {
    /// All three ways of the paper.
    pub const ALL: [Self; 3] = [Self::Agent, Self::Window, Self::Rate];
}

/// The algorithm; flows choose `ss-agent`, `ss-window` or `ss-rate`.
#[derive(Clone, Copy, Debug)]
pub struct SlowStart(pub Way);

struct SlowStartFlow {
    datapath: Datapath,
    way: Way,
    cwnd: u64,
}

impl Algorithm for SlowStart {
    fn name(&self) -> &str {
        match self.0 {
            Way::Agent => "ss-agent",
            Way::Window => "ss-window",
            Way::Rate => "ss-rate",
        }
    }

    fn programs(&self) -> Vec<(String, String)> {
        let start = match self.0 {
            Way::Agent => BY_AGENT,
            Way::Window => BY_WINDOW,
            Way::Rate => BY_RATE,
        };
        vec![named("start", start), named("hold", HOLD)]
    }

    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        match self.0 {
            // One window for each 100 ms to begin with, and room for a burst above it.
            Way::Rate => {
                datapath.set_program("start", &[("Rate", info.cwnd * 10), ("Cwnd", info.cwnd * 4)])?;
            }
            Way::Agent | Way::Window => datapath.set_program("start", &[])?,
        }
        Ok(Box::new(SlowStartFlow { datapath, way: self.0, cwnd: info.cwnd }))
    }
}

impl Flow for SlowStartFlow {
    fn on_report(&mut self, report: &Report) -> Outcome {
        if report.get("lost")? > 0 {
            if self.way != Way::Agent {
                self.cwnd = report.get("cwnd")?;
            }
            self.datapath.note("left slow start", &[("cwnd", self.cwnd)]);
            self.datapath.set_program("hold", &[("Cwnd", self.cwnd / 2)])?;
            return Ok(());
        }
        // Only reports of the agent's own slow start get here.
        self.cwnd += report.get("acked")?;
        self.datapath.update(&[("Cwnd", self.cwnd)])?;
        Ok(())
    }
}
