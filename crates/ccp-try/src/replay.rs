//! Replays a transcript: an algorithm gets the same reports at the same times, and its decisions are held against those that were recorded.
//!
//! ```text
//!   transcript -- CREATE, MEASURE --> agent with the algorithm --> decisions of each flow --+
//!        '------- INSTALL, CHANGE, UPDATE ----------------------> decisions of each flow --+--> the first difference
//! ```
//! Numbers of programs are those of the agent that was recorded; a report goes to the program with the same instructions. Flows that had begun
//! before the recording are left out.

use crate::contestant::{Contestant, Kind};
use crate::transcript::{Said, Way};
use base::{Duration, Instant};
use ccp_agent::Agent;
use ccp_vm::Field;
use ccp_wire::{Fields, Message, Update, messages};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The name of the datapath at the agent that replays.
const DATAPATH: &[u8] = b"transcript";
/// Decisions so shortly before the end of a transcript may be missing in it: they were on their way.
const TAIL: Duration = Duration::from_ms(100);
/// A longer time between two datagrams is no recording's: an algorithm with a short timer would be called for ever.
const GAP_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Times count from here on: no handler may depend on a beginning at zero.
const BEGIN: Instant = Instant::from_ns(1_000_000_000);

/// What an agent has decided about a flow.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Decision {
    at: Instant,
    /// The instructions of the program that begins, as a message has them; `None`: the present one goes on.
    program: Option<Vec<u8>>,
    /// Registers and values, as text.
    fields: Vec<String>,
}

impl Decision {
    fn is_as(&self, other: &Self) -> bool {
        (&self.program, &self.fields) == (&other.program, &other.fields)
    }

    fn words(&self) -> String {
        let what = if self.program.is_some() { "another program" } else { "update" };
        format!("{what} {}", self.fields.join(" ")).trim_end().to_owned()
    }
}

/// The first decision that differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The flow's number in the transcript.
    pub flow: u32,
    /// Which of the flow's decisions, from 1 on.
    pub number: usize,
    /// When it was made, microseconds from the beginning of the transcript.
    pub us: u64,
    /// What was recorded; `None`: no such decision.
    pub recorded: Option<String>,
    /// What the algorithm decides now; `None`: nothing more.
    pub now: Option<String>,
}

/// What a replay has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Replayed {
    /// Flows that begin in the transcript.
    pub flows: usize,
    /// Flows that had begun before.
    pub left_out: usize,
    /// Reports that the algorithm got.
    pub reports: u64,
    /// Decisions that are the same.
    pub same: usize,
    /// The first one that is not.
    pub difference: Option<Difference>,
    /// Handlers that failed, as lines of the agent's log.
    pub failures: Vec<String>,
}

impl Replayed {
    /// All of it as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let difference = self.difference.as_ref().map(|difference| {
            let Difference { flow, number, us, recorded, now } = difference;
            json!({ "flow": flow, "number": number, "us": us, "recorded": recorded, "now": now })
        });
        json!({
            "flows": self.flows, "left_out": self.left_out, "reports": self.reports, "same": self.same,
            "difference": difference, "failures": self.failures,
        })
    }
}

/// One side's programs and decisions.
#[derive(Debug, Default)]
struct Side {
    programs: BTreeMap<u32, Vec<u8>>,
    decisions: BTreeMap<u32, Vec<Decision>>,
    /// The number of the program that each flow runs.
    present: BTreeMap<u32, u32>,
}

impl Side {
    fn hear(&mut self, at: Instant, datagram: &[u8]) {
        for message in messages(datagram).flatten() {
            match message {
                Message::Install { program, events, instructions } => {
                    let body = encoded(&Message::Install { program: 0, events, instructions });
                    self.programs.insert(program, body);
                }
                Message::Change { flow, program, fields } => {
                    self.present.insert(flow, program);
                    let unknown = || program.to_le_bytes().to_vec();
                    let program = self.programs.get(&program).cloned().unwrap_or_else(unknown);
                    self.decide(flow, Decision { at, program: Some(program), fields: words(fields) });
                }
                Message::Update { flow, fields } => {
                    self.decide(flow, Decision { at, program: None, fields: words(fields) });
                }
                _ => {}
            }
        }
    }

    /// The number of the program with this body: the one that the flow runs, if it has it, since several may be alike.
    fn number_of(&self, flow: u32, body: Option<&Vec<u8>>) -> Option<u32> {
        let is_it = |number: &&u32| self.programs.get(number) == body;
        let alike = || self.programs.keys().find(is_it);
        self.present.get(&flow).filter(is_it).or_else(alike).copied().filter(|_| body.is_some())
    }

    fn decide(&mut self, flow: u32, decision: Decision) {
        self.decisions.entry(flow).or_default().push(decision);
    }
}

fn words(fields: Fields<'_>) -> Vec<String> {
    let name = |update: &Update| match Field::of(update.register) {
        Some(Field::Cwnd) => "Cwnd".to_owned(),
        Some(Field::Rate) => "Rate".to_owned(),
        Some(Field::Control(index)) => format!("variable {index}"),
        None => format!("{:?}", update.register),
    };
    fields.iter().map(|update| format!("{}={}", name(&update), update.value)).collect()
}

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(message.encoded_len());
    message.encode(&mut bytes).expect("it came in a message");
    bytes
}

/// Replays what was said to and by one agent: the one at `address`, or the only one.
///
/// # Errors
/// If the algorithm is no agent's, the transcript has several agents and none is named, or a line is no datagram.
pub fn replay(all: &[Said], address: Option<&str>, contestant: &Contestant) -> Result<Replayed, String> {
    let Kind::Agent(maker) = &contestant.kind else {
        return Err(format!(
            "{} is built into the datapath: it has no reports to decide by",
            contestant.name
        ));
    };
    let agents: BTreeSet<&str> = all.iter().map(|said| said.agent.as_str()).collect();
    let address = match (address, agents.iter().next()) {
        (Some(address), _) => address,
        (None, Some(only)) if agents.len() == 1 => only,
        (None, None) => return Err("the transcript is empty".to_owned()),
        (None, _) => {
            let agents: Vec<&str> = agents.into_iter().collect();
            return Err(format!("there are several agents, choose one: {}", agents.join(", ")));
        }
    };
    let own = all.iter().filter(|said| said.agent == address);
    let mut run = Run::new(maker.make());
    for said in own {
        run.step(said)?;
    }
    Ok(run.compare())
}

struct Run {
    agent: Agent,
    recorded: Side,
    now: Side,
    begun: BTreeSet<u32>,
    left_out: BTreeSet<u32>,
    first_ns: Option<u64>,
    last: Instant,
}

impl Run {
    fn new(agent: Agent) -> Self {
        Self {
            agent,
            recorded: Side::default(),
            now: Side::default(),
            begun: BTreeSet::new(),
            left_out: BTreeSet::new(),
            first_ns: None,
            last: BEGIN,
        }
    }

    fn step(&mut self, said: &Said) -> Result<(), String> {
        let bytes = said.bytes()?;
        let first = *self.first_ns.get_or_insert(said.ns);
        let ns = said.ns.checked_sub(first).ok_or("the times of the transcript go back")?;
        let at = BEGIN.plus(Duration::from_ns(ns));
        if at < self.last {
            return Err("the times of the transcript go back".to_owned());
        }
        if at.since(self.last) > GAP_MAX {
            return Err("there is more than a day between two datagrams of the transcript".to_owned());
        }
        self.last = at;
        if said.way == Way::FromAgent {
            self.recorded.hear(at, &bytes);
            return Ok(());
        }
        while self.agent.next_deadline() <= at {
            let due = self.agent.next_deadline();
            self.agent.drive(due);
            self.collect(due);
        }
        for message in messages(&bytes) {
            let message = message.map_err(|why| format!("a datagram to the agent: {why}"))?;
            self.agent.receive(at, DATAPATH, &[]);
            self.collect(at);
            let told = self.translated(message);
            self.agent.receive(at, DATAPATH, &told);
            self.collect(at);
        }
        Ok(())
    }

    /// The message with the numbers of programs that the present agent has given.
    fn translated(&mut self, message: Message<'_>) -> Vec<u8> {
        match message {
            Message::Create { flow, .. } => {
                self.begun.insert(flow);
            }
            Message::Measure { flow, .. } if !self.begun.contains(&flow) => {
                self.left_out.insert(flow);
            }
            _ => {}
        }
        let Message::Measure { flow, program, values } = message else { return encoded(&message) };
        let program = self.now.number_of(flow, self.recorded.programs.get(&program)).unwrap_or(program);
        encoded(&Message::Measure { flow, program, values })
    }

    fn collect(&mut self, at: Instant) {
        while let Some(outgoing) = self.agent.poll_outgoing() {
            self.now.hear(at, &outgoing.bytes);
        }
    }

    fn compare(mut self) -> Replayed {
        let mut replayed = Replayed {
            flows: self.begun.len(),
            left_out: self.left_out.len(),
            reports: self.agent.counters().reports,
            ..Replayed::default()
        };
        for flow in &self.begun {
            let recorded = self.recorded.decisions.remove(flow).unwrap_or_default();
            let now = self.now.decisions.remove(flow).unwrap_or_default();
            let same = recorded.iter().zip(&now).take_while(|(one, other)| one.is_as(other)).count();
            replayed.same += same;
            let (one, other) = (recorded.get(same), now.get(same));
            let at = match (one, other) {
                (None, None) => continue,
                (None, Some(late)) if self.last <= late.at.plus(TAIL) => continue,
                (one, other) => one.or(other).map_or(BEGIN, |decision| decision.at),
            };
            let us = at.since(BEGIN).as_us();
            if replayed.difference.as_ref().is_none_or(|first| us < first.us) {
                let words = |decision: Option<&Decision>| decision.map(Decision::words);
                let (recorded, now) = (words(one), words(other));
                replayed.difference = Some(Difference { flow: *flow, number: same + 1, us, recorded, now });
            }
        }
        let events = std::iter::from_fn(|| self.agent.poll_event());
        let failed = events.filter(|event| matches!(event.what, ccp_agent::What::Failed { .. }));
        replayed.failures = failed.map(|event| event.to_string()).collect();
        replayed
    }
}
