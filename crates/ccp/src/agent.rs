//! One agent as an endpoint knows it: its address, its process, its programs, and the datagram that is being filled for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use base::Instant;
use ccp_vm::Program;
use ccp_wire::{DATAGRAM_MAX, Message, Values};

use crate::config::PROGRAMS_MAX;
use crate::flow::{Flow, Report};

/// The process behind an address, by the credentials of its datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    pub pid: u32,
    pub uid: u32,
}

/// A flow that is over for this agent: its last report if it has one that waits, and its end.
#[derive(Debug)]
pub struct Farewell {
    pub flow: u32,
    pub report: Option<Report>,
}

/// A program that the agent has installed.
#[derive(Debug)]
struct Installed {
    /// When it was chosen last, counted in choices.
    chosen: u64,
    program: Arc<Program>,
    /// Its INSTALL, for a recording that begins later: at most 4.4 KB.
    message: Vec<u8>,
}

/// Programs by the agent's numbers.
#[derive(Debug, Default)]
pub struct Programs {
    known: BTreeMap<u32, Installed>,
    choices: u64,
}

impl Programs {
    /// Keeps a program, and the message that has brought it. One of the same number, or the one that was not chosen for the longest time, makes room; flows keep what they run.
    pub fn insert(&mut self, number: u32, program: Program, message: Vec<u8>) {
        if self.known.len() >= PROGRAMS_MAX && !self.known.contains_key(&number) {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.chosen).map(|(number, _)| *number);
            oldest.and_then(|number| self.known.remove(&number));
        }
        self.choices += 1;
        let (chosen, program) = (self.choices, Arc::new(program));
        self.known.insert(number, Installed { chosen, program, message });
    }

    pub fn choose(&mut self, number: u32) -> Option<Arc<Program>> {
        self.choices += 1;
        let known = self.known.get_mut(&number)?;
        known.chosen = self.choices;
        Some(Arc::clone(&known.program))
    }

    /// The INSTALL of each program.
    pub fn messages(&self) -> impl Iterator<Item = &[u8]> {
        self.known.values().map(|known| &known.message[..])
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }
}

/// One agent, from its configuration on, with a process behind it or not.
#[derive(Debug)]
pub struct Agent {
    pub address: Vec<u8>,
    /// Names of the algorithms that it serves; none: all that no other agent serves.
    pub names: Vec<String>,
    /// Its process, once a datagram has come.
    pub process: Option<Process>,
    pub programs: Programs,
    /// When to send a READY, for an agent without a process, or to try a full one again.
    pub try_at: Instant,
    /// Its socket was full at this time, and has been since.
    pub full_since: Option<Instant>,
    /// Flows fell back because it was full; until it reads, it gets none.
    pub is_stalled: bool,
    pub farewells: VecDeque<Farewell>,
    /// Flows that wait until it is not full any more.
    pub waiting: VecDeque<u32>,
    /// When each flow with a report that found no room falls back.
    pub graces: BTreeSet<(Instant, u32)>,
    /// Messages of the next datagram, and the flows with a report among them.
    pub datagram: Vec<u8>,
    pub reporting: Vec<u32>,
    /// Reports gather in the datagram until then.
    pub rests_until: Instant,
}

impl Agent {
    pub fn new(address: Vec<u8>, names: Vec<String>, now: Instant) -> Self {
        Self {
            address,
            names,
            process: None,
            programs: Programs::default(),
            try_at: now,
            full_since: None,
            is_stalled: false,
            farewells: VecDeque::new(),
            waiting: VecDeque::new(),
            graces: BTreeSet::new(),
            datagram: Vec::with_capacity(DATAGRAM_MAX),
            reporting: Vec::new(),
            rests_until: now,
        }
    }

    /// True if the agent's process may know the flow: its own user's, or any for root.
    pub fn sees(&self, flow: &Flow) -> bool {
        self.process.is_some_and(|process| process.uid == 0 || process.uid == flow.uid)
    }

    /// True if the agent takes flows that ask for `name`.
    pub fn serves(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|own| own == name)
    }

    /// True if `message` still fits into the datagram.
    pub fn has_room(&self, message: &Message<'_>) -> bool {
        self.datagram.len() + message.encoded_len() <= DATAGRAM_MAX
    }

    /// Appends a message, for which there must be room.
    pub fn append(&mut self, message: &Message<'_>) {
        message.encode(&mut self.datagram).expect("a datagram is shorter than a header can say");
    }

    /// Forgets the process and all that was meant for it.
    pub fn reset(&mut self, now: Instant) {
        *self = Self::new(std::mem::take(&mut self.address), std::mem::take(&mut self.names), now);
    }
}

/// The message that closes a flow.
pub const fn end_of(flow: u32) -> Message<'static> {
    Message::Measure { flow, program: 0, values: Values::of(&[]) }
}
