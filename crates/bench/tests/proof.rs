//! A number of Towpath counts only when the service itself says that the connections were accelerated. Here a script
//! stands for `towpath`: it runs programs on the kernel, and its service says that it accepted nothing, or everything.

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// `ACCEPTED` is what the service says to have accepted for each redis-server, every time more.
const SCRIPT: &str = r#"#!/bin/sh
here=$(dirname "$0")
case $1 in
up) exec sleep 600 ;;
stat)
    total=$(($(cat "$here/total") + ACCEPTED))
    echo $total >"$here/total"
    list=
    for process in /proc/[0-9]*; do
        if [ "$(cat "$process/comm" 2>/dev/null)" = redis-server ]; then
            list="$list${list:+,}{\"pid\":${process#/proc/},\"accepted\":$total}"
        fi
    done
    echo "{\"per_process\":[$list]}" ;;
run) shift 4; exec "$@" ;;
esac
"#;

/// The result of `redis` with that script, whether the command succeeded, and what it said.
fn redis(name: &str, accepted: u32) -> (Value, bool, String) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let script = folder.join("towpath");
    std::fs::write(folder.join("total"), "0").unwrap();
    std::fs::write(&script, SCRIPT.replace("ACCEPTED", &accepted.to_string())).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath-bench"));
    command.args(["redis", "--json", "--runs", "1", "--seconds", "0.01", "--towpath"]).arg(&script);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (serde_json::from_slice(&output.stdout).expect(&said), output.status.success(), said)
}

fn systems(result: &Value) -> Vec<&str> {
    result["rows"].as_array().unwrap().iter().map(|row| row["system"].as_str().unwrap()).collect()
}

#[test]
fn a_row_without_acceleration_does_not_count() {
    let (result, succeeded, said) = redis("nothing-accepted", 0);
    assert!(!succeeded, "{said}");
    assert!(systems(&result).contains(&"kernel") && !systems(&result).contains(&"towpath"));
    assert_eq!(result["ratios"].as_array().unwrap().len(), 0);
}

#[test]
fn a_row_with_acceleration_has_every_number() {
    let (result, succeeded, said) = redis("all-accepted", 1000);
    assert!(succeeded, "{said}");
    let row = result["rows"].as_array().unwrap().iter().find(|row| row["system"] == "towpath").unwrap();
    for field in ["median", "cores_used", "cpu_ns_per_op"] {
        assert!(row[field].as_f64().unwrap() > 0.0, "{field} in {row}");
    }
    assert!(
        result["ratios"]
            .as_array()
            .unwrap()
            .iter()
            .any(|r| r["metric"] == "requests" && r["over"] == "kernel")
    );
}
