//! The measurement `cores`. The work of two cores beside one's over the memory port, in processor time and by the clock; and figures 14 and 15 of the
//! TAS paper (cores that come and go with the load), in the simulator, where there are as many processors as the figure needs.

mod work;

use crate::bars::{self, Bar, Limit, Measure};
use crate::parallel::in_parallel;
use crate::samples::Samples;
use crate::{Options, Report};
use base::Duration;
use sim::figure::{ChangesResult, Steps, StepsResult};
use work::{Place, Seen};

/// Connections of each core.
const CONNECTIONS: [u32; 3] = [64, 1_024, 8_192];
const CONNECTIONS_QUICK: [u32; 2] = [64, 1_024];
/// Systems of the first part: one core; two of one service; two services with one core each.
const ONE: &str = "one-core";
const TWO: &str = "two-cores";
const APART: &str = "two-services";
const SIMULATED: &str = "towpath";
/// Two threads have had a processor each when they ran for this share of the time.
const FREE: f64 = 1.95;
const TIME: &str = "processor time";
const RATE: &str = "rate";

/// The higher loads of figures 14 and 15, thousandths of a core; before and after them half a core's.
const LOADS: [u64; 2] = [1_500, 1_900];
/// What the simulator's server is like: two cores, 5 us for a packet, 7 ms for a new table of the port, as long as was ever measured.
const STEPS: Steps = Steps {
    cores: 2,
    cost: Duration::from_us(5),
    steer_delay: Duration::from_ms(7),
    step: Duration::from_ms(1_000),
    load: LOADS[0],
    seed: 1,
};

const BARS: &[Bar] = &[
    bar("cores/steps/", "addition", Limit::Most(200.0)),
    bar("cores/steps/", "removal", Limit::Most(500.0)),
    bar("cores/steps/", "changes", Limit::Most(2.0)),
    bar("cores/steps/", "lost", Limit::Most(0.0)),
    bar("cores/steps/", "held back", Limit::Most(1_000.0)),
    bar("cores/changes", "during", Limit::Most(1.3)),
    bar("cores/changes", "lost", Limit::Most(0.0)),
    bar("cores/changes", "held back", Limit::Most(1_000.0)),
];
const WORK: &[Bar] =
    &[Bar { cases: "cores/work/", metric: TIME, measure: Measure::Over(ONE), limit: Limit::Most(1.1) }];

const fn bar(cases: &'static str, metric: &'static str, limit: Limit) -> Bar {
    Bar { cases, metric, measure: Measure::Alone, limit }
}

/// Runs the measurement `cores`.
///
/// # Errors
/// When memory or a thread cannot be had, or replies do not have the length that was asked for.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("cores");
    let mut samples = Samples::default();
    let shares = work(options, &mut samples)?;
    steps(options, &mut samples);
    changes(options, &mut samples);
    report.rows = samples.rows();
    report.ratios = samples.ratios(TWO, &[ONE, APART]);
    bars::judge(&mut report, TWO, WORK);
    bars::judge(&mut report, SIMULATED, BARS);
    by_the_clock(&mut report, &shares);
    report.note("cores/work: each core, its application and its generator on one thread, each thread on a processor of its own if there are as many");
    report.note(
        "cores/work: processor time of all of it for each RPC of 64 bytes, ns; two-services: two cores that share nothing, \
         what the machine itself costs",
    );
    report.note("cores/steps, cores/changes: in virtual time, a packet takes 5 us, a new table of the port 7 ms: the same on every machine");
    report.note(
        "not to be had on two processors by the clock: figures 14 and 15 need one for each core, one for the generator, and an idle one \
         for the core that is to come",
    );
    Ok(report)
}

/// Two cores' work beside one's. Returns the processors that the two threads had in each run.
fn work(options: &Options, samples: &mut Samples) -> anyhow::Result<Vec<f64>> {
    let counts: &[u32] = if options.quick { &CONNECTIONS_QUICK } else { &CONNECTIONS };
    let mut shares = Vec::new();
    for _ in 0..options.runs() {
        for connections in counts {
            for (system, place) in [(ONE, Place::One), (TWO, Place::Two), (APART, Place::Apart)] {
                let seen = work::measure(place, *connections, options.seconds())?;
                add(samples, &format!("cores/work/n{connections}"), system, &seen);
                shares.extend((place == Place::Two).then(|| seen.processors()));
            }
        }
    }
    Ok(shares)
}

fn add(samples: &mut Samples, case: &str, system: &str, seen: &Seen) {
    samples.add(case, system, RATE, "RPC/s", seen.rate());
    samples.add(case, system, TIME, "ns", seen.ns_each());
    samples.add(case, system, "processors", "1", seen.processors());
}

/// The rate by the clock is a result only where each of two threads has had a processor for itself.
fn by_the_clock(report: &mut Report, shares: &[f64]) {
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let ratios: Vec<(String, f64)> = report
        .ratios
        .iter()
        .filter(|ratio| ratio.metric == RATE && ratio.over == ONE)
        .map(|ratio| (ratio.case.clone(), ratio.median))
        .collect();
    for (case, ratio) in ratios {
        let text = format!("{case}: by the clock {ratio:.2} times one core's rate");
        match least >= FREE {
            true => bars::tell(report, text, ratio, Limit::Least(1.8)),
            false => report.note(format!(
                "{text}; not held against the bar of 1.8: two threads had as little as {least:.2} processors"
            )),
        }
    }
}

/// Figures 14 and 15: half a core's load, more than one core's, half a core's.
fn steps(options: &Options, samples: &mut Samples) {
    for load in LOADS {
        let settings: Vec<Steps> =
            (1..=options.runs() as u64).map(|seed| Steps { load, seed, ..STEPS }).collect();
        for result in in_parallel(&settings, Steps::run) {
            let StepsResult { added, removed, changes, lost, overflow, overflow_at_moves: _, held } = result;
            let case = format!("cores/steps/{}.{}", load / 1_000, load % 1_000 / 100);
            let ms = |time: Option<Duration>| time.map_or(f64::NAN, |time| time.as_ns() as f64 / 1e6);
            let mut add = |metric: &str, unit: &str, value: f64| {
                samples.add(&case, SIMULATED, metric, unit, value);
            };
            add("addition", "ms", ms(added));
            add("removal", "ms", ms(removed));
            add("changes", "1", changes.len() as f64);
            add("lost", "frames", lost.iter().sum::<u64>() as f64);
            add("overflow", "frames", overflow as f64);
            add("held back", "us", held.as_ns() as f64 / 1e3);
        }
    }
}

/// A steady flow, while cores are added and taken back.
fn changes(options: &Options, samples: &mut Samples) {
    let settings: Vec<Steps> = (1..=options.runs() as u64).map(|seed| Steps { seed, ..STEPS }).collect();
    for result in in_parallel(&settings, Steps::changes) {
        let ChangesResult { p99: [outside, during], lost, held, .. } = result;
        let mut add = |metric: &str, unit: &str, value: f64| {
            samples.add("cores/changes", SIMULATED, metric, unit, value);
        };
        add("p99", "us", outside);
        add("p99 during", "us", during);
        add("during", "of p99", during / outside);
        add("lost", "frames", lost.iter().sum::<u64>() as f64);
        add("held back", "us", held.as_ns() as f64 / 1e3);
    }
}
