//! The measurement `redis-tap`: a kernel client and an accelerated server over TAP. Its peers are two kernels, joined by two TAPs and a
//! forwarder with the same offloads, and by veth.

use super::local::limit_cores;
use super::{CASES, interleave};
use crate::launch::{Port, Service, TAP_ADDRESS};
use crate::program;
use crate::samples::Samples;
use crate::served::{Host, Served};
use crate::tap::link::{Kind, Link};
use crate::tap::namespace::Namespace;
use crate::{Options, Report};

/// Runs the measurement `redis-tap`.
///
/// # Errors
/// When the user is not root, redis is not installed, or the service does not start.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("redis-tap");
    program::find("redis-server")?;
    program::find("redis-benchmark")?;
    limit_cores(&mut report)?;
    let namespace = Namespace::new()?;
    let port = Port::Tap { namespace: namespace.name(), offloads: true };
    let service = Service::start(options, port)?;
    let (taps, veth) = (Link::new(Kind::TapOffloads)?, Link::new(Kind::Veth)?);
    let mut samples = Samples::default();
    {
        let through = Host::through(&service, TAP_ADDRESS, &namespace);
        let [over_taps, over_veth] =
            [Host::over_link("kernel-tap", &taps), Host::over_link("kernel-veth", &veth)];
        let systems = [super::start(through)?, super::start(over_taps)?, super::start(over_veth)?];
        interleave("redis/tap", &CASES, &systems, options, &mut samples, &mut report);
        systems.into_iter().for_each(Served::stop);
    }
    service.stop();
    report.note("towpath, kernel-tap: checksum and segmentation offload on; kernel-veth: all offloads, reported beside");
    report.note(
        "processor time: redis-server, redis-benchmark, service or forwarder, and ksoftirqd, per request",
    );
    report.rows = samples.rows();
    report.ratios = samples.ratios("towpath", &["kernel-tap", "kernel-veth"]);
    Ok(report)
}
