//! redis on one host: kernel loopback and Towpath, on two cores, interleaved; and 1,000 connections that do nothing.

use super::{Starter, System, interleave};
use crate::launch::{Port, Service};
use crate::samples::Samples;
use crate::{Options, Report, affinity, program};
use std::process::Command;

/// Cores for everything that takes part.
const CORES: usize = 2;

/// A program on the kernel, as it is.
///
/// # Errors
/// When it is not installed.
pub fn on_kernel(program: &str) -> anyhow::Result<Command> {
    let mut command = Command::new(program::find(program)?);
    command.env_remove("LD_PRELOAD");
    Ok(command)
}

/// Keeps us and what we start on two cores.
///
/// # Errors
/// When the kernel refuses.
pub fn limit_cores(report: &mut Report) -> anyhow::Result<()> {
    let mut cpus = affinity::allowed();
    if cpus.len() > CORES {
        cpus.truncate(CORES);
        affinity::pin(&cpus)?;
        report.note(format!("on cores {cpus:?} only"));
    }
    Ok(())
}

/// A server through `service` and one on the kernel, each with clients of its kind.
///
/// # Errors
/// When redis is not installed or does not answer.
pub fn systems(service: &Service) -> anyhow::Result<[System<'_>; 2]> {
    let through = || -> Starter<'_> { Box::new(|program| service.command(program)) };
    let kernel = || -> Starter<'_> { Box::new(on_kernel) };
    let between = vec![service.pid()];
    Ok([
        System::start("towpath", "127.0.0.1", &through(), through(), between, Some(service))?,
        System::start("kernel", "127.0.0.1", &kernel(), kernel(), Vec::new(), None)?,
    ])
}

/// The measurement `redis`.
///
/// # Errors
/// When redis is not installed or the service does not start.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("redis");
    program::find("redis-server")?;
    program::find("redis-benchmark")?;
    limit_cores(&mut report)?;
    let service = Service::start(options, Port::None)?;
    let systems = systems(&service)?;
    let mut samples = Samples::default();
    interleave("redis", &systems, options, &mut samples, &mut report);
    systems.into_iter().for_each(System::stop);
    service.stop();
    report.note("processor time: redis-server, redis-benchmark, the service and ksoftirqd, per request");
    report.rows = samples.rows();
    report.ratios = samples.ratios("towpath", &["kernel"]);
    Ok(report)
}
