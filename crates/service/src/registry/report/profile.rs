//! `towpath stat --cycles`: where the time of the service's threads went, and what applications report of theirs.

use crate::cores::Core;
use crate::cores::meter::{self, Metered};
use crate::registry::Registry;
use crate::registry::memory::Memory;
use crate::registry::report::Viewer;
use crate::registry::report::profile_switch::{self, Counting, Mode};
use control::Counting as Wish;
use cycles::{Section, Spent, Ticks};
use serde::Serialize;
use shm::{ACCOUNTS, SECTIONS, ThreadAccount};
use std::sync::atomic::Ordering::Relaxed;

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
struct Process<'a> {
    pid: i32,
    process: &'a str,
    said_by: &'static str,
    threads: u32,
    modules: Vec<Module>,
}

/// The report of `towpath stat --cycles`.
#[derive(Debug, Serialize)]
pub struct WhoseTime<'a> {
    counting: &'static str,
    /// Unit in which cycles are counted.
    unit: &'static str,
    /// Ticks of that unit per second; `None`: not known.
    ticks_per_second: Option<f64>,
    /// Ticks during which counting was on: all windows together.
    counted: u64,
    service: Vec<Thread>,
    applications: Vec<Process<'a>>,
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
    fn add(&mut self, index: u32, account: &ThreadAccount, counting: &Counting, now: Option<u64>) {
        if account.generation.load(Relaxed) != counting.generation() {
            return;
        }
        let most = counting.counted();
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
fn said(memory: &Memory, counting: &Counting) -> Said {
    let mut said = Said::default();
    let region = memory.region();
    let is_there = |index: u32| {
        let start = (region.layout().accounts + index as usize * size_of::<ThreadAccount>()) as u64;
        memory.pages().is_present(&(start..start + size_of::<ThreadAccount>() as u64))
    };
    let taken = region.header().accounts_taken.load(Relaxed);
    // In sampled counting no thread is in a section between windows.
    let now = (counting.mode() == Mode::Always).then(|| Ticks::here().now());
    for index in (0..ACCOUNTS as u32).filter(|index| taken & (1 << index) != 0 && is_there(*index)) {
        let Some(account) = region.account(index) else { continue };
        said.add(index, account, counting, now);
    }
    said
}

impl Registry {
    /// Carries out the wish and reports the times; a wish to end the counting is carried out after the report.
    pub fn whose_time(&mut self, wish: Wish, viewer: Viewer) -> serde_json::Result<Vec<u8>> {
        if wish != Wish::Off {
            self.count(wish);
        }
        let text = serde_json::to_vec(&self.told(viewer));
        if wish == Wish::Off {
            self.count(wish);
        }
        text
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

    fn told(&mut self, viewer: Viewer) -> WhoseTime<'_> {
        let mut all = WhoseTime {
            counting: self.counting.mode().name(),
            unit: Ticks::here().unit(),
            ticks_per_second: self.counting.ticks_per_second(),
            counted: self.counting.counted(),
            service: Vec::new(),
            applications: Vec::new(),
        };
        if self.counting.mode() == Mode::Off {
            return all;
        }
        for (i, counted) in self.cores.iter().map(Core::count).enumerate() {
            let metered = counted.map(|c| c.cycles).filter(|m| m.generation == self.counting.generation());
            all.service.extend(metered.map(|metered| Thread::of_core(i, &metered)));
        }
        all.service.push(Thread {
            thread: "control".to_owned(),
            packets_in: None,
            packets_out: None,
            modules: modules(&profile_switch::NAMES, &self.counting.own(), None),
        });
        let names = Section::ALL.map(Section::name);
        for region in self.regions.values() {
            let owner = self.applications.get(&region.owner).filter(|a| viewer.sees(a.uid));
            let Some(a) = owner else { continue };
            let said = said(&region.memory, &self.counting);
            let modules = modules(&names, &said.spent, None);
            if !modules.is_empty() {
                let (pid, process) = (a.process.pid, a.process.process.as_str());
                let process =
                    Process { pid, process, said_by: "application", threads: said.threads, modules };
                all.applications.push(process);
            }
        }
        all.applications.sort_by_key(|process| process.pid);
        all
    }
}
