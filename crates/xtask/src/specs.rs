//! Compares the requirement tables under `specs/` with the tree and with the logs of tests.
//!
//! A requirement names the code that obeys it (`crates/x/src/y.rs#symbol`) and the tests that show it: a Rust test
//! (`crates/x/tests/y.rs#name`), a script (`tests/scripts/a/b.pkt`) or a test of a real program (`tests/apps#pair.echo`). Otherwise it says
//! why it is not done.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::source::{Source, line_of, occurrences};
use crate::workspace::Workspace;

const FOLDER: &str = "specs";
/// Explains the tables and contains their summary.
const MANUAL: &str = "docs/specs.md";
const RFCS: [u32; 7] = [9293, 6298, 5681, 7323, 2018, 8985, 9768];
/// RFC 9293 labels its requirements; each label must be in its table once.
const LABELS: [(u32, &str, u32); 4] =
    [(9293, "MUST", 69), (9293, "SHLD", 31), (9293, "MAY", 18), (9293, "REC", 1)];
/// Numbers of requirements that the other RFCs state, counted sentence by sentence.
const COUNTS: [(u32, usize); 6] = [(6298, 17), (5681, 48), (7323, 45), (2018, 17), (8985, 26), (9768, 112)];
const LEVELS: [&str; 5] = ["MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY"];
/// The least length of a reason in bytes.
const REASON_LEN: usize = 20;

/// The requirements of one RFC.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    rfc: u32,
    title: String,
    #[serde(default)]
    requirement: Vec<Requirement>,
}

/// One requirement: either obeyed (`code` and `tests`), or not obeyed or not applicable (`not_done`).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    id: String,
    level: String,
    section: String,
    text: String,
    #[serde(default)]
    code: Vec<String>,
    #[serde(default)]
    tests: Vec<String>,
    /// The reason why it is not obeyed or does not apply; `None` if it is obeyed.
    not_done: Option<String>,
}

/// Reads every table of the repository.
///
/// # Errors
/// When a table cannot be read.
pub fn load(root: &Path) -> anyhow::Result<Vec<Table>> {
    let mut tables = Vec::new();
    for rfc in RFCS {
        let path = root.join(FOLDER).join(format!("rfc{rfc}.toml"));
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        tables.push(parse(&text).with_context(|| format!("in {}", path.display()))?);
    }
    Ok(tables)
}

/// Parses one table.
///
/// # Errors
/// When the text is not a table.
pub fn parse(text: &str) -> anyhow::Result<Table> {
    Ok(toml::from_str(text)?)
}

/// Every statement in the tables that is not true.
pub fn check(tables: &[Table], sources: &[Source], has_file: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut findings = Vec::new();
    for table in tables {
        findings.extend(
            complete(table).into_iter().map(|what| format!("{FOLDER}/rfc{}.toml: {what}", table.rfc)),
        );
        for requirement in &table.requirement {
            let at = |what: String| format!("{FOLDER}/rfc{}.toml: {}: {what}", table.rfc, requirement.id);
            findings.extend(form(requirement).into_iter().map(at));
            findings.extend(requirement.code.iter().filter_map(|place| code_missing(place, sources)).map(at));
            let test = |name: &String| test_missing(name, sources, has_file);
            findings.extend(requirement.tests.iter().filter_map(test).map(at));
        }
    }
    findings
}

/// Checks that every requirement of the RFC is in the table exactly once.
fn complete(table: &Table) -> Vec<String> {
    let mut ids = BTreeSet::new();
    let twice = table.requirement.iter().filter(|r| !ids.insert(r.id.as_str()));
    let mut findings: Vec<String> = twice.map(|r| format!("{} is there twice", r.id)).collect();
    for (_, label, count) in LABELS.iter().filter(|(rfc, ..)| *rfc == table.rfc) {
        let missing = (1..=*count).map(|n| format!("{label}-{n}")).filter(|id| !ids.contains(id.as_str()));
        findings.extend(missing.map(|id| format!("{id} is missing")));
    }
    let stated = COUNTS.iter().find(|(rfc, _)| *rfc == table.rfc);
    if let Some((_, count)) = stated.filter(|(_, count)| *count != ids.len()) {
        findings.push(format!("{} requirements instead of {count}", ids.len()));
    }
    findings
}

/// Checks the form: a requirement is either done, with code and tests, or not done, with a reason.
fn form(requirement: &Requirement) -> Vec<String> {
    let mut findings = Vec::new();
    let mut expect = |holds: bool, what: &str| {
        if !holds {
            findings.push(what.to_owned());
        }
    };
    expect(
        LEVELS.contains(&requirement.level.as_str()),
        "the level is none of MUST, SHOULD, MAY and their NOTs",
    );
    expect(
        !requirement.section.is_empty() && !requirement.text.is_empty(),
        "section and text must not be empty",
    );
    match &requirement.not_done {
        Some(reason) => {
            expect(requirement.code.is_empty() && requirement.tests.is_empty(), "both done and not done");
            expect(reason.len() >= REASON_LEN, "the reason says nothing");
        }
        None => {
            expect(!requirement.code.is_empty(), "no code is named and no reason `not_done` is given");
            expect(!requirement.tests.is_empty(), "no test is named and no reason `not_done` is given");
        }
    }
    findings
}

/// Checks that the file in `file#symbol` defines the symbol.
fn code_missing(place: &str, sources: &[Source]) -> Option<String> {
    let Some((path, symbol)) = place.split_once('#') else {
        return Some(format!("`{place}` is not of the form file#symbol"));
    };
    let Some(source) = sources.iter().find(|source| source.path == path) else {
        return Some(format!("there is no file {path}"));
    };
    let defines = |at: usize| {
        let before = source.product[..at].trim_end();
        ["fn", "struct", "enum", "const", "static", "trait", "mod", "type"]
            .iter()
            .any(|word| before.ends_with(word))
    };
    let found = occurrences(&source.product, symbol).any(defines);
    let is_variant_or_field =
        || occurrences(&source.product, symbol).next().is_some_and(|at| is_member(source, at));
    (!found && !is_variant_or_field()).then(|| format!("{path} defines no `{symbol}`"))
}

/// True if the name at `at` is a field or variant: it is the first name on its line.
fn is_member(source: &Source, at: usize) -> bool {
    let line = source.product[..at].rsplit('\n').next().unwrap_or_default().trim();
    line.is_empty() || line == "pub" || line == "pub(crate)"
}

fn test_missing(name: &str, sources: &[Source], has_file: &dyn Fn(&str) -> bool) -> Option<String> {
    if name.ends_with(".pkt") || !name.contains('#') {
        return (!has_file(name)).then(|| format!("there is no file {name}"));
    }
    let (path, function) = name.split_once('#').unwrap_or_default();
    if !path.ends_with(".rs") {
        // Tests of programs are found by what they print, see [`passed`].
        return (!has_file(path)).then(|| format!("there is no {path}"));
    }
    let Some(source) = sources.iter().find(|source| source.path == path) else {
        return Some(format!("there is no file {path}"));
    };
    let definition =
        occurrences(&source.code, function).find(|at| source.code[..*at].trim_end().ends_with("fn"));
    let Some(at) = definition else { return Some(format!("{path} has no test `{function}`")) };
    // The attributes are between the end of the item before and the function's name.
    let before = &source.code[..at];
    let attributes = &before[before.rfind(['}', ';']).map_or(0, |end| end + 1)..];
    if attributes.contains("#[ignore") {
        return Some(format!("{path}:{}: `{function}` is ignored", line_of(&source.code, at)));
    }
    let is_test = attributes.contains("#[test]") || is_inside_proptest(&source.code, at);
    (!is_test).then(|| format!("{path}:{}: `{function}` is no test", line_of(&source.code, at)))
}

/// True if the function is inside `proptest!`, where its `#[test]` may be further up.
fn is_inside_proptest(code: &str, at: usize) -> bool {
    code[..at].rfind("proptest!").is_some_and(|open| code[open..at].contains("#[test]"))
}

/// Every test in the tables that did not run and pass, according to the logs of a test run.
///
/// # Errors
/// When a log cannot be read, or no log names a passed test.
pub fn did_not_run(tables: &[Table], logs: &[&str]) -> anyhow::Result<Vec<String>> {
    let mut ran = BTreeSet::new();
    for log in logs {
        let text = std::fs::read(log).with_context(|| format!("cannot read {log}"))?;
        ran.extend(passed(&String::from_utf8_lossy(&text)));
    }
    if ran.is_empty() {
        bail!("the logs name no test that passed");
    }
    let mut findings = Vec::new();
    for table in tables {
        for requirement in &table.requirement {
            for test in requirement.tests.iter().filter(|test| !ran.contains(printed_as(test))) {
                findings.push(format!(
                    "{FOLDER}/rfc{}.toml: {}: {test} did not run and pass",
                    table.rfc, requirement.id
                ));
            }
        }
    }
    Ok(findings)
}

/// The name of a test in a log.
fn printed_as(test: &str) -> &str {
    let name = test.rsplit(['#', '/']).next().unwrap_or(test);
    name.strip_suffix(".pkt").unwrap_or(name)
}

/// Names of passed tests: from `test a::b::name ... ok` of cargo, or `ok name` of the tests of programs. For a script it is the file's
/// name.
fn passed(log: &str) -> Vec<String> {
    let name = |line: &str| {
        let full = match line.strip_prefix("test ") {
            Some(rest) => {
                rest.strip_suffix(" ... ok").or_else(|| rest.split_once(" - should panic").map(|(n, _)| n))
            }
            None => line.strip_prefix("ok "),
        }?;
        let word = full.split_whitespace().next()?;
        let last = word.rsplit("::").next()?.rsplit('/').next()?;
        Some(last.strip_suffix(".pkt").unwrap_or(last).to_owned())
    };
    log.lines().filter_map(name).collect()
}

/// One line per RFC with the number of obeyed requirements of each level.
pub fn summary(tables: &[Table]) -> String {
    let mut out = String::new();
    for table in tables {
        out.push_str(&format!("RFC {} ({}):", table.rfc, table.title));
        for level in LEVELS {
            let of_level = || table.requirement.iter().filter(|r| r.level == level);
            let done = of_level().filter(|r| r.not_done.is_none()).count();
            if of_level().next().is_some() {
                out.push_str(&format!(" {level} {done}/{}", of_level().count()));
            }
        }
        out.push('\n');
    }
    out
}

/// `cargo xtask specs`: checks the tables, and the logs of a test run if there are any.
///
/// # Errors
/// When a table, a log or the manual cannot be read.
pub fn run(workspace: &Workspace, sources: &[Source], logs: &[&str]) -> anyhow::Result<Vec<String>> {
    let tables = load(&workspace.root)?;
    let mut findings = check(&tables, sources, &|path| workspace.root.join(path).exists());
    let manual = std::fs::read_to_string(workspace.root.join(MANUAL)).context(MANUAL)?;
    findings.extend(not_said(&summary(&tables), &manual));
    if !logs.is_empty() {
        findings.extend(did_not_run(&tables, logs)?);
    }
    print!("{}", summary(&tables));
    Ok(findings)
}

/// The lines of the summary that the manual does not contain.
fn not_said(summary: &str, manual: &str) -> Vec<String> {
    let missing = summary.lines().filter(|line| !manual.lines().any(|said| said.trim() == *line));
    missing.map(|line| format!("{MANUAL} does not say: {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "pub fn answer() {}\nstruct Limit {\n    pub most: u32,\n}\n#[cfg(test)]\nmod tests {\n    #[test]\n    \
                        fn rule() {}\n    #[test]\n    #[ignore]\n    fn later() {}\n    fn helper() {}\n}\n";

    fn table(done: &str) -> Table {
        let head = "rfc = 6298\ntitle = \"t\"\n[[requirement]]\nid = \"2-1\"\nlevel = \"MUST\"\nsection = \"2\"\ntext = \"x\"\n";
        parse(&format!("{head}{done}")).expect("a table")
    }

    fn findings(done: &str) -> Vec<String> {
        let sources = [Source::new("crates/a/src/b.rs", CODE)];
        let all =
            check(&[table(done)], &sources, &|path| path == "tests/scripts/x.pkt" || path == "tests/apps");
        all.into_iter().filter_map(|line| line.split_once("2-1: ").map(|(_, what)| what.to_owned())).collect()
    }

    #[test]
    fn a_requirement_with_code_and_tests_is_in_order() {
        let done = "code = [\"crates/a/src/b.rs#answer\", \"crates/a/src/b.rs#most\"]\n\
                    tests = [\"crates/a/src/b.rs#rule\", \"tests/scripts/x.pkt\", \"tests/apps#pair.echo\"]";
        assert!(findings(done).is_empty(), "{:?}", findings(done));
        assert!(findings("not_done = \"it concerns routers and never hosts\"").is_empty());
    }

    #[test]
    fn what_is_not_there_is_found() {
        let with = |code: &str, test: &str| findings(&format!("code = [\"{code}\"]\ntests = [\"{test}\"]"));
        let (code, test) = ("crates/a/src/b.rs#answer", "crates/a/src/b.rs#rule");
        assert_eq!(with("crates/a/src/b.rs#other", test), ["crates/a/src/b.rs defines no `other`"]);
        assert_eq!(with("crates/a/src/c.rs#x", test), ["there is no file crates/a/src/c.rs"]);
        assert_eq!(with("crates/a/src/b.rs", test).len(), 1);
        assert_eq!(with(code, "crates/a/src/b.rs#nothing"), ["crates/a/src/b.rs has no test `nothing`"]);
        assert_eq!(with(code, "crates/a/src/b.rs#later"), ["crates/a/src/b.rs:11: `later` is ignored"]);
        assert_eq!(with(code, "crates/a/src/b.rs#helper"), ["crates/a/src/b.rs:12: `helper` is no test"]);
        assert_eq!(with(code, "tests/scripts/y.pkt"), ["there is no file tests/scripts/y.pkt"]);
        assert_eq!(findings("code = []\ntests = []").len(), 2);
        assert_eq!(findings("not_done = \"no\""), ["the reason says nothing"]);
    }

    #[test]
    fn a_missing_requirement_is_found() {
        let counted = check(&[table("not_done = \"it concerns routers and never hosts\"")], &[], &|_| true);
        assert_eq!(counted, ["specs/rfc6298.toml: 1 requirements instead of 17"]);
    }

    #[test]
    fn a_summary_that_is_no_longer_true_is_found() {
        let summary = summary(&[table("not_done = \"it concerns routers and never hosts\"")]);
        assert_eq!(summary, "RFC 6298 (t): MUST 0/1\n");
        assert!(not_said(&summary, "As of now:\n\n    RFC 6298 (t): MUST 0/1\n").is_empty());
        assert_eq!(not_said(&summary, "    RFC 6298 (t): MUST 1/1\n").len(), 1);
    }

    #[test]
    fn tests_are_found_in_logs_of_both_kinds() {
        let log = "test window::tests::rule ... ok\ntest x::bad ... FAILED\ntest never ... ignored\nok pair.echo (0.1 s)\n\
                   not ok pair.no\nok tests/scripts/open/syn.pkt\n";
        assert_eq!(passed(log), ["rule", "pair.echo", "syn"]);
        assert_eq!(printed_as("tests/scripts/open/syn.pkt"), "syn");
        assert_eq!(printed_as("tests/apps#pair.echo"), "pair.echo");
        assert_eq!(printed_as("crates/a/src/b.rs#rule"), "rule");
    }
}
