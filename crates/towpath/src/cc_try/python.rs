//! Trials and replays of algorithms in Python: starts a Python with the module of crate `ccp-python`, which holds the whole simulator.
//!
//! The module lies beside this program, as `cargo build` leaves it, or is installed as a wheel. The order and its result are files of JSON, so
//! that what the algorithm prints goes where the person looks.

use anyhow::{Context, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The interpreters that are asked, in order; `TOWPATH_PYTHON` comes first.
const INTERPRETERS: [&str; 6] =
    ["python3", "python3.13", "python3.12", "python3.11", "python3.10", "python3.9"];
/// The file that `cargo build` makes, and the name by which Python finds it.
const BUILT: &str = "libtowpath_cc.so";
const MODULE: &str = "towpath_cc.abi3.so";
/// Fails in a Python that the module cannot run in; else says which version of the module it has.
const ASK: &str = "import sys\nassert (3, 9) <= sys.version_info\ntry:\n    import towpath_cc\n    print(getattr(towpath_cc, '__version__', 'unknown'))\nexcept ImportError:\n    print('none')\n";
/// Of this program, and of the module that understands its orders.
const VERSION: &str = env!("CARGO_PKG_VERSION");
const RUN: &str = "import sys, towpath_cc\ntowpath_cc._run_order(sys.argv[1], sys.argv[2])\n";

/// Carries out an order in Python; its result. `subject` is the file that needs Python.
pub fn run(subject: &str, order: &Value) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir().context("cannot make a folder for the trial")?;
    let built = built_module();
    let paths = match &built {
        Some(module) => {
            let there = folder.path().join(MODULE);
            std::os::unix::fs::symlink(module, there).context("cannot show the module to Python")?;
            python_path(folder.path())?
        }
        None => std::env::var_os("PYTHONPATH").unwrap_or_default(),
    };
    let python = interpreter(&paths, built.is_some())?;
    let (asked, result) = (folder.path().join("order.json"), folder.path().join("result.json"));
    std::fs::write(&asked, order.to_string()).context("cannot write the order")?;
    let mut command = Command::new(&python);
    command.env("PYTHONPATH", &paths).env("PYTHONDONTWRITEBYTECODE", "1");
    let status = command.args(["-c", RUN]).args([&asked, &result]).status();
    if !status.with_context(|| format!("cannot start {python}"))?.success() {
        bail!("{subject}: it failed in {python}; what that says is above");
    }
    let text = std::fs::read_to_string(&result).context("Python left no result")?;
    serde_json::from_str(&text).context("the result is no JSON")
}

/// The module beside this program, where `cargo build` and `cargo test` leave it.
fn built_module() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let folder = own.parent()?;
    [folder.join(BUILT), folder.join("deps").join(BUILT)].into_iter().find(|path| path.is_file())
}

fn python_path(folder: &Path) -> anyhow::Result<std::ffi::OsString> {
    let before = std::env::var_os("PYTHONPATH").unwrap_or_default();
    let all = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&before));
    std::env::join_paths(all.filter(|path| !path.as_os_str().is_empty())).context("PYTHONPATH")
}

/// The first Python that has the module of this version.
fn interpreter(paths: &std::ffi::OsStr, is_built: bool) -> anyhow::Result<String> {
    let named = std::env::var("TOWPATH_PYTHON").ok();
    let known = INTERPRETERS.iter().map(|name| (*name).to_owned());
    let (mut is_any, mut other) = (false, None);
    for name in named.into_iter().chain(known) {
        let asked = Command::new(&name).args(["-c", ASK]).env("PYTHONPATH", paths).output();
        let Some(output) = asked.ok().filter(|output| output.status.success()) else { continue };
        is_any = true;
        match String::from_utf8_lossy(&output.stdout).trim() {
            VERSION => return Ok(name),
            "none" => {}
            version => other = other.or(Some(format!("that of {name} is {version}"))),
        }
    }
    match (is_any, other, is_built) {
        (false, ..) => bail!("there is no Python 3.9 or newer (python3, or TOWPATH_PYTHON=PATH)"),
        (true, Some(other), _) => {
            bail!(
                "the module towpath_cc is of another version: {other}, this program's {VERSION}; install its wheel"
            )
        }
        (true, None, false) => {
            bail!(
                "Python has no module towpath_cc: `cargo build --release -p towpath-ccp-python`, or install its wheel"
            )
        }
        (true, None, true) => {
            bail!("Python cannot load {BUILT}: `python3 -c 'import towpath_cc'` beside it says why")
        }
    }
}
