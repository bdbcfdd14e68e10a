//! `towpath cc check` as a person runs it.

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

const GOOD: &str = "(def (Report (volatile acked 0)) (most 9))
(when true
    (:= Report.acked (+ Report.acked Ack.bytes_acked))
    (:= Cwnd (min most Cwnd))
    (fallthrough))
(when (> Micros Flow.rtt_sample_us) (report) (reset))
";

fn check(words: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.args(["cc", "check"]).args(words).current_dir(folder).output().unwrap()
}

/// What is printed, and what is said last, of a check that fails with status 1.
fn failed(words: &[&str], folder: &Path) -> (String, String) {
    let output = check(words, folder);
    assert_eq!(output.status.code(), Some(1), "{words:?}");
    let [out, why] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (out, why.trim_end().to_owned())
}

#[test]
fn a_program_without_mistakes_is_told_with_its_cost() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("good.ccp"), GOOD).unwrap();
    let output = check(&["good.ccp"], folder.path());
    assert!(output.status.success());
    let out = String::from_utf8(output.stdout).unwrap();
    for part in [
        "good.ccp: no mistakes\n",
        " instructions a run (of 256), 2 events (of 16)\n",
        "report 1 of 16, control 1 of 16, local 0 of 8, ",
        "reports    acked\n",
        "settable   Cwnd, Rate, most\n",
        "faults     none: no run can stop\n",
    ] {
        assert!(out.contains(part), "no `{part}` in\n{out}");
    }
    let overflows = GOOD.replace("(min most Cwnd)", "(* most (* Cwnd Cwnd))");
    std::fs::write(folder.path().join("overflows.ccp"), overflows).unwrap();
    let output = check(&["overflows.ccp"], folder.path());
    assert!(output.status.success(), "what can overflow is no mistake");
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(out.contains("fault      the `when` at line 2: `(* Cwnd Cwnd)` can overflow\n"), "{out}");
}

#[test]
fn a_mistake_is_shown_with_its_place_what_was_expected_and_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    for (text, shown) in [
        (
            "(def (minrtt 0))\n(when true (:= minrtt (min minrt 3)))\n",
            "x.ccp:2:28: expected a name that is known here, found `minrt` (did you mean `minrtt`?)
  (when true (:= minrtt (min minrt 3)))
                             ^",
        ),
        (
            "(def (x 0))\n(when true\n\t(= x 1))\n",
            "x.ccp:3:2: expected an operation, found `=` (`==` compares, `:=` sets)
  \t(= x 1))
  \t^",
        ),
        (
            "(def (x 0))\n(when x (report))\n",
            "x.ccp:2:7: expected a truth value as a condition, found the number `x` (compare it, as in `(> x 0)`)
  (when x (report))
        ^",
        ),
        (
            "(def)\n  (when true\n    (report)",
            "x.ccp:2:3: expected a closing bracket for this one, found the end of the text (1 open at the end; this one is the last that was opened)
    (when true
    ^",
        ),
    ] {
        std::fs::write(folder.path().join("x.ccp"), text).unwrap();
        let (out, why) = failed(&["x.ccp"], folder.path());
        assert_eq!((out.trim_end(), why.as_str()), (shown, "towpath: 1 of 1 programs have mistakes"));
    }
}

#[test]
fn each_of_several_files_is_told_and_json_has_every_part() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("good.ccp"), GOOD).unwrap();
    std::fs::write(folder.path().join("two.ccp"), "(def (x 0))\n(when 3 (:= x nope))\n").unwrap();
    let (out, why) = failed(&["two.ccp", "good.ccp"], folder.path());
    assert!(out.contains("two.ccp:2:7:") && out.contains("two.ccp:2:15:"), "{out}");
    assert!(out.contains("good.ccp: no mistakes\n"), "{out}");
    assert!(why.ends_with("1 of 2 programs have mistakes"), "{why}");
    let (out, _) = failed(&["two.ccp", "good.ccp", "--json"], folder.path());
    let all: Value = serde_json::from_str(&out).unwrap();
    assert_eq!([&all[0]["file"], &all[1]["file"]], ["two.ccp", "good.ccp"]);
    let first = &all[0]["mistakes"][0];
    assert_eq!([&first["line"], &first["column"]], [&json!(2), &json!(7)]);
    for part in ["expected", "found", "hint"] {
        assert!(first[part].is_string(), "{part}: {first}");
    }
    assert_eq!(all[1]["mistakes"], json!([]));
    assert!(all[1]["instructions"].as_u64().unwrap() > 0);
}

#[test]
fn a_file_that_is_no_algorithm_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("binary"), [0x7f, b'E', b'L', b'F', 0xff, 0xfe, 0]).unwrap();
    std::fs::write(folder.path().join("zeros"), [0; 100]).unwrap();
    std::fs::write(folder.path().join("empty"), "").unwrap();
    std::fs::write(folder.path().join("mine.py"), "class Mine: pass\n").unwrap();
    std::fs::write(folder.path().join("large"), "x".repeat(100_000)).unwrap();
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    for (file, says) in [
        ("binary", "cannot read binary as text"),
        ("folder", "cannot read folder as text"),
        ("missing", "cannot read missing: No such file"),
        (
            "mine.py",
            "mine.py is Python: `towpath cc try mine.py` runs it and reports the mistakes of its programs",
        ),
        ("large", "large: 100000 bytes, a program has at most 65536"),
        // It has no end, and its length says 0.
        ("/dev/zero", "/dev/zero: a program has at most 65536 bytes"),
    ] {
        let (out, why) = failed(&[file], folder.path());
        assert!(out.is_empty() && why.contains(says) && why.lines().count() == 1, "{file}: {out}{why}");
    }
    for (file, says) in [("empty", "empty:1:1: expected `(def ..)`"), ("zeros", "zeros:1:1: expected ")] {
        let (out, why) = failed(&[file], folder.path());
        assert!(out.starts_with(says) && why.contains("1 of 1 programs"), "{file}: {out}{why}");
    }
    let output = check(&[], folder.path());
    assert_eq!(output.status.code(), Some(2), "no file is a mistake of the command line");
}
