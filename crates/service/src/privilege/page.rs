//! Generates the tables of `docs/privileges.md`.

use super::table::{Call, NEVER, REFUSED, Row, TABLE, UNADDRESSED};
use rustix::thread::CapabilitySet;
use std::fmt::Write as _;

/// Two tables and a list in Markdown: what each feature needs and keeps, and which system calls the filter allows.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(
        "| feature | capabilities it takes at start | keeps | files | system calls while it serves |\n|---|---|---|---|---|\n",
    );
    let mut say = |line: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = page.write_fmt(line);
    };
    for Row { feature, at_start, kept, files, calls, .. } in TABLE {
        let calls = calls.iter().copied().flatten();
        say(format_args!(
            "| {feature} | {} | {} | {files} | {} |\n",
            capabilities(*at_start),
            capabilities(*kept),
            names(calls)
        ));
    }
    say(format_args!("\n| call | refused |\n|---|---|\n"));
    let mut refused: Vec<_> = REFUSED
        .into_iter()
        .flatten()
        .chain(UNADDRESSED)
        .map(|refused| (name(&refused.call), refused.what))
        .collect();
    // Some take several rules.
    refused.dedup();
    for (name, what) in refused {
        say(format_args!("| `{name}` | {what} |\n"));
    }
    say(format_args!("\nNever: {}.\n", names(NEVER.iter().copied().flatten())));
    page
}

fn name(call: &Call) -> &'static str {
    call.0.trim_start_matches("SYS_")
}

fn names<'a>(calls: impl Iterator<Item = &'a Call>) -> String {
    let names: Vec<String> = calls.map(|call| format!("`{}`", name(call))).collect();
    if names.is_empty() { "those of every service".to_owned() } else { names.join(" ") }
}

fn capabilities(set: CapabilitySet) -> String {
    let names: Vec<String> = set.iter_names().map(|(name, _)| format!("`CAP_{name}`")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}
