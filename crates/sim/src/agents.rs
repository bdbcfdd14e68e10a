//! An agent of congestion control beside a simulated host: flows, their programs and reports go through the endpoint that a service has
//! (`ccp::Endpoint`), and datagrams take their time. It has no sockets: each way between endpoint and agent is a queue.
//!
//! ```text
//!                                                       == half of `staleness` ==>
//!   slow path <--- FlowEvent, begin_program, .. ---> Desk { Endpoint }            Thinker (the agent, as its Mind says)
//!                                                       <== the other half =======
//! ```

mod mind;
mod reno;

pub use mind::{AgentMaker, Mind, random_program};
pub use reno::{in_datapath as reno_in_datapath, of_agent as reno_of_agent};

use base::{Duration, Instant, Seed};
use ccp::{Command, Config, Endpoint, FlowId, NewFlow, NotTaken, Sender, Sent};
use ccp_agent::Agent;
use ccp_wire::{Create, shown_address};
use flow::Start;
use mind::Thinker;
use slowpath::{FlowEvent, FlowName, SlowPath};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

const ADDRESS: &[u8] = b"agent";
/// Datagrams that wait for the agent at most: the kernel's usual `net.unix.max_dgram_qlen`.
const QUEUE: usize = 10;
/// An endpoint and its flows that still have something to do after so many turns at one instant never come to rest.
const TURNS_MAX: usize = 10_000;

/// The agent of a host.
#[derive(Clone, Debug)]
pub struct AgentSetting {
    /// Keep all datagrams ([`Host::take_datagrams`](crate::Host::take_datagrams)).
    pub keeps_datagrams: bool,
    /// Time from a datagram of the endpoint until the agent's answer is in force: half of it passes before the agent reads the datagram.
    pub staleness: Duration,
    /// Messages to the agent for each second at most.
    pub messages_per_second: u32,
    /// What the agent does.
    pub mind: Mind,
    /// From the first instant on a handler sleeps until the second one: nothing is read, and no timer is looked at.
    pub sleep: Option<(Instant, Instant)>,
}

impl AgentSetting {
    /// An agent that is told of as much as it likes, and never sleeps; datagrams are not kept.
    #[must_use]
    pub fn new(staleness: Duration, mind: Mind) -> Self {
        Self { keeps_datagrams: false, staleness, messages_per_second: 1_000_000, mind, sleep: None }
    }
}

/// A report as the agent has read it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptReport {
    /// When the agent read it.
    pub at: Instant,
    /// The flow's number on the wire.
    pub flow: u32,
    /// The report variables, in order; none: the flow is closed.
    pub values: Vec<u64>,
}

/// Datagrams on their way, each with the time of its arrival.
type Mail = VecDeque<(Instant, Vec<u8>)>;

/// A datagram that has come to the agent, or to the endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptDatagram {
    /// Time at which the datagram came.
    pub at: Instant,
    /// It came to the agent.
    pub is_to_agent: bool,
    /// The messages, as they went over the socket.
    pub bytes: Vec<u8>,
}

/// The endpoint of a host, and the agent behind it.
#[derive(Debug)]
pub(crate) struct Desk {
    endpoint: Endpoint,
    /// Time on the way to the agent, and back.
    there: Duration,
    back: Duration,
    thinker: Thinker,
    sleep: Option<(Instant, Instant)>,
    reports: Mail,
    answers: Mail,
    /// All that has come, if it is to be kept.
    kept: Option<Vec<KeptDatagram>>,
    clamps: BTreeMap<u64, u64>,
}

impl Desk {
    pub(crate) fn new(setting: &AgentSetting, seed: u64, now: Instant) -> Self {
        let mut endpoint = Endpoint::new(Config {
            datapath: 1,
            own_uid: 0,
            allowed_uids: Vec::new(),
            messages_per_second: setting.messages_per_second,
            cwnd_max: 1 << 30,
            rate_max: u64::MAX,
            flows_max: 1 << 20,
        });
        endpoint.add_agent(now, ADDRESS, &[]);
        let there = Duration::from_ns(setting.staleness.as_ns() / 2);
        Self {
            endpoint,
            there,
            back: Duration::from_ns(setting.staleness.as_ns() - there.as_ns()),
            thinker: Thinker::new(&setting.mind, Seed::new(seed)),
            sleep: setting.sleep,
            reports: VecDeque::new(),
            answers: VecDeque::new(),
            kept: setting.keeps_datagrams.then(Vec::new),
            clamps: BTreeMap::new(),
        }
    }

    /// Does all work that is due at `now`. True if there was any.
    pub(crate) fn run(&mut self, now: Instant, slow: &mut SlowPath) -> bool {
        let mut is_busy = false;
        for _ in 0..TURNS_MAX {
            let mut has_done = self.hear_flows(slow);
            has_done |= self.think(now);
            has_done |= self.hear_agent(now);
            let Self { endpoint, reports, there, .. } = self;
            endpoint.drive(now, &mut |_, bytes| {
                if reports.len() >= QUEUE {
                    return Sent::Full;
                }
                reports.push_back((now.plus(*there), bytes.to_vec()));
                Sent::Taken
            });
            has_done |= self.obey(now, slow);
            is_busy |= has_done;
            if !has_done {
                return is_busy;
            }
        }
        panic!("the endpoint never comes to rest at {now:?}");
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        let first = |mail: &Mail| mail.front().map_or(Instant::NEVER, |(at, _)| *at);
        // While the agent sleeps, what it has to do is due when it wakes.
        let agent = self.awake_at(first(&self.reports).min(self.thinker.next_deadline()));
        self.endpoint.next_deadline().min(agent).min(first(&self.answers))
    }

    /// The first time from `at` on at which the agent is awake.
    fn awake_at(&self, at: Instant) -> Instant {
        self.sleep.filter(|(from, until)| *from <= at && at < *until).map_or(at, |(_, until)| until)
    }

    /// The reports that a scripted agent has kept.
    pub(crate) fn take_kept(&mut self) -> Vec<KeptReport> {
        self.thinker.take_kept()
    }

    /// The datagrams that were kept.
    pub(crate) fn take_datagrams(&mut self) -> Vec<KeptDatagram> {
        self.kept.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn keep(&mut self, at: Instant, is_to_agent: bool, bytes: &[u8]) {
        if let Some(kept) = &mut self.kept {
            kept.push(KeptDatagram { at, is_to_agent, bytes: bytes.to_vec() });
        }
    }

    /// The agent, if it is one of crate `ccp-agent`.
    pub(crate) fn agent(&mut self) -> Option<&mut Agent> {
        self.thinker.agent()
    }

    fn hear_flows(&mut self, slow: &mut SlowPath) -> bool {
        let mut is_any = false;
        while let Some(event) = slow.poll_flow_event() {
            is_any = true;
            match event {
                FlowEvent::Opened(name) => self.open(name, slow),
                FlowEvent::ReportDue(name) => self.take_report(name, slow),
                FlowEvent::Closed(name) => {
                    self.take_report(name, slow);
                    self.clamps.remove(&name.number());
                    self.endpoint.close(FlowId(name.number()));
                }
            }
        }
        is_any
    }

    fn open(&mut self, name: FlowName, slow: &SlowPath) {
        let Some(facts) = slow.flow_facts(name) else { return };
        let shown = |end: wire::Endpoint| shown_address(SocketAddr::new(end.addr, end.port));
        let create =
            Create::new(facts.cwnd, u32::from(facts.mss), shown(facts.tuple.src), shown(facts.tuple.dst));
        let rate_max = facts.rate_max.map_or(u64::MAX, std::num::NonZeroU64::get);
        let new = NewFlow { id: FlowId(name.number()), uid: 0, rtt: facts.rtt, rate_max, create };
        self.endpoint.open(new).expect("a host has fewer flows than an endpoint");
    }

    fn take_report(&mut self, name: FlowName, slow: &mut SlowPath) {
        let Self { endpoint, clamps, .. } = self;
        let id = FlowId(name.number());
        let mut clamped = 0;
        slow.offer_report(name, |report| {
            clamped = report.clamps;
            endpoint.report(id, report.number, report.rtt, report.values) != Err(NotTaken::Busy)
        });
        let before = clamps.entry(name.number()).or_insert(0);
        endpoint.clamped(id, clamped.saturating_sub(*before));
        *before = clamped.max(*before);
    }

    /// Hands the datagrams that have arrived to the agent, and has it do what is due.
    fn think(&mut self, now: Instant) -> bool {
        if self.awake_at(now) > now {
            return false;
        }
        let mut is_any = false;
        while let Some(datagram) = arrived(now, &mut self.reports) {
            is_any = true;
            self.keep(now, true, &datagram);
            self.thinker.receive(now, &datagram);
        }
        if self.thinker.next_deadline() <= now {
            is_any = true;
            self.thinker.drive(now);
        }
        while let Some(answer) = self.thinker.poll_answer() {
            is_any = true;
            self.answers.push_back((now.plus(self.back), answer));
        }
        is_any
    }

    fn hear_agent(&mut self, now: Instant) -> bool {
        let mut is_any = false;
        while let Some(answer) = arrived(now, &mut self.answers) {
            is_any = true;
            self.keep(now, false, &answer);
            self.endpoint.receive(now, Sender { address: ADDRESS, pid: 1, uid: 0 }, &answer);
        }
        is_any
    }

    fn obey(&mut self, now: Instant, slow: &mut SlowPath) -> bool {
        let mut is_any = false;
        while let Some(command) = self.endpoint.poll_command() {
            is_any = true;
            match command {
                Command::Program { flow, program, number, changes, bounds } => {
                    // A flow that is over meanwhile gets none; its end is on the way here.
                    let start = Start { program, number, bounds, changes };
                    let _ = slow.begin_program(now, FlowName::from_number(flow.0), &start);
                }
                Command::Change { flow, changes } => {
                    slow.change_program(FlowName::from_number(flow.0), &changes);
                }
                Command::Accept { flow } => self.take_report(FlowName::from_number(flow.0), slow),
                Command::Default { flow, .. } => {
                    slow.end_program(now, FlowName::from_number(flow.0));
                }
            }
        }
        while self.endpoint.poll_notice().is_some() {}
        is_any
    }
}

/// Takes the next datagram that has arrived by `now`.
fn arrived(now: Instant, mail: &mut Mail) -> Option<Vec<u8>> {
    if now < mail.front()?.0 {
        return None;
    }
    mail.pop_front().map(|(_, datagram)| datagram)
}
