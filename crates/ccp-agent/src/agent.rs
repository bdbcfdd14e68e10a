//! The agent's core: messages of datapaths into calls of handlers. It contains what a failed handler can do, and decides nothing about windows.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use base::Instant;
use ccp_wire::{Create, Message, NAME_LEN, Values, messages};

use crate::algorithm::{Algorithm, Failure, Flow, FlowInfo, FlowKey};
use crate::datapath::Datapath;
use crate::desk::{Counters, Entry, Outgoing, Peer, Shared};
use crate::error::Error;
use crate::event::{Event, What};
use crate::program::Program;
use crate::report::Report;
use crate::{DATAPATHS_MAX, FLOWS_MAX};

/// The number of the program for flows with a failed algorithm; those of algorithms follow.
const FALLBACK_NUMBER: u32 = 1;

/// A live flow, as a list shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowView {
    /// What the datapath said of it.
    pub info: FlowInfo,
    /// The algorithm that serves it.
    pub algorithm: String,
    /// The program that it runs; `None`: none yet.
    pub program: Option<String>,
    /// The time at which its CREATE came.
    pub opened_at: Instant,
    /// When its last report came.
    pub reported_at: Option<Instant>,
    /// The number of reports that its handler got.
    pub reports: u64,
    /// The last window that the agent has set, bytes; 0: none. Programs may have changed it since.
    pub cwnd: u64,
    /// The last rate that the agent has set, bytes per second; 0: none.
    pub rate: u64,
    /// A handler of the flow has failed: Reno in the datapath decides.
    pub has_failed: bool,
}

/// A datapath that has sent a datagram.
struct Met {
    datapath: u32,
    /// It got all programs just now.
    is_new: bool,
}

/// See the crate's documentation.
pub struct Agent {
    desk: Shared,
    algorithms: Vec<Box<dyn Algorithm>>,
    flows: BTreeMap<FlowKey, Box<dyn Flow>>,
    /// The algorithm of flows that ask for none, or for one that is not here.
    preferred: usize,
    fallback: Arc<Program>,
    next_program: u32,
}

impl Default for Agent {
    fn default() -> Self {
        Self::new()
    }
}

impl Agent {
    /// An agent without algorithms, which leaves all flows to the datapath.
    #[must_use]
    pub fn new() -> Self {
        Self {
            desk: Shared::default(),
            algorithms: Vec::new(),
            flows: BTreeMap::new(),
            preferred: 0,
            fallback: Program::fallback(FALLBACK_NUMBER),
            next_program: FALLBACK_NUMBER + 1,
        }
    }

    /// Adds an algorithm, before the first datagram. The first one also serves flows that ask for none, or for one that is not here; or
    /// another one, if [`Self::prefer`] says so.
    ///
    /// # Errors
    /// If a program has mistakes, or a name is taken.
    pub fn add(&mut self, algorithm: impl Algorithm + 'static) -> Result<(), Error> {
        let name = algorithm.name();
        if name.is_empty() || name.len() >= NAME_LEN || name.contains('\0') {
            return Err(Error::BadName(name.to_owned()));
        }
        if self.algorithms.iter().any(|other| other.name() == name) {
            return Err(Error::SameName(name.to_owned()));
        }
        let (mut programs, mut names) = (Vec::new(), BTreeSet::new());
        for (name, text) in algorithm.programs() {
            programs.push(Program::new(self.next_program + programs.len() as u32, &name, &text)?);
            if !names.insert(name.clone()) {
                return Err(Error::SameName(name));
            }
        }
        self.next_program += programs.len() as u32;
        self.desk.lock().programs.push(programs);
        self.algorithms.push(Box::new(algorithm));
        Ok(())
    }

    /// The algorithm `name` serves new flows that ask for none, or for one that is not here.
    ///
    /// # Errors
    /// If no algorithm of that name was added.
    pub fn prefer(&mut self, name: &str) -> Result<(), Error> {
        let found = self.algorithms.iter().position(|known| known.name() == name);
        self.preferred = found.ok_or_else(|| Error::NoSuchAlgorithm(name.to_owned()))?;
        Ok(())
    }

    /// The names of the algorithms, in the order of their addition.
    pub fn algorithms(&self) -> impl Iterator<Item = &str> {
        self.algorithms.iter().map(|algorithm| algorithm.name())
    }

    /// A datagram has come from the socket at `from`.
    pub fn receive(&mut self, now: Instant, from: &[u8], datagram: &[u8]) {
        self.desk.lock().now = now;
        let Some(Met { datapath, is_new }) = self.meet(from) else { return };
        if messages(datagram).nth(1).is_some() {
            self.desk.lock().peers[datapath as usize].packs = true;
        }
        for message in messages(datagram) {
            match message {
                // The answer to a new datapath has all programs already.
                Ok(Message::Ready { .. }) if is_new => {}
                Ok(Message::Ready { .. }) => self.restart(datapath),
                Ok(Message::Create { flow, create }) => {
                    self.open(FlowKey { datapath, number: flow }, &create);
                }
                Ok(Message::Measure { flow, program, values }) => {
                    let flow = FlowKey { datapath, number: flow };
                    if values.is_empty() { self.close(flow) } else { self.report(flow, program, values) }
                }
                Ok(other) => self.misunderstood(format!("{:?} is no message to an agent", other.kind())),
                Err(why) => self.misunderstood(why.to_string()),
            }
        }
    }

    /// Calls the handlers of timers that are due.
    pub fn drive(&mut self, now: Instant) {
        self.desk.lock().now = now;
        // A handler may set its timer to no time at all: each flow has one turn.
        let due: Vec<FlowKey> = std::iter::from_fn(|| self.desk.lock().take_due()).collect();
        for flow in due {
            self.with_flow(flow, "on_timer", |flow| flow.on_timer());
        }
    }

    /// When [`Self::drive`] has something to do, if nothing else happens.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        self.desk.lock().timers.first().map_or(Instant::NEVER, |(at, _)| *at)
    }

    /// No socket is at this address any more: its flows are over. When the datapath speaks again, it gets all programs.
    pub fn gone(&mut self, now: Instant, address: &[u8]) {
        let mut desk = self.desk.lock();
        desk.now = now;
        let Some(index) = desk.index_of(address) else { return };
        desk.peers[index].is_installed = false;
        desk.outgoing.retain(|outgoing| outgoing.to != address);
        drop(desk);
        self.end_flows(index as u32);
    }

    /// The next datagram to send, in order.
    pub fn poll_outgoing(&mut self) -> Option<Outgoing> {
        self.desk.lock().outgoing.pop_front()
    }

    /// The next line of the log.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.desk.lock().events.pop_front()
    }

    /// What was counted so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.desk.lock().counters
    }

    /// All flows that have begun and not ended, also those with a failed algorithm.
    #[must_use]
    pub fn flows(&self) -> Vec<FlowView> {
        let desk = self.desk.lock();
        let view = |entry: &Entry| FlowView {
            info: entry.info.clone(),
            algorithm: self.algorithms[entry.algorithm].name().to_owned(),
            program: entry.program.as_ref().map(|program| program.name.clone()),
            opened_at: entry.opened_at,
            reported_at: entry.reported_at,
            reports: entry.reports,
            cwnd: entry.cwnd,
            rate: entry.rate,
            has_failed: entry.has_failed,
        };
        desk.flows.values().map(view).collect()
    }

    /// The index of a datapath, which gets all programs with the answer to its first datagram.
    fn meet(&mut self, address: &[u8]) -> Option<Met> {
        let mut desk = self.desk.lock();
        let index = match desk.index_of(address) {
            Some(index) => index,
            None if desk.peers.len() >= DATAPATHS_MAX => return None,
            None => {
                desk.peers.push(Peer { address: address.to_vec(), is_installed: false, packs: false });
                desk.peers.len() - 1
            }
        };
        let is_new = !desk.peers[index].is_installed;
        if is_new {
            desk.tell(None, What::DatapathCame { address: address.to_vec() });
        }
        drop(desk);
        let datapath = index as u32;
        if is_new {
            self.install_all(datapath);
        }
        Some(Met { datapath, is_new })
    }

    fn install_all(&mut self, datapath: u32) {
        let mut desk = self.desk.lock();
        let of_algorithms = desk.programs.iter().flatten().map(|program| program.install());
        let installs: Vec<Vec<u8>> = std::iter::once(self.fallback.install()).chain(of_algorithms).collect();
        installs.into_iter().for_each(|install| desk.send(datapath, install));
        desk.peers[datapath as usize].is_installed = true;
    }

    /// READY: the datapath has no flows of this agent and no programs.
    fn restart(&mut self, datapath: u32) {
        self.end_flows(datapath);
        self.install_all(datapath);
    }

    fn end_flows(&mut self, datapath: u32) {
        let mut desk = self.desk.lock();
        let flows: Vec<FlowKey> =
            desk.flows.keys().filter(|flow| flow.datapath == datapath).copied().collect();
        if !flows.is_empty() {
            desk.tell(None, What::DatapathGone { flows: flows.len() });
        }
        drop(desk);
        flows.iter().for_each(|flow| self.close(*flow));
    }

    fn open(&mut self, flow: FlowKey, create: &Create) {
        // The datapath has forgotten to say that the old one is over.
        self.close(flow);
        let mut desk = self.desk.lock();
        let (cwnd, mss) = (u64::from(create.cwnd), u64::from(create.mss).max(1));
        let asked = create.name().to_owned();
        if self.algorithms.is_empty() || desk.flows.len() >= FLOWS_MAX {
            desk.counters.flows_refused += 1;
            return;
        }
        let algorithm = self.algorithms.iter().position(|known| known.name() == asked);
        let algorithm = algorithm.unwrap_or(self.preferred);
        let (source, destination) = (create.source, create.destination);
        let info = FlowInfo { flow, asked: asked.clone(), cwnd, mss, source, destination };
        let entry = Entry {
            info: info.clone(),
            algorithm,
            program: None,
            timer: None,
            opened_at: desk.now,
            reported_at: None,
            reports: 0,
            cwnd: 0,
            rate: 0,
            has_failed: false,
        };
        desk.flows.insert(flow, entry);
        let name = self.algorithms[algorithm].name().to_owned();
        desk.tell(Some(flow), What::Opened { algorithm: name, asked, source, destination });
        drop(desk);
        let datapath = Datapath::new(self.desk.clone(), flow);
        let chosen = &mut self.algorithms[algorithm];
        match contained(|| chosen.new_flow(datapath, &info)) {
            Ok(object) => {
                self.flows.insert(flow, object);
            }
            Err(why) => self.fail(flow, "new_flow", why),
        }
    }

    fn report(&mut self, flow: FlowKey, number: u32, values: Values<'_>) {
        let mut desk = self.desk.lock();
        let now = desk.now;
        let Some(entry) = desk.flows.get_mut(&flow).filter(|entry| !entry.has_failed) else {
            desk.counters.unknown_flows += 1;
            return;
        };
        let present = entry.program.as_ref().filter(|program| program.number == number);
        let Some(program) = present.filter(|program| program.reports().count() == values.len()) else {
            desk.counters.stale_reports += 1;
            return;
        };
        let report = Report { program: Arc::clone(program), values: values.iter().collect() };
        entry.reports += 1;
        entry.reported_at = Some(now);
        desk.counters.reports += 1;
        drop(desk);
        self.with_flow(flow, "on_report", |object| object.on_report(&report));
    }

    fn close(&mut self, flow: FlowKey) {
        let Some(entry) = self.desk.lock().remove(flow) else { return };
        self.close_object(flow, entry.algorithm);
        self.desk.lock().tell(Some(flow), What::Closed { reports: entry.reports });
    }

    /// Calls a handler of a flow that has not failed.
    fn with_flow(
        &mut self,
        flow: FlowKey,
        handler: &'static str,
        call: impl FnOnce(&mut dyn Flow) -> Result<(), Failure>,
    ) {
        let Some(object) = self.flows.get_mut(&flow) else { return };
        if let Err(why) = contained(|| call(object.as_mut())) {
            self.fail(flow, handler, why);
        }
    }

    /// The flow's algorithm is over: Reno in the datapath has the flow from now on.
    fn fail(&mut self, flow: FlowKey, handler: &'static str, why: String) {
        let mut desk = self.desk.lock();
        desk.counters.failures += 1;
        let Some(entry) = desk.flows.get(&flow) else { return };
        let (algorithm, mss) = (entry.algorithm, entry.info.mss);
        let name = self.algorithms[algorithm].name().to_owned();
        desk.tell(Some(flow), What::Failed { algorithm: name, handler, why });
        desk.set_timer(flow, None).ok();
        desk.change(flow, &self.fallback, &[("mss", mss)])
            .expect("the flow lives, and the program has `mss`");
        if let Some(entry) = desk.flows.get_mut(&flow) {
            entry.has_failed = true;
        }
        drop(desk);
        self.close_object(flow, algorithm);
    }

    /// Drops the algorithm's object of a flow. It hears of it first.
    fn close_object(&mut self, flow: FlowKey, algorithm: usize) {
        let Some(mut object) = self.flows.remove(&flow) else { return };
        let closed = contained(|| {
            object.close();
            Ok(())
        });
        if let Err(why) = closed {
            let name = self.algorithms[algorithm].name().to_owned();
            self.desk.lock().tell(Some(flow), What::Failed { algorithm: name, handler: "close", why });
        }
    }

    fn misunderstood(&mut self, why: String) {
        let mut desk = self.desk.lock();
        desk.counters.malformed += 1;
        desk.tell(None, What::Misunderstood { why });
    }
}

/// Runs a handler. Its failure, or its panic, becomes a text. What the handler left half changed is its own flow, which is dropped.
fn contained<T>(handler: impl FnOnce() -> Result<T, Failure>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(handler)) {
        Ok(done) => done.map_err(|why| why.to_string()),
        Err(panic) => Err(format!("panic: {}", words_of(panic.as_ref()))),
    }
}

fn words_of(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words")
}
