//! An agent of congestion control beside a simulated host: flows, their programs and reports go through the endpoint that a service has
//! (`ccp::Endpoint`), and datagrams take their time. It has no sockets: the way between endpoint and agent is a queue.
//!
//! ```text
//!   slow path <--- FlowEvent, begin_program, .. ---> Desk { Endpoint } === datagrams, `staleness` later ===> Mind (the agent)
//! ```

mod reno;

pub use reno::in_datapath as reno_in_datapath;

use base::{Duration, Instant, Seed};
use ccp::{Command, Config, Endpoint, FlowId, NewFlow, NotTaken, Sender, Sent};
use ccp_vm::{Builder, Implicit, Num, Primitive, Register, Source, Variable};
use ccp_wire::{Create, Events, Fields, Instructions, Message, Update, messages, shown_address};
use flow::Start;
use reno::Reno;
use slowpath::{FlowEvent, FlowName, SlowPath};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

const ADDRESS: &[u8] = b"agent";
/// Datagrams that wait for the agent at most: the kernel's usual `net.unix.max_dgram_qlen`.
const QUEUE: usize = 10;
/// An endpoint and its flows that still have something to do after so many turns at one instant never come to rest.
const TURNS_MAX: usize = 10_000;

/// The agent of a host.
#[derive(Clone, Debug)]
pub struct AgentSetting {
    /// Time from a datagram of the endpoint until the agent's answer is in force.
    pub staleness: Duration,
    /// What the agent does.
    pub mind: Mind,
}

/// What an agent does with its flows.
#[derive(Clone, Debug)]
pub enum Mind {
    /// Each flow gets this program; the agent keeps all reports ([`Host::take_reports`](crate::Host::take_reports)).
    Gives(Arc<Source>),
    /// Reno by the agent itself: each flow's program reports after this time, and the agent answers by a window.
    Reno(Duration),
    /// Each flow gets a random valid program; at its reports it may get another one, or random fields, extremes among them.
    Random,
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

/// The endpoint of a host, and the agent behind it.
#[derive(Debug)]
pub(crate) struct Desk {
    endpoint: Endpoint,
    setting: AgentSetting,
    rng: Seed,
    /// Datagrams on their way to the agent, with the time of their effect.
    mail: VecDeque<(Instant, Vec<u8>)>,
    programs: u32,
    pub(crate) kept: Vec<KeptReport>,
    /// Of [`Mind::Reno`], by the flow's number on the wire.
    windows: BTreeMap<u32, Reno>,
    clamps: BTreeMap<u64, u64>,
}

impl Desk {
    pub(crate) fn new(setting: &AgentSetting, seed: u64, now: Instant) -> Self {
        let mut endpoint = Endpoint::new(Config {
            datapath: 1,
            own_uid: 0,
            allowed_uids: Vec::new(),
            messages_per_second: 1_000_000,
            cwnd_max: 1 << 30,
            rate_max: u64::MAX,
            flows_max: 1 << 20,
        });
        endpoint.add_agent(now, ADDRESS, &[]);
        Self {
            endpoint,
            setting: setting.clone(),
            rng: Seed::new(seed),
            mail: VecDeque::new(),
            programs: 0,
            kept: Vec::new(),
            windows: BTreeMap::new(),
            clamps: BTreeMap::new(),
        }
    }

    /// Does all work that is due at `now`. True if there was any.
    pub(crate) fn run(&mut self, now: Instant, slow: &mut SlowPath) -> bool {
        let mut is_busy = false;
        for _ in 0..TURNS_MAX {
            let mut has_done = self.hear_flows(slow);
            has_done |= self.deliver(now);
            let Self { endpoint, mail, setting, .. } = self;
            endpoint.drive(now, &mut |_, bytes| {
                if mail.len() >= QUEUE {
                    return Sent::Full;
                }
                mail.push_back((now.plus(setting.staleness), bytes.to_vec()));
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
        let mail = self.mail.front().map_or(Instant::NEVER, |(at, _)| *at);
        self.endpoint.next_deadline().min(mail)
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

    /// Hands the datagrams that have arrived to the agent, and its answers to the endpoint.
    fn deliver(&mut self, now: Instant) -> bool {
        let mut is_any = false;
        while self.mail.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, datagram)) = self.mail.pop_front() else { break };
            is_any = true;
            for message in messages(&datagram) {
                let message = message.expect("an endpoint writes what can be read");
                for answer in self.answers(now, &message) {
                    let sender = Sender { address: ADDRESS, pid: 1, uid: 0 };
                    self.endpoint.receive(now, sender, &answer);
                }
            }
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

    /// What the agent says to a message.
    fn answers(&mut self, now: Instant, message: &Message<'_>) -> Vec<Vec<u8>> {
        match message {
            // An agent that has just started says something, so that the endpoint knows it.
            Message::Ready { .. } => vec![Vec::new()],
            Message::Create { flow, create } => {
                if let Mind::Reno(_) = self.setting.mind {
                    self.windows.insert(*flow, Reno::new(create.cwnd, create.mss));
                }
                self.give(*flow)
            }
            Message::Measure { flow, values, .. } => match self.setting.mind {
                Mind::Gives(_) => {
                    self.kept.push(KeptReport { at: now, flow: *flow, values: values.iter().collect() });
                    Vec::new()
                }
                Mind::Reno(_) if values.is_empty() => {
                    self.windows.remove(flow);
                    Vec::new()
                }
                Mind::Reno(_) => {
                    let Some(reno) = self.windows.get_mut(flow) else { return Vec::new() };
                    let cwnd = reno.hear(&values.iter().collect::<Vec<_>>());
                    let updates = [Update { register: Register::implicit(Implicit::Cwnd), value: cwnd }];
                    vec![encoded(&Message::Update { flow: *flow, fields: Fields::of(&updates) })]
                }
                Mind::Random if values.is_empty() => Vec::new(),
                Mind::Random => self.react(*flow),
            },
            _ => Vec::new(),
        }
    }

    /// INSTALL and CHANGE for a flow.
    fn give(&mut self, flow: u32) -> Vec<Vec<u8>> {
        let (source, updates) = match &self.setting.mind {
            Mind::Gives(source) => (Source::clone(source), Vec::new()),
            Mind::Reno(interval) => (reno::reporter(*interval), Vec::new()),
            Mind::Random => (random_program(&mut self.rng), self.random_fields()),
        };
        self.programs += 1;
        let program = self.programs;
        let install = Message::Install {
            program,
            events: Events::of(source.events()),
            instructions: Instructions::of(source.instructions()),
        };
        let change = Message::Change { flow, program, fields: Fields::of(&updates) };
        vec![encoded(&install), encoded(&change)]
    }

    fn react(&mut self, flow: u32) -> Vec<Vec<u8>> {
        match self.rng.below(4) {
            0 => self.give(flow),
            1 => {
                let updates = self.random_fields();
                vec![encoded(&Message::Update { flow, fields: Fields::of(&updates) })]
            }
            _ => Vec::new(),
        }
    }

    fn random_fields(&mut self) -> Vec<Update> {
        let rng = &mut self.rng;
        let extreme = |rng: &mut Seed| [0, 1, u64::MAX, 1 << rng.below(40)][rng.below(4) as usize];
        let registers = [Register::implicit(Implicit::Cwnd), Register::implicit(Implicit::Rate)];
        let chosen = registers.into_iter().filter(|_| rng.below(3) == 0).collect::<Vec<_>>();
        chosen.into_iter().map(|register| Update { register, value: extreme(rng) }).collect()
    }
}

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes).expect("programs are shorter than a header can say");
    bytes
}

/// A random program that keeps every rule: few of its decisions are wise, and some of its runs overflow.
#[must_use]
pub fn random_program(rng: &mut Seed) -> Source {
    let mut program = Builder::new();
    let mut variables = vec![Variable::CWND, Variable::RATE, Variable::MICROS];
    for _ in 0..rng.below(4) {
        let initial = rng.below(1 << 20) as u32;
        variables.push(match rng.below(4) {
            0 => program.report_variable(initial),
            1 => program.control(initial),
            2 => program.local(),
            _ => program.volatile_report(initial),
        });
    }
    for _ in 0..=rng.below(4) {
        let body = |event: &mut Builder, rng: &mut Seed| {
            for _ in 0..=rng.below(3) {
                statement(event, &variables, rng);
            }
        };
        if rng.below(3) == 0 {
            program.always(|event| body(event, rng));
        } else {
            let mut apart = Seed::new(rng.next_u64());
            let condition = |event: &mut Builder| {
                let (left, right) = (operand(&variables, &mut apart), operand(&variables, &mut apart));
                if apart.below(2) == 0 { event.gt(left, right) } else { event.lt(left, right) }
            };
            program.when(condition, |event| body(event, rng));
        }
    }
    program.finish().expect("a few instructions in a few events")
}

fn statement(event: &mut Builder, variables: &[Variable], rng: &mut Seed) {
    let variable = variables[rng.below(variables.len() as u64) as usize];
    let (left, right) = (operand(variables, rng), operand(variables, rng));
    match rng.below(8) {
        0 => event.report(),
        1 => event.fallthrough(),
        2 => event.set(variable, left),
        3 => event.average(variable, rng.below(11) as u32, left),
        n => {
            let value = match n {
                4 => event.add(left, right),
                5 => event.mul(left, right),
                6 => event.div(left, right),
                _ => event.sub(left, right),
            };
            event.set(variable, value);
        }
    }
}

fn operand(variables: &[Variable], rng: &mut Seed) -> Num {
    match rng.below(3) {
        0 => Num::from(variables[rng.below(variables.len() as u64) as usize]),
        1 => Num::from(Primitive::NAMES[rng.below(Primitive::NAMES.len() as u64) as usize].1),
        _ => Num::from((1u64 << rng.below(31)) as u32),
    }
}
