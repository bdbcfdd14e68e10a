//! Reno (RFC 5681) twice by the same rules: as an agent that hears reports, and as a program that decides in the datapath. What differs between
//! runs with the two is the way of the decisions: the time between reports, and the time of the messages.

use base::Duration;
use ccp_vm::{Builder, Primitive, Source, Variable};

/// Bytes of a segment that the program counts with: an Ethernet frame's, with timestamps.
const MSS: u32 = 1448;
/// No threshold was learnt yet.
const NO_THRESHOLD: u32 = i32::MAX as u32;

/// One flow of the agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reno {
    cwnd: u64,
    ssthresh: u64,
    /// Bytes to be acknowledged before losses reduce the window again: what they hit was sent before.
    quiet: u64,
    mss: u64,
}

impl Reno {
    pub(super) fn new(cwnd: u32, mss: u32) -> Self {
        Self { cwnd: cwnd.into(), ssthresh: NO_THRESHOLD.into(), quiet: 0, mss: mss.max(1).into() }
    }

    /// The window after a report of [`reporter`]'s program: bytes acknowledged, packets lost, and whether the timer expired.
    pub(super) fn hear(&mut self, report: &[u64]) -> u64 {
        let [acked, lost, timeout] = report else { return self.cwnd };
        let half = (self.cwnd / 2).max(2 * self.mss);
        self.quiet = self.quiet.saturating_sub(*acked);
        if *timeout > 0 {
            (self.ssthresh, self.cwnd, self.quiet) = (half, self.mss, 0);
        } else if *lost > 0 && self.quiet == 0 {
            (self.ssthresh, self.cwnd, self.quiet) = (half, half, half);
        } else if self.cwnd < self.ssthresh {
            self.cwnd += acked;
        } else {
            self.cwnd += self.mss * acked / self.cwnd;
        }
        self.cwnd
    }
}

/// The program of the agent's flows: it sums up, and reports when `interval` has passed, and at once after a timeout.
pub(super) fn reporter(interval: Duration) -> Source {
    let mut program = Builder::new();
    let sums = [Primitive::BytesAcked, Primitive::LostPackets, Primitive::WasTimeout]
        .map(|signal| (program.volatile_report(0), signal));
    program.always(|event| {
        for (variable, signal) in sums {
            let sum = event.add(variable, signal);
            event.set(variable, sum);
        }
        event.fallthrough();
    });
    let timeout = sums[2].0;
    program.when(|event| event.gt(timeout, 0u32), Builder::report);
    let micros = interval.as_us().min(u64::from(u32::MAX)) as u32;
    program.when(
        |event| event.gt(Variable::MICROS, micros.saturating_sub(1)),
        |event| {
            event.set(Variable::MICROS, 0u32);
            event.report();
        },
    );
    program.finish().expect("a few instructions in three events")
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
        assert!(in_datapath().verify().is_ok() && reporter(Duration::from_us(10)).verify().is_ok());
    }

    #[test]
    fn the_agent_doubles_halves_once_for_a_window_and_adds_a_segment() {
        let mut reno = Reno::new(10_000, 1_000);
        assert_eq!([[10_000, 0, 0], [20_000, 0, 0]].map(|r| reno.hear(&r)), [20_000, 40_000]);
        assert_eq!(reno.hear(&[1_000, 3, 0]), 20_000);
        assert_eq!(reno.hear(&[1_000, 3, 0]), 20_050, "in the same window: no further loss");
        assert_eq!(reno.hear(&[20_050, 0, 0]), 21_050);
        assert_eq!(reno.hear(&[1_000, 1, 0]), 10_525);
        assert_eq!(reno.hear(&[0, 0, 1]), 1_000);
    }
}
