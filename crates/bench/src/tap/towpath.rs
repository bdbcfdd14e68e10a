//! iperf3 over TAP between a kernel and an accelerated program, in both directions, and between two kernels with the same offloads.

use super::baseline::kernel_to_kernel;
use super::iperf;
use super::link::{Kind, Link};
use super::namespace::Namespace;
use crate::launch::{Port, Service, TAP_ADDRESS};
use crate::program;
use crate::redis::local::limit_cores;
use crate::samples::{Sample, Samples};
use crate::{Options, Report};

const DIRECTIONS: [(&str, bool); 2] = [("to-towpath", false), ("from-towpath", true)];

/// Runs the measurement `iperf-tap`.
///
/// # Errors
/// When the user is not root, iperf3 is not installed, or the service does not start.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("iperf-tap");
    program::find("iperf3")?;
    limit_cores(&mut report)?;
    let mut samples = Samples::default();
    let veth = Link::new(Kind::Veth)?;
    for (name, kind) in [("tap-offloads", Kind::TapOffloads), ("tap-plain", Kind::TapPlain)] {
        let namespace = Namespace::new()?;
        let port = Port::Tap { namespace: namespace.name(), offloads: kind == Kind::TapOffloads };
        let service = Service::start(options, port)?;
        let kernels = Link::new(kind)?;
        for run in 0..options.runs() {
            for (direction, reverse) in DIRECTIONS {
                let case = format!("iperf/{name}/{direction}");
                let seconds = options.seconds();
                let mut add = |system: &str, result: anyhow::Result<Sample>| match result {
                    Ok(sample) => samples.add(&case, system, "throughput", "Gbit/s", sample),
                    Err(error) => {
                        report.failures.push(format!("{case}, {system}, run {}: {error:#}", run + 1));
                    }
                };
                add("towpath", one(&service, &namespace, reverse, seconds));
                add(kind.system(), kernel_to_kernel(&kernels, reverse, seconds));
                if kind == Kind::TapOffloads {
                    add(Kind::Veth.system(), kernel_to_kernel(&veth, reverse, seconds));
                }
            }
        }
        service.stop();
    }
    report.note(
        "one stream; processor time is per MiB, of iperf3's two ends, service or forwarder, and ksoftirqd",
    );
    report.rows = samples.rows();
    report.ratios = samples.ratios("towpath", &["kernel-tap", "kernel-veth"]);
    Ok(report)
}

fn one(service: &Service, namespace: &Namespace, reverse: bool, seconds: f64) -> anyhow::Result<Sample> {
    let mut client = namespace.command("iperf3")?;
    iperf::accelerated(service, &mut client, &TAP_ADDRESS.to_string(), reverse, seconds)
}
