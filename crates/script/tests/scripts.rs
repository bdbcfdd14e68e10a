//! Every script under `tests/scripts` is a test of its own name. With `--files FILE...` the files are run instead, with `--traced
//! FILE...` their packets and calls are shown too.

#![allow(clippy::print_stdout, reason = "it speaks as a test harness does")]

use script::{Keep, Outcome, Settings, run_text};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn find(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() {
            find(&path, found);
        } else if path.extension().is_some_and(|e| e == "pkt") {
            found.push(path);
        }
    }
}

fn outcome(path: &Path, is_traced: bool) -> Outcome {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let report = run_text(&text, &Settings::default(), Keep::default());
    if is_traced {
        report.trace.iter().for_each(|line| println!("{line}"));
    }
    report.outcome
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scripts");
    let mut files = Vec::new();
    let is_traced = arguments.first().is_some_and(|a| a == "--traced");
    let has_files = is_traced || arguments.first().is_some_and(|a| a == "--files");
    if has_files {
        files.extend(arguments.iter().skip(1).map(PathBuf::from));
    } else {
        find(&root, &mut files);
    }
    files.sort();
    let filters: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let is_listing = arguments.iter().any(|a| a == "--list");
    let (mut passed, mut failed, mut skipped) = (0, Vec::new(), 0);
    for file in &files {
        let name = file.strip_prefix(&root).unwrap_or(file).with_extension("").display().to_string();
        let is_wanted =
            filters.is_empty() || has_files || filters.iter().any(|filter| name.contains(filter.as_str()));
        if !is_wanted {
            skipped += 1;
            continue;
        }
        if is_listing {
            println!("{name}: test");
            continue;
        }
        match outcome(file, is_traced) {
            Outcome::Passed => {
                passed += 1;
                println!("test {name} ... ok");
            }
            other => {
                println!("test {name} ... FAILED");
                failed.push(format!("---- {name} ----\n{}: {other}\n", file.display()));
            }
        }
    }
    if is_listing {
        return ExitCode::SUCCESS;
    }
    println!();
    failed.iter().for_each(|text| println!("{text}"));
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "test result: {verdict}. {passed} passed; {} failed; 0 ignored; 0 measured; {skipped} filtered out; finished",
        failed.len()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
