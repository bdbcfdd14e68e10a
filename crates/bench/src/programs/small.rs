//! iperf3 that writes 100 bytes at a time, from the kernel into an accelerated server.

use super::{KERNEL, OURS, Place};
use crate::samples::{Sample, Samples};
use crate::tap::iperf;
use crate::{Options, Report, interrupt};

pub const CASE: &str = "programs/iperf3/100B/in";
/// The client's flags: bytes of one write.
const FLAGS: [&str; 2] = ["-l", "100"];

pub fn measure(options: &Options, samples: &mut Samples, _report: &mut Report) -> anyhow::Result<()> {
    let place = Place::new(options)?;
    for _ in 0..options.runs() {
        interrupt::check()?;
        let runs = [
            (OURS, into_service(&place, options.seconds())?),
            (KERNEL, between_kernels(&place, options.seconds())?),
        ];
        for (system, sample) in runs {
            samples.add(CASE, system, "throughput", "Gbit/s", sample);
        }
    }
    place.service.stop();
    Ok(())
}

fn into_service(place: &Place, seconds: f64) -> anyhow::Result<Sample> {
    let mut client = place.link.namespaces[1].command("iperf3")?;
    let address = place.link.addresses[0].to_string();
    iperf::accelerated(&place.service, client.args(FLAGS), &address, false, seconds)
}

fn between_kernels(place: &Place, seconds: f64) -> anyhow::Result<Sample> {
    let [server, client] = &place.kernels.namespaces;
    let (mut server, mut client) = (server.command("iperf3")?, client.command("iperf3")?);
    let address = place.kernels.addresses[0].to_string();
    iperf::one_stream(&mut server, client.args(FLAGS), &address, false, seconds, &[])
}
