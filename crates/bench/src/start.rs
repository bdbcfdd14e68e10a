//! The measurement `start`: what the start and the end of a short program cost more on Towpath. `curl` fetches one page of 1 KiB from nginx on
//! this host; `true` makes no socket.

use crate::bars::{self, Bar, Limit, Measure};
use crate::launch::{self, LIBRARY, Port, Service};
use crate::program::{self, Ended};
use crate::samples::{Sample, Samples, median};
use crate::served::{self, Served, local_hosts};
use crate::{Options, Report, clock, nginx};
use anyhow::Context;
use control::CONTROL_ENV;
use std::path::{Path, PathBuf};
use std::process::Command;

const OURS: &str = "towpath";
const PRELOAD: &str = "preload";
const ENV: &str = "env";
const KERNEL: &str = "kernel";
/// The systems: `towpath run`, the library alone (`LD_PRELOAD`), and on the kernel `env`, which starts the program as a launcher does, and the
/// program alone. The kernel comes last.
const SYSTEMS: [&str; 4] = [OURS, PRELOAD, ENV, KERNEL];
type Starts = [Vec<Ended>; SYSTEMS.len()];

const CURL: &str = "start/curl";
const TRUE: &str = "start/true";
/// Seconds until a program must have ended.
const PATIENCE: f64 = 10.0;
/// Starts of each program on each system in one run, at least.
const STARTS_LEAST: usize = 5;

const BARS: &[Bar] =
    &[Bar { cases: CURL, metric: "added", measure: Measure::Alone, limit: Limit::Most(1.0) }];

/// Measures the starts of `curl` and `true` on each system in turns, and judges the bar.
///
/// # Errors
/// When the service or nginx does not start.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("start");
    if served::lacks(&["nginx", "curl", "true"], &mut report) {
        return Ok(report);
    }
    // As `towpath run` finds it.
    let told = std::env::var_os("TOWPATH_PRELOAD").filter(|path| !path.is_empty()).map(PathBuf::from);
    let library = told.map_or_else(|| launch::library(options), |path| Ok(Some(path)))?;
    let library = library.with_context(|| format!("no {LIBRARY} beside `towpath`"))?;
    let service = Service::start(options, Port::None)?;
    let [ours, theirs] = local_hosts(&service);
    let servers = [nginx::start(ours)?, nginx::start(theirs)?];
    let place = Place { service: &service, library: &library };
    let mut samples = Samples::default();
    for run in 0..options.runs() {
        for case in [CURL, TRUE] {
            if let Err(error) = measure(case, &place, &servers, options.seconds(), &mut samples) {
                report.failures.push(format!("{case}, run {}: {error:#}", run + 1));
            }
        }
    }
    servers.into_iter().for_each(Served::stop);
    service.stop();
    report.rows = samples.rows();
    report.ratios = samples.ratios(OURS, &[KERNEL]);
    report.note(
        "medians of the starts of each run, which take turns; time: from the start of the program to its end; added: median of the differences from the \
         kernel's start of the same turn; processor time and page faults: the program's own, as it ends; `towpath`: `towpath run`; `preload`: `LD_PRELOAD` alone; \
         `env`: the program started by `env`, what a launcher costs at least",
    );
    bars::judge(&mut report, OURS, BARS);
    Ok(report)
}

/// What programs on Towpath need.
struct Place<'a> {
    service: &'a Service,
    library: &'a Path,
}

impl Place<'_> {
    /// The command of a case on a system.
    fn command(&self, case: &str, system: &str, servers: &[Served<'_>; 2]) -> anyhow::Result<Command> {
        let program = if case == CURL { "curl" } else { "true" };
        let mut command = match system {
            OURS => self.service.command(program)?,
            ENV => served::on_kernel("env")?,
            _ => served::on_kernel(program)?,
        };
        match system {
            PRELOAD => _ = command.env("LD_PRELOAD", self.library).env(CONTROL_ENV, self.service.control()),
            ENV => _ = command.arg(program::find(program)?),
            _ => {}
        }
        if case == CURL {
            let server = &servers[usize::from(matches!(system, ENV | KERNEL))];
            command.args(["--silent", "--fail", "--output", "/dev/null"]);
            command.arg(format!("http://{}/1k", server.address()));
        }
        Ok(command)
    }
}

/// Starts the program of the case on each system in turn for so many seconds.
fn measure(
    case: &str,
    place: &Place<'_>,
    servers: &[Served<'_>; 2],
    seconds: f64,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let mut commands =
        SYSTEMS.iter().map(|s| place.command(case, s, servers)).collect::<Result<Vec<_>, _>>()?;
    // The server's count: of many ended clients the service keeps a sum only.
    let accepted = || Ok::<u64, anyhow::Error>(servers[0].accepted()?.unwrap_or(0));
    let before = accepted()?;
    let mut starts = Starts::default();
    let end = clock::now_ns() + (seconds * 1e9) as u64;
    while starts[0].len() < STARTS_LEAST || clock::now_ns() < end {
        let turn = starts[0].len();
        // Each system is first, second and last as often as the others.
        for i in (0..SYSTEMS.len()).map(|i| (i + turn) % SYSTEMS.len()) {
            starts[i].push(program::start_to_end(&mut commands[i], PATIENCE)?);
        }
    }
    if case == CURL {
        let connections = u32::try_from(2 * starts[0].len())?;
        launch::prove(accepted()? - before, connections)?;
    }
    add(case, &starts, samples);
    Ok(())
}

/// Adds the medians of one run.
fn add(case: &str, starts: &Starts, samples: &mut Samples) {
    let of = |values: Vec<f64>| median(&values).unwrap_or(f64::NAN);
    let ms = |start: &Ended| start.wall_ns as f64 / 1e6;
    let kernel = &starts[SYSTEMS.len() - 1];
    for (system, own) in SYSTEMS.into_iter().zip(starts) {
        let cpu_ns = Some(of(own.iter().map(|start| start.cpu_ns as f64).collect()));
        let time = Sample { value: of(own.iter().map(ms).collect()), cores: None, cpu_ns };
        samples.add(case, system, "time", "ms", time);
        let added = of(own.iter().zip(kernel).map(|(own, kernel)| ms(own) - ms(kernel)).collect());
        samples.add(case, system, "added", "ms", added);
        let faults = of(own.iter().map(|start| start.faults as f64).collect());
        samples.add(case, system, "page faults", "", faults);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_the_median_of_the_differences_of_turns() {
        let start = |ms: u64| Ended { wall_ns: ms * 1_000_000, cpu_ns: 7, faults: 300 };
        let of = |all: [u64; 3]| all.map(start).to_vec();
        let mut samples = Samples::default();
        // The machine was slow in the last turn.
        add(CURL, &[of([5, 4, 40]), of([4, 4, 39]), of([3, 3, 39]), of([3, 3, 38])], &mut samples);
        let row = |system, metric| {
            let rows = samples.rows();
            rows.into_iter().find(|r| r.system == system && r.metric == metric).unwrap().median
        };
        assert_eq!(SYSTEMS.map(|system| row(system, "added")), [2.0, 1.0, 0.0, 0.0]);
        assert_eq!([row(OURS, "time"), row(KERNEL, "page faults")], [5.0, 300.0]);
    }
}
