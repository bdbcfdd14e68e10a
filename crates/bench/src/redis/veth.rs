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
const OURS: &str = "towpath";
const KERNEL: &str = "kernel-veth";

const fn bar(cases: &'static str, metric: &'static str, limit: Limit) -> Bar {
    Bar { cases, metric, measure: Measure::Over(KERNEL), limit }
}

const BARS: [Bar; 8] = [
    bar("redis/veth/set/c50/p1", "requests", Limit::Least(1.1)),
    bar("redis/veth/get/c50/p1", "requests", Limit::Least(1.1)),
    bar("redis/veth/set/c50/p1", "server", Limit::Most(1.2)),
    bar("redis/veth/get/c50/p1", "server", Limit::Most(1.2)),
    bar("redis/veth/set/c1/p1", "requests", Limit::Least(0.8)),
    bar("redis/veth/get/c1/p1", "requests", Limit::Least(0.8)),
    bar("redis/veth/set/c50/p1/100000B", "requests", Limit::Least(0.9)),
    bar("redis/veth/get/c50/p1/100000B", "requests", Limit::Least(0.9)),
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
    let service = bulk::service_at(options, &link, 0)?;
    let mut samples = Samples::default();
    {
        let through = Host::through(&service, link.addresses[0], &link.namespaces[1]);
        let systems = [super::start(through)?, super::start(Host::over_link(KERNEL, &kernels))?];
        let cases = [CASES.as_slice(), &LARGE_CASES].concat();
        interleave("redis/veth", &cases, &systems, options, &mut samples, &mut report);
        systems.into_iter().for_each(Served::stop);
    }
    service.stop();
    report.note("server: processor time of redis-server, the service and ksoftirqd per request; it includes what the client's kernel does in \
                 soft interrupts on their processors");
    report.rows = samples.rows();
    report.ratios = samples.ratios(OURS, &[KERNEL]);
    bars::judge(&mut report, OURS, &BARS);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_is_of_a_case() {
        let paths: Vec<_> = CASES.iter().chain(&LARGE_CASES).map(|case| case.path("redis/veth")).collect();
        for bar in &BARS {
            assert!(paths.iter().any(|path| path == bar.cases), "{}", bar.cases);
        }
    }
}
