//! Flows and their agents: which flow the endpoint knows, the way of its reports, and of what its agent decides.

use crate::config::values::AgentPlace;
use crate::registry::Registry;
use crate::registry::agents::{Agents, Kept, REPORTS_KEPT};
use crate::registry::choice::Law;
use crate::registry::memory::region::Use;
use crate::registry::memory::slot_key::SlotKey;
use base::Instant;
use ccp::{Command, FlowId, NewFlow};
use ccp_wire::{Create, shown_address};
use control::CongestionName;
use flow::Start;
use slowpath::{FlowEvent, FlowName, NotBegun, SlowPath};
use std::net::SocketAddr;
use std::num::NonZeroU64;

pub(super) const fn id_of(name: FlowName) -> FlowId {
    FlowId(name.number())
}

const fn name_of(id: FlowId) -> FlowName {
    FlowName::from_number(id.0)
}

impl Registry {
    /// Hears agents: their datagrams, and the ends of their processes.
    pub fn hear_agents(&mut self) {
        let now = self.tcp_now();
        if let Some(agents) = &mut self.agents {
            agents.hear(now);
        }
    }

    /// Carries events of flows to agents, and what they decide to flows.
    pub fn pump_agents(&mut self) {
        let Some(mut agents) = self.agents.take() else { return };
        let now = self.tcp_now();
        while let Some(event) = self.tcp.slow.poll_flow_event() {
            match event {
                FlowEvent::Opened(name) => self.flow_opened(&mut agents, name),
                FlowEvent::ReportDue(name) => agents.offer(now, &mut self.tcp.slow, name),
                FlowEvent::Closed(name) => {
                    agents.offer(now, &mut self.tcp.slow, name);
                    agents.leave(id_of(name));
                }
            }
        }
        // What is carried out may give the endpoint something to send, which may lead to further commands: an agent is lost once.
        loop {
            agents.drive(now);
            if !agents.carry_out(now, &mut self.tcp.slow) {
                break;
            }
        }
        agents.log_notices();
        self.agents = Some(agents);
    }

    /// When agents have something to do, if nothing else happens.
    pub fn agents_due(&self) -> Option<std::time::Instant> {
        let due = self.agents.as_ref()?.due();
        (due != Instant::NEVER).then(|| self.tcp.system_time(due))
    }

    fn flow_opened(&mut self, agents: &mut Agents, name: FlowName) {
        let Some(facts) = self.tcp.slow.flow_facts(name) else { return };
        let (index, slot) = facts.owner;
        let Some(region) = self.indices.get(u32::from(index)).copied() else { return };
        let Some(r) = self.regions.get_mut(&region) else { return };
        let Some(Use::Flow(flow)) = r.slots.get_mut(slot) else { return };
        flow.name = Some(name);
        self.enter(agents, SlotKey { region, slot });
    }

    /// Tells agents of the flow at that slot, if its congestion control is an agent's.
    pub fn enter(&mut self, agents: &mut Agents, key: SlotKey) {
        let Some(flow) = self.flow_at(key) else { return };
        let (Law::Agent(law), Some(name)) = (flow.choice.law, flow.name) else { return };
        let subject = self.flow_subject(flow.application, flow.ends[0], Some(flow.ends[1]));
        let Some(facts) = self.tcp.slow.flow_facts(name) else { return };
        let (source, destination) = (facts.tuple.src, facts.tuple.dst);
        let shown = |end: wire::Endpoint| shown_address(SocketAddr::new(end.addr, end.port));
        let create = Create::new(facts.cwnd, u32::from(facts.mss), shown(source), shown(destination));
        let rate_max = facts.rate_max.map_or(u64::MAX, NonZeroU64::get);
        agents.enter(NewFlow {
            id: id_of(name),
            uid: subject.uid,
            rtt: facts.rtt,
            rate_max,
            create: named(create, law),
        });
    }
}

/// The flow with its name for agents: an agent's default has none.
fn named(create: Create, law: CongestionName) -> Create {
    if law.as_str() == AgentPlace::ANY { create } else { create.with_name(law.as_str()).unwrap_or(create) }
}

impl Agents {
    fn enter(&mut self, new: NewFlow) {
        let id = new.id;
        if self.endpoint.open(new).is_ok() {
            self.flows.insert(id, Kept::default());
        } else {
            self.flows_refused += 1;
        }
    }

    /// The flow is over, or under another law: its agent hears that it has ended.
    pub fn leave(&mut self, id: FlowId) {
        if self.flows.remove(&id).is_some() {
            self.endpoint.close(id);
        }
    }

    /// The flow is under another law: its program ends.
    pub fn release(&mut self, now: Instant, slow: &mut SlowPath, name: FlowName) {
        self.leave(id_of(name));
        slow.end_program(now, name);
    }

    /// Takes the flow's report, if one is due and the endpoint has room for it.
    fn offer(&mut self, now: Instant, slow: &mut SlowPath, name: FlowName) {
        let id = id_of(name);
        let Self { endpoint, flows, .. } = self;
        let Some(kept) = flows.get_mut(&id) else { return };
        slow.offer_report(name, |report| {
            let is_taken = endpoint.report(id, report.number, report.rtt, report.values).is_ok();
            endpoint.clamped(id, report.clamps.saturating_sub(kept.clamps));
            kept.clamps = report.clamps;
            if is_taken {
                kept.reports.truncate(REPORTS_KEPT - 1);
                kept.reports.push_front((now, report.values.to_vec()));
            }
            is_taken
        });
    }

    /// Carries out what the endpoint has commanded. True if there was anything.
    fn carry_out(&mut self, now: Instant, slow: &mut SlowPath) -> bool {
        let mut is_any = false;
        while let Some(command) = self.endpoint.poll_command() {
            is_any = true;
            match command {
                Command::Program { flow, program, number, changes, bounds } => {
                    let start = Start { program, number, bounds, changes };
                    let begun = slow.begin_program(now, name_of(flow), &start);
                    let is_refused = begun == Err(NotBegun::TooMany);
                    self.programs_refused += u64::from(is_refused);
                    if let Some(kept) = self.flows.get_mut(&flow) {
                        // What an earlier program has reported means nothing under this one.
                        *kept = Kept { is_refused, ..Kept::default() };
                    }
                }
                // A flow that is over, or that could not have the program, has nothing to change.
                Command::Change { flow, changes } => _ = slow.change_program(name_of(flow), &changes),
                Command::Accept { flow } => self.offer(now, slow, name_of(flow)),
                Command::Default { flow, reason: _ } => _ = slow.end_program(now, name_of(flow)),
            }
        }
        is_any
    }
}
