//! `ab` on an accelerated host, which makes a connection for each request, 50 at once, to nginx on the kernel.

use super::{KERNEL, OURS, Place};
use crate::launch;
use crate::samples::{Sample, Samples};
use crate::served::{self, Host, Served};
use crate::{Options, Report, nginx};
use anyhow::Context;

pub const CASE: &str = "programs/ab/c50/out";
const AT_ONCE: &str = "50";
/// More requests than it makes in the time that it has.
const REQUESTS_PER_SECOND: f64 = 100_000.0;

pub fn measure(options: &Options, samples: &mut Samples, report: &mut Report) -> anyhow::Result<()> {
    let place = Place::new(options)?;
    let ours = Host {
        name: OURS,
        address: place.link.addresses[1],
        server: Box::new(|program| place.link.namespaces[1].command(program)),
        client: Box::new(|program| place.service.command(program)),
        between: vec![place.service.pid()],
        // It says what the server has accepted; here the client is accelerated.
        service: None,
    };
    let systems = [nginx::start(ours)?, nginx::start(Host::over_link(KERNEL, &place.kernels))?];
    let cases = [(CASE.to_owned(), ())];
    served::interleave(&cases, &systems, options, report, |system, path, ()| {
        let service = (system.name() == OURS).then_some(&place.service);
        let connected = || service.map_or(Ok(0), |service| service.connected(None));
        let before = connected()?;
        let (requests, sample) = ask(system, options.seconds())?;
        if service.is_some() {
            launch::prove(connected()? - before, requests)?;
        }
        samples.add(path, system.name(), "requests", "1/s", sample);
        Ok(())
    });
    systems.into_iter().for_each(Served::stop);
    place.service.stop();
    Ok(())
}

/// Runs `ab` once; also returns the number of requests.
fn ask(server: &Served<'_>, seconds: f64) -> anyhow::Result<(u32, Sample)> {
    let whole = seconds.round().max(1.0);
    let mut command = server.client("ab")?;
    // The number comes last: the time sets one, too.
    command.args(["-q", "-t", &whole.to_string(), "-c", AT_ONCE]);
    command.args(["-n", &(REQUESTS_PER_SECOND * whole).to_string()]);
    command.arg(format!("http://{}/1k", server.address()));
    let (finished, cpu_ns) = server.run(&mut command, 0, whole + 20.0)?;
    let (requests, rate) = parse(&finished.stdout)?;
    let cores = Some(cpu_ns / finished.wall_ns as f64);
    Ok((requests, Sample { value: rate, cores, cpu_ns: Some(cpu_ns / f64::from(requests)) }))
}

/// The number of requests, and requests per second.
fn parse(text: &str) -> anyhow::Result<(u32, f64)> {
    let after = |word: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(word));
        rest.and_then(|rest| rest.split_whitespace().next())
            .with_context(|| format!("ab printed no line {word:?}"))
    };
    let failed: u32 = after("Failed requests:")?.parse()?;
    anyhow::ensure!(failed == 0, "{failed} requests of ab failed");
    Ok((after("Complete requests:")?.parse()?, after("Requests per second:")?.parse()?))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_rate_is_read_and_failures_are_no_result() {
        let text = "Complete requests:      1200\nFailed requests:        0\nRequests per second:    602.78 [#/sec] (mean)\n";
        assert_eq!(parse(text).unwrap(), (1200, 602.78));
        assert!(parse(&text.replace("        0", "        2")).is_err());
        assert!(parse("apr_socket_connect(): Connection refused (111)").is_err());
    }
}
