//! The measurement `redis`: redis on one host over kernel loopback and over Towpath, on two cores, in turns.

use crate::launch::{Port, Service};
use crate::samples::Samples;
use crate::served::{Served, local_hosts};
use crate::{Options, Report, affinity, program};

/// Cores for all processes that take part.
const CORES: usize = 2;

/// Restricts this process and its children to two cores.
///
/// # Errors
/// When the kernel refuses the set.
pub fn limit_cores(report: &mut Report) -> anyhow::Result<()> {
    let mut cpus = affinity::allowed();
    if cpus.len() > CORES {
        cpus.truncate(CORES);
        affinity::pin(&cpus)?;
        report.note(format!("on cores {cpus:?} only"));
    }
    Ok(())
}

/// Starts a server through `service` and one on the kernel.
///
/// # Errors
/// When redis is not installed or does not answer.
pub fn systems(service: &Service) -> anyhow::Result<[Served<'_>; 2]> {
    let [towpath, kernel] = local_hosts(service);
    Ok([super::start(towpath)?, super::start(kernel)?])
}

/// Runs the measurement `redis`.
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
    super::interleave("redis", &super::CASES, &systems, options, &mut samples, &mut report);
    systems.into_iter().for_each(Served::stop);
    service.stop();
    report.note("processor time: redis-server, redis-benchmark, the service and ksoftirqd, per request");
    report.rows = samples.rows();
    report.ratios = samples.ratios("towpath", &["kernel"]);
    Ok(report)
}
