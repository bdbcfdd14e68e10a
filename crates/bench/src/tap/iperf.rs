//! One stream of unmodified iperf3, and what iperf3 prints.

use crate::cpu::Meter;
use crate::launch::{self, Service};
use crate::program::{self, Running};
use crate::samples::Sample;
use anyhow::Context;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes to which processor time refers: a mebibyte.
pub const OPERATION: f64 = 1_048_576.0;
/// The time in which iperf3 must print what is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs one stream between `server` and `client` (commands that start iperf3, without arguments), from client to server, or back if
/// `reverse`. `others`: ids of processes between them. The sample's value is Gbit/s.
///
/// # Errors
/// When one of them fails or prints no result.
pub fn one_stream(
    server: &mut Command,
    client: &mut Command,
    address: &str,
    reverse: bool,
    seconds: f64,
    others: &[u32],
) -> anyhow::Result<Sample> {
    let server = server.args(["-s", "-1", "--forceflush"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Running::start(server)?;
    Said::by(&mut server)?.wait_for("listening", 1)?;
    let pids = [others, &[server.pid()]].concat();
    let meter = Meter::start(&pids);
    let length = (seconds.round() as u64).max(1).to_string();
    client.args(["-c", address, "-J", "--connect-timeout", "3000", "-t", &length]);
    if reverse {
        client.arg("-R");
    }
    let finished = program::run(client, seconds + 20.0)?;
    let (bytes, rate) = parse(&finished.stdout)?;
    let cpu_ns = (meter.used_ns() + finished.cpu_ns) as f64;
    Ok(Sample {
        value: rate / 1e9,
        cores: Some(cpu_ns / finished.wall_ns as f64),
        cpu_ns: Some(cpu_ns / (bytes / OPERATION)),
    })
}

/// Connections of one run: control and data.
const CONNECTIONS: u32 = 2;

/// As [`one_stream`], with a server behind `service`. The connections must be accelerated.
///
/// # Errors
/// As [`one_stream`], and when connections were not accelerated.
pub fn accelerated(
    service: &Service,
    client: &mut Command,
    address: &str,
    reverse: bool,
    seconds: f64,
) -> anyhow::Result<Sample> {
    let before = service.accepted(None)?;
    let mut server = service.command("iperf3")?;
    let sample = one_stream(&mut server, client, address, reverse, seconds, &[service.pid()])?;
    launch::prove(service.accepted(None)? - before, CONNECTIONS)?;
    Ok(sample)
}

/// The lines that an iperf3 prints. A thread reads them to the end of the output, whether or not this value lives.
pub struct Said {
    lines: Receiver<String>,
}

impl Said {
    /// The output of that iperf3, which must be a pipe.
    ///
    /// # Errors
    /// When it is not.
    pub fn by(iperf: &mut Running) -> anyhow::Result<Self> {
        let stdout = iperf.take_stdout().context("iperf3's output")?;
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The send fails if the lines are of no interest any more.
                let _ = tell.send(line);
            }
        });
        Ok(Self { lines })
    }

    /// Waits until `count` more lines contain `words`.
    ///
    /// # Errors
    /// When they do not come within 20 s.
    pub fn wait_for(&self, words: &str, count: u32) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        let mut seen = 0;
        while seen < count {
            let left = until.saturating_duration_since(Instant::now());
            let line = self
                .lines
                .recv_timeout(left)
                .with_context(|| format!("iperf3 -s said \"{words}\" {seen} times instead of {count}"))?;
            seen += u32::from(line.contains(words));
        }
        Ok(())
    }
}

/// Received bytes, and bits per second, of all streams in the result of a client with `-J`.
///
/// # Errors
/// When the text is no result.
pub fn parse(json: &str) -> anyhow::Result<(f64, f64)> {
    let result: serde_json::Value = serde_json::from_str(json).context("iperf3 printed no JSON")?;
    let sum = &result["end"]["sum_received"];
    let field = |name: &str| sum[name].as_f64().with_context(|| format!("no {name} in iperf3's result"));
    Ok((field("bytes")?, field("bits_per_second")?))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_receivers_sum_counts() {
        let json = r#"{"end":{"sum_sent":{"bytes":9,"bits_per_second":9},
                       "sum_received":{"bytes":1000,"bits_per_second":8000.5}}}"#;
        assert_eq!(parse(json).unwrap(), (1000.0, 8000.5));
        assert!(parse(r#"{"error":"unable to connect"}"#).is_err());
    }
}
