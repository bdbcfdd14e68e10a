//! `towpath bench` as a user runs it, very short: every measurement gives rows in the common form for Towpath and for its peers,
//! and gives none of Towpath that Towpath's own counters do not vouch for.

use crate::common::library;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn bench(name: &str, seconds: &str, more: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.args(["bench", name, "--quick", "--json", "--runs", "1", "--seconds", seconds]).args(more);
    command.env("TOWPATH_PRELOAD", library()).envs(variables.iter().copied()).output().unwrap()
}

/// The result, and how long it took; the only failures may be bars that are missed: this is no quiet machine, and no optimised build.
fn result(name: &str, seconds: &str) -> Value {
    let output = bench(name, seconds, &[], &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    let usual = ["not reached", "took"].map(|word| format!("towpath bench {name}: {word}"));
    assert!(said.contains(&usual[1]), "{said}");
    let odd = said.lines().filter(|line| !usual.iter().any(|usual| line.starts_with(usual)));
    assert_eq!(odd.collect::<Vec<_>>(), Vec::<&str>::new());
    let result: Value = serde_json::from_slice(&output.stdout).expect(&said);
    assert_eq!(result["name"], name);
    result
}

fn rows<'a>(result: &'a Value, system: &str) -> Vec<&'a Value> {
    result["rows"].as_array().unwrap().iter().filter(|row| row["system"] == system).collect()
}

/// Every case was measured on Towpath and on the peer, with processor time, and there is a ratio of the two.
fn has_every_number(result: &Value, metric: &str, peer: &str) {
    let ours = rows(result, "towpath");
    assert!(!ours.is_empty());
    for row in &ours {
        let is_beside = |other: &&Value| other["case"] == row["case"] && other["metric"] == row["metric"];
        assert!(rows(result, peer).into_iter().any(|other| is_beside(&other)), "no {peer} beside {row}");
        for field in ["median", "min", "max", "runs", "cores_used", "cpu_ns_per_op"] {
            assert!(row[field].as_f64().unwrap() > 0.0, "{field} in {row}");
        }
        let ratios = result["ratios"].as_array().unwrap();
        let is_ratio =
            |r: &&Value| r["case"] == row["case"] && r["over"] == peer && r["metric"] == row["metric"];
        assert!(ratios.iter().any(|r| is_ratio(&r)), "no ratio for {row}");
    }
    assert!(ours.iter().any(|row| row["metric"] == metric), "no {metric}");
}

#[test]
fn messages_one_way_are_measured() {
    has_every_number(&result("pipeline", "0.02"), "rate", "kernel");
}

#[test]
fn what_went_by_the_kernel_is_no_number_of_towpath() {
    let output = bench("pipeline", "0.02", &[], &[("TOWPATH_DISABLE", "1")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
    assert!(said.contains("connections were accelerated"), "{said}");
}

#[test]
fn cycles_are_told_by_module() {
    let result = result("modules", "0.05");
    for (system, metrics) in [
        ("towpath", ["stack", "application", "receive", "send", "wait"]),
        ("kernel", ["stack", "application", "system mode", "ksoftirqd", "stack"]),
        ("low-level", ["stack", "application", "TCP/IP: receive", "TCP/IP: transmit", "doorbells"]),
    ] {
        let rows = rows(&result, system);
        for metric in metrics {
            let is_it = |row: &&&Value| row["metric"] == metric && row["unit"] == "cycles";
            assert!(rows.iter().any(|row| is_it(&row)), "no {metric} of {system}: {result}");
        }
    }
    // The parts are the whole, where one thread did it all.
    let parts = rows(&result, "low-level");
    let of =
        |metric: &str| parts.iter().find(|row| row["metric"] == metric).unwrap()["median"].as_f64().unwrap();
    let sum: f64 = parts.iter().map(|row| row["median"].as_f64().unwrap()).sum();
    assert!((sum - of("application") - 2.0 * of("stack")).abs() < 1.0, "{parts:?}");
}

#[test]
fn a_store_is_measured_busy_and_calm() {
    let result = result("kv", "0.05");
    has_every_number(&result, "rate", "kernel");
    let cases: Vec<&Value> = rows(&result, "towpath").iter().map(|row| &row["case"]).collect();
    let calm = ["kv/latency/polling", "kv/profile-latency/polling", "kv/profile-latency/waiting"];
    for case in ["kv/hot/best", "kv/zipf/t1", "kv/latency/waiting"].into_iter().chain(calm) {
        assert!(cases.iter().any(|found| **found == case), "no {case}");
    }
}

#[test]
fn rpcs_are_measured_beside_every_kernel() {
    let result = result("peers", "0.02");
    for peer in ["kernel", "kernel-uring", "kernel-busy-poll", "kernel-best"] {
        assert!(rows(&result, peer).iter().any(|row| row["metric"] == "rate"), "no {peer}");
    }
    let is_bar = |r: &&Value| {
        r["case"] == "peers/64B/n64" && r["metric"] == "processor time" && r["over"] == "kernel-best"
    };
    assert!(result["ratios"].as_array().unwrap().iter().any(|r| is_bar(&r)));
}

#[test]
fn unmodified_servers_are_measured() {
    has_every_number(&result("memcached", "0.05"), "rate", "kernel");
    has_every_number(&result("nginx", "1"), "requests", "kernel");
}

#[test]
fn starts_of_short_programs_are_measured() {
    let result = result("start", "0.1");
    for (case, system) in ["start/curl", "start/true"]
        .into_iter()
        .flat_map(|case| ["towpath", "preload", "env", "kernel"].map(|system| (case, system)))
    {
        let rows = rows(&result, system);
        let of = |metric: &str| {
            let row = rows.iter().find(|row| row["case"] == case && row["metric"] == metric);
            row.unwrap_or_else(|| panic!("no {metric} of {system} in {case}: {result}"))
        };
        assert!(of("time")["median"].as_f64().unwrap() > 0.0 && of("time")["cpu_ns_per_op"].is_f64());
        assert!(of("page faults")["median"].as_f64().unwrap() > 10.0);
        assert!(of("added")["median"].is_f64());
    }
}

#[test]
fn small_requests_are_measured_beside_bulk_flows() {
    if !is_root() || !has_iperf3() {
        eprintln!("skipped: it needs root and iperf3");
        return;
    }
    let result = result("isolation", "0.5");
    for (link, peer) in [("veth", "kernel-veth"), ("tap", "kernel-tap")] {
        let alone = [("alone", ["p50", "p99", "p99.9"].as_slice())];
        let bulk = ["p50", "p99", "p99.9", "bulk", "bulk per processor-second"].as_slice();
        for (beside, metrics) in alone.into_iter().chain([("flows8/in", bulk), ("flows8/out", bulk)]) {
            let case = format!("isolation/{link}/64B/c1/{beside}");
            for (system, metric) in ["towpath", peer].iter().flat_map(|s| metrics.iter().map(move |m| (s, m)))
            {
                let rows = rows(&result, system);
                let row = rows.iter().find(|row| row["case"] == *case && row["metric"] == **metric);
                let row = row.unwrap_or_else(|| panic!("no {metric} of {system} in {case}: {result}"));
                for field in ["median", "cores_used", "cpu_ns_per_op"] {
                    assert!(row[field].as_f64().unwrap() > 0.0, "{field} in {row}");
                }
            }
            let ratios = result["ratios"].as_array().unwrap();
            for over in [peer, "towpath-alone"] {
                let is_ratio = |r: &&Value| r["case"] == case && r["metric"] == "p50" && r["over"] == over;
                let is_expected = over == peer || beside != "alone";
                assert_eq!(ratios.iter().any(|r| is_ratio(&r)), is_expected, "{case} over {over}");
            }
        }
    }
}

#[test]
fn without_iperf3_isolation_is_skipped_with_a_word() {
    // The measurement looks there, too, whatever the path says.
    if ["/usr/sbin/iperf3", "/sbin/iperf3"].iter().any(|path| Path::new(path).exists()) {
        eprintln!("skipped: iperf3 is found without a path");
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    let output = command.args(["bench", "isolation", "--quick"]).env("PATH", "/nowhere").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("note: skipped: "), "{said}");
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn has_iperf3() -> bool {
    Command::new("iperf3").arg("--version").output().is_ok_and(|output| output.status.success())
}

#[test]
fn idle_connections_are_measured() {
    let output = bench("idle", "0.05", &["--connections", "2000"], &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    let result: Value = serde_json::from_slice(&output.stdout).expect(&said);
    for metric in ["accepted", "library", "library and service", "kernel"] {
        let is_it = |row: &&&Value| row["case"] == "idle/open/n2000" && row["metric"] == metric;
        assert!(rows(&result, "towpath").iter().any(|row| is_it(&row)), "no {metric}: {said}");
    }
    let is_rpc = |row: &&&Value| row["case"] == "idle/rpc/n2000" && row["metric"] == "processor time";
    assert!(rows(&result, "towpath").iter().any(|row| is_rpc(&row)), "{said}");
}
