//! Reno (RFC 5681) twice by the same rules: as an agent that hears reports, and as a program that decides in the datapath. What differs between
//! runs with the two is the way of the decisions: the time between reports, and the time of the messages.

use super::AgentMaker;
use base::Duration;
use ccp_agent::{Agent, Algorithm, Datapath, Failure, Flow, FlowInfo, Outcome, Report};
use ccp_vm::{Builder, Primitive, Source, Variable};

/// Bytes of a segment that the program counts with: an Ethernet frame's, with timestamps.
const MSS: u32 = 1448;
/// No threshold was learnt yet.
const NO_THRESHOLD: u32 = i32::MAX as u32;

/// The program of the agent's flows: it sums up, and reports when the interval has passed, and at once after a timeout.
const REPORTER: &str = "
(def
    (Report (volatile acked 0) (volatile lost 0) (volatile timeout false))
    (interval_us 0))
(when true
    (:= Report.acked (+ Report.acked Ack.bytes_acked))
    (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
    (:= Report.timeout (|| Report.timeout Flow.was_timeout))
    (fallthrough))
(when Report.timeout (report))
(when (>= Micros interval_us) (report) (reset))";

/// Agents that hear of each flow once in `interval`, and answer by a window.
#[must_use]
pub fn of_agent(interval: Duration) -> AgentMaker {
    let interval_us = interval.as_us();
    AgentMaker::new(move || {
        let mut agent = Agent::new();
        agent.add(Reno { interval_us }).expect("a test compiles its program");
        agent
    })
}

struct Reno {
    interval_us: u64,
}

impl Algorithm for Reno {
    fn name(&self) -> &str {
        "reno"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![("reporter".to_owned(), REPORTER.to_owned())]
    }

    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        datapath.set_program("reporter", &[("interval_us", self.interval_us)])?;
        Ok(Box::new(RenoFlow { datapath, window: Window::new(info.cwnd, info.mss) }))
    }
}

struct RenoFlow {
    datapath: Datapath,
    window: Window,
}

impl Flow for RenoFlow {
    fn on_report(&mut self, report: &Report) -> Outcome {
        self.window.hear(report.get("acked")?, report.get("lost")?, report.get("timeout")? != 0);
        self.datapath.update(&[("Cwnd", self.window.cwnd)])?;
        Ok(())
    }
}

/// What the agent knows of one flow.
#[derive(Clone, Copy, Debug)]
struct Window {
    cwnd: u64,
    ssthresh: u64,
    /// Bytes to be acknowledged before losses reduce the window again: what they hit was sent before.
    quiet: u64,
    mss: u64,
}

impl Window {
    fn new(cwnd: u64, mss: u64) -> Self {
        Self { cwnd, ssthresh: NO_THRESHOLD.into(), quiet: 0, mss: mss.max(1) }
    }

    /// A report: bytes acknowledged, packets lost, and whether the timer expired.
    fn hear(&mut self, acked: u64, lost: u64, is_timeout: bool) {
        let half = (self.cwnd / 2).max(2 * self.mss);
        self.quiet = self.quiet.saturating_sub(acked);
        if is_timeout {
            (self.ssthresh, self.cwnd, self.quiet) = (half, self.mss, 0);
        } else if lost > 0 && self.quiet == 0 {
            (self.ssthresh, self.cwnd, self.quiet) = (half, half, half);
        } else if self.cwnd < self.ssthresh {
            self.cwnd += acked;
        } else {
            self.cwnd += self.mss * acked / self.cwnd;
        }
    }
}

/// The same rules, once for each batch of acknowledgements, in the datapath.
///
/// # Panics
/// Never: the program keeps all rules.
#[must_use]
pub fn in_datapath() -> Source {
    let mut program = Builder::new();
    let (ssthresh, quiet) = (program.control(NO_THRESHOLD), program.control(0));
    let (cwnd, acked) = (Variable::CWND, Primitive::BytesAcked);
    program.when(
        |event| event.gt(Primitive::WasTimeout, 0u32),
        |event| {
            set_half(event, ssthresh);
            event.set(cwnd, MSS);
            event.set(quiet, 0u32);
        },
    );
    program.when(
        |event| {
            let later = event.gt(quiet, acked);
            let is_lost = event.gt(Primitive::LostPackets, 0u32);
            let is_first = event.not(later);
            event.and(is_lost, is_first)
        },
        |event| {
            set_half(event, ssthresh);
            event.set(cwnd, ssthresh);
            event.set(quiet, ssthresh);
        },
    );
    let rest = |event: &mut Builder| {
        // What is left, and not below 0.
        let most = event.max(quiet, acked);
        let left = event.sub(most, acked);
        event.set(quiet, left);
    };
    program.when(
        |event| event.lt(cwnd, ssthresh),
        |event| {
            rest(event);
            let grown = event.add(cwnd, acked);
            event.set(cwnd, grown);
        },
    );
    program.always(|event| {
        rest(event);
        let bytes = event.mul(acked, MSS);
        let step = event.div(bytes, cwnd);
        let grown = event.add(cwnd, step);
        event.set(cwnd, grown);
    });
    program.finish().expect("a few instructions in four events")
}

fn set_half(event: &mut Builder, variable: Variable) {
    let half = event.div(Variable::CWND, 2u32);
    let least = event.max(half, 2 * MSS);
    event.set(variable, least);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_valid() {
        assert!(
            in_datapath().verify().is_ok()
                && of_agent(Duration::from_us(10)).make().algorithms().count() == 1
        );
    }

    #[test]
    fn the_agent_doubles_halves_once_for_a_window_and_adds_a_segment() {
        let mut window = Window::new(10_000, 1_000);
        let mut hear = |acked, lost, is_timeout| {
            window.hear(acked, lost, is_timeout);
            window.cwnd
        };
        assert_eq!([hear(10_000, 0, false), hear(20_000, 0, false)], [20_000, 40_000]);
        assert_eq!(hear(1_000, 3, false), 20_000);
        assert_eq!(hear(1_000, 3, false), 20_050, "in the same window: no further loss");
        assert_eq!(hear(20_050, 0, false), 21_050);
        assert_eq!(hear(1_000, 1, false), 10_525);
        assert_eq!(hear(0, 0, true), 1_000);
    }
}
