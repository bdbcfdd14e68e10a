//! A flow over a simulated bottleneck for a learner outside: a step sets window and rate, runs the network until the next report of the flow's
//! program, and returns what that has summed up.

use crate::contestant::Contestant;
use crate::path::Path;
use crate::race::{BEGIN, Entry, RaceSetting, Stage};
use base::Duration;
use ccp_agent::{Agent, Algorithm, Datapath, Failure, Flow, FlowInfo, Outcome, Report};
use sim::AgentMaker;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PROGRAM: &str = include_str!("env.ccp");

/// An environment before it begins.
#[derive(Clone, Debug)]
pub struct EnvSetting {
    /// The bottleneck that all flows share.
    pub path: Path,
    /// What sends beside the learner's flow.
    pub rival: Option<Entry>,
    /// Least time between two reports of the flow.
    pub interval: Duration,
    /// Bytes of each flow's largest receive window; `None`: as much as the path can need ([`RaceSetting::buffer`]).
    pub buffer: Option<u32>,
    /// Length of an episode.
    pub time: Duration,
    /// Time from a report until the step that answers it is in force.
    pub staleness: Duration,
    /// Seed of all random choices.
    pub seed: u64,
}

/// What a flow's program has seen since its last report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Observation {
    /// Time since the beginning of the episode, microseconds.
    pub now_us: u64,
    /// Bytes that were acknowledged, in order.
    pub acked: u64,
    /// Segments that were found lost.
    pub lost: u64,
    /// Bytes acknowledged as marked by ECN.
    pub marked: u64,
    /// There was a retransmission timeout.
    pub timeout: bool,
    /// Least round-trip time, microseconds; [`ccp_agent::INFINITY`]: no sample.
    pub rtt_us: u64,
    /// Largest rate at which data arrived, bytes per second.
    pub rate_in: u64,
    /// Largest rate at which the same data was sent, bytes per second.
    pub rate_out: u64,
    /// Bytes in flight at the report.
    pub in_flight: u64,
    /// Window in force, bytes.
    pub cwnd: u64,
    /// Rate of the pacer in force, bytes per second; 0: it does not pace.
    pub rate: u64,
    /// Time during which nothing but the receiver's window held data back, since the beginning of the episode, microseconds.
    pub bounded_us: u64,
    /// Packets in the bottleneck's queue, which no sender outside of a simulator knows.
    pub queue: u64,
    /// The episode is over: the next step begins nothing.
    pub is_over: bool,
}

/// What the flow's handlers leave for the next step.
#[derive(Debug, Default)]
struct Inbox {
    datapath: Option<Datapath>,
    reports: VecDeque<Report>,
}

type Shared = Arc<Mutex<Inbox>>;

fn lock(shared: &Shared) -> MutexGuard<'_, Inbox> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The environment; see the module.
#[derive(Debug)]
pub struct Env {
    setting: EnvSetting,
    stage: Stage,
    inbox: Shared,
}

impl Env {
    /// An environment at its first report.
    #[must_use]
    pub fn new(setting: EnvSetting) -> (Self, Observation) {
        let inbox = Shared::default();
        let handed = Arc::clone(&inbox);
        let interval_us = setting.interval.as_us().max(1);
        let maker = AgentMaker::new(move || {
            let mut agent = Agent::new();
            let learner = Learner { inbox: Arc::clone(&handed), interval_us };
            agent.add(learner).expect("a test compiles its program");
            agent
        });
        let own = Entry { contestant: Contestant::agent("learner", maker), flows: 1 };
        let entries = std::iter::once(own).chain(setting.rival.clone()).collect();
        let (path, buffer, time) = (setting.path.clone(), setting.buffer, setting.time);
        let (staleness, seed, keeps_datagrams) = (setting.staleness, setting.seed, false);
        let race = RaceSetting { path, entries, time, buffer, staleness, seed, keeps_datagrams };
        let stage = Stage::new(&race);
        let mut env = Self { setting, stage, inbox };
        let first = env.next();
        (env, first)
    }

    /// Sets window and rate, and runs until the next report. 0 leaves what is in force.
    pub fn step(&mut self, cwnd: u64, rate: u64) -> Observation {
        if let Some(datapath) = &lock(&self.inbox).datapath {
            // A flow that is over has nothing to set; the observation says so.
            let _ = datapath.update(&[("Cwnd", cwnd), ("Rate", rate)]);
        }
        let sender = self.stage.fabric.members[1].node;
        if let Some(host) = self.stage.fabric.network.machine(sender).and_then(|machine| machine.host()) {
            // What the handle was told leaves at the host's next run.
            host.agent();
        }
        self.next()
    }

    /// Runs until the flow's next report, or to the end of the episode.
    fn next(&mut self) -> Observation {
        let end = BEGIN.plus(self.setting.time);
        let report = loop {
            if let Some(report) = lock(&self.inbox).reports.pop_front() {
                break Some(report);
            }
            let next = self.stage.fabric.network.next_event();
            if end < next {
                break None;
            }
            self.stage.fabric.network.run_until(next);
        };
        self.observe(report.as_ref())
    }

    fn observe(&mut self, report: Option<&Report>) -> Observation {
        let value = |name| report.and_then(|report| report.get(name).ok()).unwrap_or(0);
        let members = &self.stage.fabric.members;
        let (receiver, sender) = (members[0], members[1].node);
        let network = &mut self.stage.fabric.network;
        let now = if report.is_some() { network.now() } else { BEGIN.plus(self.setting.time) };
        let queue = network.link(receiver.router, receiver.node).map_or(0, |link| link.queued(network.now()));
        let seen = network.sight(sender, 0);
        Observation {
            now_us: now.since(BEGIN).as_us(),
            acked: value("acked"),
            lost: value("lost"),
            marked: value("marked"),
            timeout: value("timeout") != 0,
            rtt_us: if report.is_some() { value("rtt") } else { ccp_agent::INFINITY },
            rate_in: value("rate_in"),
            rate_out: value("rate_out"),
            in_flight: value("in_flight"),
            cwnd: seen.map_or(0, |seen| u64::from(seen.cwnd)),
            rate: seen.map_or(0, |seen| seen.pace_rate),
            bounded_us: seen.map_or(0, |seen| seen.window_bound.as_us()),
            queue: queue as u64,
            is_over: report.is_none(),
        }
    }
}

/// Gives a flow its program, and keeps its reports.
struct Learner {
    inbox: Shared,
    interval_us: u64,
}

struct LearnersFlow(Shared);

impl Algorithm for Learner {
    fn name(&self) -> &str {
        "learner"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![("env".to_owned(), PROGRAM.to_owned())]
    }

    fn new_flow(&mut self, datapath: Datapath, _info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        datapath.set_program("env", &[("interval_us", self.interval_us)])?;
        lock(&self.inbox).datapath = Some(datapath);
        Ok(Box::new(LearnersFlow(Arc::clone(&self.inbox))))
    }
}

impl Flow for LearnersFlow {
    fn on_report(&mut self, report: &Report) -> Outcome {
        lock(&self.0).reports.push_back(report.clone());
        Ok(())
    }
}
