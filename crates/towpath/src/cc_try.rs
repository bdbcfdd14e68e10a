//! `towpath cc try`: an algorithm of congestion control over a simulated link: numbers, a page with plots, or JSON.

pub mod python;

use crate::table::print;
use anyhow::{Context, anyhow, bail};
use ccp_try::{Contestant, Options};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

pub const HELP: &str = "Examples:\n  \
towpath cc try reno.ccp                                a program without an agent\n  \
towpath cc try copa --link 12mbit,25ms,4bdp --html copa.html\n  \
towpath cc try aimd.py --flows 2 --against cubic --open\n  \
towpath cc try ccp:cubic --link 48mbit,20ms,1bdp,loss=0.1% --json | jq '.races[].jain'\n  \
towpath cc try bbr --trace cell.trace                  a recorded line in place of the rate\n\n\
Names: those of `--congestion`, and those of crate ccp-algorithms (`ccp:` in front where both have one). A link is RATE,RTT,QUEUE and\n\
then what `towpath link` has. With a rival there are three runs: each alone, and both over the same link. The same seed gives\n\
the same page. docs/congestion.md says how to write an algorithm.";

/// What is tried, by how it is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Subject {
    /// An algorithm by name.
    Name(String),
    /// A program in the language, in a file.
    Program(PathBuf),
    /// An algorithm in Python, in a file.
    Python(PathBuf),
}

impl From<&str> for Subject {
    fn from(text: &str) -> Self {
        let path = Path::new(text);
        match path.extension().and_then(|ext| ext.to_str()) {
            Some("py") => Self::Python(path.to_owned()),
            Some("ccp") => Self::Program(path.to_owned()),
            _ if path.is_file() => Self::Program(path.to_owned()),
            _ => Self::Name(text.to_owned()),
        }
    }
}

/// The arguments of `towpath cc try`.
#[derive(Debug, clap::Args)]
pub struct Try {
    /// An algorithm by name, a program in the language (.ccp), or an algorithm in Python (.py)
    #[arg(value_name = "NAME|FILE")]
    subject: String,
    /// The bottleneck: RATE,RTT,QUEUE and further properties as of `towpath link`
    #[arg(long, value_name = "LINK", default_value = "48mbit,20ms,1bdp")]
    link: String,
    /// A trace of times (Mahimahi's format) in place of the link's rate
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Flows of the algorithm, and as many of the rival
    #[arg(long, value_name = "N", default_value_t = 1)]
    flows: u32,
    /// The largest receive window of each flow, such as 4mib [default: twice what line and queue hold]
    #[arg(long, value_name = "BYTES")]
    buffer: Option<String>,
    /// A rival, written as the algorithm is
    #[arg(long, value_name = "NAME|FILE")]
    against: Option<String>,
    /// Virtual seconds of each run
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    seconds: f64,
    /// Microseconds from a report until the agent's answer is in force
    #[arg(long, value_name = "US", default_value_t = 20)]
    staleness: u64,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write a page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write what the flows and the agent said to each other, for `towpath cc replay`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Show the page in a browser
    #[arg(long)]
    open: bool,
    /// Print JSON, with all that was seen
    #[arg(long)]
    json: bool,
}

/// A trial in all its forms.
#[derive(Debug)]
struct Shown {
    text: String,
    page: String,
    json: Value,
    /// What flows and agents said to each other.
    transcript: String,
}

impl Shown {
    /// The trial that Python has run.
    fn of(mut result: Value) -> anyhow::Result<Self> {
        let mut words = |name: &str| match result[name].take() {
            Value::String(text) => Ok(text),
            _ => bail!("the result has no {name}"),
        };
        let (text, page, transcript) = (words("text")?, words("page")?, words("transcript")?);
        Ok(Self { text, page, transcript, json: result["json"].take() })
    }
}

impl Try {
    /// Runs the trial and shows it.
    ///
    /// # Errors
    /// When an argument is wrong, a file cannot be read or written, or there is no Python for an algorithm that needs it.
    pub fn execute(self) -> anyhow::Result<()> {
        let options = self.options()?;
        let subject = Subject::from(self.subject.as_str());
        let rival = self.against.as_deref().map(Subject::from);
        let needs_python = |subject: &Subject| matches!(subject, Subject::Python(_));
        let shown = if needs_python(&subject) || rival.as_ref().is_some_and(needs_python) {
            let order = json!({ "subject": self.subject, "rival": self.against, "options": options });
            Shown::of(python::run(&self.subject, &order)?)?
        } else {
            run(&options, &subject, rival.as_ref())?
        };
        let page = match &self.html {
            Some(path) => Some(path.clone()),
            None if self.open => Some(std::env::temp_dir().join("towpath-cc-try.html")),
            None => None,
        };
        if let Some(path) = &page {
            std::fs::write(path, &shown.page).with_context(|| format!("cannot write {}", path.display()))?;
        }
        if let Some(path) = &self.record {
            std::fs::write(path, &shown.transcript)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if self.json {
            print(&shown.json.to_string())?;
        } else {
            print(&shown.text)?;
        }
        match page {
            Some(path) if self.open => open(&path),
            _ => Ok(()),
        }
    }

    fn options(&self) -> anyhow::Result<Options> {
        let trace = match &self.trace {
            Some(path) => Some((path.display().to_string(), read(path)?)),
            None => None,
        };
        let (link, flows, seconds, seed) = (self.link.clone(), self.flows, self.seconds, self.seed);
        let (buffer, staleness_us, records) = (self.buffer.clone(), self.staleness, self.record.is_some());
        Ok(Options { link, trace, flows, buffer, seconds, staleness_us, seed, records })
    }
}

/// A trial that needs no Python.
fn run(options: &Options, subject: &Subject, rival: Option<&Subject>) -> anyhow::Result<Shown> {
    let trial = options.trial(contestant(subject)?, rival.map(contestant).transpose()?);
    let outcome = trial.map_err(|why| anyhow!(why))?.run();
    let page = outcome.page().map_err(|why| anyhow!(why))?;
    Ok(Shown { text: outcome.text(), page, json: outcome.json(), transcript: outcome.transcript() })
}

/// The algorithm behind a subject that needs no Python.
///
/// # Errors
/// When there is none, its file cannot be read, or its program has mistakes.
pub fn contestant(subject: &Subject) -> anyhow::Result<Contestant> {
    match subject {
        Subject::Name(name) => Ok(Contestant::named(name)?),
        Subject::Program(path) => {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            Ok(Contestant::program(&name, &read(path)?)?)
        }
        Subject::Python(path) => bail!("{} needs Python", path.display()),
    }
}

/// The text of a file.
///
/// # Errors
/// When it cannot be read, or is no text.
pub fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {} as text", path.display()))
}

fn open(path: &Path) -> anyhow::Result<()> {
    let opened = Command::new("xdg-open").arg(path).status();
    let what = || format!("cannot open {} in a browser by xdg-open; open it yourself", path.display());
    if opened.with_context(what)?.success() { Ok(()) } else { bail!(what()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_a_name_a_program_or_python() {
        assert_eq!(Subject::from("copa"), Subject::Name("copa".to_owned()));
        assert_eq!(Subject::from("a/b.ccp"), Subject::Program("a/b.ccp".into()));
        assert_eq!(Subject::from("aimd.py"), Subject::Python("aimd.py".into()));
    }

    #[test]
    fn a_program_and_its_rival_give_the_same_page_twice() {
        let text = include_str!("../../ccp-algorithms/src/programs/reno.ccp");
        let options = Options { seconds: 1.0, ..Options::default() };
        let page = || {
            let own = Contestant::program("reno", text).expect("no mistakes");
            let rival = Some(Contestant::named("copa").expect("known"));
            options.trial(own, rival).expect("good").run().page().expect("drawn")
        };
        let first = page();
        assert_eq!(first, page());
        for part in ["reno alone", "copa alone", "reno against copa", "<svg", "Jain"] {
            assert!(first.contains(part), "no `{part}` in the page");
        }
    }
}
