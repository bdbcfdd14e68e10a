//! Congestion control by name, by rule and by agents, over an emulated link, with the kernel's TCP at its other end. Each test runs in a
//! network namespace of its own: it needs root, and is skipped elsewhere.
//!
//! ```text
//!   program -- service -- cc-left === towpath link === cc-right 10.80.0.2 -- kernel -- this process
//!   agent   -----'  10.80.0.3
//! ```

mod agent;
mod agents;
mod place;

use ccp_wire::{Fields, Message};
use place::{Peer, Place, Program};
use serde_json::Value;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// The name of the test that plays `ROLE`.
const ROLE_TEST: &str = "congestion::role";

/// Runs the role in a namespace of its own, or says why not.
fn in_namespace(role: &str) {
    let may = Command::new("unshare").args(["-n", "-m", "true"]).status();
    if !may.is_ok_and(|status| status.success()) || !Path::new("/dev/net/tun").exists() {
        return println!("skipped: needs root, network namespaces and /dev/net/tun");
    }
    crate::role::play_in_namespace(ROLE_TEST, role);
}

#[test]
#[ignore = "what the other tests start in a namespace, or as an agent"]
fn role() {
    match std::env::var("ROLE").unwrap().as_str() {
        "names" => names(),
        "rules" => rules(),
        "agent-comes-and-goes" => agent_comes_and_goes(),
        "hostile" => hostile(),
        "released-agent" => released_agent(),
        "recorded" => recorded(false),
        "recorded-late" => recorded(true),
        "python" => python(),
        "two-agents" => agents::two_agents(),
        "stopped" => agents::stopped(),
        "other-user" => agents::of_another_user(),
        "agent" => agent::serve(),
        other => panic!("no role {other}"),
    }
}

#[test]
fn a_name_is_chosen_before_connect_inherited_from_listeners_and_shown() {
    in_namespace("names");
}

fn names() {
    let place = Place::new(&["--congestion", "dctcp"]);
    let peer = Peer::listen();
    let mut program = place.start("connect", "10.80.0.2", peer.port(), "reno");
    assert_eq!(program.lines(3), ["set well", "before reno", "connected reno"]);
    let flow = place.flow();
    assert_eq!(flow["congestion"]["chosen"], "reno");
    assert_eq!(flow["congestion"]["chosen_by"], "TCP_CONGESTION");
    assert_eq!(
        (flow["congestion"]["in_force"].as_str(), flow["pacing_rate"].as_u64().is_some()),
        (Some("reno"), true)
    );
    assert!(place.explained().contains("congestion control reno, chosen by TCP_CONGESTION"));
    program.ends_with("end reno", peer);

    let peer = Peer::listen();
    let mut program = place.start("connect", "10.80.0.2", peer.port(), "nosuch");
    // The kernel at the other end agrees to ECN when it is asked.
    assert_eq!(program.lines(2)[0], "set ENOENT");
    assert_eq!(program.lines(1), ["connected dctcp"], "what --congestion says");
    program.ends_with("end dctcp", peer);

    let mut program = place.start("listen", "10.80.0.3", 7001, "cubic");
    assert_eq!(program.lines(3), ["set well", "before cubic", "listening cubic"]);
    let peer = Peer::connect("10.80.0.3:7001");
    assert_eq!(program.lines(1), ["connected cubic"], "as its listener");
    program.ends_with("end cubic", peer);
}

#[test]
fn rules_choose_for_new_flows_and_live_ones_and_what_sockets_chose_stays() {
    in_namespace("rules");
}

fn rules() {
    let place = Place::new(&["--cc-rules", "to=10.80.0.0/24 port=9 dctcp,app=nosuch reno"]);
    let listed = place.json(&["cc", "list"]);
    assert_eq!((&listed["default"], listed["rules"].as_array().unwrap().len()), (&Value::from("cubic"), 2));
    place.json(&["cc", "set", "--app", "chosen", "--to", "10.80.0.0/24", "reno"]);
    let peers = [Peer::listen(), Peer::listen()];
    let mut ruled = place.start("connect", "10.80.0.2", peers[0].port(), "-");
    assert_eq!(ruled.lines(2)[1], "connected reno");
    let mut own = place.start("connect", "10.80.0.2", peers[1].port(), "cubic");
    assert_eq!(own.lines(3)[2], "connected cubic", "the socket's own choice comes first");

    let mut accepting = place.start("listen", "10.80.0.3", 7001, "-");
    accepting.lines(2);
    let client = Peer::connect("10.80.0.3:7001");
    assert_eq!(accepting.lines(1), ["connected reno"], "a rule about the peer, asked when it is known");

    // Without --live only new flows change; with it all that did not choose.
    let set = ["cc", "set", "--app", "chosen", "cubic"];
    let done = place.json(&set);
    assert_eq!((&done["fitting"], &done["changed"], &done["kept"]), (&3.into(), &0.into(), &1.into()));
    peers[0].until_moved();
    let live = place.json(&["cc", "set", "--app", "chosen", "--live", "dctcp"]);
    assert_eq!((&live["fitting"], &live["changed"], &live["kept"]), (&3.into(), &2.into(), &1.into()));
    peers[0].until_moved();
    client.until_moved();
    let shown = place.json(&["cc", "show", &place.flow_to(peers[0].port())]);
    assert_eq!((&shown["in_force"], &shown["chosen_by"]), (&"dctcp".into(), &"a rule".into()));
    assert!(shown["why"].as_str().unwrap().contains("ECN"), "the handshake was Reno's: {shown}");
    for bad in [
        &["cc", "set", "--app", "chosen", "nosuch"][..],
        &["cc", "set", "--app", "nobodys", "default"],
        &["cc", "show", "10.80.0.3:1-10.80.0.2:2"],
    ] {
        assert!(place.refusal(bad).contains("towpath"), "{bad:?}: {}", place.refusal(bad));
    }
    place.json(&["cc", "set", "--app", "chosen", "--live", "default"]);
    let [first, second] = peers;
    ruled.ends_with("end reno", first);
    own.ends_with("end cubic", second);
    accepting.ends_with("end reno", client);
}

#[test]
fn an_agent_gets_live_flows_its_death_falls_back_and_its_return_resumes() {
    in_namespace("agent-comes-and-goes");
}

#[test]
fn what_a_live_agent_has_decided_is_decided_again_by_a_replay() {
    in_namespace("recorded");
}

/// The programs of an agent that was there before the recording are in it, so that flows that begin later can be replayed.
#[test]
fn a_recording_that_begins_behind_its_agent_is_replayed() {
    in_namespace("recorded-late");
}

fn recorded(is_late: bool) {
    let place = Place::with_agents(&["--congestion", "cubic"], "/agent");
    let agent = is_late.then(|| {
        let agent = place.start_agent_that("aimd");
        place::until("the agent's program", || {
            (place.json(&["cc", "list"])["agents"][0]["programs"].as_u64() >= Some(1)).then_some(())
        });
        agent
    });
    let (recorder, file) = place.record();
    let _agent = agent.unwrap_or_else(|| place.start_agent_that("aimd"));
    let peer = Peer::listen();
    let mut program = place.start("connect", "10.80.0.2", peer.port(), "ccp");
    assert_eq!(program.lines(3)[2], "connected ccp");
    let file = file.to_str().unwrap();
    // The file grows meanwhile: every beginning of it is a recording.
    let found = place::until("ten decisions", || {
        let found = place.json(&["cc", "replay", file, "aimd"]);
        (found["same"].as_u64() >= Some(10)).then_some(found)
    });
    assert_eq!((&found["flows"], &found["left_out"]), (&1.into(), &0.into()));
    assert!(found["reports"].as_u64() >= Some(9), "{found}");
    program.ends_with("end ccp", peer);
    drop(recorder);
    let why = place.refusal(&["cc", "replay", file, "vegas"]);
    assert!(why.contains("vegas decides otherwise"), "{why}");
}

#[test]
fn aimd_of_twenty_lines_of_python_governs_a_live_flow() {
    let python =
        Command::new("python3").args(["-c", "import sys; sys.exit(sys.version_info < (3, 9))"]).status();
    if place::python_module().is_none() || !python.is_ok_and(|status| status.success()) {
        return println!("skipped: needs python3 (3.9 or newer) and `cargo build -p towpath-ccp-python`");
    }
    in_namespace("python");
}

/// The file that `towpath cc try` tries, unchanged, at a service: losses cut the window, and bytes go on; after its death the flow falls back.
fn python() {
    let place = Place::with_agents(&["--congestion", "cubic"], "/agent");
    let peer = Peer::listen();
    let mut program = place.start("connect", "10.80.0.2", peer.port(), "ccp");
    assert_eq!(program.lines(3)[2], "connected ccp");
    let flow = place.flow_to(peer.port());
    let agent = place.start_python();
    let mut largest = 0;
    place.until(&flow, "a window that is cut", |shown| {
        let window = shown["program"]["cwnd"].as_u64().unwrap_or(u64::MAX);
        if shown["in_force"] != "ccp" || shown["program"]["runs"].as_u64().unwrap_or(0) == 0 {
            return false;
        }
        // A loss halves it; nothing else makes it less.
        largest = largest.max(window);
        window < largest / 4 * 3
    });
    let reports = || place.json(&["stat"])["agents"]["reports"].as_u64().unwrap();
    let first = reports();
    while reports() < first + 100 {
        peer.until_moved();
    }
    drop(agent);
    place.until(&flow, "the default", |shown| {
        shown["in_force"] == "cubic" && shown["why"] == "its agent has died"
    });
    program.ends_with("end ccp", peer);
}

#[test]
fn of_two_agents_each_has_its_flows_and_one_that_dies_loses_its_own_alone() {
    in_namespace("two-agents");
}

#[test]
fn a_stopped_agent_loses_its_flow_and_gets_it_when_it_goes_on() {
    in_namespace("stopped");
}

#[test]
fn an_agent_sees_its_users_flows_and_other_users_are_not_heard() {
    in_namespace("other-user");
}

fn agent_comes_and_goes() {
    let place = Place::with_agents(&["--congestion", "cubic", "--cc-rate-max", "3000000"], "/agent");
    let peer = Peer::listen();
    let mut program = place.start("connect", "10.80.0.2", peer.port(), "ccp");
    assert_eq!(program.lines(3)[2], "connected ccp");
    let flow = place.flow_to(peer.port());
    place.until(&flow, "no agent", |shown| {
        shown["in_force"] == "cubic"
            && shown["why"].as_str().is_some_and(|why| why.contains("no agent is there"))
    });
    for _ in 0..2 {
        let agent = place.start_agent();
        place.until(&flow, "a program", |shown| {
            let runs = shown["program"]["runs"].as_u64().unwrap_or(0);
            let reports = shown["program"]["last_reports"].as_array().map_or(0, Vec::len);
            shown["in_force"] == "ccp" && shown.get("why").is_none() && runs > 0 && reports > 1
        });
        peer.until_moved();
        drop(agent);
        place.until(&flow, "the default", |shown| {
            shown["in_force"] == "cubic"
                && shown["why"] == "its agent has died"
                && shown.get("program").is_none()
        });
        peer.until_moved();
    }
    let counted = place.json(&["stat"]);
    // An agent that gets no processor for a while counts as stalled: then the flow falls back and comes to it again.
    let [fallbacks, creates] = ["fallbacks", "creates"].map(|name| counted["agents"][name].as_u64().unwrap());
    assert!(fallbacks >= 2 && creates >= fallbacks, "{counted}");
    // Of the two reports that each has handed over, one may wait for its datagram.
    assert!(counted["agents"]["reports"].as_u64().unwrap() >= 2, "{counted}");
    assert!(
        counted["agents"]["clamps"].as_u64().unwrap() >= 2,
        "each agent asks for too high a rate: {counted}"
    );

    // From the agent to an algorithm of ours and back, while bytes go on.
    let _agent = place.start_agent();
    place.until(&flow, "a program", |shown| shown["in_force"] == "ccp");
    program.ends_with("end ccp", peer);

    let peer = Peer::listen();
    let mut program = place.start("connect", "10.80.0.2", peer.port(), "-");
    assert_eq!(program.lines(2)[1], "connected cubic");
    let flow = place.flow_to(peer.port());
    for (name, has_program) in [("ccp", true), ("reno", false), ("ccp", true)] {
        place.json(&["cc", "set", "--flow", &flow, "--live", name]);
        place.until(&flow, name, |shown| {
            shown["in_force"] == name && shown.get("program").is_some() == has_program
        });
        peer.until_moved();
    }
    program.ends_with("end ccp", peer);
}

#[test]
fn nonsense_floods_and_half_done_changes_harm_no_flow_and_are_counted() {
    in_namespace("hostile");
}

fn hostile() {
    let place = Place::with_agents(&[], "/agent");
    let peer = Peer::listen();
    let mut program = place.start("connect", "10.80.0.2", peer.port(), "ccp");
    assert_eq!(program.lines(3)[2], "connected ccp");
    let flow = place.flow_to(peer.port());
    let service = place.agents_socket();
    let count = |name: &str| place.json(&["stat"])["agents"][name].as_u64().unwrap();
    // From no agent's address.
    UnixDatagram::unbound().unwrap().send_to(&[3, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0], &service).unwrap();
    until("a stranger", || count("unknown_senders") == 1);

    // An agent that dies between INSTALL and CHANGE: nothing is left of it.
    let _dying = place.start_agent_that("dies");
    until("the end of the agent", || {
        let agents = place.json(&["cc", "list"])["agents"].clone();
        count("installs") == 1 && agents[0]["pid"].is_null() && agents[0]["programs"] == 0
    });
    // An agent that has installed its program and then says only nonsense.
    let agent = place.be_agent();
    agent::install(&|message| send(&agent, &service, message));
    until("a program", || count("installs") == 2);
    let number = agent::told(&agent);
    let malformed: [&[u8]; 6] = [
        &[2, 0, 20, 0, 0, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255],
        &[99, 0, 8, 0, 1, 0, 0, 0],
        &[3, 0, 200, 0, 1, 0, 0, 0],
        &[3, 0],
        &[4, 0, 16, 0, 1, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0],
        &[0xff; 1000],
    ];
    for (sent, bytes) in malformed.iter().enumerate() {
        agent.send_to(bytes, &service).unwrap();
        until("the refusal", || count("malformed") > sent as u64);
    }
    let change = |flow, program| Message::Change { flow, program, fields: Fields::of(&[]) };
    send(&agent, &service, &change(number + 1_000, agent::PROGRAM));
    send(&agent, &service, &change(number, 99));
    until("both refusals", || count("unknown_flows") == 1 && count("unknown_programs") == 1);
    // A program with events that point beyond its instructions: the rule that it breaks is shown.
    agent::install_half(&|message| send(&agent, &service, message));
    until("the refused program", || count("refused_programs") == 1);
    let refused = place.json(&["cc", "list"])["agents"][0]["refused"].as_str().unwrap().to_owned();
    assert!(refused.starts_with("program 8 of agent "), "{refused}");
    // A flood from an agent and from nineteen strangers, while the service answers and bytes go on.
    let mut senders = vec![agent];
    senders.extend((1..20).map(|_| UnixDatagram::unbound().unwrap()));
    senders.iter().for_each(|sender| sender.set_nonblocking(true).unwrap());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Bounded, so that it ends also when this test fails.
            for sender in senders.iter().cycle().take(2_000_000) {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let _ = sender.send_to(&[99, 0, 8, 0, 1, 0, 0, 0], &service);
            }
        });
        until("the flood", || count("malformed") > 100 && count("unknown_senders") > 1_000);
        peer.until_moved();
        over.store(true, Ordering::Relaxed);
    });
    place.until(&flow, "the default", |shown| {
        let why = shown["why"].as_str().unwrap_or_default();
        shown["in_force"] == "cubic" && why == format!("its agent has not chosen a program; {refused}")
    });
    peer.until_moved();
    program.ends_with("end ccp", peer);
}

fn send(agent: &UnixDatagram, to: &Path, message: &Message<'_>) {
    let mut bytes = Vec::new();
    message.encode(&mut bytes).unwrap();
    agent.send_to(&bytes, to).unwrap();
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    place::until(what, || is_so().then_some(()));
}

/// Folder with the program `cubic` of the released crate `generic_cong_avoid` 0.4.0.
const RELEASED: &str = "TOWPATH_RELEASED_AGENTS";

#[test]
fn a_released_agent_drives_live_flows() {
    if std::env::var_os(RELEASED).is_none() {
        return println!(
            "skipped: {RELEASED} names no folder with `cubic`; `cargo install --locked --features bin --root FOLDER \
             generic_cong_avoid@0.4.0` makes one in FOLDER/bin"
        );
    }
    in_namespace("released-agent");
}

fn released_agent() {
    let cubic = Path::new(&std::env::var_os(RELEASED).unwrap()).join("cubic");
    let place = Place::with_agents(&[], "/tmp/ccp/portus");
    place.make_portus_folder();
    let peer = Peer::listen();
    let mut program: Program = place.start("connect", "10.80.0.2", peer.port(), "ccp");
    assert_eq!(program.lines(3)[2], "connected ccp");
    let flow = place.flow_to(peer.port());
    for _ in 0..2 {
        let agent = place.start_released(&cubic);
        place.until(&flow, "a program and its reports", |shown| {
            let reports = shown["program"]["last_reports"].as_array().map_or(0, Vec::len);
            shown["in_force"] == "ccp" && reports > 1
        });
        let before = peer.received();
        let reports = || place.json(&["stat"])["agents"]["reports"].as_u64().unwrap();
        let first = reports();
        while reports() < first + 100 {
            peer.until_moved();
        }
        assert!(peer.received() > before, "bytes go on under the agent");
        drop(agent);
        place.until(&flow, "the default", |shown| {
            shown["in_force"] == "cubic" && shown["why"] == "its agent has died"
        });
        peer.until_moved();
    }
    program.ends_with("end ccp", peer);
}
