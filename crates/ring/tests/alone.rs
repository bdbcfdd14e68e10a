//! Tests that need a process for themselves: a process has one registration, at one service, whatever it opens.

use std::process::Command;

/// The variable that names the test for which this process is.
const ALONE: &str = "TOWPATH_TEST_ALONE";

/// Runs what the test `name` checks in a process of its own: this program once more, for that test.
pub fn alone(name: &str, check: impl FnOnce()) {
    if std::env::var(ALONE).is_ok_and(|of| of == name) {
        return check();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", name, "--nocapture"]).env(ALONE, name).output().unwrap();
    let [said, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    // A test that is not there has no failure either.
    assert!(output.status.success() && said.contains("1 passed"), "{}: {said}{errors}", output.status);
}
