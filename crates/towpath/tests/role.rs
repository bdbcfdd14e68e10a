//! Tests that play a part in a process of its own: this program once more, for that test alone.

use crate::passes::passes;
use std::process::Command;

/// The command that plays a role by the test `name`, which is ignored otherwise and reads `ROLE`.
pub fn command(name: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture"]).env("ROLE", role);
    command
}

/// Plays a role in a namespace of its own, to its good end. Needs root.
pub fn play_in_namespace(name: &str, role: &str) {
    let one = command(name, role);
    let mut command = Command::new("unshare");
    command.args(["-n", "-m"]).arg(one.get_program()).args(one.get_args()).env("ROLE", role);
    passes(&mut command, role);
}
