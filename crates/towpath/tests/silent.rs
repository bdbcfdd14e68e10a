//! A service that is stopped (`SIGSTOP`): connections go on, new ones are the kernel's; and afterwards it accelerates again.

use crate::common::library;
use crate::service::Service;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

#[test]
fn a_service_that_is_stopped_costs_no_connection_and_accelerates_again() {
    let service = Service::start(&[]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/py/silent.py");
    let mut run = service.command("run");
    run.args(["--", "python3", script]).env("TOWPATH_PRELOAD", library()).env("TOWPATH_LOG", "info");
    let mut program =
        run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut orders, mut said) =
        (program.stdin.take().unwrap(), BufReader::new(program.stdout.take().unwrap()));
    let mut next = || {
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    assert_eq!(next(), "connected");
    service.signal("STOP");
    writeln!(orders, "go").unwrap();
    assert_eq!([next(), next()], ["old 20", "new 20"]);
    service.signal("CONT");
    writeln!(orders, "go").unwrap();
    assert_eq!([next(), next()], ["old 20", "again 20"]);
    // All that were made while the service was stopped, and none of the others.
    let counts: Value =
        serde_json::from_slice(&service.command("stat").arg("--json").output().unwrap().stdout).unwrap();
    assert_eq!(counts["fallen_back"], 20, "{counts}");
    drop(orders);
    let log = String::from_utf8_lossy(&program.wait_with_output().unwrap().stderr).into_owned();
    assert!(log.contains("does not answer") && log.contains("answers again"), "{log}");
}
