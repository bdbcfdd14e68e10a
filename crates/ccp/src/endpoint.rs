//! The endpoint's state: agents, flows, and which flow is at which agent. What comes from agents is in `inbound`, what goes to them in `outbound`.

use std::collections::{BTreeMap, VecDeque};

use base::{Duration, Instant};
use ccp_vm::Bounds;

use crate::agent::{Agent, Farewell};
use crate::budget::Budget;
use crate::command::{Command, Reason};
use crate::config::Config;
use crate::flow::{Flow, FlowId, NewFlow, Place, Report, Standing};
use crate::notice::{Counters, Journal, Notice};

/// Entries of flows that are over may make a queue so much longer than the number of flows.
const QUEUE_SLACK: usize = 64;

/// As many flows as configured are open: this one stays on the default algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyFlows;

/// Why a report was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// The flow's last report still waits. The datapath keeps this one, and merges later ones into it, until [`Command::Accept`].
    Busy,
    /// The flow has no agent, or is not open; nothing waits for its reports.
    NoAgent,
    /// A report of no values, or of more than 16.
    BadLength,
}

/// See the crate's documentation.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) config: Config,
    pub(crate) agents: BTreeMap<usize, Agent>,
    /// Flows by their number on the wire. A flow gets a new number whenever it falls back.
    pub(crate) flows: BTreeMap<u32, Flow>,
    pub(crate) numbers: BTreeMap<FlowId, u32>,
    /// Numbers of flows with a CREATE or a report to send, each once; those of flows that are over are passed by.
    pub(crate) queue: VecDeque<u32>,
    pub(crate) budget: Budget,
    pub(crate) commands: VecDeque<Command>,
    pub(crate) journal: Journal,
    next_agent: usize,
    next_number: u32,
}

impl Endpoint {
    /// An endpoint without agents and flows.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            budget: Budget::new(config.messages_per_second),
            config,
            agents: BTreeMap::new(),
            flows: BTreeMap::new(),
            numbers: BTreeMap::new(),
            queue: VecDeque::new(),
            commands: VecDeque::new(),
            journal: Journal::default(),
            next_agent: 0,
            next_number: 1,
        }
    }

    /// Configures an agent at `address` (the path that it binds). It serves flows that ask for one of `names`; without names, all flows
    /// that no other agent serves by name. An address that is configured gets the new names; its present flows stay.
    pub fn add_agent(&mut self, now: Instant, address: &[u8], names: &[&str]) {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        if let Some(agent) = self.agents.values_mut().find(|agent| agent.address == address) {
            agent.names = names;
        } else {
            self.agents.insert(self.next_agent, Agent::new(address.to_vec(), names, now));
            self.next_agent += 1;
        }
        self.settle_all();
    }

    /// Takes an agent out of the configuration. Its flows fall back at once.
    pub fn remove_agent(&mut self, now: Instant, address: &[u8]) {
        if let Some(index) = self.index_of(address) {
            self.lose(now, index, Reason::AgentRemoved);
            self.agents.remove(&index);
        }
    }

    /// The process of the agent at `address` has ended, as a pidfd of it says.
    pub fn agent_died(&mut self, now: Instant, address: &[u8]) {
        if let Some(index) = self.index_of(address) {
            self.lose(now, index, Reason::AgentDied);
        }
    }

    /// The process of the agent at `address`, so that its end can be watched.
    #[must_use]
    pub fn process_of(&self, address: &[u8]) -> Option<u32> {
        let agent = &self.agents[&self.index_of(address)?];
        agent.process.map(|process| process.pid)
    }

    /// Programs that the agent at `address` has installed.
    #[must_use]
    pub fn programs_of(&self, address: &[u8]) -> usize {
        self.index_of(address).map_or(0, |index| self.agents[&index].programs.len())
    }

    /// The programs that agents have installed: the address of each agent's socket, and a datagram with an INSTALL.
    pub fn installs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.agents
            .values()
            .flat_map(|agent| agent.programs.messages().map(|message| (&agent.address[..], message)))
    }

    /// A flow has begun, or has chosen an algorithm of an agent.
    ///
    /// # Errors
    /// If there are as many flows as configured.
    ///
    /// # Panics
    /// If the flow is open: that is a bug of the datapath.
    pub fn open(&mut self, new: NewFlow) -> Result<(), TooManyFlows> {
        assert!(!self.numbers.contains_key(&new.id), "{:?} is open", new.id);
        if self.flows.len() >= self.config.flows_max {
            return Err(TooManyFlows);
        }
        let rate_max = self.config.rate_max.min(new.rate_max);
        let flow = Flow {
            id: new.id,
            uid: new.uid,
            rtt: new.rtt,
            bounds: Bounds::of(new.create.mss, self.config.cwnd_max, rate_max),
            create: new.create,
            place: Place::Free,
            is_told: false,
            is_queued: false,
            report: None,
            is_in_datagram: false,
            grace: None,
        };
        let number = self.enter(flow);
        self.settle(number);
        Ok(())
    }

    /// A flow is over, or has chosen another algorithm. Its agent is told, behind the report that may wait.
    pub fn close(&mut self, id: FlowId) {
        let Some(number) = self.numbers.remove(&id) else { return };
        let Some(mut flow) = self.flows.remove(&number) else { return };
        self.leave(number, &mut flow, true);
        self.compact();
    }

    /// A report of a flow: `program` is the number that came with the program, `rtt` the smoothed round-trip time, `values` the program's
    /// report variables.
    ///
    /// # Errors
    /// If it was not taken; the datapath keeps it then.
    pub fn report(
        &mut self,
        id: FlowId,
        program: u32,
        rtt: Duration,
        values: &[u64],
    ) -> Result<(), NotTaken> {
        let number = *self.numbers.get(&id).ok_or(NotTaken::NoAgent)?;
        let flow = self.flows.get_mut(&number).ok_or(NotTaken::NoAgent)?;
        if !matches!(flow.place, Place::At { program: Some(_), .. }) {
            return Err(NotTaken::NoAgent);
        }
        if flow.report.is_some() || flow.is_in_datagram {
            return Err(NotTaken::Busy);
        }
        flow.report = Some(Report::new(program, values).ok_or(NotTaken::BadLength)?);
        flow.rtt = rtt;
        self.enqueue(number);
        Ok(())
    }

    /// Decisions of the flow's program were moved to a bound, so many times since the last call.
    pub fn clamped(&mut self, id: FlowId, times: u64) {
        if times > 0 && self.numbers.contains_key(&id) {
            self.journal.counters.clamps += times;
            self.journal.tell(Notice::Clamped { flow: id });
        }
    }

    /// The next command to a flow. Commands of one flow come in their order; those of flows that are over may be passed by.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// The next thing that people should hear of.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.journal.poll()
    }

    /// What was counted so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.journal.counters
    }

    /// Where an open flow stands.
    #[must_use]
    pub fn standing(&self, id: FlowId) -> Option<Standing> {
        let flow = self.flows.get(self.numbers.get(&id)?)?;
        Some(match flow.place {
            Place::At { program: Some(program), .. } => Standing::Running(program),
            Place::At { program: None, .. } => Standing::NoProgram,
            Place::Fallen(reason) => Standing::FellBack(reason),
            Place::Free => {
                let there = self.agents.values().filter(|agent| agent.process.is_some());
                let mut serving = there.filter(|agent| agent.serves(flow.create.name()));
                if serving.any(|agent| !agent.sees(flow)) { Standing::OtherUser } else { Standing::NoAgent }
            }
        })
    }

    pub(crate) fn index_of(&self, address: &[u8]) -> Option<usize> {
        self.agents.iter().find(|(_, agent)| agent.address == address).map(|(index, _)| *index)
    }

    /// Gives a flow a number that no other has.
    fn enter(&mut self, flow: Flow) -> u32 {
        while self.next_number == 0 || self.flows.contains_key(&self.next_number) {
            self.next_number = self.next_number.wrapping_add(1);
        }
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        self.numbers.insert(flow.id, number);
        self.flows.insert(number, flow);
        number
    }

    /// Takes a flow away from its agent, which hears of it if `is_told_so`.
    fn leave(&mut self, number: u32, flow: &mut Flow, is_told_so: bool) {
        let agent = flow.agent().and_then(|index| self.agents.get_mut(&index));
        let Some(agent) = agent else { return };
        if let Some(at) = flow.grace.take() {
            agent.graces.remove(&(at, number));
        }
        let report = flow.report.take();
        if flow.is_told && is_told_so {
            agent.farewells.push_back(Farewell { flow: number, report });
        }
    }

    /// A flow goes back to the default algorithm and gets a new number.
    pub(crate) fn fall_back(&mut self, number: u32, reason: Reason) {
        let Some(mut flow) = self.flows.remove(&number) else { return };
        self.leave(number, &mut flow, reason == Reason::AgentStalled);
        let was_running = matches!(flow.place, Place::At { program: Some(_), .. });
        if was_running {
            self.commands.push_back(Command::Default { flow: flow.id, reason });
            self.journal.counters.fallbacks += 1;
        }
        flow.place = if was_running { Place::Fallen(reason) } else { Place::Free };
        flow.is_told = false;
        flow.is_queued = false;
        flow.is_in_datagram = false;
        let number = self.enter(flow);
        self.settle(number);
    }

    /// The agent's process is gone: all its flows fall back.
    pub(crate) fn lose(&mut self, now: Instant, index: usize, reason: Reason) {
        let Some(agent) = self.agents.get_mut(&index) else { return };
        let had_process = agent.process.is_some();
        agent.reset(now);
        let address = agent.address.clone();
        let of_agent = self.flows.iter().filter(|(_, flow)| flow.is_at(index));
        let numbers: Vec<u32> = of_agent.map(|(number, _)| *number).collect();
        if had_process {
            self.journal.tell(Notice::AgentLost { agent: address, reason, flows: numbers.len() });
        }
        for number in numbers {
            self.fall_back(number, reason);
        }
        self.compact();
    }

    /// Looks for an agent for each flow that has none.
    pub(crate) fn settle_all(&mut self) {
        let free = self.flows.iter().filter(|(_, flow)| flow.agent().is_none());
        let numbers: Vec<u32> = free.map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.settle(number));
    }

    /// Looks for an agent for a flow that has none: first one that serves it by name, then one that serves all.
    fn settle(&mut self, number: u32) {
        let Some(flow) = self.flows.get_mut(&number) else { return };
        let name = flow.create.name();
        let fits = |agent: &Agent| !agent.is_stalled && agent.serves(name) && agent.sees(flow);
        let fitting = || self.agents.iter().filter(|(_, agent)| fits(agent));
        let chosen = fitting().find(|(_, agent)| !agent.names.is_empty()).or_else(|| fitting().next());
        let Some((index, _)) = chosen else { return };
        flow.place = Place::At { agent: *index, program: None };
        self.enqueue(number);
    }

    fn enqueue(&mut self, number: u32) {
        if let Some(flow) = self.flows.get_mut(&number)
            && !std::mem::replace(&mut flow.is_queued, true)
        {
            self.queue.push_back(number);
        }
    }

    /// Drops entries of flows that are over, once there are more of them than of others.
    fn compact(&mut self) {
        let most = 2 * self.flows.len() + QUEUE_SLACK;
        let waiting = self.agents.values_mut().map(|agent| &mut agent.waiting);
        for queue in waiting.chain([&mut self.queue]) {
            if queue.len() > most {
                queue.retain(|number| self.flows.contains_key(number));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use ccp_wire::Create;

    use super::*;
    use crate::inbound::Sender;
    use crate::outbound::Sent;

    /// Flows come and go faster than the budget lets them be told: what is kept of them is bounded.
    #[test]
    fn flows_that_are_over_leave_no_more_than_a_bound_behind() {
        let mut endpoint = Endpoint::new(Config {
            datapath: 0,
            own_uid: 0,
            allowed_uids: Vec::new(),
            messages_per_second: 1,
            cwnd_max: 1,
            rate_max: 1,
            flows_max: 10,
        });
        let now = Instant::from_ns(1);
        endpoint.add_agent(now, b"agent", &[]);
        endpoint.receive(now, Sender { address: b"agent", pid: 1, uid: 0 }, &[]);
        for id in 0..10_000 {
            let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
            let create = Create::new(1, 1, address, address);
            let new = NewFlow { id: FlowId(id), uid: 0, rtt: Duration::ZERO, rate_max: 1, create };
            endpoint.open(new).expect("at most four are open");
            endpoint.drive(now, &mut |_, _| Sent::Taken);
            // Flow 0 takes the budget, and flow 1 waits for it in front of all others.
            if id > 2 {
                endpoint.close(FlowId(id - 1));
            }
        }
        assert!(endpoint.queue.len() <= QUEUE_SLACK + 8, "{} entries", endpoint.queue.len());
        assert_eq!((endpoint.flows.len(), endpoint.numbers.len()), (3, 3));
    }
}
