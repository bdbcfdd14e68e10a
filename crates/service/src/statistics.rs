//! What is counted: sockets accelerated and fallen back, by process and reason.

use crate::traffic::Traffic;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// Ended processes whose counts are still listed one by one.
const ENDED_MAX: usize = 256;
/// Different reasons kept; an application that invents more is counted under "other".
const REASONS_MAX: usize = 64;
/// Bytes of a reason kept.
const REASON_LEN: usize = 64;

/// Counts of one process.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Process {
    /// Process number.
    pub pid: i32,
    /// Its command.
    pub process: String,
    /// Its user.
    pub uid: u32,
    /// False once it has ended.
    pub alive: bool,
    /// Sockets accelerated: connections made and accepted, and listeners.
    pub accelerated: u64,
    /// Of these, connections it made.
    pub connected: u64,
    /// Of these, connections that came for its listeners.
    pub accepted: u64,
    /// Of these, listeners.
    pub listeners: u64,
    /// Sockets left to the kernel.
    pub fallen_back: u64,
    /// Why.
    pub by_reason: BTreeMap<String, u64>,
    /// Connects left to the kernel where nobody listened: no connections.
    pub refused: u64,
}

impl Process {
    /// Counts one socket left to the kernel. The reason as it is kept.
    pub fn fell_back(&mut self, reason: &str) -> String {
        self.fallen_back += 1;
        let short: String = reason.chars().filter(|c| !c.is_control()).take(REASON_LEN).collect();
        let room = self.by_reason.contains_key(&short) || self.by_reason.len() < REASONS_MAX;
        let kept = if room { short } else { "other".to_owned() };
        *self.by_reason.entry(kept.clone()).or_default() += 1;
        kept
    }

    /// One of these is accelerated after all.
    pub fn came_back(&mut self, reason: &str) {
        self.fallen_back -= 1;
        if let Some(count) = self.by_reason.get_mut(reason) {
            *count -= 1;
            self.by_reason.retain(|_, count| *count > 0);
        }
    }
}

/// Counts of all processes, ended ones included.
#[derive(Debug, Default)]
pub struct Statistics {
    ended: VecDeque<Process>,
    /// Sums of what `ended` has no room for.
    pub forgotten: Process,
    /// Applications detached for misbehaviour.
    pub detached: u64,
    /// Bytes copied by relays.
    pub relayed_bytes: u64,
}

/// As printed.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// The service's version.
    pub version: &'static str,
    /// Sockets accelerated since the service is up.
    pub accelerated: u64,
    /// Sockets left to the kernel.
    pub fallen_back: u64,
    /// Why.
    pub by_reason: BTreeMap<String, u64>,
    /// Connects left to the kernel where nobody listened: no connections.
    pub refused: u64,
    /// Applications registered now.
    pub applications: usize,
    /// Applications detached for misbehaviour.
    pub detached: u64,
    /// Bytes copied by relays.
    pub relayed_bytes: u64,
    /// The port, and what was dropped and why.
    pub traffic: Traffic,
    /// By process, ended ones last.
    pub per_process: Vec<Process>,
}

impl Statistics {
    /// A process has ended.
    pub fn end(&mut self, mut process: Process) {
        process.alive = false;
        self.ended.push_front(process);
        if self.ended.len() > ENDED_MAX
            && let Some(old) = self.ended.pop_back()
        {
            add(&mut self.forgotten, &old);
        }
    }

    /// Everything, with the processes that live.
    pub fn summary<'a>(&self, alive: impl Iterator<Item = &'a Process>, traffic: Traffic) -> Summary {
        let mut per_process: Vec<Process> = alive.cloned().collect();
        let applications = per_process.len();
        per_process.sort_by_key(|p| p.pid);
        per_process.extend(self.ended.iter().cloned());
        let mut sum = self.forgotten.clone();
        per_process.iter().for_each(|p| add(&mut sum, p));
        Summary {
            version: env!("CARGO_PKG_VERSION"),
            accelerated: sum.accelerated,
            fallen_back: sum.fallen_back,
            by_reason: sum.by_reason,
            refused: sum.refused,
            applications,
            detached: self.detached,
            relayed_bytes: self.relayed_bytes,
            traffic,
            per_process,
        }
    }
}

fn add(sum: &mut Process, p: &Process) {
    sum.accelerated += p.accelerated;
    sum.fallen_back += p.fallen_back;
    sum.refused += p.refused;
    for (reason, n) in &p.by_reason {
        *sum.by_reason.entry(reason.clone()).or_default() += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_processes_stay_in_the_sums() {
        let mut all = Statistics::default();
        for pid in 0..ENDED_MAX as i32 + 50 {
            let mut p = Process { pid, accelerated: 2, ..Process::default() };
            assert_eq!(p.fell_back("no listener"), "no listener");
            all.end(p);
        }
        let sum = all.summary([Process { accelerated: 1, ..Process::default() }].iter(), Traffic::default());
        assert_eq!((sum.accelerated, sum.fallen_back), (2 * 306 + 1, 306));
        assert_eq!(sum.by_reason["no listener"], 306);
        assert_eq!(sum.per_process.len(), 1 + ENDED_MAX);
    }

    #[test]
    fn invented_reasons_cannot_grow_the_table() {
        let mut p = Process::default();
        let mut last = String::new();
        (0..10_000).for_each(|i| last = p.fell_back(&format!("{i}\n{}", "x".repeat(500))));
        assert_eq!(last, "other");
        assert!(p.by_reason.len() <= REASONS_MAX + 1 && p.by_reason.keys().all(|k| k.len() <= REASON_LEN));
        assert_eq!(p.fallen_back, 10_000);
    }
}
