//! A `towpath link` process: started with a seed, stopped with its counters.

use crate::program::Running;
use anyhow::{Context, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};

/// The two interfaces that a link joins, and the properties of its two directions.
#[derive(Clone, Debug)]
pub struct Orders<'a> {
    /// Interfaces as `towpath link` takes them: first the end from which data comes.
    pub ends: [String; 2],
    /// Properties of the direction of data.
    pub forward: &'a str,
    /// Properties of the direction of acknowledgements.
    pub backward: &'a str,
    pub seed: u64,
    /// Seconds after which the link ends by itself, even if this process is gone.
    pub seconds: f64,
}

/// The link's counters in the direction of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// Segments sent into the link.
    pub offered: u64,
    /// Offered segments lost by the configured loss.
    pub lost: u64,
    /// Offered segments delivered late by the configured reordering.
    pub reordered: u64,
    /// Segments dropped because the queue was full.
    pub queue_full: u64,
    /// Segments marked as having met congestion.
    pub marked: u64,
    /// Frames that the emulator could not deliver, in both directions.
    pub failed: u64,
}

/// A running `towpath link` process.
#[derive(Debug)]
pub struct Emulated {
    running: Running,
    /// Kept open so that the process can go on writing to it.
    _stderr: BufReader<ChildStderr>,
}

impl Emulated {
    /// Starts the link and waits until it carries packets.
    ///
    /// # Errors
    /// The message of the process, if that does not start.
    pub fn start(towpath: &Path, orders: &Orders<'_>) -> anyhow::Result<Self> {
        let mut command = Command::new(towpath);
        command.arg("link").args(&orders.ends).args([
            "--forward",
            orders.forward,
            "--backward",
            orders.backward,
        ]);
        command.args(["--seed", &orders.seed.to_string(), "--json"]);
        command.args(["--duration", &format!("{}ms", (orders.seconds * 1e3).ceil() as u64)]);
        let mut running = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
        let mut stderr = BufReader::new(running.take_stderr().context("the link's messages")?);
        let mut said = String::new();
        stderr.read_line(&mut said)?;
        if !said.contains("is up") {
            bail!("`towpath link` did not start: {}", said.trim().trim_start_matches("towpath: "));
        }
        Ok(Self { running, _stderr: stderr })
    }

    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Stops the link and returns its counters.
    ///
    /// # Errors
    /// When the process does not print its counters.
    pub fn stop(mut self) -> anyhow::Result<Done> {
        let mut stdout = self.running.take_stdout().context("the link's counters")?;
        self.running.stop();
        let mut text = String::new();
        stdout.read_to_string(&mut text)?;
        Done::parse(text.lines().last().unwrap_or_default())
    }
}

impl Done {
    fn parse(line: &str) -> anyhow::Result<Self> {
        let all: Value = serde_json::from_str(line).context("`towpath link --json` printed no JSON")?;
        let of = |way: &str, name: &str| {
            all[way][name].as_u64().with_context(|| format!("`towpath link --json` says no {way}.{name}"))
        };
        Ok(Self {
            offered: of("forward", "offered")?,
            lost: of("forward", "lost")?,
            reordered: of("forward", "reordered")?,
            queue_full: of("forward", "queue_full")?,
            marked: of("forward", "marked")?,
            failed: of("forward", "failed")? + of("backward", "failed")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Done;

    #[test]
    fn both_directions_can_fail_and_only_data_counts_otherwise() {
        let way = |lost, failed| {
            format!(
                r#"{{"offered":100,"lost":{lost},"reordered":2,"queue_full":3,"marked":4,"failed":{failed}}}"#
            )
        };
        let line = format!(r#"{{"seconds":1.0,"forward":{},"backward":{}}}"#, way(1, 4), way(9, 5));
        let done = Done { offered: 100, lost: 1, reordered: 2, queue_full: 3, marked: 4, failed: 9 };
        assert_eq!(Done::parse(&line).unwrap(), done);
        assert!(Done::parse("").is_err());
        assert!(Done::parse(r#"{"forward":{}}"#).is_err());
    }
}
