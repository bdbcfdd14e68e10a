//! Prints reports as tables or as JSON.

use crate::ask::report;
use control::Report;
use serde_json::Value;
use service::report::text;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Replaces characters that would control a terminal or are invisible by their JSON escapes, except newlines and tabs.
fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if !text::is_hidden(c) || matches!(c, '\n' | '\t') {
            shown.push(c);
            continue;
        }
        let units =
            c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
        shown.push_str(&units);
    }
    shown
}

/// Prints text, which may contain strings from other users' programs. It is no error if the reader has closed the pipe (`| head`).
pub fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{}", harmless(text)) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(()),
    }
}

/// Prints a report as JSON, or as `text` tells it.
pub fn print_report(report: &Value, json: bool, text: impl FnOnce(&Value) -> String) -> anyhow::Result<()> {
    print(&if json { serde_json::to_string_pretty(report)? } else { text(report) })
}

/// The elements of a list in a report; none where it has no such list.
pub fn rows_of<'a>(all: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    all[key].as_array().into_iter().flatten()
}

/// A value as a cell of a table: text without quotes; `-` where it is not known.
pub fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// The process of a row: its name, and its number if it is known.
pub fn process(row: &Value) -> String {
    format!("{} ({})", cell(&row["process"]), cell(&row["pid"]))
}

/// Aligns the columns of rows: each column is as wide as its widest cell.
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

/// A table with these heads.
pub fn table(heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let heads = heads.iter().map(|head| (*head).to_owned()).collect();
    align(&std::iter::once(heads).chain(rows).collect::<Vec<_>>())
}

/// The congestion control of a flow: what decides about it, and in brackets what was chosen where that is another.
fn governed(congestion: &Value) -> String {
    let text = |key: &str| congestion[key].as_str().unwrap_or("-");
    let (in_force, chosen) = (text("in_force"), text("chosen"));
    if in_force == chosen { in_force.to_owned() } else { format!("{in_force} (not {chosen})") }
}

/// Prints the table of `towpath ss`.
pub fn sockets(path: &Path, json: bool) -> anyhow::Result<()> {
    let all = report(path, Report::Sockets)?;
    if json {
        return print(&serde_json::to_string_pretty(&all)?);
    }
    let heads = [
        "State", "Recv-Q", "Send-Q", "Local", "Peer", "Kind", "In", "Out", "Retrans", "Rtt", "Cwnd", "Pace",
        "Cc", "Core", "Process",
    ];
    let mut rows = Vec::new();
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
        let mut row: Vec<String> = keys.iter().map(|key| cell(&s[*key])).collect();
        let is_measured = s["rtt_us"].as_u64().is_some_and(|us| us > 0);
        let millis = |us: &Value| format!("{:.3}ms", us.as_f64().unwrap_or(0.0) / 1000.0);
        row.push(if is_measured { millis(&s["rtt_us"]) } else { "-".to_owned() });
        row.push(if s["cwnd"] == 0 { "-".to_owned() } else { cell(&s["cwnd"]) });
        row.push(match s["pacing_rate"].as_u64() {
            None | Some(0 | u64::MAX) => "-".to_owned(),
            Some(rate) => format!("{}/s", crate::advice::bytes(rate)),
        });
        row.push(governed(&s["congestion"]));
        row.push(cell(&s["core"]));
        // The service hides the process of another user's socket.
        let is_hidden = s["application"].is_null();
        row.push(if is_hidden { "-".to_owned() } else { process(s) });
        rows.push(row);
    }
    print(&table(&heads, rows))
}

/// Prints the tables of `towpath stat`.
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
    if traffic["loss_ranges_joined"].as_u64().is_some_and(|n| n > 0) {
        print(&format!(
            "  {:>8}  ranges of losses recorded together for lack of room",
            traffic["loss_ranges_joined"]
        ))?;
    }
    for (reason, n) in traffic["dropped"].as_object().into_iter().flatten() {
        print(&format!("  {n:>8}  dropped: {reason}"))?;
    }
    if all["cores"].is_object() {
        print(&crate::cores::totals(&all["cores"]))?;
    }
    if all["channels"].is_object() {
        print(&crate::channels::totals(&all["channels"]))?;
    }
    if let Some(agents) = all["agents"].as_object() {
        let told: Vec<String> =
            agents.iter().map(|(name, n)| format!("{} {n}", name.replace('_', " "))).collect();
        print(&format!("agents of congestion control: {}", told.join(", ")))?;
    }
    let heads =
        ["Pid", "Process", "User", "Alive", "Accelerated", "Connected", "Accepted", "Listeners", "Kernel"];
    let rows = rows_of(&all, "per_process").map(|p| {
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
        keys.iter().map(|key| cell(&p[*key])).collect()
    });
    print(&table(&heads, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_force_is_shown() {
        let shown = |chosen: &str, in_force: &str| {
            governed(&serde_json::json!({ "chosen": chosen, "in_force": in_force }))
        };
        assert_eq!(shown("cubic", "cubic"), "cubic");
        assert_eq!(shown("ccp", "cubic"), "cubic (not ccp)");
        assert_eq!(governed(&Value::Null), "-");
    }

    #[test]
    fn nothing_that_a_program_has_said_moves_the_cursor_or_turns_the_text_around() {
        assert_eq!(harmless("a\tb\nc ü"), "a\tb\nc ü");
        assert_eq!(harmless("\u{1b}[2J\u{202e}\r\u{e0041}"), "\\u001b[2J\\u202e\\u000d\\udb40\\udc41");
        let json = serde_json::to_string("evil\u{202e}\u{e0041}").unwrap();
        assert_eq!(serde_json::from_str::<String>(&harmless(&json)).unwrap(), "evil\u{202e}\u{e0041}");
    }
}
