//! The measurement `dctcp-rate`: figures 11, 12 and 13 of the TAS paper in the simulator: DCTCP's law on rates beside DCTCP on windows, the
//! same flows with the same seeds. No time is measured but the simulator's own: the numbers are the same on every machine.

use crate::bars::{self, Bar, Limit, Measure};
use crate::parallel::in_parallel;
use crate::samples::Samples;
use crate::{Options, Report, cpu};
use base::Duration;
use congestion::{Algorithm, RateSettings};
use sim::figure::{Cluster, ClusterResult, Incast, IncastResult, Law, SingleLink, SingleLinkResult};
use sim::statistics::Mean;

const RATE: &str = "rate-dctcp";
const WINDOW: &str = "dctcp";

/// Control intervals of figure 11 in quarters of a round trip, with their names.
const TAUS: [(u16, &str); 6] =
    [(1, "0.25rtt"), (2, "0.5rtt"), (4, "1rtt"), (8, "2rtt"), (16, "4rtt"), (40, "10rtt")];
const TAUS_QUICK: [(u16, &str); 3] = [(1, "0.25rtt"), (4, "1rtt"), (8, "2rtt")];
/// Flows of figure 13.
const FLOWS: [u32; 5] = [52, 200, 500, 1_000, 2_000];
const FLOWS_QUICK: [u32; 2] = [52, 200];
/// The share of the link's rate that figure 11's flows are.
const LOAD: f64 = 0.75;
/// The share of the top links' rate that figure 12's flows are.
const LOAD_TOP: f64 = 0.3;

/// What the paper shows, as far as it is held against our numbers (docs/evaluation.md says which of it is not).
const BARS: &[Bar] = &[
    bar("tas11/tau1rtt/short", "fct", Measure::Over(WINDOW), Limit::Most(1.1)),
    bar("tas11/tau2rtt/short", "fct", Measure::Over(WINDOW), Limit::Most(1.1)),
    bar("tas11/tau1rtt/all", "fct", Measure::Over(WINDOW), Limit::Most(1.35)),
    bar("tas11/tau2rtt/all", "fct", Measure::Over(WINDOW), Limit::Most(1.35)),
    bar("tas13/", "p1 of median", Measure::Alone, Limit::Least(0.36)),
    bar("tas13/", "goodput", Measure::Over(WINDOW), Limit::Least(0.8)),
];

const fn bar(cases: &'static str, metric: &'static str, measure: Measure, limit: Limit) -> Bar {
    Bar { cases, metric, measure, limit }
}

/// DCTCP on rates as flows have it by default, but for the control interval.
fn rate_law(interval_quarters: Option<u16>) -> Law {
    let mut rates = RateSettings::default();
    rates.dctcp.interval_quarters = interval_quarters.unwrap_or(rates.dctcp.interval_quarters);
    Law { algorithm: Algorithm::RateDctcp, rates }
}

fn window_law() -> Law {
    Law { algorithm: Algorithm::Dctcp, rates: RateSettings::default() }
}

/// Runs the measurement `dctcp-rate`.
///
/// # Errors
/// None: everything happens in memory.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("dctcp-rate");
    let mut samples = Samples::default();
    single_link(options, &mut samples, &mut report);
    cluster(options, &mut samples, &mut report);
    incast(options, &mut samples, &mut report);
    report.rows = samples.rows();
    report.ratios = samples.ratios(RATE, &[WINDOW]);
    bars::judge(&mut report, RATE, BARS);
    Ok(report)
}

/// Figure 11: flows over one link, with each control interval.
fn single_link(options: &Options, samples: &mut Samples, report: &mut Report) {
    let taus: &[(u16, &str)] = if options.quick { &TAUS_QUICK } else { &TAUS };
    let time = Duration::from_ms(if options.quick { 100 } else { 600 });
    let seeds = 1..=options.runs() as u64;
    let laws = taus.iter().map(|(quarters, _)| rate_law(Some(*quarters))).chain([window_law()]);
    let settings: Vec<SingleLink> = laws
        .flat_map(|law| seeds.clone().map(move |seed| SingleLink { law, load: LOAD, time, seed }))
        .collect();
    let results = in_parallel(&settings, SingleLink::run);
    let each: Vec<&[SingleLinkResult]> = results.chunks(options.runs()).collect();
    let Some((windows, rates)) = each.split_last() else { return };
    for ((_, tau), of_tau) in taus.iter().zip(rates) {
        for (system, results) in [(RATE, *of_tau), (WINDOW, *windows)] {
            for r in results {
                let mut add = |what: &str, metric: &str, unit: &str, value: f64| {
                    samples.add(&format!("tas11/tau{tau}/{what}"), system, metric, unit, value);
                };
                add("all", "fct", "us", r.times.all);
                add("short", "fct", "us", r.times.short);
                add("long", "fct", "us", r.times.long);
                add("queue", "mean", "packets", r.queue);
            }
        }
        let ratios = |f: fn(&SingleLinkResult) -> f64| ratios(of_tau, windows, f);
        report.note(format!(
            "tas11/tau{tau}: completion time over window DCTCP's, mean of {} seeds with 95 %: all {}, < 100 KB {}, >= 1 MB {}",
            options.runs(),
            ratios(|r| r.times.all),
            ratios(|r| r.times.short),
            ratios(|r| r.times.long)
        ));
    }
}

/// Figure 12: a cluster of machines in pods.
fn cluster(options: &Options, samples: &mut Samples, report: &mut Report) {
    // The whole of it, 2,560 machines, takes 15 GB and many minutes: `--seconds` above 10 asks for it.
    let is_whole = !options.quick && options.seconds() > 10.0;
    let (pods, machines, ms) = match (options.quick, is_whole) {
        (true, _) => (4, 5, 5),
        (false, false) => (4, 10, 20),
        (false, true) => (16, 40, 50),
    };
    let seeds = if is_whole { 1 } else { options.runs() as u64 };
    let settings: Vec<Cluster> = [rate_law(Some(4)), window_law()]
        .iter()
        .flat_map(|law| {
            (1..=seeds).map(|seed| Cluster {
                law: *law,
                pods,
                machines,
                load: LOAD_TOP,
                time: Duration::from_ms(ms),
                patience: Duration::from_ms(500),
                seed,
            })
        })
        .collect();
    let before = cpu::process_ns(std::process::id()).unwrap_or(0);
    let results = if is_whole {
        settings.iter().map(Cluster::run).collect()
    } else {
        in_parallel(&settings, Cluster::run)
    };
    let used = cpu::process_ns(std::process::id()).unwrap_or(0).saturating_sub(before) as f64 / 1e9;
    let case = format!("tas12/machines{}", results[0].machines);
    let (rates, windows) = results.split_at(seeds as usize);
    for (system, results) in [(RATE, rates), (WINDOW, windows)] {
        for r in results {
            samples.add(&format!("{case}/short"), system, "fct", "us", r.times.short);
            samples.add(&format!("{case}/long"), system, "fct", "us", r.times.long);
            samples.add(&format!("{case}/all"), system, "fct", "us", r.times.all);
        }
    }
    let sum = |f: fn(&ClusterResult) -> u64| results.iter().map(f).sum::<u64>() as f64;
    let ratios = |f: fn(&ClusterResult) -> f64| ratios(rates, windows, f);
    report.note(format!(
        "{case}: over window DCTCP's, mean of {seeds} seeds with 95 %: < 100 KB {}, >= 1 MB {}; {:.0} flows a run, {:.2} M frames of machines \
         and {:.2} M hops in all, {:.0} frames and {:.0} hops for each second of processor time",
        ratios(|r| r.times.short),
        ratios(|r| r.times.long),
        sum(|r| r.flows as u64) / results.len() as f64,
        sum(|r| r.frames) / 1e6,
        sum(|r| r.hops) / 1e6,
        sum(|r| r.frames) / used,
        sum(|r| r.hops) / used,
    ));
}

/// Figure 13: many flows into one machine.
fn incast(options: &Options, samples: &mut Samples, report: &mut Report) {
    let flows: &[u32] = if options.quick { &FLOWS_QUICK } else { &FLOWS };
    let (warm_up, windows, seeds) = match options.quick {
        true => (Duration::from_ms(200), 2, 1),
        false => (Duration::from_secs(1), 3, options.runs().min(3) as u64),
    };
    let settings: Vec<Incast> = flows
        .iter()
        .flat_map(|flows| [(*flows, rate_law(None)), (*flows, window_law())])
        .flat_map(|(flows, law)| (1..=seeds).map(move |seed| Incast { law, flows, warm_up, windows, seed }))
        .collect();
    let results: Vec<IncastResult> = in_parallel(&settings, Incast::run);
    for (setting, r) in settings.iter().zip(&results) {
        let case = format!("tas13/flows{}", setting.flows);
        let system = if setting.law.algorithm == Algorithm::RateDctcp { RATE } else { WINDOW };
        let mut add = |metric: &str, unit: &str, value: f64| samples.add(&case, system, metric, unit, value);
        add("p1 of median", "", r.p1_of_median);
        add("median of fair share", "", r.median_of_fair);
        add("jain", "", r.jain);
        add("goodput", "bit/s", r.goodput);
        add("queue", "packets", r.queue);
        add("dropped", "packets", r.dropped as f64);
    }
    report.note(format!(
        "tas13: {windows} windows of 100 ms after {} ms, {seeds} seeds; the paper has a minute after 20 s",
        warm_up.as_ms()
    ));
}

/// What `metric` of each run is over that of the same seed's run of window DCTCP: the mean with its 95 % interval, as text.
fn ratios<R>(rates: &[R], windows: &[R], metric: fn(&R) -> f64) -> String {
    let each: Vec<f64> =
        rates.iter().zip(windows).map(|(rate, window)| metric(rate) / metric(window)).collect();
    let mean = Mean::of(&each);
    if mean.half.is_finite() {
        format!("{:.2} ± {:.2}", mean.value, mean.half)
    } else {
        format!("{:.2}", mean.value)
    }
}
