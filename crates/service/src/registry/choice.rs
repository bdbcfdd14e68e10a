//! Which congestion control a flow over the port gets: by its socket (`TCP_CONGESTION`), else by the first rule that fits it, else by
//! `--congestion`. This file only decides; `live` carries out what is changed while the service runs, `report` shows it.

pub(crate) mod live;
pub(crate) mod report;

use crate::config::values::{AgentPlace, Congestion};
use congestion::Algorithm;
use control::{CongestionName, CongestionRule, FlowSelector, FlowSubject};
use rustix::io::Errno;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

/// Most rules at once: they are searched for each new flow.
pub const RULES_MAX: usize = 1024;

/// What decides about a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Law {
    /// One of our own algorithms.
    BuiltIn(Algorithm),
    /// An agent that serves this name; a default algorithm decides while there is none.
    Agent(CongestionName),
}

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(algorithm) => algorithm.fmt(f),
            Self::Agent(name) => name.fmt(f),
        }
    }
}

/// What has chosen it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chooser {
    /// The program, by `TCP_CONGESTION`.
    Socket,
    /// The first rule that fits the flow.
    Rule,
    /// The key `congestion` of the configuration.
    Default,
}

impl fmt::Display for Chooser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Socket => "TCP_CONGESTION",
            Self::Rule => "a rule",
            Self::Default => "--congestion",
        })
    }
}

/// What a flow gets, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// What decides about the flow.
    pub law: Law,
    /// What has chosen the law.
    pub by: Chooser,
}

/// What decides about a flow, as it is shown.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Governed {
    /// The congestion control that was chosen.
    pub chosen: String,
    /// What has chosen it.
    pub chosen_by: String,
    /// The congestion control that decides now.
    pub in_force: String,
    /// The number that the agent has given to the program that decides now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program_number: Option<u32>,
    /// How congestion marks are fed back: none, classic, dctcp or accurate; nothing before the connection is established.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecn: Option<&'static str>,
    /// Why that is not what was chosen, or does not work as it should.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Where a rule comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The key `cc_rules` of the configuration.
    Configuration,
    /// The command `towpath cc set`.
    Command,
}

/// The names that there are, and the rules in the order in which they are asked.
#[derive(Clone, Debug)]
pub struct Choices {
    default: Law,
    /// Names that agents serve.
    agents: BTreeSet<CongestionName>,
    rules: Vec<(CongestionRule, Source)>,
    /// The service's own user: it and root may choose what ignores congestion.
    own_uid: u32,
}

impl Choices {
    /// The choices of a configuration. `own_uid` is the service's user.
    ///
    /// # Errors
    /// A name that is neither ours nor an agent's, with what to do.
    pub fn new(
        default: Congestion,
        places: &[AgentPlace],
        rules: Vec<CongestionRule>,
        own_uid: u32,
    ) -> Result<Self, String> {
        let any = CongestionName::of_option(AgentPlace::ANY.as_bytes());
        let agents = places.iter().filter_map(|place| place.name.or(any)).collect();
        let mut choices =
            Self { default: Law::BuiltIn(Algorithm::default()), agents, rules: Vec::new(), own_uid };
        if let Some(name) = choices.agents.iter().find(|name| built_in(**name).is_some()) {
            return Err(format!(
                "--cc-agents: `{name}` is an algorithm of this service: give the agent another name"
            ));
        }
        choices.default = match default {
            Congestion::BuiltIn(algorithm) => Law::BuiltIn(algorithm),
            Congestion::Agent(name) => {
                choices.law(name).ok_or_else(|| choices.unknown("--congestion", name))?
            }
        };
        if rules.len() > RULES_MAX {
            return Err(format!("--cc-rules: at most {RULES_MAX} rules can be asked for each flow"));
        }
        for rule in rules {
            choices.law(rule.name).ok_or_else(|| choices.unknown("--cc-rules", rule.name))?;
            choices.rules.push((rule, Source::Configuration));
        }
        Ok(choices)
    }

    fn unknown(&self, key: &str, name: CongestionName) -> String {
        let agents: String = self.agents.iter().map(|name| format!(", {name}")).collect();
        format!(
            "{key}: there is no congestion control `{name}`; {}{agents}; --cc-agents names agents that have others",
            congestion::UnknownAlgorithm
        )
    }

    /// What decides about flows without a choice of their own.
    #[must_use]
    pub const fn default(&self) -> Law {
        self.default
    }

    /// What the name stands for; `None`: nothing has that name.
    #[must_use]
    pub fn law(&self, name: CongestionName) -> Option<Law> {
        let of_agent = || self.agents.contains(&name).then_some(Law::Agent(name));
        built_in(name).map(Law::BuiltIn).or_else(of_agent)
    }

    /// What the name stands for, for a program of that user.
    ///
    /// # Errors
    /// As Linux: ENOENT for an unknown name, EPERM for one that the user may not have.
    pub fn judge(&self, name: CongestionName, uid: u32) -> Result<Law, Errno> {
        let law = self.law(name).ok_or(Errno::NOENT)?;
        let is_harmful = matches!(law, Law::BuiltIn(algorithm) if algorithm.ignores_congestion());
        if is_harmful && uid != 0 && uid != self.own_uid { Err(Errno::PERM) } else { Ok(law) }
    }

    /// The rules, in the order in which they are asked.
    #[must_use]
    pub fn rules(&self) -> &[(CongestionRule, Source)] {
        &self.rules
    }

    /// Names that agents serve.
    pub fn agents(&self) -> impl Iterator<Item = CongestionName> {
        self.agents.iter().copied()
    }

    /// What a flow gets. `asked`: by its socket.
    #[must_use]
    pub fn choose(&self, flow: &FlowSubject<'_>, asked: Option<CongestionName>) -> Choice {
        if let Some(law) = asked.and_then(|name| self.judge(name, flow.uid).ok()) {
            return Choice { law, by: Chooser::Socket };
        }
        let fitting = self.rules.iter().find(|(rule, _)| rule.which.fits(flow));
        match fitting.and_then(|(rule, _)| self.law(rule.name)) {
            Some(law) => Choice { law, by: Chooser::Rule },
            None => Choice { law: self.default, by: Chooser::Default },
        }
    }

    /// The algorithm that decides about a flow with that law while no agent does.
    #[must_use]
    pub fn algorithm(&self, law: Law) -> Algorithm {
        match (law, self.default) {
            (Law::BuiltIn(algorithm), _) | (Law::Agent(_), Law::BuiltIn(algorithm)) => algorithm,
            (Law::Agent(_), Law::Agent(_)) => Algorithm::default(),
        }
    }

    /// Puts a rule in front of all others, in place of one for the same flows; without a `name` takes that one away.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn set(&mut self, which: &FlowSelector, name: Option<CongestionName>) -> Result<(), String> {
        let is_same = |rule: &CongestionRule| rule.which == *which;
        let Some(name) = name else {
            let before = self.rules.len();
            self.rules.retain(|(rule, _)| !is_same(rule));
            let is_gone = self.rules.len() < before;
            return if is_gone {
                Ok(())
            } else {
                Err("there is no rule for these flows; `towpath cc list` shows all".to_owned())
            };
        };
        self.law(name).ok_or_else(|| self.unknown("cc set", name))?;
        self.rules.retain(|(rule, _)| !is_same(rule));
        if self.rules.len() >= RULES_MAX {
            return Err(format!("there are {RULES_MAX} rules: take one away (`towpath cc set ... default`)"));
        }
        self.rules.insert(0, (CongestionRule { which: which.clone(), name }, Source::Command));
        Ok(())
    }
}

/// Our own algorithm of that name.
fn built_in(name: CongestionName) -> Option<Algorithm> {
    name.as_str().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> CongestionName {
        text.parse().expect("a name")
    }

    fn choices(default: &str, rules: &[&str]) -> Result<Choices, String> {
        let places = ["/tmp/ccp/portus", "copa=/run/copa"].map(|place| place.parse().expect("a place"));
        let rules = rules.iter().map(|rule| rule.parse().expect("a rule")).collect();
        Choices::new(default.parse().expect("a name"), &places, rules, 7)
    }

    const FLOW: FlowSubject<'_> = FlowSubject {
        app: "iperf3",
        uid: 1000,
        local: std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 4000),
        remote: None,
    };

    #[test]
    fn the_socket_comes_before_rules_and_rules_before_the_default() {
        let all = choices("dctcp", &["app=iperf3 reno", "uid=1000 cubic"]).expect("good");
        let got = |asked: Option<&str>, app| {
            let choice = all.choose(&FlowSubject { app, ..FLOW }, asked.map(name));
            (choice.law.to_string(), choice.by)
        };
        assert_eq!(got(Some("copa"), "iperf3"), ("copa".to_owned(), Chooser::Socket));
        assert_eq!(got(None, "iperf3"), ("reno".to_owned(), Chooser::Rule), "the first one that fits");
        assert_eq!(got(None, "nc"), ("cubic".to_owned(), Chooser::Rule));
        let other = all.choose(&FlowSubject { uid: 0, app: "nc", ..FLOW }, Some(name("nosuch")));
        assert_eq!((other.law.to_string(), other.by), ("dctcp".to_owned(), Chooser::Default));
        assert_eq!(all.algorithm(Law::Agent(name("copa"))), Algorithm::Dctcp, "while there is no agent");
    }

    #[test]
    fn unknown_names_are_refused_and_what_ignores_congestion_is_not_for_all() {
        let all = choices("ccp", &[]).expect("an agent without a name serves this one");
        let judge = |text, uid| all.judge(name(text), uid).map(|law| law.to_string());
        assert_eq!(judge("nosuch", 0), Err(Errno::NOENT));
        assert_eq!(judge("constant:65536", 1000), Err(Errno::PERM));
        for uid in [0, 7] {
            assert_eq!(judge("constant:65536", uid).as_deref(), Ok("constant:65536"));
        }
        assert_eq!(judge("ccp", 1000).as_deref(), Ok("ccp"));
        let stolen = all.choose(&FLOW, Some(name("constant:65536")));
        assert_eq!(stolen.by, Chooser::Default, "a library that does not ask first gains nothing");
    }

    #[test]
    fn a_mistake_in_the_configuration_is_named() {
        for (default, rules, says) in [
            ("nosuch", &[][..], "--congestion: there is no congestion control `nosuch`"),
            ("cubic", &["port=1 nosuch"][..], "--cc-rules: there is no congestion control `nosuch`"),
        ] {
            let error = choices(default, rules).expect_err(says);
            assert!(
                error.contains(says) && error.contains("copa") && error.contains("--cc-agents"),
                "{error}"
            );
        }
        let places = ["reno=/run/reno".parse().expect("a place")];
        let error = Choices::new(Congestion::default(), &places, Vec::new(), 0).expect_err("taken");
        assert!(error.contains("another name"), "{error}");
    }

    #[test]
    fn a_new_rule_comes_first_and_one_for_the_same_flows_makes_room() {
        let mut all = choices("cubic", &["app=iperf3 reno", "uid=1000 dctcp"]).expect("good");
        let which = |text: &str| text.parse::<CongestionRule>().expect("a rule").which;
        let got = |all: &Choices| all.choose(&FLOW, None).law.to_string();
        all.set(&which("port=4000 x"), Some(name("copa"))).expect("a new rule");
        assert_eq!(got(&all), "copa");
        all.set(&which("port=4000 x"), Some(name("cubic"))).expect("a changed rule");
        assert_eq!((got(&all), all.rules.len()), ("cubic".to_owned(), 3));
        all.set(&which("port=4000 x"), None).expect("a rule less");
        assert_eq!(got(&all), "reno");
        assert!(all.set(&which("port=4000 x"), None).is_err_and(|why| why.contains("no rule")));
        assert!(all.set(&which("port=1 x"), Some(name("nosuch"))).is_err_and(|why| why.contains("nosuch")));
        for port in 0..2_000 {
            let done =
                all.set(&FlowSelector { port: Some(port), ..FlowSelector::default() }, Some(name("reno")));
            assert_eq!(done.is_ok(), usize::from(port) < RULES_MAX - 2, "{port}");
        }
    }
}
