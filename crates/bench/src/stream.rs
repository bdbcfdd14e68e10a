//! The measurement `stream`: tuples pass three stages over TCP and return to their source (TAS, Table 8 and Figure 10). It measures their
//! rate and latency with and without batching.
//!
//! ```text
//!   ┌────────┐ in turn  ┌───────┐ by key  ┌───────┐
//!   │ source │─────────►│ split │────────►│ count │     each a process with one thread,
//!   └────────┘          └───────┘         └───┬───┘     each arrow a connection for each partition
//!        ▲            by partition            │
//!        └────────────────────────────────────┘
//! ```

mod check;
mod input;
mod multiplexer;
mod source;
mod stage;
pub mod stages;
mod topics;
mod tuple;

use crate::bars::{self, Bar, Limit, Measure};
use crate::client::{Measured, Window};
use crate::launch::{Port, Service};
use crate::redis::local;
use crate::samples::Samples;
use crate::sockets::actor::Answer;
use crate::sockets::ask;
use crate::sockets::circle::Circle;
use crate::table::number;
use crate::{Options, Report};
use anyhow::{Context, bail};
use multiplexer::Batching;
use source::Plan;
use stages::Ask;

/// Connections from each stage to the next.
const PARTITIONS: u32 = 4;
/// Milliseconds of batching (TAS: up to 10 ms).
const BATCH_MS: u32 = 10;
/// The rate when latencies are measured, as a share of the kernel's highest rate.
const CALM_SHARE: f64 = 0.3;

const KERNEL: Measure = Measure::Over("kernel");
const NO_WORSE: Limit = Limit::Most(1.0);
const BARS: &[Bar] = &[
    Bar { cases: "stream/peak/unbatched", metric: "rate", measure: KERNEL, limit: Limit::Least(1.0) },
    Bar { cases: "stream/latency/unbatched", metric: "p50", measure: KERNEL, limit: NO_WORSE },
    Bar { cases: "stream/latency/unbatched", metric: "p99", measure: KERNEL, limit: NO_WORSE },
];

/// One way to send tuples; see [`Plan`].
#[derive(Clone, Copy)]
struct Case {
    batching: Batching,
    rate: Option<f64>,
}

/// Mean times of a tuple in one stage, in microseconds.
#[derive(Clone, Copy)]
struct Times {
    input: f64,
    processing: f64,
    output: f64,
}

/// The results of one run; times are means in microseconds.
struct Run {
    measured: Measured,
    /// From the time at which a tuple was due until it was made, and from then until it was sent.
    late: f64,
    sent: f64,
    stages: [Times; 2],
    /// From the time at which a tuple was due until it came back.
    whole: f64,
}

impl Case {
    /// The case's name in results.
    fn path(self) -> String {
        let load = if self.rate.is_some() { "latency" } else { "peak" };
        match self.batching {
            Batching::None => format!("stream/{load}/unbatched"),
            Batching::Milliseconds(ms) => format!("stream/{load}/batched-{ms}ms"),
        }
    }

    /// Measures the case once with new processes.
    fn measure(self, system: Option<&Service>, seconds: f64, seed: u64) -> anyhow::Result<Run> {
        let circle = Circle::start(system, 3, PARTITIONS)?;
        let plan = Plan {
            batching: self.batching,
            rate: self.rate,
            milliseconds: (seconds * 1e3) as u32,
            seed,
            pids: circle.pids(),
        };
        let asks = [Ask::Source(plan), Ask::Split(self.batching), Ask::Count(self.batching)];
        let answers = circle.all(&asks.map(ask::Ask::Stream))?;
        let [source, split, count] = &answers[..] else { bail!("three processes, but not three answers") };
        Run::new(source, [split, count])
    }
}

impl Run {
    fn new(source: &Answer, stages: [&Answer; 2]) -> anyhow::Result<Self> {
        let (window, rest) = source.split_at_checked(Window::NUMBERS).context("no answer of the source")?;
        let [sent, late_ns, waited_ns, mean_ns] = rest else { bail!("no times of the source") };
        let measured = stages[0].get(1).copied().context("no answer of a stage")?;
        let us = |ns: f64| ns / 1e3 / measured.max(1.0);
        let stages = stages.map(|answer| {
            let [tuples, of_them, input, processing, output] = answer[..] else {
                bail!("no answer of a stage")
            };
            // The sink has checked its counts; these are the counts of the stages.
            if tuples != *sent || of_them != measured {
                bail!("a stage has had {tuples} tuples of {sent}");
            }
            Ok(Times { input: us(input), processing: us(processing), output: us(output) })
        });
        let [split, count] = stages;
        Ok(Self {
            measured: Measured::new(window)?,
            late: us(*late_ns),
            sent: us(*waited_ns),
            stages: [split?, count?],
            whole: mean_ns / 1e3,
        })
    }

    /// Adds rates and latencies.
    fn add(&self, case: Case, system: &str, samples: &mut Samples) {
        let path = case.path();
        let rate = self.measured.sample(self.measured.rate);
        samples.add(&path, system, "rate", "tuples/s", rate);
        self.measured.add_latencies(&path, system, samples);
    }

    /// Adds a tuple's times in each stage.
    fn add_stages(&self, case: Case, system: &str, samples: &mut Samples) {
        let path = case.path();
        for (stage, times) in ["split", "count"].into_iter().zip(self.stages) {
            let path = format!("{path}/{stage}");
            samples.add(&path, system, "input", "us", times.input);
            samples.add(&path, system, "processing", "us", times.processing);
            samples.add(&path, system, "output", "us", times.output);
        }
    }

    /// Adds the parts of a tuple's mean latency.
    fn add_parts(&self, case: Case, system: &str, samples: &mut Samples) {
        let path = format!("{}/tuple", case.path());
        let sum = |of: fn(&Times) -> f64| self.stages.iter().map(of).sum::<f64>();
        let (input, processing) = (sum(|t| t.input), sum(|t| t.processing));
        let output = self.sent + sum(|t| t.output);
        let sockets = self.whole - self.late - input - processing - output;
        let parts = [
            ("late", self.late),
            ("input", input),
            ("processing", processing),
            ("output", output),
            ("sockets", sockets),
            ("mean", self.whole),
        ];
        parts.into_iter().for_each(|(metric, us)| samples.add(&path, system, metric, "us", us));
    }
}

/// Runs the measurement `stream`.
///
/// # Errors
/// When the service does not start, a process fails, or a tuple is lost, duplicated or miscounted.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("stream");
    local::limit_cores(&mut report)?;
    let service = Service::start(options, Port::None)?;
    // Each of the three has other metrics and becomes a table.
    let [mut samples, mut stages, mut parts] = [(); 3].map(|()| Samples::default());
    let rate = calm_rate(options)?;
    for run in 0..options.runs() {
        for case in cases(rate) {
            for (name, system) in [("towpath", Some(&service)), ("kernel", None)] {
                let measured = case
                    .measure(system, options.seconds(), run as u64)
                    .with_context(|| format!("{}, {name}, run {}", case.path(), run + 1))?;
                measured.add(case, name, &mut samples);
                measured.add_stages(case, name, &mut stages);
                measured.add_parts(case, name, &mut parts);
            }
        }
    }
    service.stop();
    report.note(format!(
        "{PARTITIONS} connections from each process to the next; latency: {} tuples per second in both systems ({:.0} % of what \
         the kernel carried unbatched in a run before), at random times, from the time at which a tuple was due",
        number(rate),
        CALM_SHARE * 100.0
    ));
    report.note("every tuple came back once, with the right key and count, or the run would have failed");
    report.note("processor time: the three processes, the service and ksoftirqd, per tuple");
    report.rows = samples.rows();
    report.rows.extend(stages.rows().into_iter().chain(parts.rows()));
    report.ratios = samples.ratios("towpath", &["kernel"]);
    bars::judge(&mut report, "towpath", BARS);
    Ok(report)
}

fn cases(rate: f64) -> [Case; 4] {
    let batched = Batching::Milliseconds(BATCH_MS);
    [
        Case { batching: Batching::None, rate: None },
        Case { batching: batched, rate: None },
        Case { batching: Batching::None, rate: Some(rate) },
        Case { batching: batched, rate: Some(rate) },
    ]
}

/// Tuples per second while latencies are measured, the same for both systems.
fn calm_rate(options: &Options) -> anyhow::Result<f64> {
    let most = Case { batching: Batching::None, rate: None };
    let run = most.measure(None, options.seconds(), 0).context("the kernel's highest rate")?;
    Ok(run.measured.rate * CALM_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_is_about_a_case() {
        let paths = cases(1.0).map(Case::path);
        assert!(BARS.iter().all(|bar| paths.iter().any(|path| path == bar.cases)), "{paths:?}");
    }

    #[test]
    fn a_tuples_time_is_divided_without_rest() {
        let source: Answer = [&[2.0, 1e9, 1e6][..], &[5e3; 7], &[4.0, 2e3, 4e3, 20e3]].concat();
        let stage: Answer = vec![4.0, 2.0, 2e3, 1e3, 3e3];
        let run = Run::new(&source, [&stage, &stage]).unwrap();
        let mut samples = Samples::default();
        run.add_parts(cases(1.0)[0], "kernel", &mut samples);
        let of = |metric: &str| {
            let rows = samples.rows();
            rows.iter().find(|r| r.case.ends_with("/tuple") && r.metric == metric).map(|r| r.median)
        };
        let parts = ["late", "input", "processing", "output", "sockets"].map(|metric| of(metric).unwrap());
        assert_eq!(parts, [1.0, 2.0, 1.0, 5.0, 11.0]);
        assert_eq!(of("mean"), Some(parts.iter().sum()));
        let lost = vec![3.0, 2.0, 0.0, 0.0, 0.0];
        assert!(Run::new(&source, [&stage, &lost]).is_err());
    }
}
