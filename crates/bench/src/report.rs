//! The common form of a result: what `docs/evaluation.md` holds and other programs parse.

use crate::{Options, markdown, table};
use serde::Serialize;
use std::io::Write;

/// One number of one system in one case.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// A path: `redis/get/c50/p1`.
    pub case: String,
    /// `towpath`, `kernel`, or what else was measured.
    pub system: String,
    /// What was measured: `requests`, `p50`.
    pub metric: String,
    /// Its unit: `1/s`, `us`.
    pub unit: String,
    /// Over the runs.
    pub median: f64,
    /// Over the runs.
    pub min: f64,
    /// Over the runs.
    pub max: f64,
    /// How many runs.
    pub runs: usize,
    /// Processor time of everything that took part, over wall time; absent where it means nothing.
    pub cores_used: Option<f64>,
    /// Processor time of everything that took part, over operations.
    pub cpu_ns_per_op: Option<f64>,
}

/// Towpath's (or the first system's) number divided by its peer's, paired run by run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Ratio {
    /// As in the rows.
    pub case: String,
    /// As in the rows, or `cpu_ns_per_op`.
    pub metric: String,
    /// The peer.
    pub over: String,
    /// Over the pairs of runs.
    pub median: f64,
    /// Its 95 % confidence interval, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
}

impl Ratio {
    /// For people; `unit` goes behind the number.
    pub(crate) fn text(&self, unit: &str) -> String {
        let mut text = format!("{} {:.2}{unit}", self.metric, self.median);
        if let Some([low, high]) = self.interval {
            text.push_str(&format!(" ({low:.2} to {high:.2})"));
        }
        text
    }
}

/// Where it was measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Machine {
    /// Processors that this process may run on.
    pub cpus: usize,
    /// As `/proc/cpuinfo` says.
    pub model: String,
    /// Kernel release.
    pub kernel: String,
}

impl Machine {
    /// This one.
    #[must_use]
    pub fn here() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
        Self {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            model: model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, m)| m.trim().to_owned()),
            kernel: kernel.trim().to_owned(),
        }
    }
}

/// One measurement's result.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The measurement's name.
    pub name: String,
    /// Where.
    pub machine: Machine,
    /// Every number.
    pub rows: Vec<Row>,
    /// What they amount to.
    pub ratios: Vec<Ratio>,
    /// Sentences for people: what was skipped and why, what is special.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// What could not be measured or proved; the program's exit status says so too.
    #[serde(skip)]
    pub failures: Vec<String>,
}

impl Report {
    /// An empty one of this machine.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            machine: Machine::here(),
            rows: Vec::new(),
            ratios: Vec::new(),
            notes: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Adds a sentence for people.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// The ratios of each case and peer, together.
    #[must_use]
    pub fn ratios_by_case(&self) -> Vec<Vec<&Ratio>> {
        let mut groups: Vec<Vec<&Ratio>> = Vec::new();
        for ratio in &self.ratios {
            let is_it = |g: &&mut Vec<&Ratio>| {
                g.first().is_some_and(|r| r.case == ratio.case && r.over == ratio.over)
            };
            match groups.iter_mut().find(is_it) {
                Some(group) => group.push(ratio),
                None => groups.push(vec![ratio]),
            }
        }
        groups
    }

    /// Prints as the options say; failures go to standard error as well.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn print(&self, options: &Options) -> anyhow::Result<()> {
        if let Some(file) = &options.into {
            markdown::put_into(self, file)?;
        }
        let text = match (options.json, options.markdown) {
            (true, _) => serde_json::to_string(self)? + "\n",
            (_, true) => markdown::page(self),
            _ => table::text(self),
        };
        std::io::stdout().lock().write_all(text.as_bytes())?;
        let mut errors = std::io::stderr().lock();
        for failure in &self.failures {
            writeln!(errors, "towpath bench {}: {failure}", self.name)?;
        }
        Ok(())
    }
}
