//! Reports as tables for people, or as JSON.

use crate::ask::report;
use control::Report;
use serde_json::Value;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Prints a line. A reader that has seen enough (`| head`) is no error.
pub fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(()),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Rows of equal columns, each as wide as its widest cell.
pub fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// `towpath ss`.
pub fn sockets(path: &Path, json: bool) -> anyhow::Result<()> {
    let all = report(path, Report::Sockets)?;
    if json {
        return print(&serde_json::to_string_pretty(&all)?);
    }
    let heads = [
        "State", "Recv-Q", "Send-Q", "Local", "Peer", "Kind", "In", "Out", "Retrans", "Rtt", "Cwnd",
        "Process",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for s in all.as_array().into_iter().flatten() {
        let keys = [
            "state",
            "recv_queue",
            "send_queue",
            "local",
            "remote",
            "kind",
            "bytes_in",
            "bytes_out",
            "retransmits",
        ];
        let mut row: Vec<String> = keys.iter().map(|key| text(&s[*key])).collect();
        let is_measured = s["rtt_us"].as_u64().is_some_and(|us| us > 0);
        let millis = |us: &Value| format!("{:.3}ms", us.as_f64().unwrap_or(0.0) / 1000.0);
        row.push(if is_measured { millis(&s["rtt_us"]) } else { "-".to_owned() });
        row.push(if s["cwnd"] == 0 { "-".to_owned() } else { text(&s["cwnd"]) });
        row.push(format!("{} ({})", text(&s["process"]), text(&s["pid"])));
        rows.push(row);
    }
    print(&align(&rows))
}

/// `towpath stat`.
pub fn statistics(path: &Path, json: bool) -> anyhow::Result<()> {
    let all = report(path, Report::Statistics)?;
    if json {
        return print(&serde_json::to_string_pretty(&all)?);
    }
    print(&format!(
        "sockets accelerated {}, left to the kernel {}; applications {}, detached for misbehaviour {}",
        all["accelerated"], all["fallen_back"], all["applications"], all["detached"]
    ))?;
    for (reason, n) in all["by_reason"].as_object().into_iter().flatten() {
        print(&format!("  {n:>8}  {reason}"))?;
    }
    if all["refused"] != 0 {
        print(&format!("connects refused, for nobody listened there: {}", all["refused"]))?;
    }
    let traffic = &all["traffic"];
    if traffic["received_packets"] != 0 || traffic["sent_packets"] != 0 {
        print(&format!(
            "port: {} packets in, {} out; {} bytes sent again",
            traffic["received_packets"], traffic["sent_packets"], traffic["retransmitted_bytes"]
        ))?;
    }
    for (reason, n) in traffic["dropped"].as_object().into_iter().flatten() {
        print(&format!("  {n:>8}  dropped: {reason}"))?;
    }
    let heads =
        ["Pid", "Process", "User", "Alive", "Accelerated", "Connected", "Accepted", "Listeners", "Kernel"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for p in all["per_process"].as_array().into_iter().flatten() {
        let keys = [
            "pid",
            "process",
            "uid",
            "alive",
            "accelerated",
            "connected",
            "accepted",
            "listeners",
            "fallen_back",
        ];
        rows.push(keys.iter().map(|key| text(&p[*key])).collect());
    }
    print(&align(&rows))
}
