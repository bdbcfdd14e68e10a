//! Goodput of bulk transfer under loss, bursty loss and reordering: Figure 7 of the TAS paper. The sender is Towpath or the kernel, in
//! turns; the receiver is the kernel; both senders use `towpath link` with the same seed.

mod arguments;
mod counted;
pub mod emulated;
mod point;
mod record;
mod stage;
mod verdict;

pub use arguments::Arguments;

use crate::redis::local::limit_cores;
use crate::tap::namespace;
use crate::{Options, Report, clock, interrupt, launch};
use anyhow::Context;
use point::Point;
use record::{Outcome, Pair, Record, Settings};
use stage::{Stage, System};
use std::os::unix::fs::MetadataExt;

/// The measurement's name.
pub const NAME: &str = "loss";
/// The name of its report with `--no-sack`.
const NAME_WITHOUT_SACK: &str = "loss-no-sack";
/// Seconds that a run takes for starting, opening and ending, about; for the estimate.
const OVERHEAD: f64 = 0.3;
/// Niceness of all processes that take part: the highest priority, as the emulated link has.
const PRIORITY: i32 = -20;
/// The most attempts to measure a pair in which the emulator itself dropped frames.
const ATTEMPTS: usize = 3;
/// The measurement ends after this many failures in a row.
const FAILURES_MAX: usize = 5;

/// Runs the measurement with its default matrix.
///
/// # Errors
/// As [`measure`].
pub fn run(options: &Options) -> anyhow::Result<Report> {
    measure(&Arguments::all(options))
}

/// Runs the measurement `loss`.
///
/// # Errors
/// When the user is not root, on a signal, when the service does not start, or after [`FAILURES_MAX`] failures in a row.
pub fn measure(arguments: &Arguments) -> anyhow::Result<Report> {
    namespace::need_root()?;
    let mut report = Report::new(if arguments.no_sack { NAME_WITHOUT_SACK } else { NAME });
    let mut record = arguments.resume.as_deref().map(Record::open).transpose()?.unwrap_or_default();
    let build = build(&arguments.common)?;
    let points = arguments.points();
    let mut missing = Vec::new();
    for seed in arguments.seeds() {
        for point in &points {
            let settings = settings(arguments, point, &build);
            if !record.has(&point.case(), seed, &settings)? {
                missing.push((seed, point, settings));
            }
        }
    }
    if !missing.is_empty() {
        interrupt::watch()?;
        limit_cores(&mut report)?;
        // The link runs at this priority, and so does the kernel's handling of its packets. Other processes of the machine should not
        // disturb it. Child processes inherit the priority. Without the right to set it, the default stays.
        let _ = rustix::process::setpriority_process(None, PRIORITY);
        announce(arguments, &missing);
        let stage = Stage::new(arguments)?;
        let done = all(&stage, arguments, &missing, &mut record, &mut report);
        stage.stop();
        done?;
    }
    conclude(arguments, &points, &record, &mut report);
    Ok(report)
}

fn settings(arguments: &Arguments, point: &Point, build: &str) -> Settings {
    Settings {
        algorithm: arguments.algorithm.name().to_owned(),
        rate: arguments.rate.clone(),
        both_ways: arguments.both_ways,
        sack: !arguments.no_sack,
        seconds: arguments.seconds(point.rtt),
        warm_up: arguments.warm_up(point.rtt),
        build: build.to_owned(),
    }
}

/// Identifies the program to measure: its size and modification time.
fn build(options: &Options) -> anyhow::Result<String> {
    let towpath = launch::towpath(options)?;
    let data = std::fs::metadata(&towpath).with_context(|| format!("no program {}", towpath.display()))?;
    Ok(format!("{}-{}", data.len(), data.mtime()))
}

fn announce(arguments: &Arguments, missing: &[(u64, &Point, Settings)]) {
    let one = |settings: &Settings| 2.0 * (settings.seconds + settings.warm_up + OVERHEAD);
    let seconds: f64 = missing.iter().map(|(_, _, settings)| one(settings)).sum();
    let cut = arguments.at_most.map_or(String::new(), |limit| format!(", of which at most {limit} s now"));
    eprintln!("towpath bench loss: {} pairs of runs, about {:.0} min{cut}", missing.len(), seconds / 60.0);
}

/// Measures the missing pairs, seed by seed, so that an interrupted measurement has some pairs of every point.
fn all(
    stage: &Stage,
    arguments: &Arguments,
    missing: &[(u64, &Point, Settings)],
    record: &mut Record,
    report: &mut Report,
) -> anyhow::Result<()> {
    let start = clock::now_ns();
    let mut failed = 0;
    for (done, (seed, point, settings)) in missing.iter().enumerate() {
        let elapsed = (clock::now_ns() - start) as f64 / 1e9;
        if arguments.at_most.is_some_and(|limit| limit as f64 <= elapsed) {
            report
                .failures
                .push(format!("{} pairs of runs are left: --resume goes on", missing.len() - done));
            return Ok(());
        }
        let case = point.case();
        match pair(stage, arguments, point, *seed) {
            Ok([towpath, kernel]) => {
                failed = 0;
                let pair = Pair { case, seed: *seed, settings: settings.clone(), towpath, kernel };
                show(done + 1, missing.len(), &pair);
                record.add(pair)?;
            }
            Err(error) => {
                interrupt::check()?;
                failed += 1;
                let error = error.context(format!("{case}, seed {seed}"));
                if failed == FAILURES_MAX {
                    return Err(error);
                }
                report.failures.push(format!("{error:#}"));
            }
        }
    }
    Ok(())
}

/// Towpath's run and the kernel's run; the seed decides which is first.
fn pair(stage: &Stage, arguments: &Arguments, point: &Point, seed: u64) -> anyhow::Result<[Outcome; 2]> {
    let one = |system| stage.run(system, point, seed, arguments).with_context(|| format!("{system:?}"));
    let mut failed = 0;
    for _ in 0..ATTEMPTS {
        let outcomes = if seed.is_multiple_of(2) {
            let kernel = one(System::Kernel)?;
            [one(System::Towpath)?, kernel]
        } else {
            [one(System::Towpath)?, one(System::Kernel)?]
        };
        failed = outcomes.iter().map(|outcome| outcome.failed).sum();
        if failed == 0 {
            return Ok(outcomes);
        }
    }
    anyhow::bail!(
        "the emulated link could not carry {failed} frames: the machine is too busy, or --rate too high"
    )
}

fn show(done: usize, of: usize, pair: &Pair) {
    let [towpath, kernel] =
        [&pair.towpath, &pair.kernel].map(|outcome| outcome.goodput_bits_per_second / 1e6);
    eprintln!(
        "[{done}/{of}] {} seed {}: towpath {towpath:.1} Mbit/s, kernel {kernel:.1} ({:.2})",
        pair.case,
        pair.seed,
        pair.ratio()
    );
}

fn conclude(arguments: &Arguments, points: &[Point], record: &Record, report: &mut Report) {
    verdict::judge(points, &record.pairs, report);
    let (flag, rate) = (arguments.algorithm.name(), &arguments.rate);
    let sack = if arguments.no_sack { "a receiver without SACK" } else { "SACK" };
    report.note(format!(
        "{flag} on both sides, {sack}, {rate} with the link's usual queue of 1000 packets, bulk flows opened before the mishaps \
         begin; {}; reorder: 5 % late by half a round trip; burst: 1 % in bursts of 3.3",
        if arguments.both_ways { "mishaps in both directions" } else { "mishaps strike data, not acknowledgements" }
    ));
    report.note(
        "cores: sender, service, link, receiver and ksoftirqd; CPU-ns/op of goodput: per byte, of the sending program and its \
         service (what the kernel does on arrival of acknowledgements is in `all processor time`)",
    );
    let fewest = points.iter().map(|point| {
        let case = point.case();
        record.pairs.iter().filter(|pair| pair.case == case).count()
    });
    let fewest = fewest.min().unwrap_or(0);
    if fewest < verdict::PAIRS {
        report.note(format!("only {fewest} seeds at the least measured point: a look, not a result"));
    }
}
