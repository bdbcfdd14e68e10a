//! This program of tests once more, for one test alone; shared with the tests of the command line.

use std::process::Command;

/// Runs a command that runs one test, shows its output, and panics unless that test has passed.
pub fn passes(command: &mut Command, what: &str) {
    let output = command.output().unwrap();
    let [said, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    print!("{said}");
    eprint!("{errors}");
    // A test that is not there has no failure either.
    assert!(output.status.success() && said.contains("1 passed"), "{what}: {}", output.status);
}
