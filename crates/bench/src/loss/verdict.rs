//! Judges the pairs of a point: the median ratio, its confidence interval, and whether the link did what it was told.

use super::point::Point;
use super::record::{Outcome, Pair};
use crate::samples::{Sample, Samples, median};
use crate::{Ratio, Report};
use base::Seed;

/// The upper end of the interval must reach this (the issue: "the ratio's confidence interval reaching 0.95 or more").
pub const REACH: f64 = 0.95;
/// Number of resamples of the bootstrap.
const RESAMPLES: usize = 4000;
/// Share left out at each end of the interval, which so covers 95 %.
const TAIL: f64 = 0.025;
/// The most standard deviations by which the link's counters may differ from its configuration.
const SIGMAS: f64 = 5.0;
/// Pairs of runs that a result needs.
pub const PAIRS: usize = 20;

/// The middle 95 % of the medians of resamples (with replacement) of `values`, with a fixed seed. `None` if `values` is empty.
pub fn interval(values: &[f64]) -> Option<[f64; 2]> {
    let mut seed = Seed::new(0x7015);
    let mut medians = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let resample: Vec<f64> =
            values.iter().map(|_| values[seed.below(values.len() as u64) as usize]).collect();
        medians.push(median(&resample)?);
    }
    medians.sort_by(f64::total_cmp);
    let at = |share: f64| medians[((RESAMPLES - 1) as f64 * share).round() as usize];
    Some([at(TAIL), at(1.0 - TAIL)])
}

/// Adds rows, ratios and failures of all points to the report.
pub fn judge(points: &[Point], pairs: &[Pair], report: &mut Report) {
    let mut samples = Samples::default();
    let (mut reached, mut measured) = (0, 0);
    for point in points {
        let case = point.case();
        let mut own: Vec<&Pair> = pairs.iter().filter(|pair| pair.case == case).collect();
        own.sort_by_key(|pair| pair.seed);
        let Some(ratios) = ratios(&case, &own) else { continue };
        own.iter().for_each(|pair| add(&mut samples, &case, pair));
        check_link(point, &own, report);
        measured += 1;
        match ratios[0].interval {
            Some([_, high]) if high < REACH => report.failures.push(format!(
                "{case}: not reached: goodput is {:.2} of the kernel's, at most {high:.2}",
                ratios[0].median
            )),
            _ => reached += 1,
        }
        report.ratios.extend(ratios);
    }
    report.rows = samples.rows();
    report.note(format!(
        "reached at {reached} of {measured} points: the upper end of the 95 % interval of the median ratio of goodput \
         (bootstrap over seeds) is {REACH} or more"
    ));
}

fn add(samples: &mut Samples, case: &str, pair: &Pair) {
    for (system, outcome) in [("towpath", &pair.towpath), ("kernel", &pair.kernel)] {
        let goodput = Sample {
            value: outcome.goodput_bits_per_second / 1e6,
            cores: Some(outcome.cores),
            cpu_ns: Some(outcome.sender_cpu_ns_per_byte),
        };
        samples.add(case, system, "goodput", "Mbit/s", goodput);
        samples.add(case, system, "all processor time", "ns/B", outcome.all_cpu_ns_per_byte);
        samples.add(case, system, "struck by the link", "%", outcome.struck() * 100.0);
    }
}

fn ratios(case: &str, pairs: &[&Pair]) -> Option<[Ratio; 2]> {
    let of = |metric: &str, values: Vec<f64>| {
        Some(Ratio {
            case: case.to_owned(),
            metric: metric.to_owned(),
            over: "kernel".to_owned(),
            median: median(&values)?,
            interval: interval(&values),
        })
    };
    let cpu = |pair: &&Pair| pair.towpath.sender_cpu_ns_per_byte / pair.kernel.sender_cpu_ns_per_byte;
    Some([
        of("goodput", pairs.iter().map(|pair| pair.ratio()).collect())?,
        of("cpu_ns_per_op", pairs.iter().map(cpu).collect())?,
    ])
}

/// Checks for each system that the share of affected segments is the configured one.
fn check_link(point: &Point, pairs: &[&Pair], report: &mut Report) {
    let expected = point.mishap.share();
    for system in ["towpath", "kernel"] {
        let outcomes =
            pairs.iter().map(|pair| if system == "towpath" { &pair.towpath } else { &pair.kernel });
        let sum = |count: fn(&Outcome) -> u64| outcomes.clone().map(count).sum::<u64>() as f64;
        let (exposed, struck) = (sum(Outcome::exposed), sum(|o| o.lost + o.reordered));
        let deviation = (exposed * expected * (1.0 - expected) * point.mishap.clumping()).sqrt();
        if (struck - exposed * expected).abs() > SIGMAS * deviation + 1.0 {
            report.failures.push(format!(
                "{}, {system}: the link struck {struck} of {exposed} segments, not {:.3} %",
                point.case(),
                expected * 100.0
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::record::Settings;

    fn pairs(case: &str, ratios: &[f64], lost: u64) -> Vec<Pair> {
        let settings = Settings {
            algorithm: "cubic".into(),
            rate: "1gbit".into(),
            both_ways: false,
            sack: true,
            seconds: 1.0,
            warm_up: 0.3,
            build: String::new(),
        };
        let outcome = |goodput| Outcome {
            goodput_bits_per_second: goodput,
            sender_cpu_ns_per_byte: 1.0,
            offered: 100_000,
            lost,
            ..Outcome::default()
        };
        let one = |(seed, ratio): (u64, &f64)| Pair {
            case: case.to_owned(),
            seed,
            settings: settings.clone(),
            towpath: outcome(ratio * 1e8),
            kernel: outcome(1e8),
        };
        (1..).zip(ratios).map(one).collect()
    }

    fn judged(ratios: &[f64], lost: u64) -> Report {
        let point = Point { mishap: "1%".parse().unwrap(), flows: 1, rtt: base::Duration::from_ms(1) };
        let mut report = Report::new("loss");
        judge(std::slice::from_ref(&point), &pairs(&point.case(), ratios, lost), &mut report);
        report
    }

    #[test]
    fn the_interval_is_about_the_median_and_narrows_with_agreement() {
        let spread: Vec<f64> = (0..20).map(|i| 0.5 + 0.05 * f64::from(i)).collect();
        let [low, high] = interval(&spread).unwrap();
        let middle = median(&spread).unwrap();
        assert!(low < middle && middle < high && 0.6 < low && high < 1.4, "{low} to {high}");
        assert_eq!(interval(&[1.0; 20]), Some([1.0, 1.0]));
        assert_eq!(interval(&spread), Some([low, high]));
        assert_eq!(interval(&[]), None);
    }

    #[test]
    fn a_point_is_reached_when_its_interval_reaches_and_not_by_its_median() {
        let wide: Vec<f64> = (0..20).map(|i| 0.6 + 0.06 * f64::from(i % 10)).collect();
        assert!(median(&wide).unwrap() < REACH);
        assert_eq!(judged(&wide, 1000).failures, Vec::<String>::new());
        let low = judged(&[0.9; 20], 1000);
        assert!(low.failures[0].contains("not reached"), "{:?}", low.failures);
    }

    /// A segment dropped by the full queue could not be delayed.
    #[test]
    fn delays_strike_what_has_come_through_the_queue() {
        let all = Outcome { offered: 1000, queue_full: 200, reordered: 40, ..Outcome::default() };
        assert_eq!((all.exposed(), all.struck()), (800, 0.05));
        let lost = Outcome { offered: 1000, queue_full: 200, lost: 50, ..Outcome::default() };
        assert_eq!((lost.exposed(), lost.struck()), (1000, 0.05));
    }

    #[test]
    fn a_link_that_did_something_else_is_told() {
        assert!(judged(&[1.0; 20], 2000).failures[0].contains("the link struck"));
    }
}
