//! `towpath cc`: lists and changes what chooses congestion control, and shows what decides about one flow.

use crate::Where;
use crate::ask::report;
use crate::table::{align, print_report, rows_of};
use crate::{cc_check, cc_kernel, cc_record, cc_try};
use anyhow::bail;
use clap::{Args, Subcommand};
use control::{CongestionAsk, CongestionName, FlowEnds, FlowSelector, Prefix, Report};
use serde_json::Value;

pub const HELP: &str = "Examples:\n  \
towpath cc list                                        names, rules, agents\n  \
towpath cc set --app iperf3 bbr                        new flows of iperf3\n  \
towpath cc set --to 10.1.0.0/16 --live dctcp           all flows to these hosts, live ones too\n  \
towpath cc show 10.9.0.2:4000-10.9.0.1:80              what decides about one flow\n  \
towpath cc try copa --against cubic                    two algorithms over a simulated link\n\n\
A socket's own choice (TCP_CONGESTION) comes first, then the rules in their order, then --congestion.";

const SET_HELP: &str = "Examples:\n  \
towpath cc set --app iperf3 bbr                        new flows of iperf3\n  \
towpath cc set --uid 1000 --port 443 --live cubic      flows of this user with that port, live ones too\n  \
towpath cc set --flow 10.9.0.2:4000-10.9.0.1:80 --live reno\n  \
towpath cc set --app iperf3 default                    take the rule for these flows away\n  \
towpath cc set --live ccp                              everything to whatever agent is there\n\n\
A flow fits a rule when it fits all parts. A new rule comes before all others, and takes the place of one for the same flows.\n\
Sockets that have chosen by TCP_CONGESTION keep their choice. Only root and the service's user may set.";

const LIST_HELP: &str = "Examples:\n  towpath cc list\n  towpath cc list --json | jq '.rules[].rule'";

const SHOW_HELP: &str = "Examples:\n  \
towpath cc show 10.9.0.2:4000-10.9.0.1:80              LOCAL-PEER, as `towpath ss` shows them\n  \
towpath cc show '[fd00::2]:4000-[fd00::1]:80' --json";

#[derive(Debug, Args)]
pub struct Cc {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the names that there are, the rules in their order, the agents, and how many flows each has
    #[command(after_help = LIST_HELP)]
    List {
        #[command(flatten)]
        place: Where,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Choose a congestion control for the flows that fit
    #[command(after_help = SET_HELP)]
    Set(Box<Set>),
    /// Show what decides about one flow, what was chosen, and why the two differ
    #[command(after_help = SHOW_HELP)]
    Show {
        #[command(flatten)]
        place: Where,
        /// Our end and the peer's: LOCAL-PEER
        #[arg(value_name = "FLOW")]
        flow: FlowEnds,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Compile programs, and say what they cost, what they use, and what can stop a run
    #[command(after_help = cc_check::HELP)]
    Check(cc_check::Check),
    /// Try an algorithm over a simulated link, and show window, rate, round trips, queue and throughput of each flow
    #[command(after_help = cc_try::HELP)]
    Try(Box<cc_try::Try>),
    /// Record what a live service and its agents say to each other
    #[command(after_help = cc_record::RECORD_HELP)]
    Record(cc_record::Record),
    /// Give an algorithm the reports of a recording, and compare its decisions
    #[command(after_help = cc_record::REPLAY_HELP)]
    Replay(cc_record::Replay),
    /// Programs and agents for the kernel's own TCP
    #[command(after_help = cc_kernel::HELP)]
    Kernel(cc_kernel::Kernel),
}

#[derive(Debug, Args)]
struct Set {
    #[command(flatten)]
    place: Where,
    /// Flows of processes with this command, as `towpath ss` shows it
    #[arg(long, value_name = "COMMAND")]
    app: Option<String>,
    /// Flows of processes of this user, by number
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    /// Flows to peers in this prefix
    #[arg(long, value_name = "ADDRESS[/PREFIX]")]
    to: Option<Prefix>,
    /// Flows with this port at either end
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// This flow alone: LOCAL-PEER
    #[arg(long, value_name = "FLOW")]
    flow: Option<FlowEnds>,
    /// Change live flows, too
    #[arg(long)]
    live: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Name of the congestion control (`towpath cc list` shows them), or `default` to take the rule away
    #[arg(value_name = "NAME")]
    name: Wanted,
}

/// A name, or the word that takes a rule away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wanted(Option<CongestionName>);

impl std::str::FromStr for Wanted {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "default" { Ok(Self(None)) } else { text.parse().map(|name| Self(Some(name))) }
    }
}

impl Cc {
    pub fn execute(self) -> anyhow::Result<()> {
        let (place, ask, json, text): (_, _, _, fn(&Value) -> String) = match self.what {
            What::Check(check) => return check.execute(),
            What::Try(trial) => return trial.execute(),
            What::Record(record) => return record.execute(),
            What::Replay(replay) => return replay.execute(),
            What::Kernel(kernel) => return kernel.execute(),
            What::List { place, json } => (place, CongestionAsk::List, json, list),
            What::Show { place, flow, json } => (place, CongestionAsk::Show(flow), json, shown),
            What::Set(set) => {
                let (place, json) = (set.place.clone(), set.json);
                (place, set.ask()?, json, done)
            }
        };
        let answer = report(&place.path(), Report::Congestion(Box::new(ask)))?;
        print_report(answer, json, text)
    }
}

impl Set {
    fn ask(self) -> anyhow::Result<CongestionAsk> {
        // A message to the service is short; the kernel's names of commands have 15 bytes.
        if self
            .app
            .as_ref()
            .is_some_and(|app| app.is_empty() || app.len() > 32 || app.contains(char::is_whitespace))
        {
            bail!(
                "--app takes the command of a process as `towpath ss` shows it: from 1 to 32 bytes without spaces"
            );
        }
        if self.flow.is_some() && !self.live {
            bail!("--flow is about a flow that lives: give --live, too");
        }
        let which =
            FlowSelector { app: self.app, uid: self.uid, to: self.to, port: self.port, flow: self.flow };
        Ok(CongestionAsk::Set { which, name: self.name.0, is_live: self.live })
    }
}

fn words(list: &Value) -> String {
    let words: Vec<&str> = list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

fn list(all: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let mut lines = vec![
        format!("default: {}", text(&all["default"])),
        format!("built in: {}", words(&all["built_in"])),
        format!("of agents: {}", words(&all["of_agents"])),
    ];
    for agent in rows_of(all, "agents") {
        let there = match agent["pid"].as_u64() {
            Some(pid) => format!("pid {pid}"),
            None if agent["attached"] == true => "there, in another PID namespace".to_owned(),
            None => "not there".to_owned(),
        };
        let (path, programs) = (text(&agent["path"]), &agent["programs"]);
        lines.push(format!("  {path} serves {}: {there}, {programs} programs", words(&agent["serves"])));
        lines.extend(agent["refused"].as_str().map(|refused| format!("    {refused}")));
    }
    let rows: Vec<Vec<String>> = rows_of(all, "rules")
        .map(|rule| vec![format!("  {}", text(&rule["rule"])), format!("({})", text(&rule["from"]))])
        .collect();
    lines.push(if rows.is_empty() { "rules: none".to_owned() } else { format!("rules:\n{}", align(&rows)) });
    let flows = all["flows"].as_object().into_iter().flatten();
    let flows: Vec<String> = flows.map(|(name, count)| format!("{name} {count}")).collect();
    lines.push(format!("flows: {}", if flows.is_empty() { "none".to_owned() } else { flows.join(", ") }));
    lines.join("\n")
}

fn done(answer: &Value) -> String {
    let mut text = format!(
        "{} rules; {} live flows fit, {} of them changed",
        answer["rules"], answer["fitting"], answer["changed"]
    );
    if answer["kept"] != 0 {
        text.push_str(&format!("; {} keep what their sockets have chosen (TCP_CONGESTION)", answer["kept"]));
    }
    text
}

fn shown(flow: &Value) -> String {
    let text = |key: &str| flow[key].as_str().unwrap_or("-");
    let info = &flow["info"];
    let mut lines = vec![
        format!("{} -> {} of {}, user {}", text("local"), text("remote"), text("process"), flow["uid"]),
        format!("  chosen: {} (by {})", text("chosen"), text("chosen_by")),
        format!("  in force: {}", text("in_force")),
    ];
    if let Some(why) = flow["why"].as_str() {
        lines.push(format!("  why: {why}"));
    }
    if let Some(program) = flow["program"].as_object() {
        lines.extend(program_lines(program));
    }
    lines.push(format!(
        "  window {} x {} B, pacing {} B/s, delivery {} B/s, srtt {} us, least {} us, {} segments sent again",
        info["snd_cwnd"],
        info["snd_mss"],
        info["pacing_rate"],
        info["delivery_rate"],
        info["rtt"],
        info["min_rtt"],
        info["total_retrans"]
    ));
    lines.join("\n")
}

fn program_lines(program: &serde_json::Map<String, Value>) -> Vec<String> {
    let part = |key: &str| program.get(key).unwrap_or(&Value::Null);
    let mut lines = vec![
        format!(
            "  program {}: {} runs, {} stopped by a fault, {} decisions moved to a bound; rate {} B/s",
            part("number"),
            part("runs"),
            part("faults"),
            part("clamps"),
            part("rate")
        ),
        format!("    registers {}", part("registers")),
    ];
    let reports = part("last_reports").as_array().into_iter().flatten();
    lines.extend(
        reports.map(|report| format!("    report {} us ago: {}", report["ago_us"], report["values"])),
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use serde_json::json;

    #[derive(Debug, clap::Parser)]
    struct Cli {
        #[command(flatten)]
        cc: Cc,
    }

    #[test]
    fn the_help_of_each_has_examples_of_it() {
        let mut cli = Cli::command();
        cli.build();
        for command in cli.get_subcommands_mut().filter(|command| command.get_name() != "help") {
            let text = command.render_long_help().to_string();
            assert!(text.contains(&format!("\n  towpath cc {}", command.get_name())), "{text}");
        }
    }

    #[test]
    fn what_is_set_is_asked_for_and_mistakes_are_told() {
        let parse = |words: &str| {
            let words = std::iter::once("cc").chain(words.split_whitespace());
            <Cli as clap::Parser>::try_parse_from(words).map_err(|e| e.to_string())
        };
        let What::Set(set) = parse("set --app iperf3 --to 10.1.0.0/16 --live bbr").expect("good").cc.what
        else {
            panic!("another subcommand");
        };
        let which = "app=iperf3 to=10.1.0.0/16 bbr".parse::<control::CongestionRule>().expect("a rule").which;
        let wanted = CongestionAsk::Set { which, name: "bbr".parse().ok(), is_live: true };
        assert_eq!(set.ask().expect("good"), wanted);
        for (words, says) in [
            ("set", "<NAME>"),
            ("set --to 10.0.0.0/40 bbr", "no prefix"),
            ("set --flow 1.2.3.4:5 bbr", "LOCAL-PEER"),
            ("set a_name_that_is_too_long", "no name of a congestion control"),
            ("show here", "no flow"),
        ] {
            let error = parse(words).expect_err(words);
            assert!(error.contains(says), "{words}: {error}");
        }
        let What::Set(set) = parse("set --flow 1.2.3.4:5-6.7.8.9:1 bbr").expect("parsed").cc.what else {
            panic!("another subcommand");
        };
        assert!(set.ask().is_err_and(|e| e.to_string().contains("--live")));
        assert_eq!("default".parse(), Ok(Wanted(None)));
    }

    #[test]
    fn answers_are_told_in_words() {
        let answer = json!({ "rules": 1, "fitting": 3, "changed": 2, "kept": 1 });
        assert!(done(&answer).contains("3 live flows fit, 2 of them changed; 1 keep"), "{}", done(&answer));
        let all = json!({
            "default": "cubic", "built_in": ["reno", "cubic"], "of_agents": [],
            "rules": [{ "rule": "port=1 reno", "from": "cc set" }], "flows": { "cubic": 2 },
        });
        let text = list(&all);
        assert!(
            text.contains("of agents: none")
                && text.contains("port=1 reno  (cc set)")
                && text.ends_with("cubic 2"),
            "{text}"
        );
        let flow = json!({ "local": "a", "why": "no agent serves ccp", "info": {} });
        assert!(shown(&flow).contains("why: no agent"), "{}", shown(&flow));
    }
}
