//! The measurement `rpc`: 64-byte RPCs with sockets between two processes on one host.

use super::acts::load::Offer;
use super::load;
use super::pair::Pair;
use super::raise_limit;
use crate::bars::{self, Bar, Limit, Measure};
use crate::launch::{Port, Service};
use crate::redis::local;
use crate::samples::Samples;
use crate::{Options, Report};
use anyhow::Context;

/// Numbers of long connections.
const STAYING: [u32; 3] = [1, 64, 1000];
/// Number of short connections at once.
const AT_ONCE: u32 = 1024;
/// RPCs on each short connection (TAS, Figure 5).
const RPCS: [u32; 5] = [1, 4, 16, 64, 256];

const KERNEL: Measure = Measure::Over("kernel");
const BARS: &[Bar] = &[
    Bar { cases: "echo/64B/n64/sockets", metric: "cpu_ns_per_op", measure: KERNEL, limit: Limit::Most(0.2) },
    Bar { cases: "short/rpcs1", metric: "rate", measure: KERNEL, limit: Limit::Least(1.5) },
    Bar { cases: "short/rpcs256", metric: "rate", measure: KERNEL, limit: Limit::Least(3.0) },
];

/// Runs the measurement `rpc`.
///
/// # Errors
/// When the service does not start, descriptors are too few, or a process fails.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("rpc");
    raise_limit()?;
    local::limit_cores(&mut report)?;
    let service = Service::start(options, Port::None)?;
    let systems = [Some(&service), None];
    let milliseconds = (options.seconds() * 1e3) as u32;
    let staying = STAYING.map(|connections| Offer { connections, rpcs: None, milliseconds });
    let short = RPCS.map(|rpcs| Offer { connections: AT_ONCE, rpcs: Some(rpcs), milliseconds });
    let mut samples = Samples::default();
    for run in 0..options.runs() {
        for offer in staying.iter().chain(&short) {
            for system in systems {
                let measured =
                    Pair::start(system).and_then(|pair| load::measure(&pair, *offer, &mut samples));
                let what = || format!("{}, run {}", offer.case(), run + 1);
                measured.with_context(what)?;
            }
        }
    }
    service.stop();
    report.note("processor time: both processes, the service and ksoftirqd, per RPC; of short connections each RPC has its share of opening and closing one");
    report.rows = samples.rows();
    report.ratios = samples.ratios("towpath", &["kernel"]);
    bars::judge(&mut report, "towpath", BARS);
    Ok(report)
}
