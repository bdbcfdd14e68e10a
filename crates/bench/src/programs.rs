//! The measurement `programs-veth`: other unmodified programs between an accelerated host and the kernel at the other end of a veth pair,
//! beside two kernels over veth; and redis beside idle programs of the same service.

mod beside;
mod postgres;
mod short;
mod small;

use crate::bars::{self, Bar, Limit, Measure};
use crate::bulk;
use crate::launch::Service;
use crate::redis::local::limit_cores;
use crate::samples::Samples;
use crate::tap::link::{Kind, Link};
use crate::{Options, Report, served};

/// The systems' names in results.
const OURS: &str = "towpath";
const KERNEL: &str = "kernel-veth";

/// The links of one measurement, and the service at the first one.
struct Place {
    /// A veth pair: the service has the first end, the kernel the second.
    link: Link,
    service: Service,
    /// A link between two kernels.
    kernels: Link,
}

impl Place {
    fn new(options: &Options) -> anyhow::Result<Self> {
        let (link, kernels) = (Link::veth_for([true, false])?, Link::new(Kind::Veth)?);
        let service = bulk::service_at(options, &link, 0, &[])?;
        Ok(Self { link, service, kernels })
    }
}

/// One part of the measurement.
struct Part {
    /// The programs without which it is skipped.
    programs: &'static [&'static str],
    bar: Bar,
    measure: fn(&Options, &mut Samples, &mut Report) -> anyhow::Result<()>,
}

const fn least(cases: &'static str, metric: &'static str, of: f64, peer: &'static str) -> Bar {
    Bar { cases, metric, measure: Measure::Over(peer), limit: Limit::Least(of) }
}

const PARTS: [Part; 4] = [
    Part {
        programs: &["iperf3"],
        bar: least(small::CASE, "throughput", 0.9, KERNEL),
        measure: small::measure,
    },
    Part {
        programs: &["pgbench", "setpriv"],
        bar: least(postgres::CASE, "transactions", 0.9, KERNEL),
        measure: postgres::measure,
    },
    Part {
        programs: &["ab", "nginx"],
        bar: least(short::CASE, "requests", 0.9, KERNEL),
        measure: short::measure,
    },
    Part {
        programs: &["redis-server", "redis-benchmark"],
        bar: least(beside::CASE, "requests", 0.95, beside::ALONE),
        measure: beside::measure,
    },
];

/// Runs the measurement `programs-veth`. A part is skipped if one of its programs is not installed.
///
/// # Errors
/// When the user is not root, or a service or a server does not start.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("programs-veth");
    limit_cores(&mut report)?;
    let mut samples = Samples::default();
    let mut bars = Vec::new();
    for part in PARTS {
        if served::lacks(part.programs, &mut report) {
            continue;
        }
        (part.measure)(options, &mut samples, &mut report)?;
        bars.push(part.bar);
    }
    report.note(
        "cpu_ns_per_op: processor time of client, server, service and ksoftirqd, for each MiB or request",
    );
    report.rows = samples.rows();
    report.ratios = samples.ratios(OURS, &[KERNEL, beside::ALONE]);
    bars::judge(&mut report, OURS, &bars);
    Ok(report)
}
