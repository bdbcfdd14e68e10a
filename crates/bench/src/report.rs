//! The common form of a result, which `docs/evaluation.md` contains and other programs parse.

use crate::{Options, markdown, table};
use serde::Serialize;
use std::io::Write;

/// One metric of one system in one case.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The case's path, such as `redis/get/c50/p1`.
    pub case: String,
    /// `towpath`, `kernel`, or another system.
    pub system: String,
    /// The metric's name, such as `requests` or `p50`.
    pub metric: String,
    /// The metric's unit, such as `1/s` or `us`.
    pub unit: String,
    /// The median over the runs.
    pub median: f64,
    /// The smallest value of all runs.
    pub min: f64,
    /// The largest value of all runs.
    pub max: f64,
    /// The number of runs.
    pub runs: usize,
    /// Processor time of all processes that took part, over wall time; `None` where it has no meaning.
    pub cores_used: Option<f64>,
    /// Processor time per operation of all processes that took part, in nanoseconds.
    pub cpu_ns_per_op: Option<f64>,
}

/// The first system's (Towpath's) number divided by a peer's, paired run by run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Ratio {
    /// The case's path, as in the rows.
    pub case: String,
    /// The metric, as in the rows, or `cpu_ns_per_op`.
    pub metric: String,
    /// The name of the peer.
    pub over: String,
    /// The median of the ratios of all pairs of runs.
    pub median: f64,
    /// The 95 % confidence interval of the median; `None` if it was not computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
}

impl Ratio {
    /// The ratio as text, with `unit` after the number.
    pub(crate) fn text(&self, unit: &str) -> String {
        let mut text = format!("{} {:.2}{unit}", self.metric, self.median);
        if let Some([low, high]) = self.interval {
            text.push_str(&format!(" ({low:.2} to {high:.2})"));
        }
        text
    }
}

/// The machine of a measurement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Machine {
    /// Processors that this process may run on.
    pub cpus: usize,
    /// The processor's model, as `/proc/cpuinfo` says.
    pub model: String,
    /// The release of the kernel.
    pub kernel: String,
}

impl Machine {
    /// Describes the machine on which this process runs.
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

/// The result of one measurement.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The measurement's name.
    pub name: String,
    /// The machine on which it was measured.
    pub machine: Machine,
    /// The numbers of all cases and systems.
    pub rows: Vec<Row>,
    /// The ratios of the numbers.
    pub ratios: Vec<Ratio>,
    /// Remarks for readers, such as what was skipped and why.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// Cases that could not be measured and limits that were missed; if there are any, the exit status is a failure.
    #[serde(skip)]
    pub failures: Vec<String>,
}

impl Report {
    /// An empty report of this machine.
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

    /// Adds a remark for readers.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// The ratios in groups of the same case and peer.
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

    /// Prints the report as the options say; failures also go to standard error.
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
