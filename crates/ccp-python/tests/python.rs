//! The module in every Python that is here: the checks are in `checks.py` and `live.py`, and run as a person would run them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Interpreters by their usual names; `TOWPATH_PYTHONS` (paths, as in PATH) adds others.
const NAMES: [&str; 6] = ["python3", "python3.9", "python3.10", "python3.11", "python3.12", "python3.13"];
const IS_RIGHT: &str = "import sys; print(sys.version_info[:2] if sys.version_info >= (3, 9) else '')";
const CHECKS: [&str; 2] = ["checks.py", "live.py"];

fn module() -> PathBuf {
    let own = std::env::current_exe().expect("a test has a path");
    own.with_file_name("libtowpath_cc.so")
}

/// Interpreters that are there, each version once.
fn pythons() -> Vec<PathBuf> {
    let more = std::env::var_os("TOWPATH_PYTHONS").unwrap_or_default();
    let all = NAMES.iter().map(PathBuf::from).chain(std::env::split_paths(&more));
    let mut versions = Vec::new();
    let is_new = |python: &PathBuf| {
        let Ok(said) = Command::new(python).args(["-c", IS_RIGHT]).output() else { return false };
        let version = String::from_utf8_lossy(&said.stdout).trim().to_owned();
        let is_new = said.status.success() && !version.is_empty() && !versions.contains(&version);
        versions.push(version);
        is_new
    };
    all.filter(is_new).collect()
}

#[test]
fn the_module_keeps_its_promises_in_every_python() {
    let pythons = pythons();
    if pythons.is_empty() {
        eprintln!("skipped: there is no Python 3.9 or newer here");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(module(), folder.path().join("towpath_cc.abi3.so")).expect("a link");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let runs = pythons.iter().flat_map(|python| CHECKS.map(|name| (python, tests.join(name))));
    for (python, checks) in runs {
        let run = Command::new(python)
            .arg(&checks)
            .env("PYTHONPATH", folder.path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .expect("it ran before");
        let says = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{}:\n{says}", python.display());
        eprintln!("{}: {}", python.display(), String::from_utf8_lossy(&run.stdout).trim());
    }
}

#[test]
fn the_papers_aimd_has_at_most_twenty_lines() {
    let text = include_str!("../examples/aimd.py");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    assert!((15..=20).contains(&lines.count()), "docs/congestion.md calls it 20 lines");
}
