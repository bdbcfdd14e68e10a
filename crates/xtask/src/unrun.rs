//! Libraries with manifests that turn tests off, to save the time of an empty test program or of an empty run of rustdoc: nothing that they turn
//! off may be there.

use crate::source::{Source, line_of, occurrences};
use crate::workspace::{Package, Workspace};

/// What stands after the three backquotes of a block that rustdoc does not run.
const NO_RUST: [&str; 8] = ["text", "c", "ccp", "console", "json", "python", "sh", "toml"];
/// Also those of other crates, as `#[tokio::test]`.
const TESTS: [&str; 4] = ["#[test]", "::test]", "::test(", "proptest!"];

/// Every test that no run of `cargo test` would see.
pub fn check(workspace: &Workspace, sources: &[Source]) -> Vec<String> {
    workspace.packages.iter().flat_map(|package| of_package(package, sources)).collect()
}

fn of_package(package: &Package, sources: &[Source]) -> Vec<String> {
    let folder = format!("{}/src/", package.folder);
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.path.starts_with(&folder)) {
        let mut say = |line: usize, what: &str, key: &str| {
            let (path, of) = (&source.path, &package.folder);
            findings.push(format!(
                "{path}:{line}: unrun: {what} never runs; take `{key} = false` out of {of}/Cargo.toml"
            ));
        };
        if !package.runs_tests {
            for at in TESTS.iter().flat_map(|test| occurrences(&source.code, test)) {
                say(line_of(&source.code, at), "this test", "test");
            }
        }
        if !package.runs_examples {
            blocks(source).into_iter().for_each(|line| say(line, "this block of code", "doctest"));
        }
    }
    findings
}

/// The lines at which blocks of Rust begin in documentation.
fn blocks(source: &Source) -> Vec<usize> {
    let (mut lines, mut is_inside) = (Vec::new(), false);
    for (line, comment) in &source.comments {
        let doc = comment.strip_prefix("///").or_else(|| comment.strip_prefix("//!"));
        let Some(language) = doc.and_then(|doc| doc.trim_start().strip_prefix("```")) else { continue };
        if !is_inside && !NO_RUST.contains(&language.trim()) {
            lines.push(*line);
        }
        is_inside = !is_inside;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn found(runs: bool, text: &str) -> Vec<String> {
        let package = Package { runs_tests: runs, runs_examples: runs, ..Package::bare("x") };
        let workspace = Workspace { root: PathBuf::new(), packages: vec![package], files: Vec::new() };
        let sources = [Source::new("crates/x/src/a.rs", text), Source::new("crates/y/src/a.rs", text)];
        check(&workspace, &sources)
    }

    #[test]
    fn what_is_turned_off_is_not_there() {
        let text = "//! ```text\n//! a\n//! ```\n/// ```\n/// x();\n/// ```\nfn x() {}\n#[test]\nfn t() {}\n";
        let starts: Vec<String> = found(false, text)
            .iter()
            .map(|one| one.split("; ").next().unwrap_or_default().to_owned())
            .collect();
        let wanted = ["8: unrun: this test never runs", "4: unrun: this block of code never runs"];
        assert_eq!(starts, wanted.map(|one| format!("crates/x/src/a.rs:{one}")));
        assert_eq!(found(true, text), [""; 0]);
        assert_eq!(found(false, "//! ```text\n//! a\n//! ```\nfn x() {}\n"), [""; 0]);
    }
}
