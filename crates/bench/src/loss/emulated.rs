//! `towpath link` as a process: started with a seed, stopped with its counters.

use crate::program::Running;
use anyhow::{Context, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};

/// What to join, and how.
#[derive(Clone, Debug)]
pub struct Orders<'a> {
    /// Interfaces, as `towpath link` takes them: the data's end first.
    pub ends: [String; 2],
    /// The way of data.
    pub forward: &'a str,
    /// The way of acknowledgements.
    pub backward: &'a str,
    pub seed: u64,
    /// It leaves by itself then, whatever becomes of us.
    pub seconds: f64,
}

/// What the link did to data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// Segments offered.
    pub offered: u64,
    /// Of these, lost by the configured loss.
    pub lost: u64,
    /// Of these, delivered late on purpose.
    pub reordered: u64,
    /// Dropped by the full queue.
    pub queue_full: u64,
    /// Frames that the emulator itself could not carry, in both directions.
    pub failed: u64,
}

/// A running link.
#[derive(Debug)]
pub struct Emulated {
    running: Running,
    /// Kept open for what it may still say.
    _stderr: BufReader<ChildStderr>,
}

impl Emulated {
    /// Starts it and waits until it carries packets.
    ///
    /// # Errors
    /// What it says instead.
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

    /// Stops it.
    ///
    /// # Errors
    /// When it does not say what it did.
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
            format!(r#"{{"offered":100,"lost":{lost},"reordered":2,"queue_full":3,"failed":{failed}}}"#)
        };
        let line = format!(r#"{{"seconds":1.0,"forward":{},"backward":{}}}"#, way(1, 4), way(9, 5));
        let done = Done { offered: 100, lost: 1, reordered: 2, queue_full: 3, failed: 9 };
        assert_eq!(Done::parse(&line).unwrap(), done);
        assert!(Done::parse("").is_err());
        assert!(Done::parse(r#"{"forward":{}}"#).is_err());
    }
}
