//! One stream of unmodified iperf3.

use crate::cpu::Meter;
use crate::launch::{self, Service};
use crate::program::{self, Running};
use crate::samples::Sample;
use anyhow::Context;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Bytes to which processor time refers: a mebibyte.
pub const OPERATION: f64 = 1_048_576.0;

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
    wait_for_listening(&mut server)?;
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

/// Waits until the server says that it listens. A thread reads the server's output to its end.
fn wait_for_listening(server: &mut Running) -> anyhow::Result<()> {
    let stdout = server.take_stdout().context("iperf3's output")?;
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if line.contains("listening") {
                // The send fails if the wait has timed out.
                let _ = tell.send(());
            }
        }
    });
    told.recv_timeout(std::time::Duration::from_secs(5)).context("iperf3 -s did not say that it listens")
}

/// Received bytes, and bits per second.
fn parse(json: &str) -> anyhow::Result<(f64, f64)> {
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
