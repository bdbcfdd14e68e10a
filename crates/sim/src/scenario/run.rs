//! A run from beginning to end, with all its checks.

use super::setting::{BEGIN, Event, Kind, Setting, calm};
use crate::check::Leftovers;
use crate::host::Host;
use crate::network::{Network, NodeId};
use crate::pcap::Capture;
use crate::steering::Moves;
use base::{Duration, Instant};
use link::LinkConfig;
use std::fmt::Write as _;

/// Virtual time between two checks of all records.
const CHECK_EVERY: Duration = Duration::from_ms(250);
/// Longest life of a connection without application: eight timeouts of an orphan and the wait after the last, each at most 120 s
/// (a peer may falsify round-trip times), then FIN-WAIT-2 and TIME-WAIT of 60 s each.
const ENDS_WITHIN: Duration = Duration::from_secs(9 * 120 + 2 * 60 + 5);

/// Allowed growth of the process from the end of the last stage to the end of the run, bytes: pages that the allocator keeps.
const GROWTH_MAX: u64 = 2 << 20;
/// Further growth allowed for each ephemeral port that was not used before the last stage, bytes: its entries in the tables of both
/// machines and their oracles.
const PORT_BYTES: u64 = 1024;
const PORTS: u64 = 60_999 - 32_768 + 1;

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The first violation, in words; `None`: the run has passed.
    pub failure: Option<String>,
    /// Virtual time from the first connection to the end of the last, seconds.
    pub seconds: f64,
    /// Number of connections that both ends finished; that ended with an error; in which an application died.
    pub connections: [u64; 3],
    /// Payload bytes that arrived.
    pub bytes: u64,
    /// Frames sent by all machines.
    pub frames: u64,
    /// Frames that the network dropped.
    pub dropped: u64,
    /// Packets that switches marked (ECN).
    pub marked: u64,
    /// Retransmission timeouts of all hosts.
    pub timeouts: u64,
    /// Payload bits per second over the whole time.
    pub goodput: f64,
    /// Number of connects that had to wait for a free port.
    pub refused: u64,
    /// Groups and flows that have moved between cores, of all hosts, and moves given up.
    pub moved: [u64; 3],
    /// Changes of the number of cores that serve, of all hosts.
    pub changes: u64,
    /// Memory of the process in bytes after each stage and at the end; empty when it is not measured.
    pub memory: Vec<u64>,
}

/// A run in progress.
#[derive(Debug)]
pub struct Run {
    setting: Setting,
    network: Network,
    nodes: Vec<NodeId>,
    next_event: usize,
    /// When the next check of all records is due.
    check_at: Instant,
    /// Measures the memory of this process, in bytes.
    gauge: Option<fn() -> u64>,
    memory: Vec<u64>,
    moves: Moves,
}

/// True when the link loses, delays and damages nothing on purpose.
fn is_calm(link: &LinkConfig) -> bool {
    let mut calmed = link.clone();
    calm(&mut calmed);
    calmed == *link
}

impl Run {
    /// A run that has not begun.
    #[must_use]
    pub fn new(setting: Setting) -> Self {
        let (network, nodes) = setting.build();
        Self {
            setting,
            network,
            nodes,
            next_event: 0,
            check_at: BEGIN,
            gauge: None,
            memory: Vec::new(),
            moves: Moves::default(),
        }
    }

    /// The network of the run, for its names and its capture.
    pub fn network(&mut self) -> &mut Network {
        &mut self.network
    }

    /// The changes of the number of cores of a machine, oldest first.
    pub fn changes(&mut self, machine: usize) -> Vec<crate::Past> {
        let host = self.network.machine(self.nodes[machine]).and_then(|machine| machine.host());
        host.map(|host| host.changes().to_vec()).unwrap_or_default()
    }

    /// From now on the memory of this process is measured after each stage, and growth fails the run. The process must do nothing else.
    pub fn measure(&mut self, gauge: fn() -> u64) {
        self.gauge = Some(gauge);
    }

    /// Takes the capture out of the network.
    pub fn take_capture(&mut self) -> Option<Capture> {
        self.network.capture.take()
    }

    /// Runs to the end, with all checks.
    pub fn finish(&mut self) -> Report {
        let mut failure = self.stages().and_then(|()| self.work()).err();
        let done_at = self.network.now();
        if failure.is_none() {
            failure = self.settle().err();
        }
        if let Some(text) = &mut failure {
            text.push_str(&self.network.describe());
        }
        self.report(failure, done_at)
    }

    /// Runs the connections of each stage; after each, nothing but the listeners may remain.
    fn stages(&mut self) -> Result<(), String> {
        for count in self.setting.stages.clone() {
            self.network.open_more(Some(count));
            self.work()?;
            self.rest()?;
            self.weigh();
        }
        self.network.open_more(None);
        Ok(())
    }

    fn weigh(&mut self) {
        self.memory.extend(self.gauge.map(|gauge| gauge()));
    }

    /// Runs until all connections are over.
    fn work(&mut self) -> Result<(), String> {
        let last = self.setting.events.last().map_or(Duration::ZERO, |(at, _)| *at);
        let limit = BEGIN.plus(last).plus(self.setting.patience);
        loop {
            let event_at = self.setting.events.get(self.next_event).map(|(at, _)| BEGIN.plus(*at));
            let until = event_at.unwrap_or(limit).min(self.check_at);
            let is_done = self.network.run_to_end(until);
            self.look()?;
            if is_done && self.is_over() {
                return Ok(());
            }
            if is_done {
                self.network.run_until(until);
            }
            if event_at.is_some_and(|at| at <= self.network.now()) {
                let (_, event) = self.setting.events[self.next_event];
                self.next_event += 1;
                self.happen(event);
            } else if limit <= self.network.now() {
                return Err(format!("not over after {:?}", limit.since(BEGIN)));
            }
        }
    }

    /// True when the run may end: with a hostile peer, only after all events.
    fn is_over(&self) -> bool {
        let is_hostile = self.setting.machines.iter().any(|machine| machine.kind == Kind::Hostile);
        !is_hostile || self.next_event == self.setting.events.len()
    }

    fn look(&mut self) -> Result<(), String> {
        if self.check_at <= self.network.now() {
            self.check_at = self.network.now().plus(CHECK_EVERY);
            self.network.check();
        }
        let breach = self.network.ledger.breach.take().or_else(|| self.network.breach.take());
        breach.map_or(Ok(()), Err)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Calm => {
                self.network.change_links(calm);
                for i in 0..self.nodes.len() {
                    if let Some(machine) = self.network.machine(self.nodes[i]) {
                        machine.calm();
                    }
                }
            }
            Event::Jump(machine, by) => self.network.jump(self.nodes[machine], by),
            Event::Stop(machine, time) => self.network.stop(self.nodes[machine], time),
            Event::Crash(machine) => self.network.kill(self.nodes[machine]),
            Event::Shift(machine, draw) => self.on_host(machine, |host| host.shift(draw)),
            Event::StopCore(machine, core, time) => {
                self.on_host(machine, |host| host.stop_core(core, time));
            }
            Event::StopMover(machine, yields, time) => {
                self.on_host(machine, |host| host.stop_mover(yields, time));
            }
            Event::Allow(machine, count) => self.on_host(machine, |host| host.allow_processors(count)),
            Event::Others(machine, used, pressure) => {
                self.on_host(machine, |host| host.let_others(used, pressure));
            }
        }
    }

    fn on_host(&mut self, machine: usize, work: impl FnOnce(&mut Host)) {
        if let Some(host) = self.network.machine(self.nodes[machine]).and_then(|machine| machine.host()) {
            work(host);
        }
    }

    /// Where no link changes the order of frames or loses one, and no core was stopped, no segment comes out of order: moves change no order.
    fn check_order(&mut self) -> Result<(), String> {
        let mut links = self.setting.machines.iter().flat_map(|machine| &machine.links);
        let is_orderly = self
            .setting
            .machines
            .iter()
            .all(|machine| machine.kind == Kind::Towpath && machine.stray_every == 0)
            && links.all(is_calm)
            && !self
                .setting
                .events
                .iter()
                .any(|(_, event)| matches!(event, Event::StopCore(..) | Event::StopMover(..)));
        let dropped: u64 = self.network.links().map(|(_, _, link)| link.counters().dropped()).sum();
        for i in 0..self.nodes.len() {
            let host = self.network.machine(self.nodes[i]).and_then(|machine| machine.host());
            let Some(moves) = host.map(|host| host.moves()) else { continue };
            self.moves.moved += moves.moved;
            self.moves.flows += moves.flows;
            self.moves.given_up += moves.given_up;
            self.moves.changes += moves.changes;
            if is_orderly && dropped == 0 && (moves.lost, moves.given_up) == (0, 0) && moves.out_of_order > 0
            {
                return Err(format!("machine {i} got segments out of order over an orderly path: {moves:?}"));
            }
        }
        Ok(())
    }

    /// Runs until TCP has no connection any more.
    fn rest(&mut self) -> Result<(), String> {
        let limit = self.network.now().plus(ENDS_WITHIN);
        while !self.is_quiet() {
            if limit <= self.network.now() {
                return Err(format!("something is left: {:?}", self.leftovers()));
            }
            let until = self.network.now().plus(Duration::from_secs(5));
            self.network.run_until(until);
            self.look()?;
        }
        Ok(())
    }

    /// Checks that nothing remains once TIME-WAIT has passed.
    fn settle(&mut self) -> Result<(), String> {
        self.network.close_listeners();
        self.rest()?;
        self.network.ledger.settle();
        self.look()?;
        self.check_order()?;
        self.weigh();
        let unused = PORTS.saturating_sub(self.setting.stages.iter().sum());
        if let [.., before, end] = self.memory[..]
            && before + GROWTH_MAX + unused * PORT_BYTES < end
        {
            return Err(format!("the process grows: {:?} bytes after each stage", self.memory));
        }
        for i in 0..self.nodes.len() {
            let now = self.network.local_time(self.nodes[i]);
            let Some(host) = self.network.machine(self.nodes[i]).and_then(|m| m.host()) else { continue };
            let left = host.retire(now);
            if left != Leftovers::default() {
                return Err(format!("machine {i} leaks {left:?}"));
            }
        }
        Ok(())
    }

    fn leftovers(&mut self) -> Vec<Leftovers> {
        let nodes = self.nodes.clone();
        nodes.iter().filter_map(|n| Some(self.network.machine(*n)?.host()?.leftovers())).collect()
    }

    fn is_quiet(&mut self) -> bool {
        self.leftovers().iter().all(|left| left.slow == slowpath::Census::default() && left.slots == 0)
    }

    fn report(&mut self, failure: Option<String>, done_at: Instant) -> Report {
        let seconds = done_at.since(BEGIN).as_ns() as f64 / 1e9;
        let ledger = &self.network.ledger;
        let mut report = Report {
            failure,
            seconds,
            connections: [ledger.finished, ledger.failed, ledger.died],
            bytes: ledger.bytes,
            frames: self.network.frames,
            goodput: ledger.bytes as f64 * 8.0 / seconds.max(1e-9),
            memory: self.memory.clone(),
            ..Report::default()
        };
        report.moved = [self.moves.moved, self.moves.flows, self.moves.given_up];
        report.changes = self.moves.changes;
        report.refused = self.network.refused();
        for (_, _, link) in self.network.links() {
            report.dropped += link.counters().dropped();
            report.marked += link.counters().marked;
        }
        for node in self.nodes.clone() {
            let Some(host) = self.network.machine(node).and_then(|m| m.host()) else { continue };
            report.timeouts += host.slow().counters().of(slowpath::Count::Timeouts);
        }
        report
    }

    /// Describes the run, for the message of a failure.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (i, m) in self.setting.machines.iter().enumerate() {
            let [up, down] = &m.links;
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  machine {i}: {:?} mtu {} up {up} down {down}", m.kind, m.mtu);
        }
        let _ =
            writeln!(text, "  {:?} v6 {} {:?}", self.setting.profile, self.setting.v6, self.setting.events);
        text
    }
}
