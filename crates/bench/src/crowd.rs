//! The measurement `crowd`: how long a program's registration takes, and a report for root, while another user asks the service without end,
//! beside 8,000 connections within the host.

mod lines;

use crate::bars::{self, Bar, Limit, Measure};
use crate::launch::{Port, Service};
use crate::program;
use crate::samples::Samples;
use crate::sockets::pair::Pair;
use crate::sockets::raise_limit_towards;
use crate::{Options, Report, clock};
use control::Report as Asked;
use lines::{Crowd, Load, Talker, become_user};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const OURS: &str = "towpath";
/// The honest user and the other.
const USERS: [u32; 2] = [65_533, 65_534];
/// Connections of each pair of processes, and pairs: each has its own ports.
const PAIRS: (u32, u32) = (2, 4_000);
/// Descriptors that this program needs.
const DESCRIPTORS: u64 = 19_000;
/// Pause between two registrations, and seconds until a report must have come.
const PAUSE: Duration = Duration::from_millis(10);
const PATIENCE: f64 = 30.0;

const LOADS: [(&str, Load); 7] = [
    ("alone", Load::Nothing),
    ("stat", Load::Reports(|| Asked::Statistics)),
    ("ss", Load::Reports(|| Asked::Sockets)),
    ("explain", Load::Reports(|| Asked::Explain)),
    ("connects", Load::Connects),
    ("shown", Load::Shown),
    ("contexts", Load::Contexts),
];

const BARS: &[Bar] = &[
    Bar { cases: "crowd/", metric: "p99", measure: Measure::Alone, limit: Limit::Most(20.0) },
    Bar { cases: "crowd/", metric: "root's ss", measure: Measure::Alone, limit: Limit::Most(1000.0) },
    Bar { cases: "crowd/", metric: "root's stat", measure: Measure::Alone, limit: Limit::Most(1000.0) },
];

/// Measures registrations and reports beside each load, and judges the bars.
///
/// # Errors
/// When the service does not start, or a load does not get under way.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("crowd");
    if !rustix::process::geteuid().is_root() {
        report.note("skipped: needs root, to act as other users");
        return Ok(report);
    }
    raise_limit_towards(DESCRIPTORS)?;
    let service = Service::start(options, Port::None)?;
    service.admit_users()?;
    let mut pairs = Vec::new();
    for _ in 0..PAIRS.0 {
        let pair = Pair::start(Some(&service))?;
        pair.connect(PAIRS.1 - 1)?;
        pairs.push(pair);
    }
    let mut samples = Samples::default();
    for run in 0..options.runs() {
        for (name, load) in LOADS {
            if let Err(error) = measure(&service, options, name, load, &mut samples) {
                report.failures.push(format!("crowd/{name}, run {}: {error:#}", run + 1));
            }
        }
    }
    drop(pairs);
    service.stop();
    report.rows = samples.rows();
    report.note(format!(
        "a registration: connect to the control socket, hello, region, one context, by user {}; the load is user {}'s: 64 lines with one \
         report after the other, 200 lines with one connect after the other, 18,000 shown sockets and 200 times a second `LetGo`, or as many \
         contexts as it gets; processor time is shared with the load",
        USERS[0], USERS[1]
    ));
    bars::judge(&mut report, OURS, BARS);
    Ok(report)
}

fn measure(
    service: &Service,
    options: &Options,
    name: &str,
    load: Load,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let case = format!("crowd/{name}");
    let crowd = Crowd::start(service.control(), USERS[1], load)?;
    let (control, seconds) = (service.control().to_owned(), options.seconds());
    let honest = std::thread::spawn(move || registrations(&control, seconds));
    let times = honest.join().map_err(|_| anyhow::anyhow!("the honest thread has panicked"))??;
    for (metric, q) in [("p50", 0.5), ("p99", 0.99), ("worst", 1.0)] {
        samples.add(&case, OURS, metric, "ms", quantile(&times, q));
    }
    for word in ["ss", "stat"] {
        let mut command: Command = service.tool(word);
        let start = clock::now_ns();
        program::run(command.arg("--json"), PATIENCE)?;
        let ms = (clock::now_ns() - start) as f64 / 1e6;
        samples.add(&case, OURS, &format!("root's {word}"), "ms", ms);
    }
    let count = crowd.stop()?;
    samples.add(&case, OURS, "load", "requests", count as f64);
    Ok(())
}

/// The number below which that share of sorted numbers lies.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
}

/// The times of registrations one after the other, in milliseconds, sorted.
fn registrations(control: &Path, seconds: f64) -> anyhow::Result<Vec<f64>> {
    become_user(USERS[0])?;
    let (mut times, end) = (Vec::new(), clock::now_ns() + (seconds * 1e9) as u64);
    while clock::now_ns() < end {
        let start = clock::now_ns();
        let mut line = Talker::dial(control)?;
        line.register()?;
        times.push((clock::now_ns() - start) as f64 / 1e6);
        drop(line);
        std::thread::sleep(PAUSE);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}
