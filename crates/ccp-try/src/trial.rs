//! A trial: the algorithm alone over the bottleneck; with a rival also the rival alone, and both over the same bottleneck.

use crate::contestant::Contestant;
use crate::path::Path;
use crate::race::{Entry, Race, RaceSetting};
use crate::transcript::written;
use base::Duration;

/// A trial before it begins.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The algorithm that is tried.
    pub contestant: Contestant,
    /// What it is held against.
    pub rival: Option<Contestant>,
    /// The bottleneck of all runs.
    pub path: Path,
    /// Flows of each contestant.
    pub flows: u32,
    /// Bytes of each flow's largest receive window; `None`: as much as the path can need ([`RaceSetting::buffer`]).
    pub buffer: Option<u32>,
    /// How long each run lasts.
    pub time: Duration,
    /// Time from a report until the agent's answer to it is in force.
    pub staleness: Duration,
    /// Seed of all random choices.
    pub seed: u64,
    /// Keep what flows and agents say to each other ([`Race::transcript`]).
    pub keeps_datagrams: bool,
}

/// The runs of a trial.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was tried, and how.
    pub trial: Trial,
    /// One run, or three: the algorithm alone, the rival alone, both.
    pub races: Vec<Race>,
}

impl Trial {
    /// Flows of each contestant at most.
    pub const FLOWS_MAX: u32 = 1000;

    /// Makes one run, or three with a rival.
    #[must_use]
    pub fn run(self) -> Outcome {
        let entry = |contestant: &Contestant| Entry { contestant: contestant.clone(), flows: self.flows };
        let own = entry(&self.contestant);
        let mut entries = vec![vec![own.clone()]];
        if let Some(rival) = &self.rival {
            let mut other = entry(rival);
            entries.push(vec![other.clone()]);
            if rival.name == self.contestant.name {
                other.contestant.name.push_str(" (rival)");
            }
            entries.push(vec![own, other]);
        }
        let race = |entries: Vec<Entry>| {
            let (path, time, staleness, seed) = (self.path.clone(), self.time, self.staleness, self.seed);
            let (buffer, keeps_datagrams) = (self.buffer, self.keeps_datagrams);
            RaceSetting { path, entries, time, buffer, staleness, seed, keeps_datagrams }.run()
        };
        let races = entries.into_iter().map(race).collect();
        Outcome { trial: self, races }
    }
}

impl Outcome {
    /// What flows and agents said to each other while the algorithm was alone, as the text of a file.
    #[must_use]
    pub fn transcript(&self) -> String {
        written(self.races.first().map_or(&[], |race| &race.transcript))
    }
}

impl Race {
    /// What took part, in words.
    #[must_use]
    pub fn title(&self) -> String {
        let names: Vec<&str> =
            self.setting.entries.iter().map(|entry| entry.contestant.name.as_str()).collect();
        match names[..] {
            [alone] => format!("{alone} alone"),
            _ => names.join(" against "),
        }
    }
}
