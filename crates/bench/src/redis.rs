//! redis-server and redis-benchmark, unmodified, on one system.

pub mod local;
pub mod tap;
pub mod veth;

use crate::samples::{Sample, Samples};
use crate::served::{self, Host, Served};
use crate::{Options, Report};
use anyhow::Context;
use std::process::Command;

/// The run that estimates the rate has this fraction of the requests: 1 / `LOOK`.
const LOOK: f64 = 20.0;

/// Bytes of a value where a case says nothing else: redis-benchmark's own default.
const SMALL: u32 = 3;

/// One load on redis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    /// redis-benchmark's test: `get` or `set`.
    pub test: &'static str,
    /// Number of connections.
    pub clients: u32,
    /// Requests sent on a connection before its first reply is awaited.
    pub pipeline: u32,
    /// Bytes of a value.
    pub bytes: u32,
    /// Requests per second that two fast cores answer on the kernel: the most requests that a run sends per second of its length.
    rate: u32,
}

impl Case {
    const fn new(test: &'static str, clients: u32, pipeline: u32, rate: u32) -> Self {
        Self { test, clients, pipeline, bytes: SMALL, rate }
    }

    const fn with_bytes(self, bytes: u32) -> Self {
        Self { bytes, ..self }
    }

    /// GET with one connection.
    pub const ONE: Self = Self::new("get", 1, 1, 40_000);

    /// The case's name in results.
    #[must_use]
    pub fn path(&self, prefix: &str) -> String {
        let bytes = if self.bytes == SMALL { String::new() } else { format!("/{}B", self.bytes) };
        format!("{prefix}/{}/c{}/p{}{bytes}", self.test, self.clients, self.pipeline)
    }
}

/// SET before GET, so that GET finds the key.
pub const CASES: [Case; 6] = [
    Case::new("set", 50, 1, 100_000),
    Case::new("get", 50, 1, 100_000),
    Case::new("set", 1, 1, 40_000),
    Case::ONE,
    Case::new("set", 50, 16, 800_000),
    Case::new("get", 50, 16, 1_000_000),
];

/// Starts a redis server.
///
/// # Errors
/// When redis is not installed or does not answer.
pub fn start(host: Host<'_>) -> anyhow::Result<Served<'_>> {
    Served::start(host, "redis-server", |command, address, folder| {
        let file = folder.join("redis.conf");
        std::fs::write(&file, include_str!("../configuration/redis.conf"))?;
        command.arg(file).args(["--port", &address.port().to_string(), "--bind", &address.ip().to_string()]);
        command.arg("--dir").arg(folder);
        Ok(())
    })
}

/// A command that runs a client program with the server's address.
///
/// # Errors
/// When the program is not installed.
pub fn client(server: &Served<'_>, program: &str) -> anyhow::Result<Command> {
    let mut command = server.client(program)?;
    let address = server.address();
    command.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()]);
    Ok(command)
}

/// Runs the benchmark once, for about `seconds` at most. A short run before it estimates the rate: where a virtual machine wakes its
/// processors slowly, one connection makes only a fifth of the usual requests per second.
///
/// # Errors
/// When the benchmark fails or prints no result, or too few of its connections were accelerated.
pub fn measure(server: &Served<'_>, case: Case, seconds: f64) -> anyhow::Result<Measured> {
    let most = f64::from(case.rate) * seconds;
    let rate = once(server, case, most / LOOK, seconds)?.rate;
    once(server, case, most.min(rate * seconds), seconds)
}

fn once(server: &Served<'_>, case: Case, requests: f64, seconds: f64) -> anyhow::Result<Measured> {
    let requests = (requests as u64).max(1000);
    let mut command = client(server, "redis-benchmark")?;
    command.args(["-t", case.test, "--csv", "-n", &requests.to_string()]);
    command.args(["-c", &case.clients.to_string(), "-P", &case.pipeline.to_string()]);
    command.args(["-d", &case.bytes.to_string()]);
    let (finished, cpu_ns) = server.run(&mut command, case.clients, seconds * 10.0 + 20.0)?;
    let [rate, p50_ms, p99_ms] = parse(&finished.stdout)?;
    Ok(Measured {
        rate,
        p50_us: p50_ms * 1e3,
        p99_us: p99_ms * 1e3,
        cpu_ns: cpu_ns / requests as f64,
        server_ns: (cpu_ns - finished.cpu_ns as f64) / requests as f64,
        cores: cpu_ns / finished.wall_ns as f64,
    })
}

/// The results of one run of the benchmark.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    /// Requests per second.
    pub rate: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile of latency in microseconds.
    pub p99_us: f64,
    /// Processor time per request, of all processes that took part, in nanoseconds.
    pub cpu_ns: f64,
    /// The part of `cpu_ns` that is not the client's.
    pub server_ns: f64,
    /// Processor time of all processes that took part, over wall time.
    pub cores: f64,
}

impl Measured {
    /// Adds the numbers to the samples.
    pub fn add_to(&self, samples: &mut Samples, case: &str, system: &str) {
        let values = [
            ("requests", "1/s", self.rate),
            ("p50", "us", self.p50_us),
            ("p99", "us", self.p99_us),
            ("server", "ns", self.server_ns),
        ];
        for (metric, unit, value) in values {
            let sample = Sample { value, cores: Some(self.cores), cpu_ns: Some(self.cpu_ns) };
            samples.add(case, system, metric, unit, sample);
        }
    }
}

/// Measures every case on every system; see [`served::interleave`].
pub fn interleave(
    prefix: &str,
    cases: &[Case],
    systems: &[Served<'_>],
    options: &Options,
    samples: &mut Samples,
    report: &mut Report,
) {
    let cases: Vec<_> = cases.iter().map(|case| (case.path(prefix), *case)).collect();
    served::interleave(&cases, systems, options, report, |system, path, case| {
        measure(system, *case, options.seconds())?.add_to(samples, path, system.name());
        Ok(())
    });
}

/// Reads requests per second, median and 99th percentile in milliseconds from the output of `redis-benchmark --csv`.
fn parse(csv: &str) -> anyhow::Result<[f64; 3]> {
    let cells = |line: &str| -> Vec<String> {
        line.split(',').map(|cell| cell.trim().trim_matches('"').to_owned()).collect()
    };
    let mut lines = csv.lines().filter(|line| line.starts_with('"'));
    let (head, row) = lines.next().zip(lines.next_back()).context("redis-benchmark printed no result")?;
    let (head, row) = (cells(head), cells(row));
    let column = |name: &str| {
        let index = head.iter().position(|h| h == name);
        let cell = index.and_then(|i| row.get(i)).and_then(|cell| cell.parse::<f64>().ok());
        cell.with_context(|| {
            format!("no {name} in the output of redis-benchmark; version 6.2 or later has it")
        })
    };
    Ok([column("rps")?, column("p50_latency_ms")?, column("p99_latency_ms")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_columns_are_read() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\
                   \"p99_latency_ms\",\"max_latency_ms\"\n\
                   \"GET\",\"98231.83\",\"0.260\",\"0.088\",\"0.255\",\"0.375\",\"0.527\",\"1.103\"\n";
        assert_eq!(parse(csv).unwrap(), [98_231.83, 0.255, 0.527]);
    }

    #[test]
    fn an_old_or_silent_benchmark_is_an_error() {
        assert!(parse("").is_err());
        assert!(parse("\"GET\",\"98231.83\"\n").is_err());
        assert!(parse("Could not connect\n").is_err());
    }

    #[test]
    fn cases_are_named_as_everywhere() {
        assert_eq!(CASES[1].path("redis"), "redis/get/c50/p1");
    }
}
