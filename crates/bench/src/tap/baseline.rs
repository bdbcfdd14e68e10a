//! iperf3 between two kernels, over two TAPs and a forwarder with and without offloads, and over veth: the peers of Towpath over TAP.

use super::iperf;
use super::link::{Kind, Link};
use crate::samples::{Sample, Samples};
use crate::{Options, Report};

const LINKS: [(&str, Kind); 3] =
    [("tap-offloads", Kind::TapOffloads), ("tap-plain", Kind::TapPlain), ("veth-offloads", Kind::Veth)];

/// Runs the measurement `tap-baseline`.
///
/// # Errors
/// When iperf3 or `ip` fails.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("tap-baseline");
    let mut samples = Samples::default();
    measure(options, &mut samples, &mut report)?;
    report.rows = samples.rows();
    Ok(report)
}

/// Adds rows `iperf/LINK/kernel-to-kernel`.
pub fn measure(options: &Options, samples: &mut Samples, report: &mut Report) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        report.note("iperf: skipped: network namespaces and TAP interfaces need root");
        return Ok(());
    }
    for _ in 0..options.runs() {
        for (name, kind) in LINKS {
            let link = Link::new(kind)?;
            let sample = kernel_to_kernel(&link, false, options.seconds())?;
            let case = format!("iperf/{name}/kernel-to-kernel");
            samples.add(&case, kind.system(), "throughput", "Gbit/s", sample);
        }
    }
    report.note(
        "iperf: one stream; processor time is per MiB, of iperf3's two ends, the forwarder and ksoftirqd",
    );
    Ok(())
}

/// Runs one stream over the link.
///
/// # Errors
/// When iperf3 fails.
pub fn kernel_to_kernel(link: &Link, reverse: bool, seconds: f64) -> anyhow::Result<Sample> {
    let [server, client] = &link.namespaces;
    let (mut server, mut client) = (server.command("iperf3")?, client.command("iperf3")?);
    let address = link.addresses[0].to_string();
    iperf::one_stream(&mut server, &mut client, &address, reverse, seconds, &link.pids())
}
