//! `towpath channels`: sessions with other services, the sockets on each, and what says so.

use crate::ask::report;
use crate::table::{cell, print_report, process, rows_of, table};
use control::Report;
use serde_json::Value;
use std::path::Path;

/// Prints the report as tables, or as JSON.
pub fn show(path: &Path, json: bool) -> anyhow::Result<()> {
    print_report(report(path, Report::Channels)?, json, text)
}

/// The line of `towpath stat` about channels.
pub fn totals(counted: &Value) -> String {
    format!(
        "channels {}, sessions {}, sockets on them {}; refused or given up in the handshake {}, sessions ended for a peer's fault {}",
        counted["channels"],
        counted["sessions"],
        counted["sockets"],
        counted["greetings_refused"],
        counted["violations"],
    )
}

/// The beginning of a session's identifier, enough to tell sessions apart.
fn short(session: &Value) -> String {
    cell(session).chars().take(8).collect()
}

fn text(all: &Value) -> String {
    if all["is_on"] != true {
        return "no channels; `towpath up --channel-peers` names the hosts to make them with".to_owned();
    }
    let counted = &all["counted"];
    let rules: Vec<String> = rows_of(all, "rules").map(cell).collect();
    let mut parts = vec![format!(
        "port {}; rules: {}\nsockets opened {}, accepted {}, by plain TCP after all {}; sessions over {}, of these for a peer's fault {}",
        all["port"],
        if rules.is_empty() { "none".to_owned() } else { rules.join(", ") },
        counted["opened"],
        counted["accepted"],
        counted["unserved"],
        counted["sessions_over"],
        counted["violations"],
    )];
    parts.extend(table_of(
        &["Peer", "Standing", "Why"],
        rows_of(all, "peers").map(|row| {
            vec![cell(&row["peer"]), cell(&row["standing"]), row["why"].as_str().unwrap_or("-").to_owned()]
        }),
    ));
    let heads = [
        "Session", "Peer", "Class", "Opened", "User", "Policy", "Because", "Sockets", "Channels", "Wanted",
        "Because", "Unsent", "Again", "Lost",
    ];
    parts.extend(table_of(&heads, rows_of(all, "sessions").map(session)));
    let heads =
        ["Session", "Channel", "Local", "Peer", "Core", "Sockets", "Unsent", "Unconfirmed", "Retransmitted"];
    let channels = |row| rows_of(row, "channels").map(|channel| self::channel(row, channel));
    parts.extend(table_of(&heads, rows_of(all, "sessions").flat_map(channels)));
    let heads = ["Session", "Socket", "Local", "Peer", "Credit", "Queue", "Process", "Why"];
    parts.extend(table_of(&heads, rows_of(all, "sockets").map(socket)));
    parts.join("\n\n")
}

/// The table; `None` without rows.
fn table_of(heads: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Option<String> {
    let mut rows = rows.peekable();
    rows.peek().is_some().then(|| table(heads, rows))
}

fn session(row: &Value) -> Vec<String> {
    let unsent: u64 = rows_of(row, "channels").filter_map(|channel| channel["unsent"].as_u64()).sum();
    vec![
        short(&row["session"]),
        cell(&row["peer"]),
        cell(&row["class"]),
        if row["opener"] == true { "here" } else { "there" }.to_owned(),
        row["uid"].as_u64().map_or("-".to_owned(), |uid| uid.to_string()),
        cell(&row["policy"]),
        cell(&row["policy_why"]),
        cell(&row["sockets"]),
        rows_of(row, "channels").count().to_string(),
        row["channels_wanted"].as_u64().map_or("-".to_owned(), |wanted| wanted.to_string()),
        row["channels_why"].as_str().unwrap_or("the peer decides").to_owned(),
        unsent.to_string(),
        cell(&row["bytes_again"]),
        cell(&row["channels_lost"]),
    ]
}

fn channel(session: &Value, row: &Value) -> Vec<String> {
    vec![
        short(&session["session"]),
        cell(&row["number"]),
        row["local"].as_str().unwrap_or("-").to_owned(),
        cell(&row["remote"]),
        row["core"].as_u64().map_or("-".to_owned(), |core| core.to_string()),
        cell(&row["sockets"]),
        cell(&row["unsent"]),
        cell(&row["unconfirmed"]),
        row["retransmits"].as_u64().map_or("-".to_owned(), |count| count.to_string()),
    ]
}

fn socket(row: &Value) -> Vec<String> {
    vec![
        short(&row["session"]),
        cell(&row["socket"]),
        cell(&row["local"]),
        cell(&row["remote"]),
        cell(&row["credit"]),
        cell(&row["queue"]),
        process(row),
        row["why"].as_str().unwrap_or("the peer has opened it").to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn report_without_channels_says_how_to_turn_them_on() {
        assert!(text(&json!({ "is_on": false })).contains("--channel-peers"));
    }

    #[test]
    fn the_line_of_stat_names_what_peers_did_wrong() {
        let counted =
            json!({ "channels": 2, "sessions": 1, "sockets": 30, "greetings_refused": 44, "violations": 5 });
        let line = totals(&counted);
        assert!(line.starts_with("channels 2, sessions 1, sockets on them 30"), "{line}");
        assert!(line.contains("handshake 44") && line.ends_with("fault 5"), "{line}");
    }

    #[test]
    fn sessions_sockets_and_silent_peers_have_a_line_each() {
        let shown = text(&json!({
            "is_on": true, "port": 7117, "rules": ["10.9.0.0/24"], "counted": {},
            "peers": [{ "peer": "10.9.0.3", "standing": "silent", "why": "refused: the secrets differ" }],
            "sessions": [{
                "session": "0123456789abcdef", "peer": "10.9.0.2", "class": "latency", "opener": true, "uid": 1000, "policy": "sticky",
                "policy_why": "latency: no message waits",
                "sockets": 64, "channels": [
                    { "unsent": 3, "local": "10.9.0.1:40000", "remote": "10.9.0.2:7117", "core": 1, "sockets": 63, "retransmits": 17 },
                    { "unsent": 4, "local": null, "remote": "10.10.0.2", "core": null },
                ], "channels_wanted": 3, "channels_why": "its core is full", "bytes_again": 0, "channels_lost": 0,
            }],
            "sockets": [{ "session": "0123456789abcdef", "socket": 7, "why": "rule 1 of --channel-rules" }],
        }));
        let has = |words: &[&str]| shown.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(has(&["10.9.0.3", "silent", "secrets differ"]), "{shown}");
        assert!(
            has(&[
                "01234567",
                "10.9.0.2",
                "latency",
                "here",
                "1000",
                "sticky",
                "64",
                "2",
                "3",
                "its core is full",
                "7"
            ]),
            "{shown}"
        );
        assert!(has(&["01234567", "7", "rule 1"]), "{shown}");
        assert!(has(&["sticky", "latency: no message waits"]), "{shown}");
        assert!(has(&["01234567", "10.9.0.1:40000", "10.9.0.2:7117", "1", "63", "3", "17"]), "{shown}");
        assert!(has(&["01234567", "10.10.0.2", "-", "4"]), "{shown}");
    }
}
