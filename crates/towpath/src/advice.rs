//! Advice in words for readers of `towpath explain`: by what limits a connection, and by why a socket is the kernel's.

use crate::table::cell;
use serde_json::Value;

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or(0)
}

/// A number of bytes as a short text with a unit.
pub fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{n} B"),
        10_000..10_000_000 => format!("{} kB", n / 1_000),
        _ => format!("{} MB", n / 1_000_000),
    }
}

/// The limit of an accelerated socket and advice, as texts; the advice is empty if nothing is wrong.
pub fn of_limit(row: &Value) -> (String, String) {
    let info = &row["info"];
    let other = || match row["peer_process"].as_str() {
        Some(name) => format!("{name} ({})", cell(&row["peer_pid"])),
        None => "the program at the other end".to_owned(),
    };
    let (unread, in_flight) = (bytes(number(row, "recv_queue")), bytes(number(row, "in_flight")));
    let (what, advice) = match row["limited_by"].as_str().unwrap_or("") {
        "handshake" => (
            format!("the handshake: no answer yet to {} SYN", number(info, "retransmits") + 1),
            "see that the peer listens and is reached; `towpath stat` counts what the port dropped",
        ),
        "connections" => ("nothing: it waits for connections".to_owned(), ""),
        "accept" => (
            "its program, which does not accept what has come".to_owned(),
            "accept sooner or from more threads; a larger backlog only hides it",
        ),
        "closing" => ("nothing: it is closing".to_owned(), ""),
        "application" => (
            "its program: all that it has written is on its way".to_owned(),
            "write more at once, or do not wait for each answer before the next request",
        ),
        "reader" => (format!("its program: {unread} wait to be read"), "read sooner, or more at once"),
        "peer-reader" => (
            format!("{}, which has {in_flight} to read", other()),
            "let that program read sooner, or more at once",
        ),
        "receiver-window" => (
            format!("the peer's window of {}", bytes(number(row, "peer_window"))),
            "let the peer's program read sooner, or give the peer a larger receive buffer (SO_RCVBUF, tcp_rmem)",
        ),
        "congestion-window" => (
            format!("the congestion window of {} segments", number(info, "snd_cwnd")),
            "the path decides: look at its rate and at the losses; another congestion control may fit it better (`towpath cc`)",
        ),
        "loss" => (
            format!("an answer that does not come: {} timeouts in a row", number(info, "retransmits")),
            "see whether the path is up; `towpath stat` counts what the port dropped",
        ),
        "send-buffer" => (
            "its send buffer: all that it holds is on its way".to_owned(),
            "leave SO_SNDBUF unset, or raise it, --send-buffer or --ring-max",
        ),
        "small-writes" => (
            format!("a full segment: {} are held back", bytes(number(row, "unsent"))),
            "write whole messages at once, set TCP_NODELAY, or take TCP_CORK back",
        ),
        "pacing" => (
            format!("the pacer ({}/s), or a busy core of the service", bytes(number(info, "pacing_rate"))),
            "if it stays so: see with `towpath cores` why busy cores get no help, or leave these processors less work",
        ),
        other => (other.to_owned(), ""),
    };
    (what, advice.to_owned())
}

/// What decides about a flow's window and rate, what was chosen, and why the two differ, as text.
pub fn governed(congestion: &serde_json::Map<String, Value>) -> String {
    let text = |key: &str| congestion.get(key).and_then(Value::as_str).unwrap_or("-");
    let (in_force, chosen, by) = (text("in_force"), text("chosen"), text("chosen_by"));
    let mut told = format!("congestion control {in_force}, chosen by {by}");
    if in_force != chosen {
        told = format!("congestion control {in_force}; {chosen}, chosen by {by}, is not in force");
    }
    if let Some(number) = congestion.get("program_number") {
        told = format!("{told}, by program {number} of its agent");
    }
    if let Some(ecn) = congestion.get("ecn").and_then(Value::as_str) {
        told = format!("{told}, ECN {ecn}");
    }
    match congestion.get("why").and_then(Value::as_str) {
        Some(why) => format!("{told}: {why}"),
        None => told,
    }
}

/// The socket's queues and TCP numbers as text.
pub fn numbers(row: &Value) -> String {
    let queues = format!(
        "unread {}, unsent {}, in flight {}, ring {}",
        bytes(number(row, "recv_queue")),
        bytes(number(row, "unsent")),
        bytes(number(row, "in_flight")),
        bytes(number(row, "ring"))
    );
    let info = &row["info"];
    if row["state"] == "LISTEN" {
        return format!("{} of {} wait to be accepted", row["recv_queue"], row["send_queue"]);
    }
    if !info.is_object() {
        return queues;
    }
    let paced = match number(info, "pacing_rate") {
        0 | u64::MAX => String::new(),
        rate => format!(", paced at {}/s", bytes(rate)),
    };
    format!(
        "{queues}; cwnd {} x {} B{paced}, peer's window {}, own window {}, srtt {:.3} ms, {} segments sent again{}",
        info["snd_cwnd"],
        info["snd_mss"],
        bytes(number(info, "snd_wnd")),
        bytes(number(info, "rcv_wnd")),
        number(info, "rtt") as f64 / 1000.0,
        info["total_retrans"],
        shares(info)
    )
}

/// Shares of the busy time that each limit had, as text; empty if the socket was never busy.
fn shares(info: &Value) -> String {
    let busy = number(info, "busy_time");
    let percent = |us: u64| us.min(busy) * 100 / busy.max(1);
    let (window, buffer) = (number(info, "rwnd_limited"), number(info, "sndbuf_limited"));
    match busy {
        0 => String::new(),
        _ => format!(
            "; busy {:.1} s, of it the peer's window {} %, the send buffer {} %, path and congestion window {} %",
            busy as f64 / 1e6,
            percent(window),
            percent(buffer),
            100 - percent(window.saturating_add(buffer))
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_limit_has_words() {
        for limit in [
            "handshake",
            "connections",
            "accept",
            "closing",
            "application",
            "reader",
            "peer-reader",
            "receiver-window",
            "congestion-window",
            "loss",
            "send-buffer",
            "small-writes",
            "pacing",
        ] {
            let (what, _) = of_limit(&json!({ "limited_by": limit }));
            assert!(what.len() > limit.len() && what.contains(' '), "{limit}: {what}");
        }
        let row = json!({ "limited_by": "peer-reader", "peer_process": "redis", "peer_pid": 7, "in_flight": 123_456 });
        assert_eq!(of_limit(&row).0, "redis (7), which has 123 kB to read");
    }

    #[test]
    fn shares_add_up() {
        let info = json!({ "busy_time": 2_000_000, "rwnd_limited": 500_000, "sndbuf_limited": 250_000 });
        let said = shares(&info);
        assert!(
            said.contains("window 25 %") && said.contains("buffer 12 %") && said.ends_with("window 63 %"),
            "{said}"
        );
        assert_eq!(shares(&json!({})), "");
    }
}
