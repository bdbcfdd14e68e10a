//! Collects the numbers of all runs of a measurement and makes rows and ratios of them.

use crate::{Ratio, Row};

/// The metric's name for ratios of processor time.
const CPU: &str = "cpu_ns_per_op";

/// One number of one run.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Sample {
    /// The number, in the unit of its metric.
    pub value: f64,
    /// Cores used during the run; `None` where this has no meaning.
    pub cores: Option<f64>,
    /// Processor time per operation in nanoseconds.
    pub cpu_ns: Option<f64>,
}

impl From<f64> for Sample {
    fn from(value: f64) -> Self {
        Self { value, ..Self::default() }
    }
}

#[derive(Debug)]
struct Series {
    case: String,
    system: String,
    metric: String,
    unit: String,
    samples: Vec<Sample>,
}

/// All numbers of a measurement; series stand in the order of their first numbers.
#[derive(Debug, Default)]
pub struct Samples {
    series: Vec<Series>,
}

impl Samples {
    /// Adds one number of one run.
    pub fn add(&mut self, case: &str, system: &str, metric: &str, unit: &str, sample: impl Into<Sample>) {
        let sample = sample.into();
        let is_it = |s: &&mut Series| s.case == case && s.system == system && s.metric == metric;
        match self.series.iter_mut().find(is_it) {
            Some(series) => series.samples.push(sample),
            None => self.series.push(Series {
                case: case.to_owned(),
                system: system.to_owned(),
                metric: metric.to_owned(),
                unit: unit.to_owned(),
                samples: vec![sample],
            }),
        }
    }

    /// A row for each series: median, minimum and maximum of its runs.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let row = |s: &Series| {
            let values: Vec<f64> = s.samples.iter().map(|x| x.value).collect();
            Row {
                case: s.case.clone(),
                system: s.system.clone(),
                metric: s.metric.clone(),
                unit: s.unit.clone(),
                median: median(&values).unwrap_or(f64::NAN),
                min: values.iter().copied().fold(f64::INFINITY, f64::min),
                max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                runs: values.len(),
                cores_used: median(&s.samples.iter().filter_map(|x| x.cores).collect::<Vec<_>>()),
                cpu_ns_per_op: median(&s.samples.iter().filter_map(|x| x.cpu_ns).collect::<Vec<_>>()),
            }
        };
        self.series.iter().map(row).collect()
    }

    /// The ratios of `system`'s numbers to those of each of `peers`, run by run, in every case and metric that both have, and (once per
    /// case) the ratio of processor time where both have it.
    #[must_use]
    pub fn ratios(&self, system: &str, peers: &[&str]) -> Vec<Ratio> {
        let mut ratios: Vec<Ratio> = Vec::new();
        for ours in self.series.iter().filter(|s| s.system == system) {
            for peer in peers {
                let is_it = |s: &&Series| s.system == *peer && s.case == ours.case && s.metric == ours.metric;
                let Some(theirs) = self.series.iter().find(is_it) else { continue };
                let pairs = || ours.samples.iter().zip(&theirs.samples);
                // What is over nothing is no ratio.
                let values =
                    pairs().map(|(a, b)| a.value / b.value).filter(|ratio| ratio.is_finite()).collect();
                let cpu: Vec<f64> = pairs().filter_map(|(a, b)| Some(a.cpu_ns? / b.cpu_ns?)).collect();
                for (metric, values) in [(ours.metric.as_str(), values), (CPU, cpu)] {
                    let known =
                        ratios.iter().any(|r| r.case == ours.case && r.metric == metric && r.over == *peer);
                    let Some(median) = median(&values).filter(|_| !known) else { continue };
                    ratios.push(Ratio {
                        case: ours.case.clone(),
                        metric: metric.to_owned(),
                        over: (*peer).to_owned(),
                        median,
                        interval: None,
                    });
                }
            }
        }
        let place = |r: &Ratio| {
            let case = self.series.iter().position(|s| s.case == r.case);
            (case, peers.iter().position(|p| *p == r.over), r.metric == CPU)
        };
        ratios.sort_by_key(place);
        ratios
    }
}

/// The median; `None` if `values` is empty.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => Some(sorted[n / 2]),
        _ => Some(f64::midpoint(sorted[n / 2 - 1], sorted[n / 2])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_nothing() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn ratios_pair_runs_and_name_the_peer() {
        let mut samples = Samples::default();
        for (a, b) in [(10.0, 5.0), (9.0, 3.0), (8.0, 8.0)] {
            let ours = Sample { value: a, cores: Some(1.5), cpu_ns: Some(100.0) };
            samples.add("redis/get/c50/p1", "towpath", "requests", "1/s", ours);
            let theirs = Sample { value: b, cores: Some(2.0), cpu_ns: Some(400.0) };
            samples.add("redis/get/c50/p1", "kernel", "requests", "1/s", theirs);
        }
        let ratios = samples.ratios("towpath", &["kernel", "veth"]);
        assert_eq!(ratios.len(), 2);
        assert_eq!((ratios[0].metric.as_str(), ratios[0].median), ("requests", 2.0));
        assert_eq!((ratios[1].metric.as_str(), ratios[1].median), ("cpu_ns_per_op", 0.25));
        let rows = samples.rows();
        assert_eq!((rows[0].median, rows[0].min, rows[0].max, rows[0].runs), (9.0, 8.0, 10.0, 3));
        assert_eq!(rows[1].cores_used, Some(2.0));
    }
}
