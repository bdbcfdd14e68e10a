//! `towpath stat --cycles`: where the time of the service's threads went, and what applications report of theirs.

use crate::cores::meter::{self, Metered};
use crate::cores::{Core, answers};
use crate::registry::Registry;
use crate::registry::memory::Memory;
use crate::registry::process::number::Number;
use crate::registry::report::job::{Job, Making, Refused};
use crate::registry::report::profile_switch::{self, Mode};
use crate::registry::report::{Viewer, port_stats};
use control::Counting as Wish;
use cycles::{Section, Spent, Ticks};
use serde::Serialize;
use shm::{ACCOUNTS, SECTIONS, ThreadAccount};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Receiver;

/// Time of one module in one thread or process.
#[derive(Debug, Serialize)]
pub struct Module {
    module: &'static str,
    /// Cycles spent, in the unit named in the report.
    cycles: u64,
    /// Share of the thread's or process's total, from 0 to 1.
    share: f64,
    /// Number of times that the module was entered.
    times: u64,
    /// Cycles per packet received or sent; in applications and the control thread, per entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    each: Option<f64>,
}

/// Time of one thread of the service.
#[derive(Debug, Serialize)]
struct Thread {
    thread: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    packets_in: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packets_out: Option<u64>,
    modules: Vec<Module>,
}

/// Times that an application reports of its threads.
#[derive(Debug, Serialize)]
struct Process {
    #[serde(flatten)]
    number: Number,
    process: String,
    said_by: &'static str,
    threads: u32,
    modules: Vec<Module>,
}

/// The report of `towpath stat --cycles`.
#[derive(Debug, Serialize)]
struct WhoseTime {
    counting: &'static str,
    /// Unit in which cycles are counted.
    unit: &'static str,
    /// Ticks of that unit per second; `None`: not known.
    ticks_per_second: Option<f64>,
    /// Ticks during which counting was on: all windows together.
    counted: u64,
    service: Vec<Thread>,
    applications: Vec<Process>,
}

fn modules(names: &[&'static str], spent: &[Spent], packets: Option<u64>) -> Vec<Module> {
    let total: u64 = spent.iter().fold(0, |sum, s| sum.saturating_add(s.ticks));
    let module = |(name, s): (&&'static str, &Spent)| {
        let count = packets.unwrap_or(s.times);
        Module {
            module: name,
            cycles: s.ticks,
            share: s.ticks as f64 / total.max(1) as f64,
            times: s.times,
            each: (count > 0).then(|| s.ticks as f64 / count as f64),
        }
    };
    names.iter().zip(spent).filter(|(_, s)| s.ticks > 0).map(module).collect()
}

impl Thread {
    fn of_core(index: usize, metered: &Metered) -> Self {
        let [packets_in, packets_out] = metered.packets;
        let packets = packets_in.saturating_add(packets_out);
        Self {
            thread: format!("core {index}"),
            packets_in: Some(packets_in),
            packets_out: Some(packets_out),
            modules: modules(&meter::NAMES, &metered.spent, Some(packets)),
        }
    }
}

/// Times that an application reports, each bounded by what is possible.
#[derive(Clone, Copy, Default)]
struct Said {
    threads: u32,
    spent: [Spent; SECTIONS],
}

impl Said {
    /// Adds account `index`. With `now`, the counter's present value, time in the section that the thread is in counts up to now.
    fn add(&mut self, index: u32, account: &ThreadAccount, of: Counted, now: Option<u64>) {
        if account.generation.load(Relaxed) != of.generation {
            return;
        }
        let most = of.ticks;
        // The first account sums up threads that have ended.
        self.threads += u32::from(index > 0);
        for (sum, [ticks, times]) in self.spent.iter_mut().zip(&account.spent) {
            sum.ticks = sum.ticks.saturating_add(ticks.load(Relaxed).min(most));
            sum.times = sum.times.saturating_add(times.load(Relaxed).min(most));
        }
        let section = account.section.load(Relaxed) as usize;
        if let (Some(now), Some(sum)) = (now.filter(|_| index > 0), self.spent.get_mut(section)) {
            sum.ticks = sum.ticks.saturating_add(now.saturating_sub(account.at.load(Relaxed)).min(most));
        }
    }
}

/// The sum of an application's accounts. Reads only pages that the application has made present.
fn said(memory: &Memory, of: Counted) -> Said {
    let mut said = Said::default();
    let region = memory.region();
    let is_there = |index: u32| {
        let start = (region.layout().accounts + index as usize * size_of::<ThreadAccount>()) as u64;
        memory.pages().is_present(&(start..start + size_of::<ThreadAccount>() as u64))
    };
    let taken = region.header().accounts_taken.load(Relaxed);
    // In sampled counting no thread is in a section between windows.
    let now = of.is_always.then(|| Ticks::here().now());
    for index in (0..ACCOUNTS as u32).filter(|index| taken & (1 << index) != 0 && is_there(*index)) {
        let Some(account) = region.account(index) else { continue };
        said.add(index, account, of, now);
    }
    said
}

/// The counting that a report is about.
#[derive(Clone, Copy, Debug)]
struct Counted {
    generation: u32,
    /// Ticks in all its windows.
    ticks: u64,
    is_always: bool,
}

/// The report of `towpath stat --cycles` that is being made.
#[derive(Debug)]
struct ProfileReport {
    viewer: Viewer,
    of: Counted,
    all: WhoseTime,
    cores: Vec<Receiver<port_stats::Counted>>,
    /// The regions that are still to be looked at.
    regions: Vec<u32>,
}

impl Making for ProfileReport {
    fn go_on(&mut self, registry: &Registry, most: usize) -> bool {
        for _ in 0..most.div_ceil(ACCOUNTS) {
            let Some(id) = self.regions.pop() else { return true };
            let Some(region) = registry.regions.get(&id) else { continue };
            let owner = registry.applications.get(&region.owner).filter(|a| self.viewer.sees(a.uid));
            let Some(a) = owner else { continue };
            let said = said(&region.memory, self.of);
            let modules = modules(&Section::ALL.map(Section::name), &said.spent, None);
            if !modules.is_empty() {
                let (number, process) = (a.process.number, a.process.process.clone());
                let threads = said.threads;
                self.all.applications.push(Process {
                    number,
                    process,
                    said_by: "application",
                    threads,
                    modules,
                });
            }
        }
        self.regions.is_empty()
    }

    fn write(self: Box<Self>) -> Result<Vec<u8>, Refused> {
        let Self { of, mut all, cores, .. } = *self;
        let of_cores = answers(&cores).into_iter().enumerate().filter_map(|(i, counted)| {
            let metered = counted?.cycles;
            (metered.generation == of.generation).then(|| Thread::of_core(i, &metered))
        });
        all.service.splice(0..0, of_cores);
        all.applications.sort_by_key(|process| process.number);
        Ok(serde_json::to_vec(&all)?)
    }
}

impl Registry {
    /// Carries out the wish and begins to report the times; a wish to end the counting is carried out after those were read that end with
    /// it.
    pub fn whose_time(&mut self, wish: Wish, viewer: Viewer) -> Job {
        if wish != Wish::Off {
            self.count(wish);
        }
        let report = self.profile_report(viewer);
        if wish == Wish::Off {
            self.count(wish);
        }
        Job::new(report)
    }

    /// Sets the counting mode, here and in every region.
    fn count(&mut self, wish: Wish) {
        if self.counting.obey(wish, self.now) {
            self.spread_switch();
        }
    }

    /// Writes the switch's word into every application region.
    pub fn spread_switch(&self) {
        let word = self.counting.word();
        for region in self.regions.values() {
            region.memory.region().header().cycles.store(word, Relaxed);
        }
    }

    fn profile_report(&mut self, viewer: Viewer) -> ProfileReport {
        let (mode, ticks) = (self.counting.mode(), self.counting.counted());
        let of = Counted { generation: self.counting.generation(), ticks, is_always: mode == Mode::Always };
        let mut all = WhoseTime {
            counting: mode.name(),
            unit: Ticks::here().unit(),
            ticks_per_second: self.counting.ticks_per_second(),
            counted: ticks,
            service: Vec::new(),
            applications: Vec::new(),
        };
        let is_on = mode != Mode::Off;
        if is_on {
            all.service.push(Thread {
                thread: "control".to_owned(),
                packets_in: None,
                packets_out: None,
                modules: modules(&profile_switch::NAMES, &self.counting.own(), None),
            });
        }
        let cores = self.cores.iter().filter(|_| is_on).map(Core::ask_count).collect();
        let regions = self.regions.keys().copied().filter(|_| is_on).collect();
        ProfileReport { viewer, of, all, cores, regions }
    }
}
