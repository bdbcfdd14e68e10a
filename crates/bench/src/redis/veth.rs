//! The measurement `redis-veth`: a kernel client and an accelerated server over veth, beside two kernels over veth.

use super::local::limit_cores;
use super::{CASES, Case, interleave};
use crate::bars::{self, Bar, Limit, Measure};
use crate::samples::Samples;
use crate::served::{Host, Served};
use crate::tap::link::{Kind, Link};
use crate::{Options, Report, bulk, program};

/// Values of 100 kB, as an application's cached pages are.
const LARGE: u32 = 100_000;
const LARGE_CASES: [Case; 2] =
    [Case::new("set", 50, 1, 20_000).with_bytes(LARGE), Case::new("get", 50, 1, 20_000).with_bytes(LARGE)];
/// Beside a service that was told to have one core: one that may have more takes nothing for it.
const CORES_CASES: [Case; 2] = [Case::new("set", 50, 1, 60_000), Case::new("get", 50, 1, 60_000)];
const OURS: &str = "towpath";
const ONE_CORE: &str = "towpath-one-core";
const KERNEL: &str = "kernel-veth";

const fn bar(cases: &'static str, metric: &'static str, limit: Limit) -> Bar {
    Bar { cases, metric, measure: Measure::Over(KERNEL), limit }
}

const fn no_less(cases: &'static str) -> Bar {
    Bar { cases, metric: "requests", measure: Measure::Over(ONE_CORE), limit: Limit::Least(0.98) }
}

const BARS: [Bar; 10] = [
    bar("redis/veth/set/c50/p1", "requests", Limit::Least(1.1)),
    bar("redis/veth/get/c50/p1", "requests", Limit::Least(1.1)),
    bar("redis/veth/set/c50/p1", "server", Limit::Most(1.2)),
    bar("redis/veth/get/c50/p1", "server", Limit::Most(1.2)),
    bar("redis/veth/set/c1/p1", "requests", Limit::Least(0.8)),
    bar("redis/veth/get/c1/p1", "requests", Limit::Least(0.8)),
    bar("redis/veth/set/c50/p1/100000B", "requests", Limit::Least(0.9)),
    bar("redis/veth/get/c50/p1/100000B", "requests", Limit::Least(0.9)),
    no_less("redis/cores/set/c50/p1"),
    no_less("redis/cores/get/c50/p1"),
];

/// Runs the measurement `redis-veth`.
///
/// # Errors
/// When the user is not root, redis is not installed, or the service does not start.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("redis-veth");
    program::find("redis-server")?;
    program::find("redis-benchmark")?;
    limit_cores(&mut report)?;
    let (link, kernels) = (Link::veth_for([true, false])?, Link::new(Kind::Veth)?);
    let service = bulk::service_at(options, &link, 0, &[])?;
    let one_link = Link::veth_for([true, false])?;
    let one_core = bulk::service_at(options, &one_link, 0, &["--cores", "1"])?;
    let mut samples = Samples::default();
    {
        let through = Host::through(&service, link.addresses[0], &link.namespaces[1]);
        let systems = [super::start(through)?, super::start(Host::over_link(KERNEL, &kernels))?];
        let cases = [CASES.as_slice(), &LARGE_CASES].concat();
        interleave("redis/veth", &cases, &systems, options, &mut samples, &mut report);
        systems.into_iter().for_each(Served::stop);
    }
    {
        let ours = Host::through(&service, link.addresses[0], &link.namespaces[1]);
        let one = Host::through(&one_core, one_link.addresses[0], &one_link.namespaces[1]);
        let systems = [super::start(ours)?, super::start(Host { name: ONE_CORE, ..one })?];
        interleave("redis/cores", &CORES_CASES, &systems, options, &mut samples, &mut report);
        systems.into_iter().for_each(Served::stop);
    }
    let cores = service.statistics()?;
    report.note(format!(
        "redis/cores: towpath has {} cores, of which {} serve in the end",
        cores["cores"]["most"], cores["cores"]["serving"]
    ));
    service.stop();
    one_core.stop();
    report.note("server: processor time of redis-server, the service and ksoftirqd per request; it includes what the client's kernel does in \
                 soft interrupts on their processors");
    report.rows = samples.rows();
    report.ratios = samples.ratios(OURS, &[KERNEL, ONE_CORE]);
    bars::judge(&mut report, OURS, &BARS);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_is_of_a_case() {
        let mut paths: Vec<_> =
            CASES.iter().chain(&LARGE_CASES).map(|case| case.path("redis/veth")).collect();
        paths.extend(CORES_CASES.map(|case| case.path("redis/cores")));
        for bar in &BARS {
            assert!(paths.iter().any(|path| path == bar.cases), "{}", bar.cases);
        }
    }
}
