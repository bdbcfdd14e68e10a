//! What the handles of flows and the agent share: which flow runs what, timers, and what is to be sent. No handler runs while it is locked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Duration, Instant};
use ccp_wire::{Fields, Message};

use crate::algorithm::{FlowInfo, FlowKey};
use crate::error::Error;
use crate::event::{Event, What};
use crate::program::{Program, encoded};
use crate::{EVENTS_MAX, OUTGOING_MAX, TIMER_MIN};

/// A datagram for a datapath.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// The path of the datapath's socket.
    pub to: Vec<u8>,
    /// The bytes of one message; of several for a datapath that packs its own.
    pub bytes: Vec<u8>,
}

/// Bytes of messages in one datagram at most.
const PACKED_MAX: usize = 4096;

/// Numbers since the agent began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Reports that a handler got.
    pub reports: u64,
    /// Reports of a program that the flow had left, or of a length that its program does not have.
    pub stale_reports: u64,
    /// Reports of flows that are not known, or that have failed.
    pub unknown_flows: u64,
    /// Messages without a meaning, or of a kind that datapaths do not send.
    pub malformed: u64,
    /// Flows that were left to the datapath's default algorithm, because there were too many.
    pub flows_refused: u64,
    /// Flows with a handler that failed.
    pub failures: u64,
    /// Datagrams that were dropped because too many waited.
    pub outgoing_lost: u64,
    /// Events that were not kept.
    pub events_lost: u64,
}

/// A datapath, by the address of its socket.
#[derive(Debug)]
pub struct Peer {
    pub address: Vec<u8>,
    /// It has got the programs since it began, or since it was gone.
    pub is_installed: bool,
    /// A datagram of it had several messages: it takes such datagrams, too. libccp takes one message at a time.
    pub packs: bool,
}

/// One live flow as the agent keeps it, beside the algorithm's own object.
#[derive(Debug)]
pub struct Entry {
    pub info: FlowInfo,
    /// The index of its algorithm.
    pub algorithm: usize,
    pub program: Option<Arc<Program>>,
    pub timer: Option<Instant>,
    pub opened_at: Instant,
    pub reported_at: Option<Instant>,
    pub reports: u64,
    /// The last window and rate that the agent has set; 0: none.
    pub cwnd: u64,
    pub rate: u64,
    pub has_failed: bool,
}

/// What the lock protects: all flows, timers and datagrams of one agent.
#[derive(Debug, Default)]
pub struct Desk {
    pub now: Instant,
    pub peers: Vec<Peer>,
    /// The programs of each algorithm, by the algorithm's index.
    pub programs: Vec<Vec<Arc<Program>>>,
    pub flows: BTreeMap<FlowKey, Entry>,
    pub timers: BTreeSet<(Instant, FlowKey)>,
    pub outgoing: VecDeque<Outgoing>,
    pub events: VecDeque<Event>,
    pub counters: Counters,
}

/// The desk behind its lock, which is held for single calls only.
#[derive(Clone, Debug, Default)]
pub struct Shared(Arc<Mutex<Desk>>);

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Desk> {
        // No call leaves the desk half changed, so a panic elsewhere does not make it wrong.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Desk {
    /// The index of the datapath with its socket at `address`.
    pub fn index_of(&self, address: &[u8]) -> Option<usize> {
        self.peers.iter().position(|peer| peer.address == address)
    }

    pub fn tell(&mut self, flow: Option<FlowKey>, what: What) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(Event { at: self.now, flow, what });
        } else {
            self.counters.events_lost += 1;
        }
    }

    pub fn send(&mut self, datapath: u32, bytes: Vec<u8>) {
        let Some(peer) = self.peers.get(datapath as usize) else { return };
        if let Some(last) = self.outgoing.back_mut()
            && peer.packs
            && last.to == peer.address
            && last.bytes.len() + bytes.len() <= PACKED_MAX
        {
            return last.bytes.extend(bytes);
        }
        if self.outgoing.len() < OUTGOING_MAX {
            self.outgoing.push_back(Outgoing { to: peer.address.clone(), bytes });
        } else {
            self.counters.outgoing_lost += 1;
        }
    }

    /// The program of this name of the flow's own algorithm.
    pub fn program(&self, flow: FlowKey, name: &str) -> Result<Arc<Program>, Error> {
        let entry = self.live(flow)?;
        let own = self.programs.get(entry.algorithm).into_iter().flatten();
        let found = own.into_iter().find(|program| program.name == name);
        found.cloned().ok_or_else(|| Error::NoSuchProgram(name.to_owned()))
    }

    /// Gives a flow a program, with these fields set before its first run.
    pub fn change(
        &mut self,
        flow: FlowKey,
        program: &Arc<Program>,
        fields: &[(&str, u64)],
    ) -> Result<(), Error> {
        let updates = program.updates(fields)?;
        let entry = self.flows.get_mut(&flow).ok_or(Error::FlowIsOver)?;
        entry.program = Some(Arc::clone(program));
        entry.note(fields);
        let message =
            Message::Change { flow: flow.number, program: program.number, fields: Fields::of(&updates) };
        self.send(flow.datapath, encoded(&message));
        self.tell(Some(flow), What::Program { name: program.name.clone() });
        Ok(())
    }

    /// Sets fields of the flow's present program, window or rate.
    pub fn update(&mut self, flow: FlowKey, fields: &[(&str, u64)]) -> Result<(), Error> {
        let program = self.live(flow)?.program.clone().ok_or(Error::NoProgram)?;
        let updates = program.updates(fields)?;
        if let Some(entry) = self.flows.get_mut(&flow) {
            entry.note(fields);
        }
        if !updates.is_empty() {
            let message = Message::Update { flow: flow.number, fields: Fields::of(&updates) };
            self.send(flow.datapath, encoded(&message));
        }
        Ok(())
    }

    /// Sets the flow's only timer, or takes it away. No timer is shorter than [`TIMER_MIN`].
    pub fn set_timer(&mut self, flow: FlowKey, after: Option<Duration>) -> Result<(), Error> {
        self.live(flow)?;
        let at = after.map(|after| self.now.plus(after.max(TIMER_MIN)));
        let Some(entry) = self.flows.get_mut(&flow) else { return Ok(()) };
        if let Some(before) = std::mem::replace(&mut entry.timer, at) {
            self.timers.remove(&(before, flow));
        }
        self.timers.extend(at.map(|at| (at, flow)));
        Ok(())
    }

    /// The first flow with a timer that is due; the timer is gone then.
    pub fn take_due(&mut self) -> Option<FlowKey> {
        let (at, flow) = *self.timers.first()?;
        if at > self.now {
            return None;
        }
        self.timers.remove(&(at, flow));
        if let Some(entry) = self.flows.get_mut(&flow) {
            entry.timer = None;
        }
        Some(flow)
    }

    /// Takes a flow off the list.
    pub fn remove(&mut self, flow: FlowKey) -> Option<Entry> {
        let entry = self.flows.remove(&flow)?;
        if let Some(at) = entry.timer {
            self.timers.remove(&(at, flow));
        }
        Some(entry)
    }

    fn live(&self, flow: FlowKey) -> Result<&Entry, Error> {
        self.flows.get(&flow).filter(|entry| !entry.has_failed).ok_or(Error::FlowIsOver)
    }
}

impl Entry {
    fn note(&mut self, fields: &[(&str, u64)]) {
        for (name, value) in fields {
            match *name {
                "Cwnd" => self.cwnd = *value,
                "Rate" => self.rate = *value,
                _ => {}
            }
        }
    }
}
