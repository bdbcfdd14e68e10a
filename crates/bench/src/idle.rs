//! The cost of connections without traffic: processor time of 1,000 of them, memory of many.

mod many;

use crate::launch::{Port, Service, TAP_ADDRESS};
use crate::program::{self, Running};
use crate::redis::{self, local};
use crate::samples::Samples;
use crate::served::{Host, Served};
use crate::tap::namespace::Namespace;
use crate::{Options, Report, clock, cpu};
use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

const CONNECTIONS: u64 = 1_000;
/// Seconds until all of them are accepted, at most.
const PATIENCE: f64 = 60.0;
/// Seconds for which processor time is measured; the requirement is stated over 10 s.
const LOOK_SECONDS: u64 = 10;
/// Percent of a core that the idle service must stay below.
const LIMIT_PERCENT: f64 = 1.0;

/// Default number of connections of [`many`].
const MANY: u32 = 50_000;
const MANY_QUICK: u32 = 10_000;

/// The measurement's name; it takes arguments of its own.
pub const NAME: &str = "idle";

/// The arguments of the measurement.
#[derive(Parser, Clone, Debug)]
#[command(no_binary_name = true, disable_version_flag = true)]
pub struct Arguments {
    #[command(flatten)]
    pub common: Options,
    /// Open connections on which nothing happens [default: 50,000, with --quick 10,000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2_000..=1_000_000))]
    connections: Option<u32>,
}

impl Arguments {
    fn connections(&self) -> u32 {
        self.connections.unwrap_or(if self.common.quick { MANY_QUICK } else { MANY })
    }
}

/// Runs the measurement `idle` with default arguments, for `all`.
///
/// # Errors
/// As [`measure`].
pub fn run(options: &Options) -> anyhow::Result<Report> {
    measure(&Arguments { common: options.clone(), connections: None })
}

/// Runs the measurement `idle`.
///
/// # Errors
/// When redis is not installed or the service does not start.
pub fn measure(arguments: &Arguments) -> anyhow::Result<Report> {
    let options = &arguments.common;
    let mut report = Report::new(NAME);
    let limit = getrlimit(Resource::Nofile);
    // If the limit stays too low, redis reports that it lacks descriptors.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let mut samples = Samples::default();
    {
        let service = Service::start(options, Port::None)?;
        let [accelerated, kernel] = local::systems(&service)?;
        kernel.stop();
        look("idle/pair/n1000", &service, &accelerated, options, &mut samples, &mut report)?;
        accelerated.stop();
        service.stop();
    }
    if rustix::process::geteuid().is_root() {
        let namespace = Namespace::new()?;
        let port = Port::Tap { namespace: namespace.name(), offloads: true };
        let service = Service::start(options, port)?;
        let accelerated = redis::start(Host::through(&service, TAP_ADDRESS, &namespace))?;
        look("idle/tap/n1000", &service, &accelerated, options, &mut samples, &mut report)?;
        accelerated.stop();
        service.stop();
    } else {
        report.note("idle/tap: skipped: TAP interfaces need root");
    }
    many::measure(arguments, &mut samples, &mut report)?;
    report.rows = samples.rows();
    report.ratios = samples.ratios("towpath", &["kernel"]);
    many::judge(arguments, &mut report);
    Ok(report)
}

fn look(
    case: &str,
    service: &Service,
    system: &Served<'_>,
    options: &Options,
    samples: &mut Samples,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut client = redis::client(system, "redis-benchmark")?;
    client.args(["-I", "-c", &CONNECTIONS.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
    let before = service.accepted(Some(system.pid()))?;
    let _client = Running::start(&mut client)?;
    program::until(PATIENCE, "the acceptance of 1,000 accelerated connections", || {
        let accepted = service.accepted(Some(system.pid())).ok()?;
        (accepted >= before + CONNECTIONS).then_some(())
    })?;
    let seconds = if options.quick { 3 } else { LOOK_SECONDS };
    // Work that accepting left behind is done after this pause.
    sleep(Duration::from_millis(500));
    let used = || [service.pid(), system.pid()].map(|pid| cpu::process_ns(pid).unwrap_or(0));
    let (start, before) = (clock::now_ns(), used());
    sleep(Duration::from_secs(seconds));
    let (elapsed, after) = ((clock::now_ns() - start) as f64, used());
    for (i, who) in ["service", "redis-server"].into_iter().enumerate() {
        let percent = (after[i] - before[i]) as f64 / elapsed * 100.0;
        samples.add(case, who, "processor time", "% of a core", percent);
        if who == "service" && percent >= LIMIT_PERCENT {
            report.failures.push(format!("{case}: the idle service uses {percent:.2} % of a core"));
        }
    }
    report.note(format!(
        "{case}: {CONNECTIONS} connections of redis-benchmark -I, over {seconds} s of thread time"
    ));
    Ok(())
}
