//! A trial as a command line or a program of another language says it: plain values, of which [`Options::trial`] makes a [`Trial`].

use crate::contestant::Contestant;
use crate::path::Path;
use crate::trial::Trial;
use base::Duration;
use base::limits::{RING_MAX, RING_MIN};
use link::Trace;
use serde::{Deserialize, Serialize};

/// The longest run, seconds.
const SECONDS_MAX: f64 = 3600.0;
/// The longest way to an agent and back, microseconds.
const STALENESS_US_MAX: u64 = 10_000_000;

/// The circumstances of a trial.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// The bottleneck, as [`Path`] reads it.
    pub link: String,
    /// Name and text of a trace that takes the place of the rate.
    pub trace: Option<(String, String)>,
    /// Flows of each contestant, from 1 to 1000.
    pub flows: u32,
    /// The largest receive window of each flow as text (`4mib`, `150kb`); `None`: twice what line and queue hold.
    pub buffer: Option<String>,
    /// Length of a run in virtual seconds, at most an hour.
    pub seconds: f64,
    /// Microseconds from a report until the agent's answer is in force, at most ten seconds.
    pub staleness_us: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Keep what flows and agents say to each other.
    pub records: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            link: "48mbit,20ms,1bdp".to_owned(),
            trace: None,
            flows: 1,
            buffer: None,
            seconds: 30.0,
            staleness_us: 20,
            seed: 1,
            records: false,
        }
    }
}

impl Options {
    /// A trial under these circumstances.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    pub fn trial(&self, contestant: Contestant, rival: Option<Contestant>) -> Result<Trial, String> {
        let (time, staleness) = self.times()?;
        let (flows, seed) = (self.flows, self.seed);
        let (path, buffer, keeps_datagrams) = (self.path()?, self.buffer()?, self.records);
        Ok(Trial { contestant, rival, path, flows, buffer, time, staleness, seed, keeps_datagrams })
    }

    /// Bytes of each flow's largest receive window, if the options name them.
    ///
    /// # Errors
    /// When the text is no number of bytes, or one that no connection can have.
    pub fn buffer(&self) -> Result<Option<u32>, String> {
        let Some(text) = &self.buffer else { return Ok(None) };
        let bytes = link::parse_bytes(text).and_then(|bytes| u32::try_from(bytes).ok());
        let bytes = bytes.filter(|bytes| (RING_MIN..=RING_MAX).contains(bytes));
        let why = || format!("`{text}` is no buffer: give from 4kib to 256mib, as in 4mib or 150kb");
        bytes.map(Some).ok_or_else(why)
    }

    /// The length of a run, and the time from a report until the answer is in force; all plain numbers are checked.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    pub fn times(&self) -> Result<(Duration, Duration), String> {
        if !(1..=Trial::FLOWS_MAX).contains(&self.flows) {
            return Err(format!("{} flows: give from 1 to {}", self.flows, Trial::FLOWS_MAX));
        }
        if !(self.seconds > 0.0 && self.seconds <= SECONDS_MAX) {
            return Err(format!("{} seconds: give more than 0, at most {SECONDS_MAX}", self.seconds));
        }
        if self.staleness_us > STALENESS_US_MAX {
            return Err(format!("agents {} us away: at most {STALENESS_US_MAX}", self.staleness_us));
        }
        Ok((Duration::from_ns((self.seconds * 1e9) as u64), Duration::from_us(self.staleness_us)))
    }

    /// The bottleneck that these options describe.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn path(&self) -> Result<Path, String> {
        let path: Path = self.link.parse().map_err(|why: crate::BadPath| why.to_string())?;
        let Some((name, text)) = &self.trace else { return Ok(path) };
        let trace = Trace::parse(name, text).map_err(|why| format!("{name}: {why}"))?;
        Ok(path.following(trace))
    }
}
