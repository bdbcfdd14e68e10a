//! The examples, with ordinary clients.

use crate::common::{Place, built, has, kv, output, service, service_with};
use service::{Options, Sharing};
use std::path::Path;
use std::process::Command;

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

#[test]
fn kv_answers_redis_cli() {
    if !has("redis-cli") {
        return;
    }
    let place = service();
    let server = place.example("kv");
    kv::answers_redis_cli(&place, &server);
}

#[test]
fn kv_speaks_memcacheds_text_protocol_at_its_second_address() {
    let place = service();
    let program = built().join("examples/kv");
    let mut server = place.start(Command::new(program).args(["127.0.0.1:0", "127.0.0.1:0"]));
    let port = server.next_address().port().to_string();
    let client = place.compile("says");
    let ask = |requests: &str| output(place.ordinary(&client).args([&port, requests]));
    let stored = "set a 7 0 5\r\nhello\r\nset n 0 100 1 noreply\r\n9\r\nget a b n\r\nquit\r\n";
    let values = "STORED\r\nVALUE a 7 5\r\nhello\r\nVALUE n 0 1\r\n9\r\nEND\r\n";
    assert_eq!(ask(stored), values);
    let changes =
        "incr n 2\r\nincr a 1\r\nincr b 1\r\ndelete a\r\ndelete a\r\ntouch n 5\r\nversion\r\nquit\r\n";
    let answers = "11\r\nCLIENT_ERROR invalid numeric delta argument\r\nNOT_FOUND\r\nDELETED\r\nNOT_FOUND\r\nTOUCHED\r\n\
                   VERSION kv on towpath\r\n";
    assert_eq!(ask(changes), answers);
    // What is no request, and what only looks like one.
    assert_eq!(ask("nonsense\r\nquit\r\n"), "ERROR\r\n");
    assert_eq!(ask("set a 0 0 3\r\nfour\r\n"), "CLIENT_ERROR bad data chunk\r\n");
    assert_eq!(ask("set a 0 0 99999999\r\n"), "CLIENT_ERROR object too large for cache\r\n");
    assert_eq!(ask("set a 0 0 x\r\n"), "CLIENT_ERROR bad command line format\r\n");
    let long = format!("get {}\r\nquit\r\n", "k".repeat(251));
    assert_eq!(ask(&long), "CLIENT_ERROR key too long\r\n");
}

#[test]
fn kv_serves_redis_benchmark_with_pipelines_and_many_connections() {
    if !has("redis-benchmark") {
        return;
    }
    let place = service();
    let server = place.example("kv");
    kv::serves_redis_benchmark(&place, &server, ["-d", "100"]);
}

/// Asks an `http` server by an ordinary client: what comes back until the server ends the connection.
fn ask_http(place: &Place, client: &Path, port: &str, requests: &str) -> String {
    output(place.ordinary(client).args([port, requests]))
}

#[test]
fn http_serves_pipelines_and_refuses_what_is_no_request() {
    let place = service();
    let folder = place.folder.path().join("files");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("a.txt"), "a file").unwrap();
    let program = built().join("examples/http");
    let start = |patience_ms: &str| {
        place.start(Command::new(&program).arg("127.0.0.1:0").arg(&folder).arg(patience_ms))
    };
    // No request is late, however busy the machine is.
    let server = start("600000");
    let port = server.address.port().to_string();
    let client = place.compile("says");
    let ask = |requests: &str| ask_http(&place, &client, &port, requests);
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    let last = "GET /ok HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let end = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    let pipelined = [&get("/ok"), &get("/a.txt"), &get("/../a.txt"), last].concat();
    let file = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\na file";
    let absent = "HTTP/1.1 404 Not Found\r\nContent-Length: 13\r\n\r\n404 Not Found";
    assert_eq!(ask(&pipelined), [ok, file, absent, end].concat());
    // What follows the last request is not served.
    assert_eq!(ask(&[last, &get("/ok")].concat()), end);
    assert_eq!(ask("HEAD /ok HTTP/1.0\r\n\r\n"), end.trim_end_matches("ok"));
    let refused = [
        ("nonsense\r\n\r\n", "400 "),
        ("GET /ok HTTP/1.1\r\n\r\n", "400 "),
        ("GET /ok HTTP/1.1\r\nHost : x\r\n\r\n", "400 "),
        ("GET /ok HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "400 "),
        ("GET /ok HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", "413 "),
        ("GET /ok HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n", "413 "),
        ("POST /ok HTTP/1.1\r\nHost: x\r\n\r\n", "501 "),
        ("GET /ok HTTP/2.0\r\n\r\n", "505 "),
    ];
    for (request, status) in refused {
        let said = ask(request);
        assert!(said.starts_with(&format!("HTTP/1.1 {status}")), "{request:?} gets {said:?}");
    }
    let long = format!("GET /ok HTTP/1.1\r\nHost: x\r\nLong: {}\r\n\r\n", "l".repeat(9000));
    assert!(ask(&long).starts_with("HTTP/1.1 431 "));
    // The beginning of a request, and nothing more: the server ends the connection by itself.
    let hasty = start("2000");
    let port = hasty.address.port().to_string();
    assert_eq!(ask_http(&place, &client, &port, "GET /ok HT"), "");
}
