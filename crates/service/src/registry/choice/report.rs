//! What is shown of the choice of congestion control: `towpath cc list` and `cc show`, and the fields of `ss` and `explain`.

use crate::registry::agents::Agents;
use crate::registry::agents::report::{AgentShown, ProgramShown};
use crate::registry::choice::{Governed, Law, Source};
use crate::registry::memory::slot_key::SlotKey;
use crate::registry::report::job::{Job, Making, Refused};
use crate::registry::report::slots_left::SlotsLeft;
use crate::registry::report::{Begun, Viewer, answer_of};
use crate::registry::tcp::Flow;
use crate::registry::{Answer, Registry};
use congestion::Algorithm;
use control::{CongestionAsk, FlowEnds, TcpInfo};
use rustix::io::Errno;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Bit of `TCP_INFO`'s options: ECN is in use.
const HAS_ECN: u8 = 8;

#[derive(Debug, Serialize)]
struct RuleShown {
    rule: String,
    from: &'static str,
}

/// The answer to `towpath cc list`.
#[derive(Debug, Serialize)]
struct List {
    default: String,
    built_in: &'static [&'static str],
    of_agents: Vec<String>,
    agents: Vec<AgentShown>,
    rules: Vec<RuleShown>,
    /// Numbers of flows, by what decides about them now.
    flows: BTreeMap<String, usize>,
}

/// The answer to `towpath cc show`.
#[derive(Debug, Serialize)]
struct Shown {
    local: SocketAddr,
    remote: SocketAddr,
    process: String,
    uid: u32,
    #[serde(flatten)]
    governed: Governed,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<ProgramShown>,
    info: TcpInfo,
}

/// The report of `towpath cc list` that is being made.
#[derive(Debug)]
struct ListReport {
    list: List,
    left: SlotsLeft,
}

impl Making for ListReport {
    fn go_on(&mut self, registry: &Registry, most: usize) -> bool {
        let flows = &mut self.list.flows;
        self.left.look(registry, most, |key| {
            if let Some(governed) = registry.governed(key, None) {
                *flows.entry(governed.in_force).or_insert(0) += 1;
            }
            false
        })
    }

    fn write(self: Box<Self>) -> Result<Vec<u8>, Refused> {
        Ok(serde_json::to_vec(&self.list)?)
    }
}

/// The report of `towpath cc show` that is being made.
#[derive(Debug)]
struct ShowReport {
    ends: FlowEnds,
    viewer: Viewer,
    left: SlotsLeft,
    shown: Option<Box<Shown>>,
}

impl Making for ShowReport {
    fn go_on(&mut self, registry: &Registry, most: usize) -> bool {
        let (ends, viewer, shown) = (self.ends, self.viewer, &mut self.shown);
        self.left.look(registry, most, |key| {
            let flow = registry.flow_at(key).filter(|flow| flow.ends == [ends.local, ends.remote]);
            if let Some(flow) = flow {
                *shown = registry.shown_flow(key, flow, ends, viewer).map(Box::new);
            }
            flow.is_some()
        })
    }

    fn write(self: Box<Self>) -> Result<Vec<u8>, Refused> {
        match self.shown {
            Some(shown) => Ok(serde_json::to_vec(&shown)?),
            None => Err(Refused(Errno::NOENT, UNKNOWN)),
        }
    }
}

/// Why a flow is not shown.
const UNKNOWN: &str = "there is no such flow over the port, or it is another user's; `towpath ss` lists flows as LOCAL and PEER";

impl Registry {
    /// Begins to answer `Report::Congestion`; the control loop has checked that the asking user may make a change.
    pub fn congestion(&mut self, ask: CongestionAsk, viewer: Viewer) -> Begun {
        let left = SlotsLeft::of(self.regions.keys().copied().collect());
        match ask {
            CongestionAsk::List => Begun::Job(Job::new(ListReport { list: self.list(), left })),
            CongestionAsk::Show(ends) => Begun::Job(Job::new(ShowReport { ends, viewer, left, shown: None })),
            CongestionAsk::Transcript { from } => {
                let now = self.tcp_now();
                let answer = match &mut self.agents {
                    Some(agents) => answer_of(serde_json::to_vec(&agents.take_transcript(now, from))),
                    None => {
                        Answer::refused(Errno::NOENT, "it has no socket for agents: `towpath up --cc-socket`")
                    }
                };
                answer.into()
            }
            CongestionAsk::Set { which, name, is_live } => {
                let answer = match self.set_congestion(&which, name, is_live) {
                    Ok(done) => answer_of(serde_json::to_vec(&done)),
                    Err(why) => Answer::refused(Errno::INVAL, &why),
                };
                answer.into()
            }
        }
    }

    /// The list without numbers of flows.
    fn list(&self) -> List {
        let rules = self.choices.rules().iter().map(|(rule, source)| RuleShown {
            rule: rule.to_string(),
            from: match source {
                Source::Configuration => "configuration",
                Source::Command => "cc set",
            },
        });
        List {
            default: self.choices.default().to_string(),
            built_in: Algorithm::NAMES,
            of_agents: self.choices.agents().map(String::from).collect(),
            agents: self.agents.iter().flat_map(Agents::list).collect(),
            rules: rules.collect(),
            flows: BTreeMap::new(),
        }
    }

    fn shown_flow(&self, key: SlotKey, flow: &Flow, ends: FlowEnds, viewer: Viewer) -> Option<Shown> {
        let subject = self.flow_subject(flow.application, ends.local, Some(ends.remote));
        let index = self.regions.get(&key.region)?.memory.index;
        let info = self.tcp.slow.slot_info(self.tcp_now(), index, key.slot)?;
        let governed = self.governed(key, Some(&info))?;
        viewer.sees(subject.uid).then(|| Shown {
            local: ends.local,
            remote: ends.remote,
            process: subject.app.to_owned(),
            uid: subject.uid,
            governed,
            program: self.program_of(flow),
            info,
        })
    }

    fn program_of(&self, flow: &Flow) -> Option<ProgramShown> {
        let (agents, name) = (self.agents.as_ref()?, flow.name?);
        Some(agents.program(self.tcp_now(), name, self.tcp.slow.program(name)?))
    }

    /// What decides about the flow at that slot; `info` says more of why it may not be what was chosen.
    pub fn governed(&self, key: SlotKey, info: Option<&TcpInfo>) -> Option<Governed> {
        let flow = self.flow_at(key)?;
        let choice = flow.choice;
        let index = self.regions.get(&key.region)?.memory.index;
        let algorithm =
            self.tcp.slow.slot_algorithm(index, key.slot).unwrap_or(self.choices.algorithm(choice.law));
        let (in_force, why, program_number) = match choice.law {
            Law::BuiltIn(_) => (algorithm.to_string(), lacks(algorithm, info), None),
            Law::Agent(law) => {
                // Names of agents exist only where agents are configured.
                match self.agents.as_ref().map(|agents| agents.program_or_why(law.as_str(), flow.name)) {
                    Some(Ok(number)) => (law.to_string(), None, Some(number)),
                    Some(Err(why)) => (algorithm.to_string(), Some(why), None),
                    None => (law.to_string(), None, None),
                }
            }
        };
        let ecn = self.tcp.slow.slot_feedback(index, key.slot).map(slowpath::Feedback::name);
        Some(Governed {
            chosen: choice.law.to_string(),
            chosen_by: choice.by.to_string(),
            in_force,
            program_number,
            ecn,
            why,
        })
    }
}

/// Why the algorithm does not work as it should in a connection with this `info`.
fn lacks(algorithm: Algorithm, info: Option<&TcpInfo>) -> Option<String> {
    let is_without = info.is_some_and(|info| info.options & HAS_ECN == 0);
    (algorithm.needs_ecn() && is_without).then(|| {
        format!("{algorithm} hears of no marks, because the peer did not agree to ECN in the handshake")
    })
}
