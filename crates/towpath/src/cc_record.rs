//! `towpath cc record` and `cc replay`: what a live service and its agents say to each other as a file, and an algorithm's decisions on the same
//! reports.

use crate::Where;
use crate::ask::report;
use crate::cc_try::{Subject, contestant, python, read};
use crate::table::print;
use anyhow::{Context, anyhow, bail};
use ccp_try::transcript::{self, Said};
use control::{CongestionAsk, Report};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub const RECORD_HELP: &str = "Examples:\n  \
towpath cc record copa.rec                             until ^C\n  \
towpath cc record --seconds 60 copa.rec\n\n\
Reports of flows and decisions of agents, one datagram a line. A replay needs the beginning of a flow: begin before the flows do.\n\
Only root and the service's user may record.";

pub const REPLAY_HELP: &str = "Examples:\n  \
towpath cc replay copa.rec copa                        the same decisions, or the first difference\n  \
towpath cc replay copa.rec mine.py --agent /tmp/ccp/portus\n\n\
The algorithm gets the same reports at the same times. Exit status 1 if a decision differs. An algorithm that reads its own clock can\n\
differ by the time that datagrams took.";

/// Time between two questions to the service, which keeps what is said for two seconds.
const EVERY: Duration = Duration::from_millis(50);

/// The arguments of `towpath cc record`.
#[derive(Debug, clap::Args)]
pub struct Record {
    #[command(flatten)]
    place: Where,
    /// Stop after so many seconds
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// The file to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Record {
    /// Records until the time is over, or the process is ended: each line is whole.
    ///
    /// # Errors
    /// When the service refuses or ends, or the file cannot be written.
    pub fn execute(self) -> anyhow::Result<()> {
        let seconds = self.seconds.unwrap_or(f64::MAX);
        if seconds.is_nan() || seconds <= 0.0 {
            bail!("--seconds {seconds}: give more than 0");
        }
        let name = self.file.display();
        let mut part = self.ask(None)?;
        let mut file = File::create(&self.file).with_context(|| format!("cannot create {name}"))?;
        file.write_all(transcript::written(&[]).as_bytes())?;
        let begun = Instant::now();
        let (mut count, mut lost) = (0, 0);
        while begun.elapsed().as_secs_f64() < seconds {
            std::thread::sleep(EVERY);
            let next = part["next"].as_u64().context("the service's answer has no number")?;
            part = self.ask(Some(next))?;
            let all: Vec<Said> =
                serde_json::from_value(part["said"].take()).context("the service's answer")?;
            let text: String = all.iter().map(transcript::line).collect();
            file.write_all(text.as_bytes()).with_context(|| format!("cannot write {name}"))?;
            count += all.len();
            let gap = part["lost"].as_u64().unwrap_or(0);
            lost += gap;
            if gap > 0 {
                eprintln!(
                    "towpath: {gap} datagrams came faster than they were asked for; a replay of this file would differ there"
                );
            }
        }
        print(&format!("{name}: {count} datagrams, {lost} lost"))
    }

    fn ask(&self, from: Option<u64>) -> anyhow::Result<Value> {
        report(&self.place.path(), Report::Congestion(Box::new(CongestionAsk::Transcript { from })))
    }
}

/// The arguments of `towpath cc replay`.
#[derive(Debug, clap::Args)]
pub struct Replay {
    /// What `towpath cc record` or `cc try --record` wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// An algorithm of agents by name, a program in the language (.ccp), or an algorithm in Python (.py)
    #[arg(value_name = "NAME|FILE")]
    subject: String,
    /// Compare with the decisions of this agent, if there are several: the path of its socket
    #[arg(long, value_name = "PATH")]
    agent: Option<String>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl Replay {
    /// Replays, and says what differs.
    ///
    /// # Errors
    /// When a decision differs, the file is no transcript, or the algorithm is none.
    pub fn execute(self) -> anyhow::Result<()> {
        let text = read(&self.file)?;
        let found = match Subject::from(self.subject.as_str()) {
            Subject::Python(_) => {
                let order = json!({ "replay": text, "subject": self.subject, "agent": self.agent });
                python::run(&self.subject, &order)?
            }
            subject => {
                let all = transcript::read(&text).map_err(|why| anyhow!("{}: {why}", self.file.display()))?;
                let replayed = ccp_try::replay(&all, self.agent.as_deref(), &contestant(&subject)?);
                replayed.map_err(|why| anyhow!("{}: {why}", self.file.display()))?.json()
            }
        };
        print(&if self.json { found.to_string() } else { words(&found) })?;
        if found["difference"].is_null() { Ok(()) } else { bail!("{} decides otherwise", self.subject) }
    }
}

fn words(found: &Value) -> String {
    let mut lines = vec![format!(
        "{} flows, {} reports, {} decisions the same",
        found["flows"], found["reports"], found["same"]
    )];
    if found["left_out"] != 0 {
        lines.push(format!("{} flows had begun before the recording: left out", found["left_out"]));
    }
    let difference = &found["difference"];
    if !difference.is_null() {
        let decision = |key: &str| difference[key].as_str().unwrap_or("nothing").to_owned();
        lines.push(format!(
            "first difference: flow {}, decision {}, {} us from the beginning\n  recorded  {}\n  now       {}",
            difference["flow"],
            difference["number"],
            difference["us"],
            decision("recorded"),
            decision("now")
        ));
    }
    let failures = found["failures"].as_array().into_iter().flatten();
    lines.extend(failures.filter_map(Value::as_str).map(str::to_owned));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_is_told_in_words() {
        let found = json!({ "flows": 2, "left_out": 1, "reports": 9, "same": 3, "failures": ["oh"],
            "difference": { "flow": 7, "number": 4, "us": 12, "recorded": "update Cwnd=5", "now": null } });
        let text = words(&found);
        for part in
            ["3 decisions the same", "1 flows had begun", "flow 7, decision 4", "now       nothing", "oh"]
        {
            assert!(text.contains(part), "no `{part}` in {text}");
        }
    }
}
