//! `towpath cc try` and `cc replay` as a person runs them.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn towpath(words: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.arg("cc").args(words).current_dir(folder).output().unwrap()
}

/// What a command prints if it ends well.
fn good(words: &[&str], folder: &Path) -> String {
    let output = towpath(words, folder);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Why a command fails: its last line.
fn refusal(words: &[&str], folder: &Path) -> String {
    let output = towpath(words, folder);
    assert!(!output.status.success(), "{words:?}");
    String::from_utf8(output.stderr).unwrap().trim_end().lines().last().unwrap().to_owned()
}

fn of_tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

#[test]
fn a_program_is_tried_against_a_rival_and_the_page_is_the_same_twice() {
    let folder = tempfile::tempdir().unwrap();
    let program = of_tree("ccp-algorithms/src/programs/reno.ccp");
    let program = program.to_str().unwrap();
    let run = |page| {
        let words = ["--link", "12mbit,20ms,1bdp", "--seconds", "2", "--flows", "2", "--html", page];
        let text = good(&[&["try", program, "--against", "cubic"], &words[..]].concat(), folder.path());
        (text, std::fs::read_to_string(folder.path().join(page)).unwrap())
    };
    let (first, second) = (run("one.html"), run("two.html"));
    assert_eq!(first, second);
    for part in ["reno alone", "cubic alone", "reno against cubic", "reno 2", "Jain's index"] {
        assert!(first.0.contains(part), "no `{part}` in {}", first.0);
    }
    assert_eq!(first.1.matches("<svg").count(), 15, "five plots of three runs");
}

#[test]
fn a_trace_takes_the_place_of_the_rate_and_json_has_every_look() {
    let folder = tempfile::tempdir().unwrap();
    // 6 Mbit/s: a packet of 1500 bytes each 2 ms.
    let times: String = (1..=500).map(|n| format!("{}\n", 2 * n)).collect();
    std::fs::write(folder.path().join("cell"), times).unwrap();
    let words = ["try", "copa", "--link", "12mbit,20ms,2bdp", "--trace", "cell", "--seconds", "3", "--json"];
    let found: Value = serde_json::from_str(&good(&words, folder.path())).unwrap();
    let flow = &found["races"][0]["flows"][0];
    let rate = flow["throughput"].as_f64().unwrap();
    assert!(rate > 4e6 && rate < 6e6, "{rate} bit/s");
    assert_eq!(flow["cwnd"].as_array().unwrap().len(), 1500);
}

#[test]
fn a_trial_says_how_often_its_buffers_decide() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["try", "cubic", "--link", "100mbit,20ms,1bdp", "--seconds", "1"];
    let text = good(&words, folder.path());
    assert!(text.contains("bounded by the receiver") && text.contains("buffers of 1024 KiB"), "{text}");
    let json = good(&[&words[..], &["--buffer", "100kib", "--json"]].concat(), folder.path());
    let found: Value = serde_json::from_str(&json).unwrap();
    let race = &found["races"][0];
    assert_eq!(race["buffer"], 128 << 10, "the next power of two");
    assert!(race["bounded"].as_f64().unwrap() > 0.5, "{}", race["bounded"]);
}

#[test]
fn a_recorded_trial_is_replayed_and_another_algorithm_differs() {
    let folder = tempfile::tempdir().unwrap();
    good(&["try", "aimd", "--seconds", "2", "--record", "aimd.rec"], folder.path());
    let told = good(&["replay", "aimd.rec", "aimd"], folder.path());
    assert!(told.starts_with("1 flows, ") && told.contains("decisions the same"), "{told}");
    assert!(refusal(&["replay", "aimd.rec", "vegas"], folder.path()).contains("vegas decides otherwise"));
    std::fs::write(folder.path().join("none.rec"), "nothing\n").unwrap();
    assert!(refusal(&["replay", "none.rec", "aimd"], folder.path()).contains("no transcript"));
}

#[test]
fn what_cannot_be_tried_is_told_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bad.ccp"), "(def)\n(when true (:= Cwnd lost))\n").unwrap();
    for (words, says) in [
        (&["try", "no-such"][..], "there is no algorithm `no-such`"),
        (&["try", "gone.ccp"], "cannot read gone.ccp"),
        (&["try", "cubic", "--buffer", "4"], "`4` is no buffer"),
        (&["try", "bad.ccp"], "2:"),
        (&["try", "copa", "--link", "fast"], "RATE,RTT,QUEUE"),
        (&["try", "copa", "--flows", "0"], "0 flows"),
        (&["try", "copa", "--seconds", "0"], "0 seconds"),
    ] {
        let why = refusal(words, folder.path());
        assert!(why.contains(says), "{words:?}: {why}");
    }
    let mut without = Command::new(env!("CARGO_BIN_EXE_towpath"));
    without.args(["cc", "try", "mine.py"]).env("PATH", folder.path()).env_remove("TOWPATH_PYTHON");
    let output = without.output().unwrap();
    let why = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.success(), why.lines().count()), (false, 1), "{why}");
    assert!(why.contains("no Python 3.9 or newer"), "{why}");
}

/// A wheel that is not of this version would misread the order: the program says so before it gives one.
#[test]
fn a_module_of_another_version_is_refused_in_one_line() {
    if !Command::new("python3")
        .args(["-c", "import sys; assert sys.version_info >= (3, 9)"])
        .status()
        .is_ok_and(|status| status.success())
    {
        return println!("skipped: needs python3 (3.9 or newer)");
    }
    let folder = tempfile::tempdir().unwrap();
    // A folder without the module that cargo has built.
    let own = folder.path().join("towpath");
    if std::fs::hard_link(env!("CARGO_BIN_EXE_towpath"), &own).is_err() {
        std::fs::copy(env!("CARGO_BIN_EXE_towpath"), &own).unwrap();
    }
    std::fs::write(folder.path().join("towpath_cc.py"), "__version__ = '0.0.1'\n").unwrap();
    let mut try_it = Command::new(&own);
    try_it.args(["cc", "try", "mine.py"]).current_dir(folder.path()).env("PYTHONPATH", folder.path());
    let output = try_it.env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    let why = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.success(), why.lines().count()), (false, 1), "{why}");
    assert!(why.contains("another version") && why.contains("0.0.1"), "{why}");
}

#[test]
fn an_algorithm_in_python_is_tried_from_the_build_tree() {
    let beside = |name: &str| Path::new(env!("CARGO_BIN_EXE_towpath")).with_file_name(name).exists();
    let is_built = beside("libtowpath_cc.so") || beside("deps/libtowpath_cc.so");
    let python =
        Command::new("python3").args(["-c", "import sys; sys.exit(sys.version_info < (3, 9))"]).status();
    if !is_built || !python.is_ok_and(|status| status.success()) {
        return println!("skipped: needs python3 (3.9 or newer) and `cargo build -p towpath-ccp-python`");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(of_tree("ccp-python/examples/aimd.py"), folder.path().join("mine.py")).unwrap();
    let words = ["try", "mine.py", "--against", "reno", "--seconds", "2", "--html", "p", "--record", "r"];
    let told = good(&words, folder.path());
    assert!(told.contains("aimd against reno"), "{told}");
    assert!(std::fs::read_to_string(folder.path().join("p")).unwrap().contains("<svg"));
    assert!(good(&["replay", "r", "mine.py"], folder.path()).contains("decisions the same"));
    std::fs::write(folder.path().join("empty.py"), "x = 1\n").unwrap();
    assert!(refusal(&["try", "empty.py"], folder.path()).contains("empty.py"));
}
