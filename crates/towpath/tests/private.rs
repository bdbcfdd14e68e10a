//! The private service of `towpath run`: it has a place of its own, beside which a public service starts, and the log of one that died is kept.
//! Root's places are below /run: as root each command has a mount namespace, in which the test's folder is at /run.

use crate::common::library;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A program that listens, and ends with its standard input.
const LISTENS: &str = "import socket, sys\nl = socket.create_server(('127.0.0.1', 0))\nprint(l.getsockname()[1], flush=True)\nsys.stdin.read()";

/// The folder in which the places of services are.
struct Runtime(tempfile::TempDir);

impl Runtime {
    /// `None` where mount namespaces cannot be made, after a word that says so.
    fn new() -> Option<Self> {
        let runtime = Self(tempfile::tempdir().unwrap());
        let mut probe = runtime.command(&["version"]);
        let is_good = probe.output().is_ok_and(|done| done.status.success());
        if !is_good {
            println!("skipped: needs mount namespaces for root");
        }
        is_good.then_some(runtime)
    }

    fn command(&self, words: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_towpath");
        let mut command = match rustix::process::geteuid().is_root() {
            true => {
                let mut command = Command::new("unshare");
                command
                    .args(["-m", "sh", "-c", "mount --bind \"$0\" /run && exec \"$@\""])
                    .arg(self.0.path())
                    .arg(program);
                command
            }
            false => Command::new(program),
        };
        command.args(words).env("XDG_RUNTIME_DIR", self.0.path()).env("TOWPATH_PRELOAD", library());
        command.stdin(Stdio::null());
        command
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a command that succeeds, and returns what it printed, and its errors.
    fn run(&self, words: &[&str]) -> (String, String) {
        let done = self.command(words).output().unwrap();
        let [out, err] = [done.stdout, done.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(done.status.success(), "{words:?}: {err}");
        (out, err)
    }

    /// An accelerated listener under `towpath run`, and its port.
    fn listener(&self) -> (Child, String) {
        let mut command = self.command(&["run", "--require", "--", "python3", "-c", LISTENS]);
        let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(program.stdout.as_mut().unwrap()).read_line(&mut port).unwrap();
        assert!(!port.is_empty(), "the program does not listen");
        (program, port.trim().to_owned())
    }
}

/// Closes the program's standard input, which ends it, and waits for it.
fn end(mut program: Child) {
    drop(program.stdin.take());
    program.wait().unwrap();
}

#[test]
fn a_private_service_leaves_the_place_of_the_public_one_free() {
    let Some(runtime) = Runtime::new() else { return };
    let (program, port) = runtime.listener();
    assert!(runtime.path("towpath-private/control.sock").exists() && !runtime.path("towpath").exists());
    // Commands that name no service find it, and so does another `run`.
    assert!(runtime.run(&["ss"]).0.contains(&port));
    let inner = runtime.run(&["run", "--", "sh", "-c", "echo $TOWPATH_CONTROL"]).0;
    assert!(inner.contains("towpath-private"), "{inner}");
    runtime.run(&["up", "--detach"]);
    assert!(runtime.path("towpath/control.sock").exists());
    // The public one goes before the private one, which lives on.
    assert!(!runtime.run(&["ss"]).0.contains(&port));
    runtime.run(&["down"]);
    assert!(!runtime.path("towpath/control.sock").exists());
    assert!(runtime.run(&["ss"]).0.contains(&port));
    runtime.run(&["down"]);
    end(program);
}

#[test]
fn the_log_of_a_private_service_that_died_is_kept_and_named() {
    let Some(runtime) = Runtime::new() else { return };
    let (program, port) = runtime.listener();
    let (control, log, kept) = ("control.sock", "control.log", "control.died.log");
    let [control, log, kept] =
        [control, log, kept].map(|name| runtime.path(&format!("towpath-private/{name}")));
    let pid = service::pid_behind(&control).unwrap();
    std::fs::OpenOptions::new().append(true).open(&log).unwrap().write_all(b"last words\n").unwrap();
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
    while service::pid_behind(&control).is_some() {
        std::thread::yield_now();
    }
    let refused =
        String::from_utf8(runtime.command(&["explain", &format!(":{port}")]).output().unwrap().stderr)
            .unwrap();
    assert!(refused.contains("is gone") && refused.contains("control.log"), "{refused}");
    let said = runtime.run(&["run", "--", "true"]).1;
    assert!(said.contains("died") && said.contains("towpath-private/control.died.log"), "{said}");
    assert!(std::fs::read_to_string(&kept).unwrap().ends_with("last words\n"));
    assert!(!std::fs::read_to_string(&log).unwrap().contains("last words"));
    let refused = String::from_utf8(runtime.command(&["explain", ":1"]).output().unwrap().stderr).unwrap();
    assert!(refused.contains("is gone") && refused.contains("control.died.log"), "{refused}");
    // A service that ends as it should is no dead one.
    runtime.run(&["down"]);
    let said = runtime.run(&["run", "--", "true"]).1;
    assert!(said.is_empty(), "{said}");
    assert!(std::fs::read_to_string(&kept).unwrap().ends_with("last words\n"));
    runtime.run(&["down"]);
    end(program);
}
