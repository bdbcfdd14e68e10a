//! What is shown of agents: which agent a flow belongs to, why its law is not in force, the flow's program, and counters.

use crate::config::values::AgentPlace;
use crate::registry::agents::Agents;
use crate::registry::agents::flows::id_of;
use base::Instant;
use ccp::{Reason, Standing};
use serde::Serialize;
use slowpath::{FlowName, ProgramState};
use std::collections::BTreeMap;

/// One agent, for `towpath cc list`.
#[derive(Debug, Serialize)]
pub struct AgentShown {
    path: String,
    /// What it serves; `ccp`: flows that ask for no agent by name.
    serves: Vec<String>,
    /// It is there: it has sent something.
    attached: bool,
    /// The number of its process; `None`: it is not there, or its process is in another PID namespace.
    pid: Option<u32>,
    programs: usize,
    /// The last program of it that was refused since it came, and the rule that the program breaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// A flow's program, for `towpath cc show`.
#[derive(Debug, Serialize)]
pub struct ProgramShown {
    /// The agent's number of the program.
    number: u32,
    cwnd: u64,
    /// The rate that was decided on, bytes per second; 0: none.
    rate: u64,
    /// Its control variables, and behind them its report variables.
    registers: Vec<u64>,
    runs: u64,
    /// Runs that overflow, underflow or a division by zero has stopped.
    faults: u32,
    /// Decisions that were moved to a bound.
    clamps: u64,
    is_report_due: bool,
    /// The last reports of the program, the newest first.
    last_reports: Vec<ReportShown>,
}

#[derive(Debug, Serialize)]
struct ReportShown {
    ago_us: u64,
    values: Vec<u64>,
}

impl Agents {
    /// All agents that are configured, with their processes and programs.
    pub fn list(&self) -> Vec<AgentShown> {
        let of = |(address, names): (&Vec<u8>, &Vec<String>)| AgentShown {
            path: String::from_utf8_lossy(address).into_owned(),
            serves: names.iter().map(|name| if name.is_empty() { "ccp" } else { name }.to_owned()).collect(),
            attached: self.endpoint.process_of(address).is_some(),
            pid: self.endpoint.process_of(address).filter(|pid| *pid != 0),
            programs: self.endpoint.programs_of(address),
            refused: self.refusals.get(address).cloned(),
        };
        self.names.iter().map(of).collect()
    }

    /// The number of the program by which the flow's agent decides, or why it does not.
    pub fn program_or_why(&self, law: &str, name: Option<FlowName>) -> Result<u32, String> {
        let id = name.map(id_of).ok_or("the handshake is not over")?;
        let standing = self.endpoint.standing(id).ok_or("agents have as many flows as they may have")?;
        let is_refused = self.flows.get(&id).is_some_and(|kept| kept.is_refused);
        Err(match standing {
            Standing::Running(_) if is_refused => "as many flows as possible have programs".to_owned(),
            Standing::Running(number) => return Ok(number),
            Standing::NoAgent => format!(
                "no agent is there that serves {law}; `towpath cc list` shows where one is looked for"
            ),
            Standing::OtherUser => {
                "its agent is another user's, and only root's see the flows of all users".to_owned()
            }
            Standing::NoProgram => match self.refused_of(law) {
                Some(refused) => format!("its agent has not chosen a program; {refused}"),
                None => "its agent has not chosen a program yet".to_owned(),
            },
            Standing::FellBack(Reason::AgentDied) => "its agent has died".to_owned(),
            Standing::FellBack(Reason::AgentStalled) => "its agent does not read its reports".to_owned(),
            Standing::FellBack(Reason::AgentRemoved) => "its agent is no longer configured".to_owned(),
        })
    }

    /// The last refusal of a program of the agent that serves the law.
    fn refused_of(&self, law: &str) -> Option<&String> {
        let name = if law == AgentPlace::ANY { "" } else { law };
        let serves = |names: &Vec<String>| names.iter().any(|served| served == name);
        let (address, _) = self.names.iter().find(|(_, names)| serves(names))?;
        self.refusals.get(address)
    }

    /// The state of the program that decides about the flow, with its last reports.
    pub fn program(&self, now: Instant, name: FlowName, state: ProgramState) -> ProgramShown {
        let kept = self.flows.get(&id_of(name));
        let reports = kept.into_iter().flat_map(|kept| &kept.reports);
        let (runs, faults, clamps) = state.totals;
        ProgramShown {
            number: state.number,
            cwnd: u64::from(state.cwnd),
            rate: state.rate,
            registers: state.variables,
            runs,
            faults,
            clamps,
            is_report_due: state.is_report_due,
            last_reports: reports
                .map(|(at, values)| ReportShown { ago_us: now.since(*at).as_us(), values: values.clone() })
                .collect(),
        }
    }

    /// Counters since the service began, by name.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let c = self.endpoint.counters();
        BTreeMap::from([
            ("flows", self.flows.len() as u64),
            ("unknown_senders", c.unknown_senders),
            ("refused_users", c.refused_users),
            ("malformed", c.malformed),
            ("refused_programs", c.refused_programs),
            ("unknown_flows", c.unknown_flows),
            ("unknown_programs", c.unknown_programs),
            ("refused_fields", c.refused_fields),
            ("clamps", c.clamps),
            ("installs", c.installs),
            ("creates", c.creates),
            ("reports", c.reports),
            ("datagrams", c.datagrams),
            ("full", c.full),
            ("fallbacks", c.fallbacks),
            ("programs_without_room", self.programs_refused),
            ("flows_without_room", self.flows_refused),
        ])
    }
}
