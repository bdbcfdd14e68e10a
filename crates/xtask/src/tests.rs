//! The rules on small texts, and on the whole repository.

use serde_json::json;

use crate::source::{Source, line_of, occurrences};
use crate::workspace::{Package, Workspace};
use crate::{manual, report, root, rules, tidy};

#[test]
fn the_workspace_is_tidy() {
    let workspace = Workspace::load(&root()).expect("cargo metadata answers inside a cargo test");
    let findings = tidy(&workspace).expect("every file of the repository can be read");
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

/// Without logs: `scripts/test` checks at its end that the tests in the tables have run.
#[test]
fn the_requirement_tables_are_true() {
    let workspace = Workspace::load(&root()).expect("cargo metadata answers inside a cargo test");
    let sources = crate::rules::read_sources(&workspace).expect("sources can be read");
    let findings = crate::specs::run(&workspace, &sources, &[]).expect("the tables can be read");
    assert!(findings.is_empty(), "{findings:#?}");
}

fn workspace_of(noun: &str) -> Workspace {
    let target_roots = vec![format!("crates/{noun}/src/lib.rs")];
    let test_roots = ["all", "allocation"].map(|name| format!("crates/{noun}/tests/{name}.rs")).to_vec();
    let package = Package { target_roots, test_roots, ..Package::bare(noun) };
    Workspace { root: root(), packages: vec![package], files: Vec::new() }
}

/// The findings for one file of a crate, without their paths and advice.
fn findings(noun: &str, file: &str, text: &str) -> Vec<String> {
    let path = format!("crates/{noun}/src/{file}");
    let source = Source::new(&path, text);
    let shorten = |finding: String| {
        let rest =
            finding.strip_prefix(&format!("{path}:")).expect("a finding begins with its place").to_owned();
        rest.splitn(4, ':').take(3).collect::<Vec<_>>().join(":").trim_end_matches(':').to_owned()
    };
    rules::check(&workspace_of(noun), &[source]).into_iter().map(shorten).collect()
}

#[test]
fn comments_strings_and_characters_are_not_code() {
    let text = r####"
// vec! in a comment /* still
/* vec! /* nested vec! */ vec! */
let a = "vec! \" vec!"; let b = r#"vec! " vec!"#; let c = br"vec!\";
let d = '"'; let e = '\''; let f: &'static str = "vec!"; let g = '\u{1F600}'; let h = 'é';
let r#type = vec![1];
"####;
    let source = Source::new("x.rs", text);
    let hits: Vec<usize> = occurrences(&source.code, "vec!").map(|at| line_of(&source.code, at)).collect();
    assert_eq!(hits, [6], "{}", source.code);
    assert_eq!(source.code.len(), text.len());
    assert!(source.code.contains("&'static str"));
}

#[test]
fn words_match_whole() {
    assert_eq!(occurrences("SmallVec::new() Vec::new() MutexGuard", "Vec::").collect::<Vec<_>>(), [16]);
    assert_eq!(occurrences("MutexGuard unsafe_code", "Mutex").count(), 0);
    assert_eq!(occurrences("unsafe_op_in_unsafe_fn unsafe {}", "unsafe").count(), 1);
}

#[test]
fn packet_path_allocates_nothing() {
    let text = "fn f() {\n    let a = Box::new(1);\n    g(vec![a]);\n}\n";
    assert_eq!(findings("fastpath", "receive.rs", text), ["2: packet path: `Box", "3: packet path: `vec!`"]);
    assert!(findings("slowpath", "receive.rs", text).is_empty());
    assert!(findings("fastpath", "setup.rs", text).is_empty());
    assert!(findings("fastpath", "tests.rs", text).is_empty());
    assert!(findings("fastpath", "tests/loss.rs", text).is_empty());
}

#[test]
fn each_file_of_tests_is_run() {
    let root = Source::new("crates/flow/tests/all.rs", "mod losses;\nmod harness;\n");
    let files = ["losses", "lossy", "allocation", "harness/peer"];
    let beside = files.map(|name| Source::new(&format!("crates/flow/tests/{name}.rs"), "fn f() {}\n"));
    let sources: Vec<Source> = std::iter::once(root).chain(beside).collect();
    let found = rules::check(&workspace_of("flow"), &sources);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("crates/flow/tests/lossy.rs:1: tests: "), "{found:?}");
}

#[test]
fn set_up_items_are_marked_with_a_reason() {
    let marked = "// SETUP: once per core\n#[must_use]\npub fn new<A, B>() -> Vec<[u8; 4]> {\n    vec![1]\n}\nfn hot() { vec![1]; }\n";
    assert_eq!(findings("flow", "table.rs", marked), ["6: packet path: `vec!`"]);
    let without_reason = "// SETUP: \nfn new() { vec![1]; }\n";
    assert_eq!(findings("flow", "table.rs", without_reason), ["2: packet path: `vec!`"]);
    let in_a_string = "const A: &str = \"\n// SETUP: no\n\";\nfn new() { vec![1]; }\n";
    assert_eq!(findings("flow", "table.rs", in_a_string), ["4: packet path: `vec!`"]);
}

#[test]
fn test_items_are_exempt_and_nothing_after_them() {
    let text = "\
#[cfg(test)]
use std::sync::{Mutex, RwLock};
#[cfg(all(test, not(loom)))]
#[allow(dead_code)]
mod tests {
    fn f() { vec![1]; }
}
#[cfg(loom)]
fn model<A, B>() { Box::new(1); }
struct S {
    #[cfg(test)]
    log: Mutex<u8>,
    lock: Mutex<u8>,
}
#[cfg(not(test))]
fn hot() { vec![1]; }
#[test]
fn rule() { vec![1]; }
";
    let in_the_order_of_the_patterns = ["13: packet path: `Mutex`", "16: packet path: `vec!`"];
    assert_eq!(findings("queue", "ring.rs", text), in_the_order_of_the_patterns);
}

#[test]
fn modules_declared_for_tests_are_exempt() {
    let parent = Source::new("crates/queue/src/ring.rs", "#[cfg(test)]\nmod oracle;\nmod hot;\n");
    assert_eq!(parent.test_modules, ["crates/queue/src/ring/oracle"]);
    let elsewhere = "#[cfg(all(test, not(loom)))]\n#[path = \"ring_tests.rs\"]\nmod tests;\n";
    assert_eq!(
        Source::new("crates/queue/src/ring.rs", elsewhere).test_modules,
        ["crates/queue/src/ring_tests"]
    );
    let oracle = Source::new("crates/queue/src/ring/oracle.rs", "fn f() { vec![1]; }");
    let hot = Source::new("crates/queue/src/ring/hot.rs", "fn f() { vec![1]; }");
    let found = rules::check(&workspace_of("queue"), &[parent, oracle, hot]);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("crates/queue/src/ring/hot.rs:1:"));
    let whole_file = "#![cfg(test)]\nfn f() { vec![1]; }";
    assert!(findings("queue", "helper.rs", whole_file).is_empty());
}

#[test]
fn only_some_crates_read_a_clock() {
    let text = "fn f() -> u64 {\n    std::time::Instant::now()\n}\n";
    assert_eq!(findings("slowpath", "timer.rs", text), ["2: clock: `Instant"]);
    assert!(findings("service", "daemon.rs", text).is_empty());
    assert_eq!(
        findings("service", "registry.rs", text),
        ["2: clock: `Instant"],
        "its registry takes the time as an argument"
    );
}

#[test]
fn what_programs_are_linked_with_reads_variables_in_one_place() {
    let text = "fn f() {\n    std::env::var_os(\"A\");\n}\n";
    assert_eq!(findings("session", "config.rs", text), ["2: variables: `env"]);
    assert!(
        findings("control", "variables.rs", text).is_empty()
            && findings("service", "config.rs", text).is_empty()
    );
}

#[test]
fn long_files_are_found() {
    assert!(findings("wire", "tcp.rs", &"\n".repeat(600)).is_empty());
    assert_eq!(findings("wire", "tcp.rs", &"\n".repeat(601)).len(), 1);
}

#[test]
fn manual_lists_paths_in_either_form() {
    let manual = "# x\n- not this\n<!-- unsafe-files:begin -->\n- `crates/a/src/b.rs`: why\n- crates/c.rs: why\ntext\n\
                  <!-- unsafe-files:end -->\n- nor this\n";
    let listed = manual::listed_files(manual).expect("both markers are there");
    assert_eq!(listed.into_iter().collect::<Vec<_>>(), ["crates/a/src/b.rs", "crates/c.rs"]);
    assert!(manual::listed_files("no markers").is_none());
}

#[test]
fn every_crate_from_outside_is_explained() {
    let mut workspace = workspace_of("wire");
    workspace.packages[0].borrows = vec!["libc".to_owned(), "rustix".to_owned()];
    let found = manual::check_dependencies(&workspace.packages, "| `libc` | the C types |");
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("`rustix`"), "{found:?}");
}

#[test]
fn report_shows_every_case_with_its_plot_won_or_lost() {
    let row = |case: &str, system: &str, median: f64| {
        json!({"case": case, "system": system, "metric": "rate", "unit": "1/s", "median": median, "min": 1, "max": 200_000.0,
               "runs": 5, "cores_used": 1.987, "cpu_ns_per_op": null})
    };
    let ratio =
        |case: &str, median: f64| json!({"case": case, "metric": "rate", "over": "kernel", "median": median});
    let result = json!({
        "name": "redis", "machine": {"cpus": 2},
        "rows": [row("redis/a&b", "towpath", 196_000.25), row("redis/a&b", "kernel", 98_000.0), row("redis/c", "towpath", 1.5)],
        "ratios": [ratio("redis/a&b", 2.0512), ratio("redis/c", 0.5)],
    });
    let report = report::parse(&result.to_string()).expect("the form is the agreed one");
    let page = report::page(&[report]).expect("plots can be drawn").into_string();
    assert_eq!(page.matches("<svg").count(), 1, "{page}");
    for wanted in [
        "towpath bench redis --json",
        "cpus 2",
        "redis/a&amp;b",
        "196000",
        "<td class=\"number\">2.051</td>",
        "<tr class=\"won\"><td>redis/a&amp;b</td>",
        "<tr class=\"lost\"><td>redis/c</td>",
        "currentColor",
    ] {
        assert!(page.contains(wanted), "no {wanted} in {page}");
    }
    assert!(report::parse(&json!({"rows": []}).to_string()).is_err());
}
