//! `cargo xtask`: maintenance of the repository.
//!
//! Not part of the product: no other crate depends on this one, and it depends on none of them.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a command-line tool answers on standard output")]

mod callgrind;
mod cfg;
mod instructions;
mod law;
mod manual;
mod modules;
mod plot;
mod prose;
mod report;
mod rules;
mod source;
mod specs;
#[cfg(test)]
mod tests;
mod tuples;
mod unrun;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use workspace::Workspace;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  tidy             check the dependency law, where unsafe and clocks may be, and the shape of the files
  specs [LOG...]   check the requirement tables: what they name must exist, and have run according to the logs
  instructions     count what the common cases cost and hold it against the budgets; --write renews those
  report FILE...   turn results of `towpath bench NAME --json` into one page of HTML";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["tidy"] => run_tidy(),
        ["specs", logs @ ..] => run_specs(logs),
        ["instructions"] => run_instructions(false),
        ["instructions", "--write"] => run_instructions(true),
        ["report", files @ ..] if !files.is_empty() => report::print(files),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_tidy() -> anyhow::Result<ExitCode> {
    let workspace = Workspace::load(&root())?;
    let findings = tidy(&workspace)?;
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        println!("tidy: {} packages and {} files in order", workspace.packages.len(), workspace.files.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("tidy: {} to put right", findings.len());
    Ok(ExitCode::FAILURE)
}

fn run_specs(logs: &[&str]) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::load(&root())?;
    let findings = specs::run(&workspace, &rules::read_sources(&workspace)?, logs)?;
    for finding in &findings {
        println!("{finding}");
    }
    println!("specs: {} to put right", findings.len());
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_instructions(write: bool) -> anyhow::Result<ExitCode> {
    instructions::run(&Workspace::load(&root())?, write)
}

/// All findings, one line each, in the order of the checks.
fn tidy(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let mut findings = law::check(&workspace.packages);
    let sources = rules::read_sources(workspace)?;
    findings.extend(rules::check(workspace, &sources));
    let product = rules::product(&sources);
    findings.extend(modules::check(workspace, &product));
    findings.extend(prose::check(workspace, &product));
    findings.extend(tuples::check(workspace, &product));
    findings.extend(unrun::check(workspace, &sources));
    findings.extend(manual::check(workspace, &sources)?);
    Ok(findings)
}

/// The root of the checkout for which cargo runs this program, which may differ from the one where it was built (shared target directory).
fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(package).join("../..")
}
