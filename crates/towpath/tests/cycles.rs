//! `towpath stat --cycles` as a user runs it: a program through Towpath, and where its time and the service's went.

use crate::common::library;
use crate::service::Service;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// As `c/echo.c` has it.
const REQUESTS: u64 = 3000;

impl Service {
    /// Whether it succeeded, and what it printed.
    fn stat(&self, more: &[&str]) -> (bool, String) {
        let output = self.command("stat").args(more).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn cycles(&self, word: &str) -> Value {
        serde_json::from_str(&self.stat(&["--json", "--cycles", word]).1).unwrap()
    }
}

fn compile(folder: &Path) -> PathBuf {
    let (source, program) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/echo.c"), folder.join("echo"));
    let status =
        Command::new("cc").args(["-O1", "-Wall", "-Werror", "-o"]).args([&program, &source]).status();
    assert!(status.expect("a C compiler is installed by `make setup`").success());
    program
}

/// The echo server, which has answered all requests and now reads its standard input.
fn served(service: &Service) -> Child {
    let mut command = service.command("run");
    command.arg("--").arg(compile(service.folder())).env("TOWPATH_PRELOAD", library());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "done\n");
    child
}

fn number(of: &Value, module: &str, key: &str) -> u64 {
    let all = of["modules"].as_array().unwrap();
    all.iter().find(|m| m["module"] == module).map_or(0, |m| m[key].as_u64().unwrap())
}

#[test]
fn the_time_of_a_program_and_of_the_service_is_told_by_module() {
    let service = Service::start(&[]);
    assert!(service.stat(&["--cycles"]).1.contains("not counted"));
    assert!(service.stat(&["--cycles", "always"]).1.contains("counted from now on"));
    let start = Instant::now();
    let mut server = served(&service);
    let told = service.cycles("show");
    let elapsed = start.elapsed().as_secs_f64();
    let process = told["applications"].as_array().unwrap().iter().find(|p| p["pid"] == server.id()).unwrap();
    assert_eq!((&process["said_by"], &process["threads"]), (&"application".into(), &1.into()), "{told}");
    assert!(number(process, "receive", "times") >= REQUESTS && number(process, "send", "times") == REQUESTS);
    for module in ["application", "receive", "send", "wait", "control", "kernel"] {
        assert!(number(process, module, "cycles") > 0, "{module}: {told}");
    }
    // One thread, from its first call on: it cannot have had more time than has passed.
    let sum: u64 = process["modules"].as_array().unwrap().iter().map(|m| m["cycles"].as_u64().unwrap()).sum();
    let seconds = sum as f64 / told["ticks_per_second"].as_f64().unwrap();
    assert!(seconds <= elapsed * 1.02, "{seconds} of {elapsed}");
    assert!(number(&told["service"][0], "idle: asleep", "cycles") > 0, "{told}");
    let text = service.stat(&["--cycles"]).1;
    for part in ["core 0: 0 packets in", "slow path: timers", "as it says itself", "receive", "each time"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(service.cycles("off")["counting"], "always");
    assert_eq!(service.cycles("show")["counting"], "off");
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
}
