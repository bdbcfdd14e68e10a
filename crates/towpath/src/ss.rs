//! `towpath ss`: the accelerated sockets, with the options that users of ss(8) type.

use crate::Where;
use crate::advice::bytes;
use crate::ask::report;
use crate::table::{cell, fold, print, print_json, process, width};
use crate::target::Target;
use clap::Args;
use control::Report;
use serde_json::{Value, json};
use std::net::SocketAddr;

pub const HELP: &str = "Examples:\n  \
towpath ss                     all sockets\n  \
towpath ss -tlnp               listeners, as with ss(8)\n  \
towpath ss :6379               sockets with that port at either end\n  \
towpath ss redis-server        sockets of programs of that name\n  \
towpath ss --json | jq '.sockets[] | select(.state == \"LISTEN\")'\n\n\
Columns that do not fit the terminal follow below their socket. Where the output is no terminal, lines have 80 columns, or as many\n\
as COLUMNS says. `towpath explain` says what each socket waits for.";

/// The arguments of `towpath ss`.
#[derive(Debug, Args)]
pub struct Ss {
    #[command(flatten)]
    place: Where,
    /// Only sockets of this process (number or name), or with this address or port: :80, 10.0.0.1:80, or OWN-PEER
    #[arg(value_name = "PID|NAME|SOCKET")]
    target: Option<Target>,
    /// Only listeners
    #[arg(short, long)]
    listening: bool,
    /// Listeners and connections, also beside -l (as without either)
    #[arg(short, long)]
    all: bool,
    /// Only sockets of IPv4
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    ipv4: bool,
    /// Only sockets of IPv6
    #[arg(short = '6', long)]
    ipv6: bool,
    /// No line with the names of the columns
    #[arg(short = 'H', long)]
    no_header: bool,
    /// TCP sockets, as without it: there are no others
    #[arg(short, long)]
    tcp: bool,
    /// Numbers instead of names, as without it: no names are looked up
    #[arg(short, long)]
    numeric: bool,
    /// The processes, as without it
    #[arg(short, long)]
    processes: bool,
    /// Round trip, window and pace, as without it
    #[arg(short, long)]
    info: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl Ss {
    pub fn execute(self) -> anyhow::Result<()> {
        let mut all = report(&self.place.path(), Report::Sockets)?;
        if let Some(rows) = all.as_array_mut() {
            rows.retain(|row| self.is_wanted(row));
        }
        if self.json {
            return print_json(json!({ "sockets": all }));
        }
        let rows = all.as_array().into_iter().flatten().map(cells);
        print(&fold(&HEADS, rows, width(), !self.no_header))
    }

    fn is_wanted(&self, row: &Value) -> bool {
        let local: Option<SocketAddr> = row["local"].as_str().and_then(|text| text.parse().ok());
        let is_family = |wanted: bool, is: fn(&SocketAddr) -> bool| !wanted || local.as_ref().is_some_and(is);
        self.target.as_ref().is_none_or(|target| target.is(row))
            && (!self.listening || self.all || row["state"] == "LISTEN")
            && is_family(self.ipv4, SocketAddr::is_ipv4)
            && is_family(self.ipv6, SocketAddr::is_ipv6)
    }
}

const HEADS: [&str; 16] = [
    "State", "Recv-Q", "Send-Q", "Local", "Peer", "Process", "Kind", "In", "Out", "Retrans", "Rtt", "Cwnd",
    "Pace", "Cc", "Core", "Idle",
];

/// The cells of a socket's row; a dash is one that is unknown or means nothing here.
fn cells(s: &Value) -> Vec<String> {
    let known = |key: &str| cell(&s[key]);
    // As ss(8) writes it.
    let state = if s["state"] == "ESTABLISHED" { "ESTAB".to_owned() } else { known("state") };
    let millis = |us: u64| format!("{:.3}ms", us as f64 / 1000.0);
    // The service hides the process of another user's socket.
    let is_hidden = s["process"].is_null();
    let process = if is_hidden { "-".to_owned() } else { process(s) };
    vec![
        state,
        known("recv_queue"),
        known("send_queue"),
        known("local"),
        known("remote"),
        process,
        known("kind"),
        known("bytes_in"),
        known("bytes_out"),
        known("retransmits"),
        s["rtt_us"].as_u64().map_or("-".to_owned(), millis),
        known("cwnd"),
        s["pacing_rate"].as_u64().map_or("-".to_owned(), |rate| format!("{}/s", bytes(rate))),
        governed(&s["congestion"]),
        known("core"),
        s["idle_ms"].as_f64().map_or("-".to_owned(), |ms| format!("{:.1}s", ms / 1000.0)),
    ]
}

/// The congestion control of a flow: what decides about it, and in brackets what was chosen where that is another.
fn governed(congestion: &Value) -> String {
    let text = |key: &str| congestion[key].as_str().unwrap_or("-");
    let (in_force, chosen) = (text("in_force"), text("chosen"));
    if in_force == chosen { in_force.to_owned() } else { format!("{in_force} (not {chosen})") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cli, Command};
    use clap::Parser;

    fn parsed(words: &[&str]) -> Ss {
        match Cli::parse_from([&["towpath", "ss"], words].concat()).command {
            Command::Ss(ss) => ss,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_not_in_force_is_shown() {
        let shown =
            |chosen: &str, in_force: &str| governed(&json!({ "chosen": chosen, "in_force": in_force }));
        assert_eq!(shown("cubic", "cubic"), "cubic");
        assert_eq!(shown("ccp", "cubic"), "cubic (not ccp)");
        assert_eq!(governed(&Value::Null), "-");
    }

    #[test]
    fn what_users_of_ss_type_selects_what_they_mean() {
        let rows = [
            json!({ "state": "LISTEN", "local": "127.0.0.1:80", "remote": "*", "pid": 1, "process": "nginx" }),
            json!({ "state": "ESTABLISHED", "local": "127.0.0.1:80", "remote": "127.0.0.1:4000", "pid": 1, "process": "nginx" }),
            json!({ "state": "ESTABLISHED", "local": "[::1]:4001", "remote": "[::1]:81", "pid": 2, "process": "curl" }),
        ];
        for (words, wanted) in [
            (&[][..], &[0, 1, 2][..]),
            (&["-tlnp"], &[0]),
            (&["-tanp"], &[0, 1, 2]),
            (&["-la"], &[0, 1, 2]),
            (&["-tnpi"], &[0, 1, 2]),
            (&["-4"], &[0, 1]),
            (&["-6"], &[2]),
            (&["-6l"], &[]),
            (&[":81"], &[2]),
            (&["-l", ":80"], &[0]),
            (&["nginx"], &[0, 1]),
            (&["2"], &[2]),
            (&["127.0.0.1:80-127.0.0.1:4000"], &[1]),
        ] {
            let ss = parsed(words);
            let found: Vec<usize> = (0..rows.len()).filter(|i| ss.is_wanted(&rows[*i])).collect();
            assert_eq!(found, wanted, "{words:?}");
        }
        assert!(Cli::try_parse_from(["towpath", "ss", "-u"]).is_err(), "no option is accepted and ignored");
    }

    #[test]
    fn unknown_values_are_dashes() {
        let row = cells(&json!({
            "state": "ESTABLISHED", "local": "a", "remote": "b", "kind": "pair", "pid": null, "process": null, "rtt_us": null,
            "cwnd": null, "pacing_rate": null, "congestion": null, "core": null, "recv_queue": 0, "send_queue": 1,
            "bytes_in": 2, "bytes_out": 3, "retransmits": 4
        }));
        let shown = row.join(" ");
        assert_eq!(shown, "ESTAB 0 1 a b - pair 2 3 4 - - - - - -");
        let row = cells(
            &json!({ "pid": 7, "process": "curl", "rtt_us": 1500, "pacing_rate": 2_000_000, "idle_ms": 90_100 }),
        );
        let shown = [5, 10, 12, 15].map(|column| row[column].as_str());
        assert_eq!(shown, ["curl (7)", "1.500ms", "2000 kB/s", "90.1s"]);
    }
}
