//! The measurement `ccp`: table 1 and figures 12, 13 and 14 of the CCP paper (SIGCOMM 2018, section 7). Figure 12 takes the time of a report to an agent and of
//! the agent's answer, beside that of a bare datagram echo. Table 1 and figure 13 are what flows carry, and what that costs, with an agent and with the
//! algorithm that is built in. Figure 14 runs in the simulator: its numbers are the same on every machine. Beside the figures: what a trial takes.

pub mod agent;
mod latency;
mod load;
mod released;
mod trial;

use crate::bars::{self, Bar, Limit, Measure};
use crate::parallel::in_parallel;
use crate::samples::Samples;
use crate::{Options, Ratio, Report, affinity};
use base::Duration;
use latency::Way;
use sim::figure::{Staleness, StalenessResult};
use sim::statistics::percentile;

/// Systems of figure 12.
const REPORT: &str = "report";
const ECHO: &str = "echo";
/// Systems of figure 14.
const AGENT: &str = "agent";
const DATAPATH: &str = "datapath";

/// Times over and back of one run of figure 12.
const ROUNDS: usize = 5_000;
const ROUNDS_QUICK: usize = 1_000;

/// Systems of figure 13 (`load` measures them); the paper's agents are Reno and Cubic, and "the congestion control algorithm used does not affect
/// performance".
const BUILT_IN: &str = "built-in";

/// Rates of figure 14, gigabits per second; segments of a message; times between reports, microseconds.
const RATES: [u64; 2] = [10, 40];
const PACKETS: [u64; 3] = [10, 100, 1_000];
const INTERVALS_US: [u64; 5] = [10, 50, 100, 200, 500];
const PACKETS_QUICK: [u64; 2] = [10, 100];
const INTERVALS_US_QUICK: [u64; 2] = [10, 100];
/// Packets that a queue of figure 14 takes, as in the other figures of the simulator. With queues that take everything the window decides nothing.
const QUEUE: u32 = 1_000;
/// Seeds of figure 14 (the paper: 50).
const SEEDS: u64 = 20;
const SEEDS_QUICK: u64 = 3;

/// Figure 12: our own code may cost half of a bare echo. Figure 14: "at 10 Gbit/s, CCP performance stays within 15 % of the baseline", and at
/// 40 Gbit/s "at 100 us ..., the tail completion time is within 10 % of the baseline".
const BARS_REPORT: &[Bar] = &[over(ECHO, "ccp12/", "p50", 1.5), over(ECHO, "ccp12/", "p95", 1.5)];
const BARS_AGENT: &[Bar] =
    &[over(DATAPATH, "ccp14/10g/", "tail", 1.15), over(DATAPATH, "ccp14/40g/packets100/100us", "tail", 1.10)];

const fn over(peer: &'static str, cases: &'static str, metric: &'static str, most: f64) -> Bar {
    Bar { cases, metric, measure: Measure::Over(peer), limit: Limit::Most(most) }
}

/// Runs the measurement `ccp`.
///
/// # Errors
/// When sockets or a thread cannot be had.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("ccp");
    let mut samples = Samples::default();
    let has_trials = trial::trials(options, &mut samples, &mut report)?;
    latencies(options, &mut samples, &mut report)?;
    let has_loads = load::loads(options, &mut samples, &mut report)?;
    staleness(options, &mut samples, &mut report);
    report.rows = samples.rows();
    report.ratios = samples.ratios(REPORT, &[ECHO]);
    report.ratios.extend(samples.ratios(AGENT, &[DATAPATH, BUILT_IN]));
    // A ratio has no place for the system's name: the case has it.
    let of_released = samples.ratios(released::SYSTEM, &[BUILT_IN]);
    report.ratios.extend(
        of_released.into_iter().map(|r| Ratio { case: format!("{}/{}", r.case, released::SYSTEM), ..r }),
    );
    if has_trials {
        bars::judge(&mut report, trial::SYSTEM, trial::BARS);
    }
    bars::judge(&mut report, REPORT, BARS_REPORT);
    bars::judge(&mut report, AGENT, BARS_AGENT);
    if has_loads {
        bars::judge(&mut report, AGENT, load::bars(options));
    }
    Ok(report)
}

/// Figure 12: with both ends on one processor, and on two if there are two.
fn latencies(options: &Options, samples: &mut Samples, report: &mut Report) -> anyhow::Result<()> {
    let cpus = affinity::allowed();
    let Some(first) = cpus.first() else { anyhow::bail!("this process may run on no processor") };
    let rounds = if options.quick { ROUNDS_QUICK } else { ROUNDS };
    let mut places = vec![("one-core", [*first; 2])];
    places.extend(cpus.get(1).map(|second| ("two-cores", [*first, *second])));
    for _ in 0..options.runs() {
        for (name, cpus) in &places {
            for (system, way) in [(REPORT, Way::Report), (ECHO, Way::Echo)] {
                let mut took = latency::round_trips(way, *cpus, rounds)?;
                took.sort_unstable();
                for (metric, share) in [("p50", 0.5), ("p95", 0.95)] {
                    let ns = percentile(&took, share).unwrap_or_default();
                    samples.add(&format!("ccp12/{name}"), system, metric, "us", ns as f64 / 1e3);
                }
            }
        }
    }
    report.note(format!(
        "ccp12: {rounds} times over and back in each run, by UNIX datagrams between two threads that sleep while they wait: a report of three \
         values through the endpoint, which an agent answers by a window, and 64 bytes that come back as they are; the paper's Netlink and its \
         device are ways into a kernel, which this datapath is not"
    ));
    Ok(())
}

/// Figure 14: fifty messages to one machine at nearly the same time; means over all seeds.
fn staleness(options: &Options, samples: &mut Samples, report: &mut Report) {
    let (packets, intervals): (&[u64], &[u64]) = match options.quick {
        true => (&PACKETS_QUICK, &INTERVALS_US_QUICK),
        false => (&PACKETS, &INTERVALS_US),
    };
    let seeds = options.runs.map_or(if options.quick { SEEDS_QUICK } else { SEEDS }, u64::from);
    let each = intervals.iter().map(|us| Some(Duration::from_us(*us))).chain([None]);
    let settings: Vec<Staleness> = RATES
        .iter()
        .flat_map(|rate| packets.iter().map(move |packets| (*rate, *packets)))
        .flat_map(|(gigabits, packets)| each.clone().map(move |interval| (gigabits, packets, interval)))
        .flat_map(|(gigabits, packets, interval)| {
            (1..=seeds).map(move |seed| Staleness { gigabits, packets, queue: QUEUE, interval, seed })
        })
        .collect();
    let results = in_parallel(&settings, Staleness::run);
    for (settings, results) in settings.chunks(seeds as usize).zip(results.chunks(seeds as usize)) {
        let setting = settings[0];
        let case = format!("ccp14/{}g/packets{}", setting.gigabits, setting.packets);
        match setting.interval {
            Some(interval) => add(samples, &format!("{case}/{}us", interval.as_us()), AGENT, results),
            // The baseline stands beside each interval.
            None => {
                intervals.iter().for_each(|us| add(samples, &format!("{case}/{us}us"), DATAPATH, results));
            }
        }
    }
    report.note(format!(
        "ccp14: Reno by the same rules in the datapath, and by an agent that hears reports at these intervals and whose answers come 20 us late; \
         50 machines, a round trip of 20 us, queues of {QUEUE} packets (the paper says nothing of its queues); means over {seeds} seeds of the \
         last of 50 messages and of all, and the worst seed (the paper has 50 seeds: --seeds 50)"
    ));
}

fn add(samples: &mut Samples, case: &str, system: &str, results: &[StalenessResult]) {
    let mean = |of: fn(&StalenessResult) -> f64| results.iter().map(of).sum::<f64>() / results.len() as f64;
    samples.add(case, system, "tail", "us", mean(|result| result.tail_us));
    samples.add(case, system, "worst", "us", results.iter().map(|result| result.tail_us).fold(0.0, f64::max));
    samples.add(case, system, "mean", "us", mean(|result| result.mean_us));
    samples.add(case, system, "dropped", "packets", mean(|result| result.dropped as f64));
}
