//! What 1,000 connections cost on which nothing happens.

use crate::launch::{Port, Service};
use crate::program::{self, Running};
use crate::redis::{System, local, tap};
use crate::samples::Samples;
use crate::tap::namespace::Namespace;
use crate::{Options, Report, clock, cpu};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

const CONNECTIONS: u64 = 1_000;
/// Length of the look; the requirement is stated over 10 s.
const LOOK_SECONDS: u64 = 10;
/// Percent of a core that the service may use.
const LIMIT_PERCENT: f64 = 1.0;

/// The measurement `idle`.
///
/// # Errors
/// When redis is not installed or the service does not start.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("idle");
    let limit = getrlimit(Resource::Nofile);
    // With fewer descriptors redis says what it lacks.
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
        let accelerated = tap::through(&service, &namespace)?;
        look("idle/tap/n1000", &service, &accelerated, options, &mut samples, &mut report)?;
        accelerated.stop();
        service.stop();
    } else {
        report.note("idle/tap: skipped: TAP interfaces need root");
    }
    report.rows = samples.rows();
    Ok(report)
}

fn look(
    case: &str,
    service: &Service,
    system: &System<'_>,
    options: &Options,
    samples: &mut Samples,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut client = system.client("redis-benchmark")?;
    client.args(["-I", "-c", &CONNECTIONS.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
    let _client = Running::start(&mut client)?;
    let before = service.accepted(Some(system.server_pid()))?;
    program::until(20.0, "the acceptance of 1,000 accelerated connections", || {
        let accepted = service.accepted(Some(system.server_pid())).ok()?;
        (accepted >= before + CONNECTIONS).then_some(())
    })?;
    let seconds = if options.quick { 3 } else { LOOK_SECONDS };
    // Accepting is over; what it left to do is done.
    sleep(Duration::from_millis(500));
    let used = || [service.pid(), system.server_pid()].map(|pid| cpu::process_ns(pid).unwrap_or(0));
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
