//! Tests that need a process for themselves: a process has one registration, at one service, whatever it opens.

use crate::passes::passes;
use std::process::Command;

/// The variable that names the test for which this process is.
const ALONE: &str = "TOWPATH_TEST_ALONE";

/// Runs what the test `name` checks in a process of its own: this program once more, for that test.
pub fn alone(name: &str, check: impl FnOnce()) {
    if std::env::var(ALONE).is_ok_and(|of| of == name) {
        return check();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    passes(command.args(["--exact", name, "--nocapture"]).env(ALONE, name), name);
}
