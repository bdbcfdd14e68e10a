//! Pairs of runs, and the file that stores them, one JSON object per line, so that a measurement can be interrupted at any time.

use super::counted::Counters;
use super::emulated::Done;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// The result of one run of one system.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Goodput at the receiving program, in bits per second.
    pub goodput_bits_per_second: f64,
    /// Processor time of the sending program and its service (if any), per byte in nanoseconds.
    pub sender_cpu_ns_per_byte: f64,
    /// Processor time of all processes that took part, per byte in nanoseconds.
    pub all_cpu_ns_per_byte: f64,
    /// Processor time of all processes that took part, over wall time.
    pub cores: f64,
    /// Segments sent into the link.
    pub offered: u64,
    /// Segments lost by the link's configured loss.
    pub lost: u64,
    /// Segments delivered late by the link's configured reordering.
    pub reordered: u64,
    /// Segments that the link dropped because its queue was full.
    pub queue_full: u64,
    /// Frames that the link could not deliver; not 0 if the emulator was too slow.
    pub failed: u64,
    /// Growth of the sender's counters, including the warm-up.
    pub counters: Counters,
}

impl Outcome {
    /// Sets the link's counters.
    pub fn with_link(self, done: Done) -> Self {
        let Done { offered, lost, reordered, queue_full, failed, marked: _ } = done;
        Self { offered, lost, reordered, queue_full, failed, ..self }
    }

    /// Segments that the mishap could affect: loss happens before the link's queue, delay after it.
    pub fn exposed(&self) -> u64 {
        self.offered - if self.reordered > 0 { self.queue_full.min(self.offered) } else { 0 }
    }

    /// Share of the exposed segments that were lost or delayed on purpose.
    pub fn struck(&self) -> f64 {
        (self.lost + self.reordered) as f64 / self.exposed().max(1) as f64
    }
}

/// Settings that must be equal for two pairs to belong to one measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Settings {
    pub algorithm: String,
    pub rate: String,
    pub both_ways: bool,
    /// The receiver selected what was lost (records without this field are of such receivers).
    #[serde(default = "yes")]
    pub sack: bool,
    pub seconds: f64,
    pub warm_up: f64,
    /// Identifies the build of Towpath: size and modification time of the program.
    pub build: String,
}

fn yes() -> bool {
    true
}

/// The two runs of a point, over the same link with the same seed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pair {
    pub case: String,
    pub seed: u64,
    pub settings: Settings,
    pub towpath: Outcome,
    pub kernel: Outcome,
}

impl Pair {
    /// Towpath's goodput over the kernel's. A run without a byte counts as one bit per second.
    pub fn ratio(&self) -> f64 {
        self.towpath.goodput_bits_per_second.max(1.0) / self.kernel.goodput_bits_per_second.max(1.0)
    }
}

/// All pairs so far, and the file that stores them (`None` without `--resume`).
#[derive(Debug, Default)]
pub struct Record {
    pub pairs: Vec<Pair>,
    file: Option<File>,
}

impl Record {
    /// Reads the pairs of earlier measurements, to append to them. An incomplete last line is cut off.
    ///
    /// # Errors
    /// When the file cannot be read or written, or has other content.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {name}")),
        };
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let pairs: Result<Vec<Pair>, _> = text[..whole].lines().map(serde_json::from_str).collect();
        let pairs = pairs.with_context(|| format!("{name} is no record of `towpath bench loss`"))?;
        let open = || -> std::io::Result<File> {
            let file = File::options().create(true).append(true).open(path)?;
            file.set_len(whole as u64)?;
            Ok(file)
        };
        let file = open().with_context(|| format!("cannot write {name}"))?;
        Ok(Self { pairs, file: Some(file) })
    }

    /// True if the pair is already in the record.
    ///
    /// # Errors
    /// When the pair was measured with other settings.
    pub fn has(&self, case: &str, seed: u64, settings: &Settings) -> anyhow::Result<bool> {
        let Some(pair) = self.pairs.iter().find(|pair| pair.case == case && pair.seed == seed) else {
            return Ok(false);
        };
        if pair.settings != *settings {
            bail!(
                "the file to resume has {case} measured as {:?}, not {settings:?}: use another file",
                pair.settings
            );
        }
        Ok(true)
    }

    /// Appends a pair to the record and its file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add(&mut self, pair: Pair) -> anyhow::Result<()> {
        if let Some(file) = &mut self.file {
            let line = serde_json::to_string(&pair)? + "\n";
            file.write_all(line.as_bytes()).context("cannot write the file to resume")?;
        }
        self.pairs.push(pair);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(seed: u64) -> Pair {
        let settings = Settings {
            algorithm: "cubic".into(),
            rate: "1gbit".into(),
            both_ways: false,
            sack: true,
            seconds: 1.0,
            warm_up: 0.3,
            build: "1".into(),
        };
        let outcome = Outcome { goodput_bits_per_second: 1e9 / seed as f64, ..Outcome::default() };
        Pair {
            case: "loss/1%/flows1/rtt1ms".into(),
            seed,
            settings,
            towpath: outcome.clone(),
            kernel: outcome,
        }
    }

    #[test]
    fn a_cut_record_goes_on_behind_its_last_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        let mut record = Record::open(&path).unwrap();
        record.add(pair(1)).unwrap();
        record.add(pair(2)).unwrap();
        let len = fs::metadata(&path).unwrap().len();
        File::options().write(true).open(&path).unwrap().set_len(len - 9).unwrap();
        let mut record = Record::open(&path).unwrap();
        assert_eq!(record.pairs, [pair(1)]);
        record.add(pair(3)).unwrap();
        assert_eq!(Record::open(&path).unwrap().pairs, [pair(1), pair(3)]);
    }

    #[test]
    fn a_record_from_before_the_choice_of_sack_had_it() {
        let text = serde_json::to_string(&pair(1)).unwrap();
        let old = text.replace(r#""sack":true,"#, "");
        assert_ne!(old, text);
        assert_eq!(serde_json::from_str::<Pair>(&old).unwrap(), pair(1));
    }

    #[test]
    fn pairs_of_other_settings_are_not_mixed_in() {
        let mut record = Record::default();
        record.add(pair(1)).unwrap();
        let (case, settings) = (pair(1).case, pair(1).settings);
        assert!(record.has(&case, 1, &settings).unwrap());
        assert!(!record.has(&case, 2, &settings).unwrap());
        let unlimited = Settings { rate: "unlimited".into(), ..settings.clone() };
        for other in [unlimited, Settings { sack: false, ..settings }] {
            assert!(record.has(&case, 1, &other).unwrap_err().to_string().contains("use another file"));
        }
    }
}
