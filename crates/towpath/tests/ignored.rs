//! Nothing that a user sets is accepted and ignored: each flag, variable, key and command of the table is refused, or warned of, with what to do
//! next. And `up --check`, which says so without opening anything.

use crate::common::library;
use crate::service::Service;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn towpath(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.args(words).stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A service without a policy file: a private one, because root's public service reads a policy where one is installed.
fn without_policy() -> Service {
    Service::start(&["--private"])
}

/// A command with these words, for which the service is the one that the environment names.
fn at(service: &Service, words: &[&str]) -> Command {
    let mut command = towpath(words);
    command.env("TOWPATH_CONTROL", service.control()).env("TOWPATH_PRELOAD", library());
    command
}

/// What a command of the table must do.
enum Outcome {
    /// It fails, and its error has these words.
    Refused(&'static [&'static str]),
    /// It does what it is to do, and standard error has these words.
    Warned(&'static [&'static str]),
}
use Outcome::{Refused, Warned};

/// The words of a command, the variables, and the outcome. A word `FILE=text` is a file with that text.
type Row = (&'static [&'static str], &'static [(&'static str, &'static str)], Outcome);

const ALONE: &[Row] = &[
    (
        &["up", "--check", "--log", "warning"],
        &[],
        Refused(&["--log", "did you mean warn?", "off, error, warn, info, debug, trace"]),
    ),
    (&["up", "--check", "--log", "service=loud"], &[], Refused(&["--log", "service=loud"])),
    (&["up", "--check"], &[("TOWPATH_LOG_LEVEL", "verbose")], Refused(&["`verbose`", "off, error, warn"])),
    (
        &["up", "--check", "--config", "FILE=log = \"warning\""],
        &[],
        Refused(&["line 1", "did you mean warn?"]),
    ),
    (
        &["up", "--check", "--config", "FILE=# comment\ncors = 3"],
        &[],
        Refused(&["line 2", "did you mean `cores`?", "\n  Port:\n"]),
    ),
    (
        &["up", "--check", "--config", "FILE=region-mib = 3"],
        &[],
        Refused(&["line 1", "did you mean `region_mib`?"]),
    ),
    (&["up", "--check", "--config", "FILE=[service]\ncores = 3"], &[], Refused(&["line 1", "in no [table]"])),
    (&["up", "--check", "--hop-limit", "5"], &[], Refused(&["--hop-limit", "--port tap"])),
    (&["up", "--check", "--mtu", "1400"], &[], Refused(&["--mtu", "--port tap"])),
    (
        &["up", "--check", "--cc-reports", "5", "--port", "tap", "--address", "10.9.0.2/24"],
        &[],
        Refused(&["--cc-socket"]),
    ),
    (&["up", "--check", "--detach"], &[], Refused(&["--check", "--detach"])),
    (&["up", "--check"], &[("TOWPATH_CORS", "3")], Warned(&["TOWPATH_CORS", "did you mean TOWPATH_CORES?"])),
    (
        &["up", "--check", "--port", "packet:nobody0", "--address", "10.9.0.2/24"],
        &[],
        Refused(&["--port packet:nobody0", "ip link"]),
    ),
    (&["up", "--check", "--cores", "3"], &[], Warned(&["--cores 3 changes nothing without a port"])),
    (&["version"], &[("TOWPATH_CORS", "3")], Warned(&["TOWPATH_CORS", "did you mean TOWPATH_CORES?"])),
    (&["version"], &[("TOWPATH_XYZZY", "3")], Warned(&["TOWPATH_XYZZY", "changes nothing"])),
];

const AT_A_SERVICE: &[Row] = &[
    (&["cores", "--set", "99"], &[], Refused(&["no port", "--port"])),
    (&["cores", "--set", "auto"], &[], Refused(&["no port", "--port"])),
    (&["reload"], &[], Refused(&["no policy file", "--policy FILE"])),
    (&["stat"], &[("TOWPATH_CONTROLL", "x")], Warned(&["did you mean TOWPATH_CONTROL?"])),
    (
        &["explain", "no-such-program"],
        &[],
        Refused(&["no process is called no-such-program", "towpath explain"]),
    ),
    (&["explain", "10.0.0.1"], &[], Refused(&["10.0.0.1", "with a port"])),
    (&["ss", "-u"], &[], Refused(&["-u"])),
    (
        &["run", "--", "true"],
        &[("TOWPATH_LOG", "warning")],
        Warned(&["TOWPATH_LOG=warning", "did you mean warn?"]),
    ),
    (&["run", "--", "true"], &[("TOWPATH_SPIN_US", "soon")], Warned(&["TOWPATH_SPIN_US=soon", "no number"])),
    (&["run", "--", "true"], &[("TOWPATH_RING_MIN", "64k")], Warned(&["TOWPATH_RING_MIN=64k", "no number"])),
    // The second line is the library's.
    (
        &["run", "--", "true"],
        &[("TOWPATH_LOG", "warn"), ("TOWPATH_CORS", "3")],
        Warned(&["towpath: TOWPATH_CORS", "]: TOWPATH_CORS", "did you mean TOWPATH_CORES?"]),
    ),
];

fn check(rows: &[Row], command: impl Fn(&[&str]) -> Command) {
    let folder = tempfile::tempdir().unwrap();
    for (words, variables, outcome) in rows {
        let words: Vec<String> = words
            .iter()
            .map(|word| match word.strip_prefix("FILE=") {
                Some(content) => {
                    let path = folder.path().join("towpath.toml");
                    std::fs::write(&path, content).unwrap();
                    path.display().to_string()
                }
                None => (*word).to_owned(),
            })
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let done = command(&words).envs(variables.iter().copied()).output().unwrap();
        let said = text(&done.stderr);
        let (is_good, wanted) = match outcome {
            Refused(wanted) => (!done.status.success() && done.status.code() != Some(101), wanted),
            Warned(wanted) => (done.status.success(), wanted),
        };
        assert!(is_good, "{words:?} {variables:?}: {}: {said}", done.status);
        wanted
            .iter()
            .for_each(|part| assert!(said.contains(part), "{words:?} {variables:?}: no {part:?} in {said}"));
    }
}

#[test]
fn nothing_is_accepted_and_ignored() {
    check(ALONE, towpath);
    let service = without_policy();
    check(AT_A_SERVICE, |words| at(&service, words));
}

#[test]
fn what_is_right_is_warned_of_by_nothing() {
    let service = without_policy();
    for words in [&["run", "--", "true"][..], &["stat"], &["up", "--check"]] {
        let mut command = at(&service, words);
        let done = command.env("TOWPATH_LOG", "warn").env("TOWPATH_SPIN_US", "20").output().unwrap();
        assert!(done.status.success() && done.stderr.is_empty(), "{words:?}: {}", text(&done.stderr));
    }
}

#[test]
fn check_prints_what_would_be_in_force_and_opens_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (control, file) = (folder.path().join("new/control.sock"), folder.path().join("towpath.toml"));
    std::fs::write(&file, "region_mib = 64\nport = \"tap:tp0\"\naddress = [\"10.9.0.2/24\"]\n").unwrap();
    let checked = |file: &Path| -> Output {
        let mut command = towpath(&["up", "--check", "--spin-us", "7", "--config"]);
        command.arg(file).arg("--control").arg(&control).output().unwrap()
    };
    let done = checked(&file);
    let shown = text(&done.stdout);
    assert!(done.status.success(), "{}", text(&done.stderr));
    for (key, source) in
        [("region_mib = 64", "file"), ("spin_us = 7", "flag or variable"), ("hop_limit = 64", "default")]
    {
        let is_line = |line: &str| line.starts_with(key) && line.ends_with(&format!("# {source}"));
        assert!(shown.lines().any(is_line), "{key} of {source} is not in {shown}");
    }
    assert!(!control.parent().unwrap().exists(), "a folder was made");
    assert!(!Path::new("/sys/class/net/tp0").exists(), "an interface was made");
    // What it prints is a file that means the same.
    let printed = folder.path().join("printed.toml");
    std::fs::write(&printed, &shown).unwrap();
    let keys = |shown: &str| -> Vec<String> {
        shown
            .lines()
            .map(|line| line.split("  #").next().unwrap().trim_end().to_owned())
            .filter(|line| !line.starts_with('#'))
            .collect()
    };
    assert_eq!(keys(&text(&checked(&printed).stdout)), keys(&shown));
}

#[test]
fn the_short_help_of_up_is_one_screen_and_the_long_one_has_every_option() {
    let help = |word| {
        let done = towpath(&["up", word]).env("COLUMNS", "80").output().unwrap();
        assert!(done.status.success());
        text(&done.stdout)
    };
    let (short, long) = (help("-h"), help("--help"));
    assert!((20..=40).contains(&short.lines().count()), "{} lines:\n{short}", short.lines().count());
    for flag in
        ["--control", "--port", "--address", "--config", "--detach", "--check", "--cores", "--log", "--help"]
    {
        assert!(short.contains(flag), "{flag} is not in\n{short}");
    }
    for flag in ["--buffer-initial", "--channel-peers", "--syscall-filter", "Examples:"] {
        assert!(long.contains(flag) && !short.contains(flag), "{flag}");
    }
}

#[test]
fn reports_fit_80_columns_and_say_which_shape_their_json_has() {
    let service = without_policy();
    // Both ends of a connection of one process, and a listener; it ends with its standard input.
    let program = "import socket, sys\nl = socket.create_server(('127.0.0.1', 0))\n\
        c = socket.create_connection(l.getsockname()); a = l.accept()[0]\n\
        print(l.getsockname()[1], flush=True); sys.stdin.read()";
    let mut run = at(&service, &["run", "--require", "--", "python3", "-c", program]);
    let Ok(mut running) = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        return println!("skipped: needs python3");
    };
    let mut port = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(running.stdout.as_mut().unwrap()), &mut port)
        .unwrap();
    let port = format!(":{}", port.trim());
    let shown = |words: &[&str]| {
        let done = at(&service, words).env_remove("COLUMNS").output().unwrap();
        assert!(done.status.success(), "{words:?}: {}", text(&done.stderr));
        text(&done.stdout)
    };
    for words in [
        &["ss"][..],
        &["ss", "-tlnp"],
        &["ss", &port],
        &["explain"],
        &["explain", &port],
        &["explain", "python3"],
        &["stat"],
    ] {
        let text = shown(words);
        let long = text.lines().find(|line| line.chars().count() > 80);
        assert!(long.is_none() && !text.is_empty(), "{words:?}: {long:?} in\n{text}");
    }
    let (all, listeners) = (shown(&["ss"]), shown(&["ss", "-tlnp"]));
    assert_eq!((all.matches("ESTAB").count(), all.matches("LISTEN").count()), (2, 1), "{all}");
    assert_eq!(
        (listeners.matches("ESTAB").count(), listeners.matches("LISTEN").count()),
        (0, 1),
        "{listeners}"
    );
    assert!(listeners.contains(&port) && listeners.contains("python3"), "{listeners}");
    assert!(shown(&["explain", "python3"]).contains(&format!("({}): 3 accelerated", running.id())));
    for words in [
        &["ss", "--json"][..],
        &["stat", "--json"],
        &["explain", "--json"],
        &["cores", "--json"],
        &["channels", "--json"],
    ] {
        let report: Value = serde_json::from_str(&shown(words)).unwrap();
        assert!(report["schema"].is_u64(), "{words:?}: {report}");
    }
    let report: Value = serde_json::from_str(&shown(&["ss", "--json", &port])).unwrap();
    let rows = report["sockets"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{report}");
    for key in ["rtt_us", "cwnd", "mss", "pacing_rate", "congestion", "core", "idle_ms"] {
        assert!(rows.iter().all(|row| row.get(key).is_some_and(Value::is_null)), "{key}: {report}");
    }
    drop(running.stdin.take());
    running.wait().unwrap();
}
