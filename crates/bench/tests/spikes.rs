//! The spikes as a user runs them: they end, start and stop their own processes, and print the common form.

use serde_json::Value;
use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_towpath-bench")).args(arguments).output().unwrap()
}

fn result(name: &str) -> Value {
    let output = bench(&[name, "--json", "--runs", "1", "--seconds", "0.02"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["name"], name);
    for row in result["rows"].as_array().unwrap() {
        for field in ["case", "system", "metric", "unit"] {
            assert!(row[field].is_string(), "{field} in {row}");
        }
        for field in ["median", "min", "max", "runs"] {
            assert!(row[field].is_number(), "{field} in {row}");
        }
    }
    result
}

fn median(result: &Value, case: &str, system: &str, metric: &str) -> f64 {
    let rows = result["rows"].as_array().unwrap();
    let row = rows.iter().find(|r| r["case"] == case && r["system"] == system && r["metric"] == metric);
    row.unwrap_or_else(|| panic!("no {case} {system} {metric}"))["median"].as_f64().unwrap()
}

#[test]
fn a_request_passes_between_processes_in_every_way() {
    let result = result("spike-handover");
    for system in ["pair", "relay", "eventfd", "kernel-tcp"] {
        assert!(median(&result, "handover/64B/one-core/block", system, "p50") > 0.0);
    }
    assert!(!result["ratios"].as_array().unwrap().is_empty());
}

#[test]
fn what_can_hold_a_descriptor_number_is_measured() {
    let result = result("spike-placeholder");
    for system in ["dup-of-tcp-socket", "socket-inet"] {
        assert!(median(&result, "placeholder/cost", system, "make") > 0.0);
    }
}

#[test]
fn an_unknown_name_lists_the_known_ones() {
    let output = bench(&["rediss"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("rediss") && said.contains("spike-handover"), "{said}");
}

#[test]
fn help_lists_every_measurement() {
    let output = bench(&["--help"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("spike-handover") && said.contains("Examples:"),
        "{said}"
    );
}
