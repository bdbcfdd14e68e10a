//! What decides about the flows of a trial: a law that is built into the datapath, an algorithm of an agent, or a program without an agent.

use ccp_agent::{Agent, Algorithm, Datapath, Error, Failure, Flow, FlowInfo, Outcome, Report};
use congestion::Algorithm as Law;
use sim::AgentMaker;
use std::fmt;

/// In front of the name of an algorithm of crate `ccp-algorithms` that has the name of a built-in one.
const OF_AGENTS: &str = "ccp:";
/// The variable that a program without an agent may have for the bytes of a full segment.
const SEGMENT: &str = "mss";

/// What is tried, under the name that figures show.
#[derive(Clone, Debug)]
pub struct Contestant {
    /// The name in figures.
    pub name: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    BuiltIn(Law),
    Agent(AgentMaker),
}

/// There is no algorithm of this name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unknown(String);

impl fmt::Display for Unknown {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "there is no algorithm `{}`; there are {}", self.0, names().join(", "))
    }
}

impl std::error::Error for Unknown {}

/// All names that [`Contestant::named`] knows: those built in, then those of crate `ccp-algorithms`.
#[must_use]
pub fn names() -> Vec<String> {
    let built_in = Law::NAMES.iter().map(|name| (*name).to_owned());
    let agent = ccp_algorithms::all().expect("a test of that crate adds them all");
    let of_agents = agent.algorithms().map(|name| match name.parse::<Law>() {
        Ok(_) => format!("{OF_AGENTS}{name}"),
        Err(_) => name.to_owned(),
    });
    built_in.chain(of_agents).collect()
}

impl Contestant {
    /// An algorithm by name: a built-in one, else one of crate `ccp-algorithms`; `ccp:` in front asks for the latter.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn named(name: &str) -> Result<Self, Unknown> {
        let kind = match name.parse::<Law>() {
            Ok(law) => Kind::BuiltIn(law),
            Err(_) => Kind::Agent(of_agents(name)?),
        };
        Ok(Self { name: name.to_owned(), kind })
    }

    /// A program in the datapath without an agent. A variable `mss` of it gets the bytes of a full segment.
    ///
    /// # Errors
    /// If the program has mistakes.
    pub fn program(name: &str, text: &str) -> Result<Self, Error> {
        let alone = Alone { text: text.to_owned(), has_segment: false };
        Agent::new().add(alone.clone())?;
        let has_segment = ccp_lang::compile(text).is_ok_and(|compiled| compiled.field(SEGMENT).is_some());
        let alone = Alone { has_segment, ..alone };
        Ok(Self::agent(name, AgentMaker::new(move || agent_of(alone.clone()))))
    }

    /// The algorithms of an agent; each flow gets the first one that was added.
    #[must_use]
    pub fn agent(name: &str, maker: AgentMaker) -> Self {
        Self { name: name.to_owned(), kind: Kind::Agent(maker) }
    }
}

fn agent_of(algorithm: impl Algorithm + 'static) -> Agent {
    let mut agent = Agent::new();
    agent.add(algorithm).expect("it was added to another agent before");
    agent
}

/// Agents of crate `ccp-algorithms` that give all flows the algorithm of this name.
fn of_agents(name: &str) -> Result<AgentMaker, Unknown> {
    let own = name.strip_prefix(OF_AGENTS).unwrap_or(name).to_owned();
    let make = move || {
        let mut agent = ccp_algorithms::all().ok()?;
        agent.prefer(&own).ok()?;
        Some(agent)
    };
    make().ok_or_else(|| Unknown(name.to_owned()))?;
    Ok(AgentMaker::new(move || make().expect("there was one before")))
}

/// An algorithm that gives each flow its only program, and then nothing.
#[derive(Clone, Debug)]
struct Alone {
    text: String,
    has_segment: bool,
}

struct AloneFlow;

impl Algorithm for Alone {
    fn name(&self) -> &str {
        "program"
    }

    fn programs(&self) -> Vec<(String, String)> {
        vec![("program".to_owned(), self.text.clone())]
    }

    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        let segment = [(SEGMENT, info.mss)];
        datapath.set_program("program", if self.has_segment { &segment } else { &[] })?;
        Ok(Box::new(AloneFlow))
    }
}

impl Flow for AloneFlow {
    fn on_report(&mut self, _report: &Report) -> Outcome {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_that_is_listed_is_known() {
        let names = names();
        assert!(names.iter().any(|name| name == "ccp:cubic") && names.iter().any(|name| name == "copa"));
        for name in names {
            let name = name.replace("BYTES", "20000").replace("KBIT", "5000");
            Contestant::named(&name).expect(&name);
        }
        let why = Contestant::named("cubik").expect_err("no such name").to_string();
        assert!(why.contains("`cubik`") && why.contains("dctcp-rate"), "{why}");
    }

    #[test]
    fn a_program_with_a_mistake_is_refused_with_its_line() {
        let why = Contestant::program("x", "(def)\n(when true (:= Cwnd lost))").expect_err("no `lost`");
        assert!(why.to_string().contains("2:"), "{why}");
    }
}
