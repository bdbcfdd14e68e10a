//! redis over TAP: a kernel client to an accelerated server, beside two kernels joined by two TAPs and a forwarder with
//! the same offloads, and by veth.

use super::local::{limit_cores, on_kernel};
use super::{Starter, System, interleave};
use crate::launch::{Port, Service, TAP_ADDRESS};
use crate::program;
use crate::samples::Samples;
use crate::tap::link::{Kind, Link};
use crate::tap::namespace::Namespace;
use crate::{Options, Report};

/// The measurement `redis-tap`.
///
/// # Errors
/// Without root, redis, or when the service does not start.
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
        let systems =
            [through(&service, &namespace)?, between("kernel-tap", &taps)?, between("kernel-veth", &veth)?];
        interleave("redis/tap", &systems, options, &mut samples, &mut report);
        systems.into_iter().for_each(System::stop);
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

/// An accelerated server, clients on the kernel of `namespace`.
///
/// # Errors
/// When redis does not answer.
pub fn through<'a>(service: &'a Service, namespace: &'a Namespace) -> anyhow::Result<System<'a>> {
    let server: Starter<'a> = Box::new(|program| service.command(program));
    let client: Starter<'a> = Box::new(|program| {
        on_kernel(program)?;
        namespace.command(program)
    });
    System::start("towpath", TAP_ADDRESS, &server, client, vec![service.pid()], Some(service))
}

fn between<'a>(name: &'static str, link: &'a Link) -> anyhow::Result<System<'a>> {
    let [there, here] = &link.namespaces;
    let server: Starter<'a> = Box::new(|program| there.command(program));
    let client: Starter<'a> = Box::new(|program| here.command(program));
    System::start(name, &link.addresses[0].to_string(), &server, client, link.pids(), None)
}
