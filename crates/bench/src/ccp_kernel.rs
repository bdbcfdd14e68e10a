//! The measurement `ccp-kernel`: figure 13 of the TAS paper with the kernel's TCP as sender, which runs our DCTCP by BPF, and figures 3, 8 and 10 of the CCP
//! paper: the same algorithms on the kernel and on Towpath. In real time, over `towpath link`, with one receiver for all: a service that echoes marks exactly.
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
/// Measured time of figure 3: three dips, ten seconds apart.
const DIPS_SECONDS: f64 = 33.0;

/// One flow with the same program on each datapath.
struct Same {
    case: &'static str,
    program: &'static str,
    /// Both directions of the link.
    link: [&'static str; 2],
    /// The link's rate in Mbit/s.
    mbit: f64,
    seconds: f64,
}

const SAME: [Same; 4] = [
    Same {
        case: "ccp8/cubic",
        program: "cubic",
        link: ["rate=24mbit,delay=10ms,queue=40p", "delay=10ms"],
        mbit: 24.0,
        seconds: SAME_SECONDS,
    },
    Same {
        case: "ccp8/copa",
        program: "copa",
        link: ["rate=12mbit,delay=12500us,queue=100p", "delay=12500us"],
        mbit: 12.0,
        seconds: SAME_SECONDS,
    },
    Same {
        case: "ccp10/fixed/cubic",
        program: "cubic",
        link: ["rate=48mbit,delay=10ms,queue=80p", "delay=10ms"],
        mbit: 48.0,
        seconds: SAME_SECONDS,
    },
    Same {
        case: DIPS,
        program: "bbr",
        link: ["rate=48mbit,delay=10ms,queue=160p", "delay=10ms"],
        mbit: 48.0,
        seconds: DIPS_SECONDS,
    },
];
/// The case of figure 3.
const DIPS: &str = "ccp3";

/// Of both systems that run the same program. The paper's tail is 2.8 times below the median; rates as in the simulator.
const BARS: [Bar; 7] = [
    alone("tas13/", "p1 of median", Limit::Least(0.36)),
    alone("ccp8/cubic", "of the link", Limit::Least(0.9)),
    alone("ccp8/copa", "goodput", Limit::Least(8.2)),
    alone(DIPS, "of the link", Limit::Least(0.93)),
    alone(DIPS, "dip distance", Limit::Least(9.5)),
    alone(DIPS, "dip distance", Limit::Most(10.5)),
    alone(DIPS, "dip window", Limit::Most(4.0)),
];
/// Of Cubic's program on the kernel beside the kernel's own Cubic: by the clock, within a tenth.
const BARS_PLAIN: [Bar; 4] = [
    over_plain("goodput", Limit::Least(0.9)),
    over_plain("goodput", Limit::Most(1.1)),
    over_plain("round trip p50", Limit::Least(0.9)),
    over_plain("round trip p50", Limit::Most(1.1)),
];

const fn alone(cases: &'static str, metric: &'static str, limit: Limit) -> Bar {
    Bar { cases, metric, measure: Measure::Alone, limit }
}

const fn over_plain(metric: &'static str, limit: Limit) -> Bar {
    Bar { cases: "ccp10/", metric, measure: Measure::Over(System::Plain.name()), limit }
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
    if kernel.is_ok() {
        bars::judge(&mut report, System::Kernel.name(), &BARS_PLAIN);
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

/// Figures 3, 8 and 10 of the CCP paper: one flow, the same program and agent on each datapath.
fn same_program(
    stage: &mut Stage,
    systems: &[System],
    options: &Options,
    samples: &mut Samples,
    report: &mut Report,
) -> anyhow::Result<()> {
    for same in &SAME {
        let seconds = match same.case {
            // A shorter run has no two dips.
            DIPS => same.seconds,
            _ => seconds(options, same.seconds),
        };
        // The kernel's Cubic is the peer of Cubic only.
        let peers = systems.iter().filter(|system| **system != System::Plain || same.program == "cubic");
        for system in peers {
            let (program, link) = (same.program, same.link);
            let order = Order { program, flows: 1, link, warm_up: WARM_UP, seconds };
            match stage.run(*system, &order) {
                Ok(course) => add(samples, same, *system, &course),
                Err(error) => report.failures.push(format!("{}, {}: {error:#}", same.case, system.name())),
            }
        }
    }
    Ok(())
}

fn add(samples: &mut Samples, same: &Same, system: System, course: &Course) {
    let mut add =
        |metric: &str, unit: &str, value: f64| samples.add(same.case, system.name(), metric, unit, value);
    add("goodput", "Mbit/s", course.goodput);
    add("of the link", "", course.goodput / same.mbit);
    let Some(window) = course.window_mean() else { return };
    add("window", "segments", window);
    if same.case == DIPS {
        let (distance, least) = course.dips();
        add("dip distance", "s", distance.unwrap_or(f64::NAN));
        add("dip window", "segments", least);
        return;
    }
    add("back-off", "", course.back_off().unwrap_or(f64::NAN));
    for (metric, share) in [("round trip p25", 0.25), ("round trip p50", 0.5), ("round trip p75", 0.75)] {
        add(metric, "ms", course.rtt_ms(share));
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
        "ccp3, ccp8, ccp10: the same program and the same agent on both; windows and smoothed round trips as each datapath tells of them (the kernel's \
         own Cubic by `ss`), every 100 ms; the back-off is the median of what is left of a window at a fall by more than a tenth; a dip is BBR's look \
         for the least round trip",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_has_a_case_and_every_link_a_meaning() {
        let cases: Vec<&str> = ["tas13/flows52"].into_iter().chain(SAME.map(|same| same.case)).collect();
        for bar in BARS.into_iter().chain(BARS_PLAIN) {
            assert!(cases.iter().any(|case| case.starts_with(bar.cases)), "{}", bar.cases);
        }
        for link in SAME.iter().map(|same| &same.link).chain([&INCAST]).flatten() {
            link.parse::<link::LinkConfig>().unwrap_or_else(|why| panic!("{link}: {why}"));
        }
        let rate = |text: &str| text.parse::<link::LinkConfig>().expect("a link").rate_bits_per_second;
        assert!(SAME.iter().all(|same| rate(same.link[0]) == Some((same.mbit * 1e6) as u64)));
    }
}
