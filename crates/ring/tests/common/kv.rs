//! What the examples `kv` must do, in Rust and in C.

use super::{Place, Server, output};

pub fn answers_redis_cli(place: &Place, server: &Server) {
    let port = server.address.port().to_string();
    let ask = |words: &[&str]| output(place.ordinary("redis-cli").args(["-p", &port]).args(words));
    assert_eq!(ask(&["ping"]), "PONG\n");
    assert_eq!(ask(&["get", "a"]), "\n");
    assert_eq!(ask(&["set", "a", "1"]), "OK\n");
    assert_eq!(ask(&["incr", "a"]), "2\n");
    assert_eq!(ask(&["set", "b", "text", "px", "100000"]), "OK\n");
    assert!(ask(&["incr", "b"]).contains("ERR value is not an integer"));
    assert_eq!(ask(&["mget", "a", "b", "c"]), "2\ntext\n\n");
    assert_eq!(ask(&["expire", "b", "0"]), "1\n");
    assert_eq!(ask(&["get", "b"]), "\n");
    assert_eq!(ask(&["del", "a", "b"]), "1\n");
    assert!(ask(&["info"]).contains("keys:0"));
    assert!(ask(&["flushall"]).contains("unknown command"));
}

/// Pipelines come in pieces on many connections, and `more` arguments say which keys and values they have.
pub fn serves_redis_benchmark(place: &Place, server: &Server, more: [&str; 2]) {
    let port = server.address.port().to_string();
    let mut many = place.ordinary("redis-benchmark");
    many.args(["-p", &port, "-t", "set,get,incr", "-n", "20000", "-c", "40", "-P", "16", "-q"]).args(more);
    let said = output(&mut many);
    assert!(["SET:", "GET:", "INCR:"].iter().all(|name| said.contains(name)), "{said}");
}
