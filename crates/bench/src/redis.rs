//! redis-server and redis-benchmark, unmodified, on one system at a time.

pub mod local;
pub mod tap;

use crate::cpu::Meter;
use crate::launch::{Folder, Service};
use crate::program::{self, Finished, Running};
use crate::samples::{Sample, Samples};
use crate::{Options, Report};
use anyhow::{Context, bail};
use std::net::TcpListener;
use std::process::{Command, Stdio};

/// Share of a benchmark's connections that must be accelerated for its numbers to count.
const ACCELERATED_SHARE: f64 = 0.95;

/// One way to use redis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    /// `get` or `set`.
    pub test: &'static str,
    /// Connections.
    pub clients: u32,
    /// Requests sent before the first reply is awaited.
    pub pipeline: u32,
    /// About what the kernel does per second on two cores: from it, how many requests are sent.
    rate: u32,
}

impl Case {
    const fn new(test: &'static str, clients: u32, pipeline: u32, rate: u32) -> Self {
        Self { test, clients, pipeline, rate }
    }

    /// As results name it.
    #[must_use]
    pub fn path(&self, prefix: &str) -> String {
        format!("{prefix}/{}/c{}/p{}", self.test, self.clients, self.pipeline)
    }
}

/// SET first, so that GET finds something.
pub const CASES: [Case; 6] = [
    Case::new("set", 50, 1, 100_000),
    Case::new("get", 50, 1, 100_000),
    Case::new("set", 1, 1, 40_000),
    Case::new("get", 1, 1, 40_000),
    Case::new("set", 50, 16, 800_000),
    Case::new("get", 50, 16, 1_000_000),
];

/// A server, and how its clients reach it.
pub struct System<'a> {
    /// As results name it.
    pub name: &'static str,
    server: Running,
    address: String,
    port: u16,
    client: Starter<'a>,
    /// Processes between client and server.
    between: Vec<u32>,
    /// Set when connections must be accelerated.
    service: Option<&'a Service>,
    _folder: Folder,
}

/// Makes the command that runs a program where it belongs.
pub type Starter<'a> = Box<dyn Fn(&str) -> anyhow::Result<Command> + 'a>;

impl<'a> System<'a> {
    /// Starts a server at `address` and waits until a client gets an answer.
    ///
    /// # Errors
    /// When redis is not installed or does not answer.
    pub fn start(
        name: &'static str,
        address: &str,
        server: &Starter<'a>,
        client: Starter<'a>,
        between: Vec<u32>,
        service: Option<&'a Service>,
    ) -> anyhow::Result<Self> {
        let folder = Folder::new()?;
        let port = free_port()?;
        let mut command = server("redis-server")?;
        command.args(["--port", &port.to_string(), "--bind", address]);
        command.args(["--save", "", "--appendonly", "no", "--protected-mode", "no", "--loglevel", "warning"]);
        command.arg("--dir").arg(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Running::start(&mut command)?;
        let system = Self {
            name,
            server,
            address: address.to_owned(),
            port,
            client,
            between,
            service,
            _folder: folder,
        };
        system.wait_for_answer()?;
        Ok(system)
    }

    fn wait_for_answer(&self) -> anyhow::Result<()> {
        let ping = || -> anyhow::Result<Finished> {
            let mut command = (self.client)("redis-cli")?;
            command.args(["-h", &self.address, "-p", &self.port.to_string(), "ping"]);
            program::run(&mut command, 2.0)
        };
        ping().map(|_| ()).or_else(|_| {
            let what = format!("an answer of redis-server ({})", self.name);
            program::until(10.0, &what, || ping().ok().filter(|f| f.stdout.contains("PONG")).map(|_| ()))
        })
    }

    /// The server's process.
    #[must_use]
    pub fn server_pid(&self) -> u32 {
        self.server.pid()
    }

    /// A client program with the server's address, which `-h` and `-p` name.
    ///
    /// # Errors
    /// When it is not installed.
    pub fn client(&self, program: &str) -> anyhow::Result<Command> {
        let mut command = (self.client)(program)?;
        command.args(["-h", &self.address, "-p", &self.port.to_string()]);
        Ok(command)
    }

    /// Runs the benchmark once.
    ///
    /// # Errors
    /// When it fails, prints something else, or too few of its connections were accelerated.
    pub fn measure(&self, case: Case, seconds: f64) -> anyhow::Result<Measured> {
        let requests = ((f64::from(case.rate) * seconds) as u64).max(1000);
        let accepted = || self.service.map(|s| s.accepted(Some(self.server.pid()))).transpose();
        let before = accepted()?;
        let mut command = self.client("redis-benchmark")?;
        command.args(["-t", case.test, "--csv", "-n", &requests.to_string()]);
        command.args(["-c", &case.clients.to_string(), "-P", &case.pipeline.to_string()]);
        let meter = Meter::start(&[self.between.as_slice(), &[self.server.pid()]].concat());
        let finished = program::run(&mut command, seconds * 10.0 + 20.0)?;
        let cpu_ns = (meter.used_ns() + finished.cpu_ns) as f64;
        if let (Some(before), Some(after)) = (before, accepted()?) {
            let share = (after - before) as f64 / f64::from(case.clients);
            if share < ACCELERATED_SHARE {
                bail!("only {} of {} connections were accelerated", after - before, case.clients);
            }
        }
        let [rate, p50_ms, p99_ms] = parse(&finished.stdout)?;
        Ok(Measured {
            rate,
            p50_us: p50_ms * 1e3,
            p99_us: p99_ms * 1e3,
            cpu_ns: cpu_ns / requests as f64,
            cores: cpu_ns / finished.wall_ns as f64,
        })
    }

    /// Stops the server.
    pub fn stop(self) {
        self.server.stop();
    }
}

/// What one run of the benchmark gave.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    /// Requests per second.
    pub rate: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile of latency.
    pub p99_us: f64,
    /// Processor time of everything that took part, per request.
    pub cpu_ns: f64,
    /// The same over wall time.
    pub cores: f64,
}

impl Measured {
    /// Adds it to the results.
    pub fn add_to(&self, samples: &mut Samples, case: &str, system: &str) {
        let values = [("requests", "1/s", self.rate), ("p50", "us", self.p50_us), ("p99", "us", self.p99_us)];
        for (metric, unit, value) in values {
            let sample = Sample { value, cores: Some(self.cores), cpu_ns: Some(self.cpu_ns) };
            samples.add(case, system, metric, unit, sample);
        }
    }
}

/// Measures every case on every system in turn, run by run; what fails is left out and said.
pub fn interleave(
    prefix: &str,
    systems: &[System<'_>],
    options: &Options,
    samples: &mut Samples,
    report: &mut Report,
) {
    for run in 0..options.runs() {
        for case in CASES {
            let path = case.path(prefix);
            for system in systems {
                match system.measure(case, options.seconds()) {
                    Ok(measured) => measured.add_to(samples, &path, system.name),
                    Err(error) => {
                        report.failures.push(format!("{path}, {}, run {}: {error:#}", system.name, run + 1));
                    }
                }
            }
        }
    }
}

/// Requests per second, median and 99th percentile in milliseconds, from `redis-benchmark --csv`.
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

/// A TCP port that nobody uses now.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr()).context("no free port")?.port())
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
