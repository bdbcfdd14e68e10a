//! Rules for single files: which may read a clock, how long they may be, and what the packet path must not do.

use anyhow::Context;

use crate::source::{SETUP_MARKER, Source, line_of, occurrences};
use crate::workspace::{Package, Workspace};

/// The most lines of a file (STYLE: aim for 100-400 lines).
const LINES_MAX: usize = 600;

/// Crates that may read a clock: the service and the application's side, which wait, and the tools.
const CLOCK_CRATES: [&str; 12] = [
    "ccp-linux",
    "cycles",
    "preload",
    "ring",
    "ring-c",
    "session",
    "socket",
    "bench",
    "emulator",
    "towpath",
    "xtask",
    "fuzz",
];
/// Crates of which only these files may read a clock. `service`: the event loop, the cores, and what it logs; its registry takes `now` with
/// each input. `ccp-agent`: the runner around the agent's core.
const CLOCK_FILES: [(&str, &[&str]); 2] = [
    ("ccp-agent", &["src/runner.rs"]),
    ("service", &["src/daemon", "src/cores", "src/report/profile_switch.rs", "/tests"]),
];
const CLOCKS: [&str; 6] =
    ["Instant::now", "SystemTime::now", "clock_gettime", "gettimeofday", "_rdtsc", "__rdtscp"];

/// Crates with code that runs for packets: it must not allocate, wait for a lock, start a thread or print.
const PACKET_CRATES: [&str; 3] = ["fastpath", "flow", "queue"];
/// Files of these crates with code that runs only at start.
const SETUP_FILES: [&str; 2] = ["setup.rs", "pool.rs"];
/// The root of a crate's tests, below its folder `tests`, where they are one program.
const TESTS_ROOT: &str = "all.rs";
/// Words that the packet path must not contain, each with advice.
const PACKET_PATH: [(&str, &str); 21] = [
    ("std::thread", THREADS),
    ("thread::spawn", THREADS),
    ("thread::sleep", THREADS),
    ("thread::park", THREADS),
    ("thread::yield_now", THREADS),
    ("Mutex", LOCKS),
    ("RwLock", LOCKS),
    ("Condvar", LOCKS),
    ("Box::new", ALLOCATION),
    ("Rc::new", ALLOCATION),
    ("Arc::new", ALLOCATION),
    ("Vec::", ALLOCATION),
    ("vec!", ALLOCATION),
    ("String::", ALLOCATION),
    (".to_vec(", ALLOCATION),
    (".to_string(", ALLOCATION),
    ("format!", ALLOCATION),
    ("println!", PRINTING),
    ("print!", PRINTING),
    ("eprintln!", PRINTING),
    ("eprint!", PRINTING),
];
const THREADS: &str = "threads belong to `service`; take what it computed as an argument";
const LOCKS: &str = "no blocking lock here; use a ring, an atomic, or try-lock and forward";
const ALLOCATION: &str = "allocate at start and borrow from a pool";
const PRINTING: &str = "count it or hand out an event; `service` prints";

/// Crates that programs are linked with: a program with more rights than its caller must not obey the caller's variables.
const LINKED_CRATES: [&str; 13] = [
    "base",
    "control",
    "cycles",
    "endpoint",
    "loader",
    "preload",
    "queue",
    "ring",
    "ring-c",
    "ring-tokio",
    "session",
    "shm",
    "socket",
];
/// The files of these crates that may read variables: one asks the kernel first; the other passes variables on, of which it obeys none.
const VARIABLES_FILES: [&str; 2] = ["crates/control/src/variables.rs", "crates/preload/src/environment.rs"];
const VARIABLES: [&str; 6] =
    ["env::var", "env::var_os", "env::vars", "env::vars_os", "getenv", "secure_getenv"];

/// Reads every Rust file of the workspace, and blanks comments, strings and tests.
///
/// # Errors
/// When a file cannot be read.
pub fn read_sources(workspace: &Workspace) -> anyhow::Result<Vec<Source>> {
    let read = |path: &String| {
        let text = std::fs::read_to_string(workspace.root.join(path))
            .with_context(|| format!("cannot read {path}"))?;
        Ok(Source::new(path, &text))
    };
    workspace.files.iter().map(read).collect()
}

/// Every breach of these rules.
pub fn check(workspace: &Workspace, sources: &[Source]) -> Vec<String> {
    let mut findings = Vec::new();
    for source in product(sources) {
        let noun = noun_of(workspace, &source.path);
        findings.extend(check_length(source));
        if !may_read_clocks(noun, &source.path) {
            findings.extend(check_clocks(source));
        }
        if LINKED_CRATES.contains(&noun) && !VARIABLES_FILES.contains(&source.path.as_str()) {
            findings.extend(check_variables(source));
        }
        if PACKET_CRATES.contains(&noun) && !is_setup_file(&source.path) {
            findings.extend(check_packet_path(source));
        }
    }
    findings.extend(workspace.packages.iter().flat_map(|package| forgotten_tests(package, sources)));
    findings
}

/// Files that are in the product: not those that only tests see.
pub fn product(sources: &[Source]) -> Vec<&Source> {
    let test_modules: Vec<&String> = sources.iter().flat_map(|source| &source.test_modules).collect();
    sources.iter().filter(|source| !is_test_file(&source.path, &test_modules)).collect()
}

/// If a crate's tests are one program, each file beside its root must be one of its modules or the root of a program. Otherwise it would
/// never run, and the compiler does not report that.
fn forgotten_tests(package: &Package, sources: &[Source]) -> Vec<String> {
    let folder = format!("{}/tests/", package.folder);
    let root_path = format!("{folder}{TESTS_ROOT}");
    let Some(root) = sources.iter().find(|source| source.path == root_path) else { return Vec::new() };
    let is_run = |name: &str| occurrences(&root.code, &format!("mod {name}")).next().is_some();
    let programs = |source: &&Source| !package.test_roots.contains(&source.path);
    let beside = sources.iter().filter(programs).filter_map(|source| {
        let name = source.path.strip_prefix(&folder)?.strip_suffix(".rs")?;
        (!name.contains('/') && !is_run(name)).then_some((source, name))
    });
    let say = |(source, name): (&Source, &str)| {
        format!("{}:1: tests: nothing runs this file; add `mod {name};` to {root_path}", source.path)
    };
    beside.map(say).collect()
}

fn check_length(source: &Source) -> Option<String> {
    (source.lines > LINES_MAX).then(|| {
        format!(
            "{}:{LINES_MAX}: length: {} lines, the limit is {LINES_MAX}; a file is one noun: split it, or move its \
             tests to a tests.rs",
            source.path, source.lines
        )
    })
}

fn may_read_clocks(noun: &str, path: &str) -> bool {
    let is_one = |(of, files): &(&str, &[&str])| *of == noun && files.iter().any(|file| path.contains(file));
    CLOCK_CRATES.contains(&noun) || CLOCK_FILES.iter().any(is_one)
}

fn check_clocks(source: &Source) -> Vec<String> {
    let advice = "no clock is read here; take `now` as an argument";
    let hits =
        CLOCKS.iter().flat_map(|clock| occurrences(&source.product, clock).map(move |at| (at, *clock)));
    hits.map(|(at, clock)| finding(source, &source.product, at, "clock", clock, advice)).collect()
}

fn check_variables(source: &Source) -> Vec<String> {
    let advice =
        "ask `control::variables`, which obeys no variable where the program has more rights than its caller";
    let hits =
        VARIABLES.iter().flat_map(|word| occurrences(&source.product, word).map(move |at| (at, *word)));
    hits.map(|(at, word)| finding(source, &source.product, at, "variables", word, advice)).collect()
}

fn check_packet_path(source: &Source) -> Vec<String> {
    let mut findings = Vec::new();
    for (pattern, advice) in PACKET_PATH {
        for at in occurrences(&source.hot, pattern) {
            let advice = format!(
                "{advice}; if it runs only at start, write `{}why` above the item or move it to setup.rs",
                SETUP_MARKER
            );
            findings.push(finding(source, &source.hot, at, "packet path", pattern, &advice));
        }
    }
    findings
}

fn finding(source: &Source, text: &str, at: usize, rule: &str, pattern: &str, advice: &str) -> String {
    format!("{}:{}: {rule}: `{pattern}`: {advice}", source.path, line_of(text, at))
}

/// The noun of the file's crate; the first folder for files outside every package.
fn noun_of<'a>(workspace: &'a Workspace, path: &'a str) -> &'a str {
    let package = workspace.packages.iter().find(|package| is_inside(path, &package.folder));
    package.map_or_else(|| path.split('/').next().unwrap_or(path), |package| &package.noun)
}

/// True if `path` is a file below `folder`.
pub fn is_inside(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

fn is_setup_file(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| SETUP_FILES.contains(&name))
}

/// True for files that are not in the product: by their name, or because they are declared for tests only.
fn is_test_file(path: &str, test_modules: &[&String]) -> bool {
    let mut folders: Vec<&str> = path.split('/').collect();
    let name = folders.pop();
    name == Some("tests.rs")
        || folders.iter().any(|folder| matches!(*folder, "tests" | "benches"))
        || test_modules
            .iter()
            .any(|module| path.strip_suffix(".rs") == Some(module.as_str()) || is_inside(path, module))
}
