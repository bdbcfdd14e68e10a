//! The measurement `ccp-kernel`: figure 13 of the TAS paper with the kernel's TCP as sender, which runs our DCTCP by BPF, and figure 8 of the CCP paper:
//! the same algorithms on the kernel and on Towpath. In real time, over `towpath link`, with one receiver for all: a service that echoes marks exactly.
//! Where the kernel cannot run programs its own Cubic and Towpath are measured, and a note says what is missing.

pub mod agent;
mod kernel;
mod stage;

use crate::bars::{self, Bar, Limit, Measure};
use crate::samples::Samples;
use crate::tap::namespace;
use crate::{Options, Report};
use stage::{Course, Order, Stage, System};

/// Flows of figure 13. [`crate::bulk::sink::TOLD_MAX`] flows are told of one by one: fairness is theirs.
const FLOWS: [u16; 3] = [52, 200, 500];
const FLOWS_QUICK: [u16; 1] = [52];
/// Figure 13's link of 10 Gbit/s and 100 us, fifty times slower: the same packets in flight, in the queue and at the mark.
const INCAST: [&str; 2] = ["rate=200mbit,delay=2500us,queue=1000p,ecn=65p", "delay=2500us"];
/// Time before the measured one, seconds.
const WARM_UP: f64 = 3.0;
/// Measured time of figure 13: two windows of 100 ms, fifty times slower.
const INCAST_SECONDS: f64 = 10.0;
/// Measured time of figure 8.
const SAME_SECONDS: f64 = 15.0;
/// Measured time of each with `--quick`.
const QUICK_SECONDS: f64 = 5.0;
/// Runs of each case and system, if not told.
const RUNS: u16 = 2;
/// Figure 8: the algorithm, its link, rate of the link in Mbit/s.
const SAME: [(&str, [&str; 2], f64); 2] = [
    ("cubic", ["rate=24mbit,delay=10ms,queue=40p", "delay=10ms"], 24.0),
    ("copa", ["rate=12mbit,delay=12500us,queue=100p", "delay=12500us"], 12.0),
];

/// Of both systems that run the same program. The paper's tail is 2.8 times below the median; rates as in the simulator.
const BARS: [Bar; 3] = [
    at_least("tas13/", "p1 of median", 0.36),
    at_least("ccp8/cubic", "of the link", 0.9),
    at_least("ccp8/copa", "goodput", 8.2),
];

const fn at_least(cases: &'static str, metric: &'static str, least: f64) -> Bar {
    Bar { cases, metric, measure: Measure::Alone, limit: Limit::Least(least) }
}

/// Runs the measurement `ccp-kernel`.
///
/// # Errors
/// When the user is not root, or a service does not start.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    namespace::need_root()?;
    let mut report = Report::new("ccp-kernel");
    let mut samples = Samples::default();
    let kernel = ccp_linux::support();
    if let Err(why) = &kernel {
        report.note(format!("no programs on the kernel: {why}"));
    }
    let systems: &[System] = if kernel.is_ok() { &System::ALL } else { &[System::Plain, System::Towpath] };
    let mut stage = Stage::new(options)?;
    for _ in 0..options.runs.unwrap_or(if options.quick { 1 } else { RUNS }) {
        incast(&mut stage, systems, options, &mut samples, &mut report)?;
        same_program(&mut stage, systems, options, &mut samples, &mut report)?;
    }
    stage.stop();
    report.rows = samples.rows();
    report.ratios = samples.ratios(System::Kernel.name(), &[System::Towpath.name(), System::Plain.name()]);
    for system in systems.iter().filter(|system| **system != System::Plain) {
        bars::judge(&mut report, system.name(), &BARS);
    }
    notes(&mut report);
    Ok(report)
}

/// The measured time of a run: `full`, unless the arguments say another.
fn seconds(options: &Options, full: f64) -> f64 {
    options.seconds.unwrap_or(if options.quick { QUICK_SECONDS } else { full })
}

/// Figure 13 of the TAS paper: many flows into one receiver.
fn incast(
    stage: &mut Stage,
    systems: &[System],
    options: &Options,
    samples: &mut Samples,
    report: &mut Report,
) -> anyhow::Result<()> {
    let flows: &[u16] = if options.quick { &FLOWS_QUICK } else { &FLOWS };
    let seconds = seconds(options, INCAST_SECONDS);
    for flows in flows {
        let case = format!("tas13/flows{flows}");
        for system in systems {
            let order = Order { program: "dctcp", flows: *flows, link: INCAST, warm_up: WARM_UP, seconds };
            match stage.run(*system, &order) {
                Ok(course) => {
                    let name = system.name();
                    samples.add(&case, name, "p1 of median", "", course.fairness.p1_of_median);
                    samples.add(&case, name, "jain", "", course.fairness.jain);
                    samples.add(&case, name, "goodput", "Mbit/s", course.goodput);
                    samples.add(&case, name, "marked", "of the packets", course.marked);
                    samples.add(&case, name, "dropped", "packets", course.dropped);
                }
                Err(error) => report.failures.push(format!("{case}, {}: {error:#}", system.name())),
            }
        }
    }
    Ok(())
}

/// Figure 8 of the CCP paper: one flow, the same program and agent on each datapath.
fn same_program(
    stage: &mut Stage,
    systems: &[System],
    options: &Options,
    samples: &mut Samples,
    report: &mut Report,
) -> anyhow::Result<()> {
    let seconds = seconds(options, SAME_SECONDS);
    for (program, link, mbit) in SAME {
        let case = format!("ccp8/{program}");
        // The kernel's Cubic is the peer of Cubic only.
        let peers = systems.iter().filter(|system| **system != System::Plain || program == "cubic");
        for system in peers {
            let order = Order { program, flows: 1, link, warm_up: WARM_UP, seconds };
            match stage.run(*system, &order) {
                Ok(course) => add(samples, &case, *system, &course, mbit),
                Err(error) => report.failures.push(format!("{case}, {}: {error:#}", system.name())),
            }
        }
    }
    Ok(())
}

fn add(samples: &mut Samples, case: &str, system: System, course: &Course, mbit: f64) {
    let mut add =
        |metric: &str, unit: &str, value: f64| samples.add(case, system.name(), metric, unit, value);
    add("goodput", "Mbit/s", course.goodput);
    add("of the link", "", course.goodput / mbit);
    // Of the kernel's own Cubic there is no window to look at.
    if let Some(window) = course.window_mean() {
        add("window", "segments", window);
        add("back-off", "", course.back_off().unwrap_or(f64::NAN));
        add("round trip", "ms", course.rtt_mean_ms());
    }
}

fn notes(report: &mut Report) {
    report.note(format!(
        "tas13: {} there, {} back: figure 13's link, fifty times slower; `{}` and `{}`: DCTCP's program of crate ccp-algorithms with its agent, \
         `{}`: the kernel's own Cubic with classic ECN; the receiver is one service for all, which echoes marks exactly",
        INCAST[0],
        INCAST[1],
        System::Kernel.name(),
        System::Towpath.name(),
        System::Plain.name()
    ));
    report.note(
        "ccp8: the same program and the same agent on both; windows and round trips as each datapath tells of them, every 100 ms; the back-off \
         is the median of what is left of a window at a fall by more than a tenth",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_has_a_case_and_every_link_a_meaning() {
        let cases = ["tas13/flows52", "ccp8/cubic", "ccp8/copa"];
        for bar in BARS {
            assert!(cases.iter().any(|case| case.starts_with(bar.cases)), "{}", bar.cases);
        }
        for link in SAME.iter().map(|(_, link, _)| link).chain([&INCAST]).flatten() {
            link.parse::<link::LinkConfig>().unwrap_or_else(|why| panic!("{link}: {why}"));
        }
        let rate = |text: &str| text.parse::<link::LinkConfig>().expect("a link").rate_bits_per_second;
        assert!(SAME.iter().all(|(_, link, mbit)| rate(link[0]) == Some((mbit * 1e6) as u64)));
    }
}
