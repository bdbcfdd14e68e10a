//! The measurement `iperf`: one stream of unmodified iperf3 between two programs on one host, in both directions.

use crate::bars::{self, Bar, Limit, Measure};
use crate::launch::{Port, Service};
use crate::redis::local::limit_cores;
use crate::samples::Samples;
use crate::tap::iperf;
use crate::{Options, Report, interrupt, program, served};
use std::net::Ipv4Addr;
use std::process::Command;

/// The direction of the stream; true for iperf3's `-R`, where the server sends.
const DIRECTIONS: [(&str, bool); 2] = [("to-server", false), ("from-server", true)];

/// At most 1/1.5 of the kernel's processor time per MiB.
const BARS: &[Bar] = &[Bar {
    cases: "iperf/local/",
    metric: "cpu_ns_per_op",
    measure: Measure::Over("kernel"),
    limit: Limit::Most(1.0 / 1.5),
}];

/// Runs the measurement `iperf`.
///
/// # Errors
/// When the service does not start or iperf3 fails.
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
            let (address, seconds) = (Ipv4Addr::LOCALHOST.to_string(), options.seconds());
            let mut client = service.command("iperf3")?;
            let through = iperf::accelerated(&service, &mut client, &address, is_reverse, seconds)?;
            samples.add(&case, "towpath", "throughput", "Gbit/s", through);
            let program = program::find("iperf3")?;
            let [mut server, mut client] = [(); 2].map(|()| Command::new(&program));
            let kernel = iperf::one_stream(&mut server, &mut client, &address, is_reverse, seconds, &[])?;
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
