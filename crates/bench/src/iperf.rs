//! The measurement `iperf`: one stream of iperf3, unmodified, between two programs of one host, both ways.

use crate::bars::{self, Bar, Limit, Measure};
use crate::launch::{Port, Service};
use crate::redis::local::limit_cores;
use crate::samples::{Sample, Samples};
use crate::tap::iperf::one_stream;
use crate::tap::towpath::CONNECTIONS;
use crate::{Options, Report, interrupt, program, served};
use anyhow::bail;
use std::net::Ipv4Addr;
use std::process::Command;

/// To the one that listens, and from it: iperf3's `-R`.
const DIRECTIONS: [(&str, bool); 2] = [("to-server", false), ("from-server", true)];

/// 1.5 times the kernel's bits for the same processor time.
const BARS: &[Bar] = &[Bar {
    cases: "iperf/local/",
    metric: "cpu_ns_per_op",
    measure: Measure::Over("kernel"),
    limit: Limit::Most(1.0 / 1.5),
}];

/// The measurement.
///
/// # Errors
/// When the service does not start, or iperf3 fails.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("iperf");
    if served::lacks(&["iperf3"], &mut report) {
        return Ok(report);
    }
    limit_cores(&mut report)?;
    let mut samples = Samples::default();
    let service = Service::start(options, Port::None)?;
    for _ in 0..options.runs() {
        for (direction, is_reverse) in DIRECTIONS {
            interrupt::check()?;
            let case = format!("iperf/local/{direction}");
            let through = accelerated(&service, is_reverse, options.seconds())?;
            samples.add(&case, "towpath", "throughput", "Gbit/s", through);
            let iperf = || Ok(Command::new(program::find("iperf3")?));
            let kernel = one(iperf, is_reverse, options.seconds(), &[])?;
            samples.add(&case, "kernel", "throughput", "Gbit/s", kernel);
        }
    }
    service.stop();
    report.note("one stream; processor time is per MiB, of iperf3's two ends, the service and ksoftirqd");
    report.rows = samples.rows();
    report.ratios = samples.ratios("towpath", &["kernel"]);
    bars::judge(&mut report, "towpath", BARS);
    Ok(report)
}

fn one(
    iperf: impl Fn() -> anyhow::Result<Command>,
    is_reverse: bool,
    seconds: f64,
    others: &[u32],
) -> anyhow::Result<Sample> {
    let (mut server, mut client) = (iperf()?, iperf()?);
    one_stream(&mut server, &mut client, &Ipv4Addr::LOCALHOST.to_string(), is_reverse, seconds, others)
}

fn accelerated(service: &Service, is_reverse: bool, seconds: f64) -> anyhow::Result<Sample> {
    let before = service.accepted(None)?;
    let sample = one(|| service.command("iperf3"), is_reverse, seconds, &[service.pid()])?;
    let accelerated = service.accepted(None)? - before;
    if accelerated < CONNECTIONS {
        bail!("only {accelerated} of {CONNECTIONS} connections were accelerated");
    }
    Ok(sample)
}
