//! What is behind the desk of a simulated host: an agent of crate `ccp-agent` with its algorithms, or a script for tests. Datagrams and the
//! time go in, answers and the next deadline come out.

use super::KeptReport;
use base::{Instant, Seed};
use ccp_agent::Agent;
use ccp_vm::{Builder, Implicit, Num, Primitive, Register, Source, Variable};
use ccp_wire::{Events, Fields, Instructions, Message, Update, messages};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// The address of the endpoint, as an agent sees it.
const DATAPATH: &[u8] = b"datapath";

/// What an agent does with its flows.
#[derive(Clone, Debug)]
pub enum Mind {
    /// Each flow gets this program; the agent keeps all reports ([`Host::take_reports`](crate::Host::take_reports)).
    Gives(Arc<Source>),
    /// Each flow gets a random valid program; at its reports it may get another one, or random fields, extremes among them.
    Random,
    /// What the algorithms of an agent of crate `ccp-agent` decide ([`Host::agent`](crate::Host::agent)).
    Agent(AgentMaker),
}

/// Makes the agent of a host: an agent itself cannot be copied with the host's configuration.
#[derive(Clone)]
pub struct AgentMaker(Arc<dyn Fn() -> Agent + Send + Sync>);

impl AgentMaker {
    /// Agents with the algorithms that `make` adds.
    #[must_use]
    pub fn new(make: impl Fn() -> Agent + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// Makes one more agent.
    #[must_use]
    pub fn make(&self) -> Agent {
        (self.0)()
    }
}

impl fmt::Debug for AgentMaker {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("AgentMaker")
    }
}

/// The agent of one host.
pub(super) enum Thinker {
    Agent(Box<Agent>),
    Script(Script),
}

impl Thinker {
    pub(super) fn new(mind: &Mind, rng: Seed) -> Self {
        let script = |role| {
            Self::Script(Script { role, rng, programs: 0, kept: Vec::new(), answers: VecDeque::new() })
        };
        match mind {
            Mind::Gives(source) => script(Role::Gives(Arc::clone(source))),
            Mind::Random => script(Role::Random),
            Mind::Agent(maker) => Self::Agent(Box::new(maker.make())),
        }
    }

    /// A datagram of the endpoint arrives.
    pub(super) fn receive(&mut self, now: Instant, datagram: &[u8]) {
        match self {
            Self::Agent(agent) => agent.receive(now, DATAPATH, datagram),
            Self::Script(script) => script.receive(now, datagram),
        }
    }

    /// Does what is due without a datagram.
    pub(super) fn drive(&mut self, now: Instant) {
        if let Self::Agent(agent) = self {
            agent.drive(now);
        }
    }

    pub(super) fn next_deadline(&self) -> Instant {
        match self {
            Self::Agent(agent) => agent.next_deadline(),
            Self::Script(_) => Instant::NEVER,
        }
    }

    /// The next datagram for the endpoint.
    pub(super) fn poll_answer(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::Agent(agent) => agent.poll_outgoing().map(|outgoing| outgoing.bytes),
            Self::Script(script) => script.answers.pop_front(),
        }
    }

    pub(super) fn take_kept(&mut self) -> Vec<KeptReport> {
        match self {
            Self::Agent(_) => Vec::new(),
            Self::Script(script) => std::mem::take(&mut script.kept),
        }
    }

    pub(super) fn agent(&mut self) -> Option<&mut Agent> {
        match self {
            Self::Agent(agent) => Some(agent),
            Self::Script(_) => None,
        }
    }
}

impl fmt::Debug for Thinker {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent(agent) => to.debug_list().entries(agent.algorithms()).finish(),
            Self::Script(script) => script.fmt(to),
        }
    }
}

/// What a script does with its flows.
#[derive(Debug)]
enum Role {
    /// As [`Mind::Gives`]: the program of all flows.
    Gives(Arc<Source>),
    /// As [`Mind::Random`]: nothing is remembered of a flow.
    Random,
}

/// An agent for tests: it follows its role and decides nothing of its own.
#[derive(Debug)]
pub(super) struct Script {
    role: Role,
    rng: Seed,
    /// Number of programs that it has installed.
    programs: u32,
    kept: Vec<KeptReport>,
    answers: VecDeque<Vec<u8>>,
}

impl Script {
    fn receive(&mut self, now: Instant, datagram: &[u8]) {
        for message in messages(datagram) {
            let message = message.expect("an endpoint writes what can be read");
            let answers = self.answers(now, &message);
            self.answers.extend(answers);
        }
    }

    /// What the agent says to a message.
    fn answers(&mut self, now: Instant, message: &Message<'_>) -> Vec<Vec<u8>> {
        match message {
            // An agent that has just started says something, so that the endpoint knows it.
            Message::Ready { .. } => vec![Vec::new()],
            Message::Create { flow, .. } => self.give(*flow),
            Message::Measure { flow, values, .. } => match self.role {
                Role::Gives(_) => {
                    self.kept.push(KeptReport { at: now, flow: *flow, values: values.iter().collect() });
                    Vec::new()
                }
                // A report without values is a flow's last.
                Role::Random if values.is_empty() => Vec::new(),
                Role::Random => self.react(*flow),
            },
            _ => Vec::new(),
        }
    }

    /// INSTALL and CHANGE for a flow.
    fn give(&mut self, flow: u32) -> Vec<Vec<u8>> {
        let (source, updates) = match &self.role {
            Role::Gives(source) => (Source::clone(source), Vec::new()),
            Role::Random => (random_program(&mut self.rng), self.random_fields()),
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
