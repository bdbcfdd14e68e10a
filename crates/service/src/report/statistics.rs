//! Counts of accelerated sockets and of sockets that fell back to the kernel, by process and reason.

use crate::channels::report::Totals;
use crate::report::Viewer;
use crate::report::port_stats::Traffic;
use crate::scaling::report::Totals as CoresTotals;
use control::KernelReason;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// Most ended processes that are listed one by one.
const ENDED_MAX: usize = 256;
/// Most different reasons kept for one process, and for a sum of processes; sockets with further reasons count under [`OTHER`].
const REASONS_MAX: (usize, usize) = (16, 64);
/// The reason under which sockets count when there is no room for theirs.
const OTHER: &str = "other";

/// Counts of one process.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Process {
    /// Number of the process.
    pub pid: i32,
    /// Command of the process.
    pub process: String,
    /// User of the process.
    pub uid: u32,
    /// False when the process has ended.
    pub alive: bool,
    /// Accelerated sockets: connections made or accepted, and listeners.
    pub accelerated: u64,
    /// Those of `accelerated` that are connections made by the process.
    pub connected: u64,
    /// Those of `accelerated` that are connections to its listeners.
    pub accepted: u64,
    /// Those of `accelerated` that are listeners.
    pub listeners: u64,
    /// Sockets that fell back to the kernel.
    pub fallen_back: u64,
    /// Those of `fallen_back` by reason.
    pub by_reason: BTreeMap<String, u64>,
    /// Connects given to the kernel because no socket listened there; they made no connection.
    pub refused: u64,
}

impl Process {
    /// Counts a socket that fell back.
    pub fn fell_back(&mut self, reason: KernelReason) {
        self.fallen_back += 1;
        count(&mut self.by_reason, &reason.to_string(), 1, REASONS_MAX.0);
    }

    /// A socket that had fallen back for `reason` is accelerated after all.
    pub fn came_back(&mut self, reason: KernelReason) {
        let reason = reason.to_string();
        let reason = reason.as_str();
        self.fallen_back -= 1;
        let key = if self.by_reason.contains_key(reason) { reason } else { OTHER };
        if let Some(count) = self.by_reason.get_mut(key) {
            *count -= 1;
            self.by_reason.retain(|_, count| *count > 0);
        }
    }
}

/// Counts of all processes, also of those that have ended.
#[derive(Debug, Default)]
pub struct Statistics {
    ended: VecDeque<Process>,
    /// Sums of the ended processes that are no longer listed.
    pub forgotten: Process,
    /// Number of applications detached for misbehaviour.
    pub detached: u64,
    /// Bytes that relays have copied.
    pub relayed_bytes: u64,
    /// Number of ports that the service holds in the kernel for connections within the host, each with a descriptor.
    pub held_ports: usize,
}

/// The report of `towpath stat`.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Version of the service.
    pub version: &'static str,
    /// Sockets accelerated since the service started.
    pub accelerated: u64,
    /// Sockets that fell back to the kernel.
    pub fallen_back: u64,
    /// Those of `fallen_back` by reason.
    pub by_reason: BTreeMap<String, u64>,
    /// Connects given to the kernel because no socket listened there; they made no connection.
    pub refused: u64,
    /// Number of applications registered now.
    pub applications: usize,
    /// Number of applications detached for misbehaviour.
    pub detached: u64,
    /// Bytes that relays have copied.
    pub relayed_bytes: u64,
    /// Ports that the service holds in the kernel for connections within the host, each with a descriptor.
    pub held_ports: usize,
    /// Packets and bytes of the port, and drops by reason.
    pub traffic: Traffic,
    /// Channels to other services; `None`: there are none.
    pub channels: Option<Totals>,
    /// Cores and moves of flows between them; `None`: there is one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<CoresTotals>,
    /// Counters of agents of congestion control; none where none are configured.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub agents: BTreeMap<&'static str, u64>,
    /// Counts by process; ended processes come last.
    pub per_process: Vec<Process>,
}

impl Statistics {
    /// Moves the counts of a process that has ended to the list of ended ones.
    pub fn end(&mut self, mut process: Process) {
        process.alive = false;
        self.ended.push_front(process);
        if self.ended.len() > ENDED_MAX
            && let Some(old) = self.ended.pop_back()
        {
            add(&mut self.forgotten, &old);
        }
    }

    /// The report, with the counts of live processes. An ordinary user sees its own processes and their sums.
    pub fn summary<'a>(
        &self,
        alive: impl Iterator<Item = &'a Process>,
        traffic: Traffic,
        viewer: Viewer,
    ) -> Summary {
        let mut per_process: Vec<Process> = alive.filter(|p| viewer.sees(p.uid)).cloned().collect();
        let applications = per_process.len();
        per_process.sort_by_key(|p| p.pid);
        per_process.extend(self.ended.iter().filter(|p| viewer.sees(p.uid)).cloned());
        let mut sum = if viewer == Viewer::All { self.forgotten.clone() } else { Process::default() };
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
            held_ports: self.held_ports,
            traffic,
            channels: None,
            cores: None,
            agents: BTreeMap::new(),
            per_process,
        }
    }
}

/// Adds all counts of a process to a sum.
fn add(sum: &mut Process, p: &Process) {
    // Names every field, so that a new one is not forgotten here.
    let Process {
        pid: _,
        process: _,
        uid: _,
        alive: _,
        accelerated,
        connected,
        accepted,
        listeners,
        fallen_back,
        by_reason,
        refused,
    } = p;
    sum.accelerated += accelerated;
    sum.connected += connected;
    sum.accepted += accepted;
    sum.listeners += listeners;
    sum.fallen_back += fallen_back;
    sum.refused += refused;
    for (reason, n) in by_reason {
        count(&mut sum.by_reason, reason, *n, REASONS_MAX.1);
    }
}

/// Adds `n` sockets to their reason, or to [`OTHER`] when there is no room for it.
fn count(by_reason: &mut BTreeMap<String, u64>, reason: &str, n: u64, most: usize) {
    let has_room = by_reason.contains_key(reason) || by_reason.len() < most;
    *by_reason.entry(if has_room { reason } else { OTHER }.to_owned()).or_default() += n;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_processes_stay_in_the_sums() {
        let mut all = Statistics::default();
        for pid in 0..ENDED_MAX as i32 + 50 {
            let mut p = Process { pid, accelerated: 4, connected: 1, ..Process::default() };
            (p.accepted, p.listeners, p.refused) = (1, 2, 3);
            p.fell_back(KernelReason::NoListener);
            all.end(p);
        }
        let alive = [Process { accelerated: 1, ..Process::default() }];
        let sum = all.summary(alive.iter(), Traffic::default(), Viewer::All);
        assert_eq!((sum.accelerated, sum.fallen_back), (4 * 306 + 1, 306));
        let Process { accelerated, connected, accepted, listeners, refused, .. } = all.forgotten;
        assert_eq!([accelerated, connected, accepted, listeners, refused], [200, 50, 50, 100, 150]);
        assert_eq!(sum.by_reason["no accelerated listener there"], 306);
        assert_eq!(sum.per_process.len(), 1 + ENDED_MAX);
    }

    #[test]
    fn invented_reasons_cannot_grow_the_table() {
        let mut all = Statistics::default();
        for pid in 0..300 {
            let mut p = Process { pid, ..Process::default() };
            let rules =
                |first: u32, n| (first..first + n).map(|i| KernelReason::Rule(i + 1_000 * pid as u32));
            rules(0, 324).for_each(|rule| p.fell_back(rule));
            assert_eq!(p.by_reason.len(), 17);
            assert_eq!((p.fallen_back, p.by_reason.values().sum()), (324, 324));
            rules(4, 320).for_each(|rule| p.came_back(rule));
            assert_eq!(
                (p.fallen_back, p.by_reason.values().sum()),
                (4, 4),
                "what is no more leaves its count"
            );
            rules(0, 320).for_each(|rule| p.fell_back(rule));
            all.end(p);
        }
        let sum = all.summary([].iter(), Traffic::default(), Viewer::All);
        assert_eq!((sum.fallen_back, sum.by_reason.values().sum()), (300 * 324, 300 * 324));
        assert!(sum.by_reason.len() <= 65);
    }

    #[test]
    fn an_ordinary_user_sees_its_own_processes_and_their_sums() {
        let mut all = Statistics {
            forgotten: Process { accelerated: 7, ..Process::default() },
            ..Statistics::default()
        };
        let process = |uid, reason| {
            let mut p = Process { uid, accelerated: 2, ..Process::default() };
            p.fell_back(reason);
            p
        };
        all.end(process(1, KernelReason::IoUring));
        all.end(process(2, KernelReason::Epoll));
        let alive = [
            process(1, KernelReason::IoUring),
            process(2, KernelReason::Epoll),
            process(0, KernelReason::Mptcp),
        ];
        let sum = |viewer| all.summary(alive.iter(), Traffic::default(), viewer);
        let (seen, known) = (sum(Viewer::User(1)), sum(Viewer::All));
        assert_eq!((seen.applications, seen.per_process.len(), seen.accelerated), (1, 2, 4));
        assert!(seen.by_reason.keys().eq(["io_uring"]) && seen.per_process.iter().all(|p| p.uid == 1));
        assert_eq!((known.applications, known.per_process.len(), known.accelerated), (3, 5, 17));
    }
}
