//! Counts the instructions of common cases with callgrind and compares them with a budget.
//!
//! A package with `benches/instructions.toml` has a bench `instructions`, which does a fixed amount of work for each case of the budget and
//! first prints the number of operations. Instruction counts do not depend on the machine's load, so any run shows a rise; `towpath bench`
//! measures the time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::callgrind;
use crate::workspace::Workspace;

const BENCH: &str = "instructions";
const BUDGET: &str = "benches/instructions.toml";
/// The largest ratio of a case's cost to its budget.
const RISE_MAX: f64 = 1.03;
/// The most files that are named when a case costs more.
const NAMED: usize = 6;

const HEAD: &str = "\
# Instructions of the common cases, for each operation, by the source file they were written in.
# `cargo xtask instructions` fails when a case costs over 3 % more, `cargo xtask instructions --write` renews this file: only with a
# word in the change that says what the rise buys.
";

/// The budget of a package's cases.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    /// The function inside which instructions are counted, as the argument of callgrind's `--toggle-collect`.
    collect: String,
    case: BTreeMap<String, Cost>,
}

/// Instructions per operation, in all and by file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cost {
    total: f64,
    #[serde(default)]
    files: BTreeMap<String, f64>,
}

/// Counts every case and prints a line for each, in the format of tests. With `write`, the budgets become the counted numbers.
///
/// # Errors
/// When a budget cannot be read, or a bench cannot be built or run.
pub fn run(workspace: &Workspace, write: bool) -> anyhow::Result<ExitCode> {
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: instructions (valgrind is not installed: run scripts/setup)");
        return Ok(ExitCode::SUCCESS);
    }
    let programs = build(&workspace.root)?;
    let mut code = ExitCode::SUCCESS;
    for package in &workspace.packages {
        let file = workspace.root.join(&package.folder).join(BUDGET);
        if !file.is_file() {
            continue;
        }
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let mut budget: Budget = toml::from_str(&text).with_context(|| format!("in {}", file.display()))?;
        let program =
            programs.get(&package.noun).with_context(|| format!("{} has no bench {BENCH}", package.noun))?;
        for (case, allowed) in &mut budget.case {
            let cost =
                count(program, &budget.collect, case).with_context(|| format!("{} {case}", package.noun))?;
            let (line, is_within) = judge(&package.noun, case, allowed, &cost);
            println!("{line}");
            if write {
                *allowed = cost;
            } else if !is_within {
                code = ExitCode::FAILURE;
            }
        }
        if write {
            std::fs::write(&file, shown(&budget))
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(code)
}

/// Builds the benches of all packages in one build, so that the libraries below them are built once, with one set of features. Returns the
/// paths of the programs by the names of their packages.
fn build(root: &Path) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let output = Command::new("cargo")
        .args(["bench", "--quiet", "--workspace", "--bench", BENCH, "--no-run", "--message-format", "json"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("the benches {BENCH} do not build");
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    Ok(messages.lines().filter_map(program).collect())
}

/// The package and the path of a bench that one of cargo's messages tells of.
fn program(message: &str) -> Option<(String, PathBuf)> {
    let message: Value = serde_json::from_str(message).ok()?;
    let path = message["executable"].as_str().filter(|_| message["target"]["name"] == BENCH)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    Some((folder.file_name()?.to_str()?.to_owned(), path.into()))
}

/// Runs one case under callgrind and returns its cost per operation.
fn count(program: &Path, collect: &str, case: &str) -> anyhow::Result<Cost> {
    let file = program.with_extension(format!("{case}.callgrind"));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", &format!("--toggle-collect={collect}")])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .arg(case)
        .output()
        .context("cannot run valgrind")?;
    if !output.status.success() {
        bail!("it failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let operations = said.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    let operations = operations.filter(|&n| n > 0.0).context("it does not say how many operations it did")?;
    let profile = std::fs::read_to_string(&file).context("callgrind has written no profile")?;
    let counts = callgrind::by_file(&profile)?;
    let total: u64 = counts.values().sum();
    if total == 0 {
        bail!("nothing was counted: is there a function {collect}?");
    }
    let files = counts.into_iter().map(|(file, count)| (file, count as f64 / operations)).collect();
    Ok(Cost { total: total as f64 / operations, files })
}

/// The output for a case, and whether it is within its budget.
fn judge(package: &str, case: &str, allowed: &Cost, cost: &Cost) -> (String, bool) {
    let rise = cost.total / allowed.total;
    let mut line =
        format!("{package} {case}: {:.0} instructions, {:.0} in the budget", cost.total, allowed.total);
    if rise <= RISE_MAX {
        return (format!("ok {line}"), true);
    }
    let _ = write!(line, ": {:.1} % more", (rise - 1.0) * 100.0);
    let mut grown: Vec<(f64, &str)> = cost
        .files
        .iter()
        .map(|(file, now)| (now - allowed.files.get(file).copied().unwrap_or(0.0), file.as_str()))
        .filter(|(more, _)| *more >= 0.5)
        .collect();
    grown.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (more, file) in grown.into_iter().take(NAMED) {
        let _ = write!(line, "\n  {more:+.1} in {file}");
    }
    (format!("not ok {line}"), false)
}

/// The text of a budget's file.
fn shown(budget: &Budget) -> String {
    let mut text = format!("{HEAD}\ncollect = {:?}\n", budget.collect);
    for (case, cost) in &budget.case {
        let _ = write!(text, "\n[case.{case}]\ntotal = {:.1}\n\n[case.{case}.files]\n", cost.total);
        for (file, count) in cost.files.iter().filter(|(_, count)| **count >= 0.05) {
            let _ = writeln!(text, "{file:?} = {count:.1}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(total: f64, core: f64) -> Cost {
        Cost { total, files: BTreeMap::from([("crates/fastpath/src/core.rs".to_owned(), core)]) }
    }

    #[test]
    fn a_rise_over_three_percent_fails_and_says_where() {
        assert!(judge("fastpath", "rpc", &cost(1000.0, 10.0), &cost(1030.0, 40.0)).1);
        let (line, is_within) = judge("fastpath", "rpc", &cost(1000.0, 10.0), &cost(1031.0, 41.0));
        assert!(!is_within);
        assert!(
            line.starts_with("not ok fastpath rpc: 1031 instructions, 1000 in the budget: 3.1 % more"),
            "{line}"
        );
        assert!(line.contains("+31.0 in crates/fastpath/src/core.rs"), "{line}");
    }

    #[test]
    fn a_budget_is_read_as_it_is_written() {
        let case = BTreeMap::from([("rpc".to_owned(), cost(1000.0, 10.0))]);
        let text = shown(&Budget { collect: "*Core*poll*".to_owned(), case });
        let read: Budget = toml::from_str(&text).unwrap();
        assert_eq!((read.collect.as_str(), read.case["rpc"].total), ("*Core*poll*", 1000.0));
        assert_eq!(read.case["rpc"].files["crates/fastpath/src/core.rs"], 10.0);
    }
}
