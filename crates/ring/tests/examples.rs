//! The examples, with ordinary clients.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{output, service, service_with};
use service::{Options, Sharing};
use std::path::Path;

#[test]
fn echo_gives_an_ordinary_client_all_its_bytes_and_the_end() {
    let place = service();
    let server = place.example("echo");
    let program = place.compile("asks");
    let port = server.address.port().to_string();
    assert_eq!(output(place.ordinary(program).arg(port)), "all came back\n");
}

/// The service copies between the processes, as between users.
#[test]
fn echo_by_relay_gives_all_bytes_and_the_end() {
    let place = service_with(Options { sharing: Some(Sharing::Never), ..Options::default() });
    let server = place.example("echo");
    let program = place.compile("asks");
    let port = server.address.port().to_string();
    assert_eq!(output(place.ordinary(program).arg(port)), "all came back\n");
}

fn has(program: &str) -> bool {
    let found = ["/usr/bin", "/usr/local/bin"].iter().any(|folder| Path::new(folder).join(program).exists());
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

#[test]
fn kv_answers_redis_cli() {
    if !has("redis-cli") {
        return;
    }
    let place = service();
    let server = place.example("kv");
    let port = server.address.port().to_string();
    let ask = |words: &[&str]| output(place.ordinary("redis-cli").args(["-p", &port]).args(words));
    assert_eq!(ask(&["ping"]), "PONG\n");
    assert_eq!(ask(&["get", "a"]), "\n");
    assert_eq!(ask(&["set", "a", "1"]), "OK\n");
    assert_eq!(ask(&["incr", "a"]), "2\n");
    assert_eq!(ask(&["set", "b", "text"]), "OK\n");
    assert!(ask(&["incr", "b"]).contains("ERR value is not an integer"));
    assert_eq!(ask(&["mget", "a", "b", "c"]), "2\ntext\n\n");
    assert_eq!(ask(&["expire", "b", "0"]), "1\n");
    assert_eq!(ask(&["get", "b"]), "\n");
    assert_eq!(ask(&["del", "a", "b"]), "1\n");
    assert!(ask(&["info"]).contains("keys:0"));
    assert!(ask(&["flushall"]).contains("unknown command"));
}

#[test]
fn kv_serves_redis_benchmark_with_pipelines_and_many_connections() {
    if !has("redis-benchmark") {
        return;
    }
    let place = service();
    let server = place.example("kv");
    let port = server.address.port().to_string();
    let mut command = place.ordinary("redis-benchmark");
    command.args([
        "-p",
        &port,
        "-t",
        "set,get,incr",
        "-n",
        "20000",
        "-c",
        "40",
        "-P",
        "16",
        "-d",
        "100",
        "-q",
    ]);
    let said = output(&mut command);
    for name in ["SET:", "GET:", "INCR:"] {
        assert!(said.contains(name), "{said}");
    }
}
