//! What reports show of one user's processes to another user, and what hostile programs can put into them.

use crate::common::{App, Daemon, can_be_other_users, listener};
use control::{KernelReason, Report, Request};
use serde_json::Value;
use service::{Options, Sharing};
use std::sync::atomic::Ordering;

const USER: u32 = 61_011;
const OTHER: u32 = 61_012;

fn as_user(daemon: &Daemon, uid: u32, report: Report) -> Value {
    daemon.ask_by(&daemon.dial_as(uid), report).unwrap()
}

fn rows(list: &Value) -> &Vec<Value> {
    list.as_array().unwrap()
}

#[test]
fn other_users_see_addresses_and_states_of_sockets_and_nothing_of_programs() {
    if !can_be_other_users() {
        return;
    }
    let daemon = Daemon::start(Options { sharing: Some(Sharing::Always), ..Options::default() });
    let (socket, address) = listener();
    let (mut server, mut client) = (App::of_user(&daemon, OTHER), App::of_user(&daemon, USER));
    let queue = server.listen(&socket, 8);
    client.connect(address);
    server.accept_wait(queue);
    server.say(Request::FellBack { reason: KernelReason::Rule(77), inode: 7 });
    // The answer to this says that the word before it was heard.
    server.ask(Request::Waker { region: 99, context: 0 });

    let seen = as_user(&daemon, USER, Report::Sockets);
    let of = |uid: u32| rows(&seen).iter().filter(move |row| row["uid"] == uid);
    let own: Vec<_> = of(USER).collect();
    assert_eq!((own.len(), &own[0]["state"]), (1, &"ESTABLISHED".into()));
    assert!(own[0]["pid"] == std::process::id() && own[0]["process"] == "test");
    let foreign: Vec<_> = of(OTHER).collect();
    assert_eq!(foreign.len(), 2, "the listener and the accepted connection: {seen}");
    assert!(foreign.iter().all(|row| row["pid"].is_null() && row["process"].is_null()));
    assert!(foreign.iter().all(|row| row["application"].is_null() && row["pidfd_inode"].is_null()));
    assert!(foreign.iter().any(|row| row["state"] == "LISTEN" && row["local"] == address.to_string()));

    let explained = as_user(&daemon, USER, Report::Explain);
    assert_eq!((rows(&explained["applications"]).len(), rows(&explained["sockets"]).len()), (1, 1));
    assert_eq!(explained["sockets"][0]["peer_process"], Value::Null, "the peer is another user's");
    let counted = as_user(&daemon, USER, Report::Statistics);
    assert!(rows(&counted["per_process"]).iter().all(|row| row["uid"] == USER), "{counted}");
    assert!(!format!("{seen}{explained}{counted}").contains("rule 77"));

    let all = daemon.report(Report::Explain);
    assert_eq!((rows(&all["applications"]).len(), rows(&all["sockets"]).len()), (2, 3));
    assert!(rows(&all["sockets"]).iter().any(|row| row["peer_process"] == "test"));
    assert_eq!(daemon.report(Report::Statistics)["by_reason"]["rule 77 of the policy does not allow it"], 1);
}

#[test]
fn what_a_program_writes_into_shared_memory_fills_no_other_ones_numbers() {
    let daemon = Daemon::start(Options::default());
    let (socket, address) = listener();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    server.listen(&socket, 64);
    client.connect(address);
    let conn = client.connect(address);
    let lent = client.lent.clone().unwrap();
    client.region.header().direct.iter().for_each(|word| word.store(u64::MAX - 7, Ordering::SeqCst));
    client.memory(lent.queue).words().waiting.iter().for_each(|word| word.store(u64::MAX, Ordering::SeqCst));
    client.memory(lent.queue).words().top.store(u64::MAX, Ordering::SeqCst);
    let slot = |slot| client.region_of(conn.region).slot(slot).unwrap();
    slot(lent.grants[0].slot).half[0].tx_head.store(u64::MAX - 7, Ordering::SeqCst);
    slot(lent.grants[0].slot).half[1].rx_tail.store(u64::MAX / 2, Ordering::SeqCst);
    slot(conn.slot).half[conn.side].tx_head.store(u64::MAX / 3, Ordering::SeqCst);
    let counted = daemon.report(Report::Statistics)["accelerated"].as_u64().unwrap();
    // One in a microsecond at most: what an hour has room for is far from what was written.
    assert!(counted < 3_600_000_000, "{counted}");
    let sockets = daemon.report(Report::Sockets);
    let queue = |row: &Value| row["recv_queue"].as_u64().unwrap().max(row["send_queue"].as_u64().unwrap());
    assert!(rows(&sockets).iter().all(|row| queue(row) <= 8 << 20), "{sockets}");
}

#[test]
fn names_and_reasons_stay_short_few_and_on_their_line() {
    let daemon = Daemon::start(Options::default());
    let line = daemon.dial();
    let hello = Request::Hello {
        protocol: control::PROTOCOL,
        layout: shm::VERSION,
        name: "\u{202e}evil\n\u{1b}[2J and so on and on and on".into(),
        parent: None,
        itself: control::Itself::default(),
    };
    let said = |number, request| line.send(&control::ToService { number, request }, &[], true).unwrap();
    said(1, hello);
    line.receive::<control::ToApplication>(true).unwrap();
    for i in 0..324 {
        said(0, Request::FellBack { reason: KernelReason::Rule(i as u32), inode: i });
    }
    // The answer says that all before it was heard.
    said(2, Request::Waker { region: 99, context: 0 });
    line.receive::<control::ToApplication>(true).unwrap();
    let counted = daemon.report(Report::Statistics);
    let process = &counted["per_process"][0];
    assert_eq!(process["process"], "\\u{202e}evil\\u{a}\\u{1b}[2J and s");
    assert_eq!((process["fallen_back"].as_u64(), &counted["by_reason"]["other"]), (Some(324), &308.into()));
    let reasons = counted["by_reason"].as_object().unwrap();
    assert!(reasons.len() == 17 && reasons.keys().all(|reason| reason.chars().count() <= 80));
    let shown = format!("{counted}{}", daemon.report(Report::Explain));
    assert!(!shown.contains(['\u{202e}', '\u{1b}']));
}
