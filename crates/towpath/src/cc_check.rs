//! `towpath cc check`: compiles programs of congestion control and says what they cost, what they use, and what can stop a run.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ccp_lang::{Compiled, Mistake, TEXT_MAX, compile, hazards};
use ccp_vm::{
    CONTROLS_MAX, EVENTS_MAX, INSTRUCTIONS_MAX, LOCALS_MAX, REPORTS_MAX, Register, Scope, TEMPS_MAX,
};
use serde_json::{Value, json};

use crate::table::print;

pub const HELP: &str = "Examples:\n  \
towpath cc check reno.ccp                              cost, registers, what can overflow; mistakes with line and column\n  \
towpath cc check *.ccp --json\n\n\
A program of the language in docs/congestion.md. Exit status 1 if a file has a mistake. What \"can\" overflow assumes counts,\n\
round-trip times and variables that only an agent sets below 2^32, and times, rates and windows below 2^44.";

/// The arguments of `towpath cc check`.
#[derive(Debug, clap::Args)]
pub struct Check {
    /// Files with one program each
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl Check {
    /// Checks all files.
    ///
    /// # Errors
    /// When a file cannot be read, or has a mistake.
    pub fn execute(self) -> anyhow::Result<()> {
        let mut bad = 0;
        let mut all = Vec::new();
        for file in &self.files {
            let text = read(file)?;
            let outcome = compile(&text);
            bad += usize::from(outcome.is_err());
            match (&outcome, self.json) {
                (Ok(compiled), false) => print(&good(file, compiled))?,
                (Err(mistakes), false) => print(&wrong(file, &text, mistakes))?,
                (outcome, true) => all.push(as_json(file, outcome)),
            }
        }
        if self.json {
            print(&serde_json::to_string_pretty(&all)?)?;
        }
        if bad > 0 {
            bail!("{bad} of {} programs have mistakes", self.files.len());
        }
        Ok(())
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    let name = file.display();
    let opened = std::fs::File::open(file).with_context(|| format!("cannot read {name}"))?;
    let len = opened.metadata().with_context(|| format!("cannot read {name}"))?.len();
    if file.extension().is_some_and(|extension| extension == "py") {
        bail!("{name} is Python: `towpath cc try {name}` runs it and reports the mistakes of its programs");
    }
    if len > TEXT_MAX as u64 {
        bail!("{name}: {len} bytes, a program has at most {TEXT_MAX}");
    }
    // A device or a pipe has no length, and may have no end.
    let mut text = String::new();
    let read = opened.take(TEXT_MAX as u64 + 1).read_to_string(&mut text);
    read.with_context(|| format!("cannot read {name} as text"))?;
    if text.len() > TEXT_MAX {
        bail!("{name}: a program has at most {TEXT_MAX} bytes");
    }
    Ok(text)
}

/// The number of different registers of some scopes that a program names.
fn used(compiled: &Compiled, scopes: &[Scope]) -> usize {
    let steps = compiled.instructions().iter().flat_map(|step| [step.result, step.left, step.right]);
    let of_scope = steps.filter(|register: &Register| scopes.contains(&register.scope));
    of_scope.map(|register| register.index).collect::<std::collections::BTreeSet<_>>().len()
}

/// Registers by kind: how many a program uses, and how many there are.
fn registers(compiled: &Compiled) -> [(&'static str, usize, usize); 4] {
    [
        ("report", compiled.reports().count(), REPORTS_MAX),
        ("control", compiled.controls().count(), CONTROLS_MAX),
        ("local", used(compiled, &[Scope::Local]), LOCALS_MAX),
        ("temporary", used(compiled, &[Scope::Temp]), TEMPS_MAX),
    ]
}

fn good(file: &Path, compiled: &Compiled) -> String {
    let or_none = |names: Vec<&str>| if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
    let used = registers(compiled).map(|(kind, count, most)| format!("{kind} {count} of {most}")).join(", ");
    let mut lines = vec![
        format!("{}: no mistakes", file.display()),
        format!(
            "  cost       at most {} instructions a run (of {INSTRUCTIONS_MAX}), {} events (of {EVENTS_MAX})",
            compiled.program().cost(),
            compiled.events().len()
        ),
        format!("  registers  {used}"),
        format!("  reports    {}", or_none(compiled.reports().collect())),
        format!("  settable   Cwnd, Rate, {}", or_none(compiled.controls().collect())),
    ];
    let hazards = hazards(compiled);
    if hazards.is_empty() {
        lines.push("  faults     none: no run can stop".to_owned());
    }
    lines.extend(hazards.iter().map(|hazard| format!("  fault      {hazard}")));
    lines.join("\n")
}

/// Each mistake with its line, and a mark below its column.
fn wrong(file: &Path, text: &str, mistakes: &[Mistake]) -> String {
    let shown = |mistake: &Mistake| {
        let line = text.lines().nth(mistake.line - 1).unwrap_or_default();
        let before = line.chars().take(mistake.column - 1);
        let blank: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        format!("{}:{mistake}\n  {line}\n  {blank}^", file.display())
    };
    mistakes.iter().map(shown).collect::<Vec<_>>().join("\n")
}

fn as_json(file: &Path, outcome: &Result<Compiled, Vec<Mistake>>) -> Value {
    match outcome {
        Ok(compiled) => {
            let registers: serde_json::Map<String, Value> = registers(compiled)
                .into_iter()
                .map(|(kind, used, most)| (kind.to_owned(), json!({"used": used, "most": most})))
                .collect();
            let faults: Vec<String> = hazards(compiled).iter().map(ToString::to_string).collect();
            json!({
                "file": file, "mistakes": [], "instructions": compiled.program().cost(),
                "events": compiled.events().len(), "registers": registers, "faults": faults,
                "reports": compiled.reports().collect::<Vec<_>>(),
                "settable": compiled.controls().collect::<Vec<_>>(),
            })
        }
        Err(mistakes) => {
            let one = |mistake: &Mistake| {
                json!({"line": mistake.line, "column": mistake.column, "expected": mistake.expected,
                       "found": mistake.found, "hint": mistake.hint})
            };
            json!({"file": file, "mistakes": mistakes.iter().map(one).collect::<Vec<_>>()})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The operations of `text` that can stop a run.
    fn faults(text: &str) -> Vec<String> {
        hazards(&compile(text).expect("no mistakes")).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_projects_own_programs_can_only_overflow_where_it_is_known() {
        for text in [
            include_str!("../../ccp-algorithms/src/programs/dctcp.ccp"),
            include_str!("../../ccp-algorithms/src/programs/measure.ccp"),
            include_str!("../../ccp-algorithms/src/programs/pulse.ccp"),
            include_str!("../../ccp-algorithms/src/programs/reno.ccp"),
            include_str!("../../ccp-algorithms/src/programs/round.ccp"),
            include_str!("../../ccp-algorithms/src/programs/sums.ccp"),
        ] {
            assert_eq!(faults(text), Vec::<String>::new(), "{text}");
        }
        // Cubes of milliseconds, and windows near 2^44 bytes: the bounds of window and time that a flow has keep them below 2^64.
        let cubic = faults(include_str!("../../ccp-algorithms/src/programs/cubic.ccp"));
        assert!(!cubic.is_empty() && cubic.iter().all(|fault| fault.ends_with("can overflow")), "{cubic:?}");
        let fallback = faults(include_str!("../../ccp-agent/src/fallback.ccp"));
        assert!(
            fallback.iter().all(|fault| fault.ends_with("`(* Cwnd 2000000)` can overflow")),
            "{fallback:?}"
        );
        assert_eq!(fallback.len(), 1);
    }
}
