//! The measurement `sockperf`: unmodified sockperf with one TCP connection: round trips, and one-way messages at the highest rate.

use crate::interrupt;
use crate::launch::{Port, Service};
use crate::redis::local::limit_cores;
use crate::samples::{Sample, Samples};
use crate::served::{self, Host, Served, local_hosts};
use crate::{Options, Report};
use anyhow::{Context, bail};

/// Message sizes in bytes. `--quick` uses the first only: sockperf sleeps two seconds before each measurement.
const SIZES: [u32; 2] = [64, 1024];
/// Attempts of a client to connect. A server serves one client, so it cannot be tested by a connection before.
const TRIES: u32 = 5;
/// Seconds before each attempt.
const PAUSE: f64 = 0.2;

/// sockperf's two modes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    PingPong,
    Throughput,
}

impl Way {
    const ALL: [Self; 2] = [Self::PingPong, Self::Throughput];

    fn name(self) -> &'static str {
        match self {
            Self::PingPong => "ping-pong",
            Self::Throughput => "throughput",
        }
    }
}

/// Runs the measurement `sockperf`.
///
/// # Errors
/// When the service does not start.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("sockperf");
    if served::lacks(&["sockperf"], &mut report) {
        return Ok(report);
    }
    limit_cores(&mut report)?;
    let service = Service::start(options, Port::None)?;
    let mut samples = Samples::default();
    for run in 0..options.runs() {
        for way in Way::ALL {
            for &bytes in &SIZES[..if options.quick { 1 } else { SIZES.len() }] {
                let path = format!("sockperf/{}/{bytes}B", way.name());
                for host in local_hosts(&service) {
                    let name = host.name;
                    match measure(host, way, bytes, options.seconds()) {
                        Ok(numbers) => numbers.into_iter().for_each(|(metric, unit, sample)| {
                            samples.add(&path, name, metric, unit, sample);
                        }),
                        Err(error) => {
                            report.failures.push(format!("{path}, {name}, run {}: {error:#}", run + 1));
                        }
                    }
                }
            }
        }
    }
    service.stop();
    report.note("one connection, whole seconds each; ping-pong: round trips; throughput: messages one way, Nagle's algorithm on, as sockperf has it");
    report.note("processor time: both ends, the service and ksoftirqd, per round trip or message");
    report.rows = samples.rows();
    report.ratios = samples.ratios("towpath", &["kernel"]);
    Ok(report)
}

type Numbers = Vec<(&'static str, &'static str, Sample)>;

fn measure(host: Host<'_>, way: Way, bytes: u32, seconds: f64) -> anyhow::Result<Numbers> {
    let server = Served::launch(host, "sockperf", |command, address, _| {
        command.args(["server", "--tcp", "-i", &address.ip().to_string(), "-p", &address.port().to_string()]);
        Ok(())
    })?;
    // sockperf takes whole seconds only.
    let whole = seconds.round().max(1.0);
    let address = server.address();
    let client = || {
        let mut command = server.client("sockperf")?;
        command.args([
            way.name(),
            "--tcp",
            "-i",
            &address.ip().to_string(),
            "-p",
            &address.port().to_string(),
        ]);
        command.args(["-m", &bytes.to_string(), "-t", &whole.to_string()]);
        if way == Way::PingPong {
            command.arg("--full-rtt");
        }
        server.run(&mut command, 1, whole + 20.0)
    };
    let mut tries = 0;
    let (finished, cpu_ns) = loop {
        interrupt::pause(PAUSE)?;
        tries += 1;
        match client() {
            Err(_) if tries < TRIES => {}
            other => break other?,
        }
    };
    server.stop();
    let cores = Some(cpu_ns / finished.wall_ns as f64);
    let found = parse(&finished.stdout, way)?;
    let sample = |value| Sample { value, cores, cpu_ns: Some(cpu_ns / found.messages) };
    Ok(match way {
        Way::PingPong => vec![
            ("mean", "us", sample(found.mean)),
            ("p50", "us", sample(found.p50)),
            ("p99", "us", sample(found.p99)),
        ],
        Way::Throughput => vec![("rate", "messages/s", sample(found.mean))],
    })
}

/// The numbers that sockperf prints. `mean`: messages per second for throughput, microseconds for ping-pong.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Found {
    messages: f64,
    mean: f64,
    p50: f64,
    p99: f64,
}

fn parse(text: &str, way: Way) -> anyhow::Result<Found> {
    // The first number after these words.
    let after = |words: &str| {
        let rest = text.split_once(words)?.1.trim_start_matches([' ', '=']);
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        rest[..end].parse::<f64>().ok()
    };
    let found = match way {
        Way::PingPong => after("SentMessages=")
            .zip(after("Summary: Round trip is"))
            .zip(after("percentile 50.000").zip(after("percentile 99.000"))),
        Way::Throughput => after("Total of").zip(after("Summary: Message Rate is")).zip(Some((0.0, 0.0))),
    };
    let ((messages, mean), (p50, p99)) = found.context("sockperf printed no result")?;
    if messages == 0.0 {
        bail!("sockperf sent nothing");
    }
    Ok(Found { messages, mean, p50, p99 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_results_are_read() {
        let text = "sockperf: [Total Run] RunTime=1.000 sec; Warm up time=400 msec; SentMessages=55243; ReceivedMessages=55242\n\
            sockperf: Summary: Round trip is 18.827 usec\nsockperf: ---> percentile 99.000 =   34.648\n\
            sockperf: ---> percentile 50.000 =   11.766\n";
        let found = Found { messages: 55_243.0, mean: 18.827, p50: 11.766, p99: 34.648 };
        assert_eq!(parse(text, Way::PingPong).unwrap(), found);
        let text = "sockperf: Total of 678424 messages sent in 1.001 sec\nsockperf: Summary: Message Rate is 677932 [msg/sec]\n";
        assert_eq!(parse(text, Way::Throughput).unwrap().mean, 677_932.0);
        assert!(parse("sockperf: ERROR", Way::Throughput).is_err());
    }
}
