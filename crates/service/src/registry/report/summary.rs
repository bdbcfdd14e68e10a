//! The report of `towpath stat`.

use crate::cores::{Core, answers};
use crate::registry::Registry;
use crate::registry::agents::Agents;
use crate::registry::channels::report::{Counts, Totals};
use crate::registry::report::Viewer;
use crate::registry::report::job::{Making, Refused};
use crate::registry::report::port_stats::{Counted, Traffic};
use crate::registry::report::statistics::{Process, Statistics, add};
use crate::registry::scaling::report::Totals as CoresTotals;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;

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

/// The report of `towpath stat` that is being made.
#[derive(Debug)]
pub struct StatisticsReport {
    viewer: Viewer,
    statistics: Statistics,
    slow_path: Traffic,
    /// The cores are asked for their counters at the beginning, and answer while the report is made.
    counted: Vec<Receiver<Counted>>,
    channels: Option<Counts>,
    cores: Option<CoresTotals>,
    agents: BTreeMap<&'static str, u64>,
    /// Ids of the processes that are still to be looked at.
    ids: Vec<u32>,
    alive: Vec<Process>,
}

impl StatisticsReport {
    /// Begins the report. Processes that end while it is made are in it or not.
    pub fn new(registry: &Registry, viewer: Viewer) -> Self {
        Self {
            viewer,
            statistics: registry.statistics.clone(),
            slow_path: Traffic::of_slow_path(&registry.tcp.slow),
            counted: registry.cores.iter().map(Core::ask_count).collect(),
            channels: Counts::ask(registry),
            cores: registry.scaling.totals_of_several(registry.cores.len()),
            agents: registry.agents.as_ref().map(Agents::counters).unwrap_or_default(),
            ids: registry.applications.keys().copied().collect(),
            alive: Vec::new(),
        }
    }
}

impl Making for StatisticsReport {
    fn go_on(&mut self, registry: &Registry, most: usize) -> bool {
        for _ in 0..most {
            let Some(id) = self.ids.pop() else { return true };
            let process = registry.applications.get(&id).map(|a| &a.process);
            self.alive.extend(process.filter(|p| self.viewer.sees(p.uid)).cloned());
        }
        self.ids.is_empty()
    }

    fn write(self: Box<Self>) -> Result<Vec<u8>, Refused> {
        let Self {
            viewer, statistics, slow_path: mut traffic, counted, channels, cores, agents, alive, ..
        } = *self;
        answers(&counted).iter().flatten().for_each(|core| traffic.add(core));
        let channels = channels.map(Counts::totals);
        let summary = statistics.summary(alive.iter(), traffic, viewer);
        Ok(serde_json::to_vec(&Summary { channels, cores, agents, ..summary })?)
    }
}

impl Statistics {
    /// The report, with the counts of live processes. An ordinary user sees its own processes and their sums.
    pub fn summary<'a>(
        &self,
        alive: impl Iterator<Item = &'a Process>,
        traffic: Traffic,
        viewer: Viewer,
    ) -> Summary {
        let mut per_process: Vec<Process> = alive.filter(|p| viewer.sees(p.uid)).cloned().collect();
        let applications = per_process.len();
        per_process.sort_by_key(|p| p.number);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::process::number::Number;
    use crate::registry::report::statistics::ENDED_MAX;
    use control::KernelReason;

    fn number(pid: i32) -> Number {
        Number { pid, ..Number::default() }
    }

    #[test]
    fn ended_processes_stay_in_the_sums() {
        let mut all = Statistics::default();
        for pid in 0..ENDED_MAX as i32 + 50 {
            let mut p = Process { number: number(pid), accelerated: 4, connected: 1, ..Process::default() };
            (p.accepted, p.listeners, p.refused, p.requests) = (1, 2, 3, 4);
            p.fell_back(KernelReason::NoListener);
            all.end(p);
        }
        let alive = [Process { accelerated: 1, ..Process::default() }];
        let sum = all.summary(alive.iter(), Traffic::default(), Viewer::All);
        assert_eq!((sum.accelerated, sum.fallen_back), (4 * 306 + 1, 306));
        let Process { accelerated, connected, accepted, listeners, refused, requests, .. } = all.forgotten;
        assert_eq!(
            [accelerated, connected, accepted, listeners, refused, requests],
            [200, 50, 50, 100, 150, 200]
        );
        assert_eq!(sum.by_reason["no accelerated listener there"], 306);
        assert_eq!(sum.per_process.len(), 1 + ENDED_MAX);
    }

    #[test]
    fn invented_reasons_cannot_grow_the_table() {
        let mut all = Statistics::default();
        for pid in 0..300 {
            let mut p = Process { number: number(pid), ..Process::default() };
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
