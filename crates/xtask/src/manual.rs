//! Compares documents with the tree: ARCHITECTURE.md's list of files that may contain `unsafe`, and the reasons for dependencies.

use std::collections::BTreeSet;

use anyhow::Context;

use crate::rules::is_inside;
use crate::source::{Source, line_of, occurrences};
use crate::workspace::{Package, Workspace};

const MANUAL: &str = "ARCHITECTURE.md";
const DEPENDENCIES: &str = "docs/dependencies.md";
const BEGIN: &str = "<!-- unsafe-files:begin -->";
const END: &str = "<!-- unsafe-files:end -->";

/// Files with `unsafe` that are not listed, listed files without it, crates that should forbid it, and dependencies without a reason.
///
/// # Errors
/// When a document exists and cannot be read.
pub fn check(workspace: &Workspace, sources: &[Source]) -> anyhow::Result<Vec<String>> {
    let mut findings = match read(workspace, MANUAL)?.as_deref().map(listed_files) {
        Some(Some(listed)) => compare(workspace, sources, &listed),
        Some(None) => vec![format!("{MANUAL}: unsafe files: no list between {BEGIN} and {END}")],
        None => vec![format!(
            "{MANUAL}: unsafe files: the page is missing; it lists them between {BEGIN} and {END}"
        )],
    };
    findings
        .extend(check_dependencies(&workspace.packages, &read(workspace, DEPENDENCIES)?.unwrap_or_default()));
    Ok(findings)
}

/// The text of a document; `None` if it does not exist.
fn read(workspace: &Workspace, page: &str) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(workspace.root.join(page)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {page}")),
    }
}

/// Every external crate that `page` does not name in backquotes.
pub fn check_dependencies(packages: &[Package], page: &str) -> Vec<String> {
    let borrowed: BTreeSet<&String> = packages.iter().flat_map(|package| &package.borrows).collect();
    let unexplained = borrowed.into_iter().filter(|name| !page.contains(&format!("`{name}`")));
    let advice = "say what it does for us and what we would write without it";
    unexplained.map(|name| format!("{DEPENDENCIES}: dependencies: `{name}` is not there; {advice}")).collect()
}

/// The paths in the list between the markers, of lines such as `- crates/shm/src/map.rs: why`. `None` without markers.
pub fn listed_files(manual: &str) -> Option<BTreeSet<String>> {
    let (_, after) = manual.split_once(BEGIN)?;
    let (list, _) = after.split_once(END)?;
    let path = |line: &str| {
        let item = line.trim().strip_prefix("- ").or_else(|| line.trim().strip_prefix("* "))?.trim_start();
        let path = match item.strip_prefix('`') {
            Some(quoted) => quoted.split('`').next(),
            None => item.split([' ', ':']).next(),
        };
        path.map(str::to_owned)
    };
    Some(list.lines().filter_map(path).collect())
}

fn compare(workspace: &Workspace, sources: &[Source], listed: &BTreeSet<String>) -> Vec<String> {
    let mut findings = Vec::new();
    let mut with_unsafe = BTreeSet::new();
    for source in sources {
        let Some(at) = occurrences(&source.code, "unsafe").next() else { continue };
        with_unsafe.insert(source.path.as_str());
        if !listed.contains(&source.path) {
            findings.push(format!(
                "{}:{}: unsafe files: `unsafe` in a file that {MANUAL} does not list; write it without, or list it there",
                source.path,
                line_of(&source.code, at)
            ));
        }
    }
    for path in listed.iter().filter(|path| !with_unsafe.contains(path.as_str())) {
        findings.push(format!(
            "{MANUAL}: unsafe files: `{path}` has no `unsafe` or does not exist; remove its line"
        ));
    }
    for package in &workspace.packages {
        let product = format!("{}/src", package.folder);
        if listed.iter().any(|path| is_inside(path, &product)) {
            continue;
        }
        for root in &package.target_roots {
            let source = sources.iter().find(|source| source.path == *root);
            if source.is_some_and(|source| !source.code.contains("#![forbid(unsafe_code)]")) {
                findings.push(format!(
                    "{root}:1: unsafe files: crate `{}` has no listed file; add #![forbid(unsafe_code)]",
                    package.noun
                ));
            }
        }
    }
    findings
}
