//! `towpath sim`: runs one or many seeds in the simulator, and prints the command that replays a failure.

use crate::table;
use anyhow::{Context, bail};
use clap::Args;
use sim::scenario::{NAMED, Options, RANDOM, Report, Run};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What the simulator is to run.
#[derive(Clone, Debug, Args)]
pub struct Sim {
    /// The scenario: see --list
    #[arg(default_value = "random")]
    scenario: String,
    /// The seed to begin with
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// How many seeds, from the first on; 0: until interrupted
    #[arg(long, default_value_t = 1, value_name = "M")]
    seeds: u64,
    /// Stop after so many seconds, however many seeds are left
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Runs at the same time [default: the number of processors]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Connections in all, in scenarios that count them
    #[arg(long, value_name = "N")]
    connections: Option<u64>,
    /// Write what is on the wire of the first seed to FILE, as pcapng
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Print JSON, a line for each seed
    #[arg(long)]
    json: bool,
    /// List the scenarios, and end
    #[arg(long)]
    list: bool,
    /// Show what a seed's network is like
    #[arg(long)]
    explain: bool,
}

/// State that all worker threads share.
struct Work<'a> {
    sim: &'a Sim,
    next: AtomicU64,
    failed: AtomicBool,
    /// An error that is not a failure of a seed, such as a file that cannot be written.
    mistake: Mutex<Option<anyhow::Error>>,
    begun: Instant,
    output: Mutex<()>,
}

impl Sim {
    /// Runs the command's seeds.
    pub fn execute(&self) -> anyhow::Result<()> {
        if self.list {
            return list();
        }
        if self.setting(self.seed).is_none() {
            bail!("no scenario `{}`; `towpath sim --list` names them", self.scenario);
        }
        if self.explain {
            let setting = self.setting(self.seed).context("asked above")?;
            return table::print(Run::new(setting).describe().trim_end());
        }
        let work = Work {
            sim: self,
            next: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            mistake: Mutex::new(None),
            begun: Instant::now(),
            output: Mutex::new(()),
        };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let jobs = if self.seeds == 1 { 1 } else { self.jobs.unwrap_or(processors).max(1) };
        std::thread::scope(|scope| {
            (0..jobs).for_each(|_| {
                scope.spawn(|| work.work());
            });
        });
        let count = work.next.load(Ordering::Relaxed).min(self.seeds_max());
        if let Some(mistake) = work.mistake.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(mistake);
        }
        if work.failed.load(Ordering::Relaxed) {
            bail!("a seed failed; its replay command is above");
        }
        if self.seeds != 1 && !self.json {
            let seconds = work.begun.elapsed().as_secs_f64();
            table::print(&format!("{}: {count} seeds passed in {seconds:.1} s", self.scenario))?;
        }
        Ok(())
    }

    fn seeds_max(&self) -> u64 {
        if self.seeds == 0 { u64::MAX } else { self.seeds }
    }

    fn options(&self) -> Options {
        Options { connections: self.connections }
    }

    fn setting(&self, seed: u64) -> Option<sim::scenario::Setting> {
        sim::scenario::setting(&self.scenario, seed, &self.options())
    }

    /// The command that replays one seed.
    fn replay(&self, seed: u64) -> String {
        let connections = self.connections.map_or(String::new(), |n| format!(" --connections {n}"));
        format!("towpath sim {} --seed {seed}{connections}", self.scenario)
    }

    fn run(&self, seed: u64, is_first: bool) -> anyhow::Result<Report> {
        let setting = self.setting(seed).context("the name was looked up")?;
        let mut run = Run::new(setting);
        if let Some(path) = self.pcap.as_ref().filter(|_| is_first) {
            let file = std::fs::File::create(path).with_context(|| format!("create {}", path.display()))?;
            let names = run.network().names().to_vec();
            let writer = Box::new(std::io::BufWriter::new(file));
            run.network().capture = Some(sim::Capture::new(writer, &names)?);
        }
        if self.seeds == 1 {
            run.measure(resident);
        }
        let report = catch_unwind(AssertUnwindSafe(|| run.finish())).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let failure = Some(format!("panic: {}", text.unwrap_or_default()));
            Report { failure, ..Report::default() }
        });
        if let Some(capture) = run.take_capture() {
            capture.finish().context("write the capture")?;
        }
        Ok(report)
    }
}

impl Work<'_> {
    fn work(&self) {
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            let limit = self.sim.seconds.map(Duration::from_secs);
            let is_late = limit.is_some_and(|limit| limit <= self.begun.elapsed()) && i > 0;
            if self.sim.seeds_max() <= i || is_late || self.failed.load(Ordering::Relaxed) {
                self.next.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            let seed = self.sim.seed.wrapping_add(i);
            let said = match self.sim.run(seed, i == 0) {
                Ok(report) => self.show(seed, &report),
                Err(error) => Err(error),
            };
            if let Err(error) = said {
                self.failed.store(true, Ordering::Relaxed);
                *self.mistake.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        }
    }

    fn show(&self, seed: u64, report: &Report) -> anyhow::Result<()> {
        let _turn = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = &report.failure {
            self.failed.store(true, Ordering::Relaxed);
            eprintln!("seed {seed}: {failure}\nreplay: {}", self.sim.replay(seed));
        }
        if self.sim.json {
            return table::print(&json(self.sim, seed, report).to_string());
        }
        if self.sim.seeds == 1 && report.failure.is_none() {
            return table::print(&text(self.sim, seed, report, self.begun.elapsed()));
        }
        Ok(())
    }
}

/// Bytes of anonymous memory of this process. Regions are not in it: what they lend is counted exactly.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

fn list() -> anyhow::Result<()> {
    RANDOM.iter().try_for_each(|(name, _, about)| table::print(&format!("{name:<15} {about}")))?;
    NAMED.iter().try_for_each(|named| table::print(&format!("{:<15} {}", named.name, named.about)))
}

fn json(sim: &Sim, seed: u64, report: &Report) -> serde_json::Value {
    let [finished, failed, died] = report.connections;
    serde_json::json!({
        "scenario": sim.scenario,
        "seed": seed,
        "failure": report.failure,
        "replay": sim.replay(seed),
        "seconds": report.seconds,
        "connections": { "finished": finished, "failed": failed, "died": died },
        "bytes": report.bytes,
        "frames": report.frames,
        "dropped": report.dropped,
        "marked": report.marked,
        "timeouts": report.timeouts,
        "goodput_bits_per_second": report.goodput,
        "refused": report.refused,
    })
}

fn text(sim: &Sim, seed: u64, report: &Report, took: Duration) -> String {
    let [finished, failed, died] = report.connections;
    let rate = (finished + failed + died) as f64 / took.as_secs_f64();
    let mib = |bytes: &u64| format!(" {:.1}", *bytes as f64 / f64::from(1 << 20));
    let memory: String = report.memory.iter().map(mib).collect();
    format!(
        "{} seed {seed}: passed\n  connections   {finished} finished, {failed} with an error, {died} cut by a death\n  \
         real time     {:.1} s, {rate:.0} connections/s\n  memory       {memory} MiB\n  virtual time  {:.3} s\n  payload       {} bytes, {:.1} Mbit/s\n  frames        {} sent, {} lost, {} marked\n  \
         timeouts      {}\n  left over     nothing{}",
        sim.scenario,
        took.as_secs_f64(),
        report.seconds,
        report.bytes,
        report.goodput / 1e6,
        report.frames,
        report.dropped,
        report.marked,
        report.timeouts,
        if report.refused > 0 {
            format!("\n  {} connects waited for a port", report.refused)
        } else {
            String::new()
        },
    )
}
