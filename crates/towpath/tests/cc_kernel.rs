//! `towpath cc kernel up`, `status` and `down` as a person runs them, with live flows of the kernel. Each test runs in a network namespace of
//! its own, and starts itself again there; skipped without root, or where programs cannot be loaded.
//!
//! ```text
//!   agent -- `towpath cc kernel up` -- the kernel: flows of this process over lo, from 10.77.0.1 and fd77::1
//! ```

mod flow;
mod place;

use flow::Flow;
use place::{Place, in_namespace};
use rustix::process::Signal;

/// The name of the test that plays `ROLE`.
const ROLE_TEST: &str = "cc_kernel::role";

#[test]
#[ignore = "what the other tests start in a namespace, or as an agent"]
fn role() {
    match std::env::var("ROLE").unwrap().as_str() {
        "moves" => moves(),
        "killed" => killed(),
        "stopped" => stopped(),
        "agent" => place::serve(),
        other => panic!("no role {other}"),
    }
}

#[test]
fn up_moves_the_flows_that_rules_name_and_down_gives_them_back() {
    in_namespace("moves");
}

fn moves() {
    let place = Place::new('m');
    for word in ["status", "down"] {
        let why = place.refusal(&[word]);
        assert!(why.contains("nothing is up at") && why.contains("towpath cc kernel up"), "{word}: {why}");
    }
    let mut meant = Flow::between("10.77.0.1", "10.77.0.2");
    meant.choose(place.another());
    let mut other_peer = Flow::between("10.77.0.1", "10.77.0.3");
    let (mut other_port, mut six) =
        (Flow::between("10.77.0.1", "10.77.0.2"), Flow::between("fd77::1", "fd77::2"));
    let _agent = place.start_agent();
    // This prefix has both peers: the port alone keeps the other flows out.
    let rule = format!("to=10.77.0.2/31,port={}", meant.port());
    let mut up = place.up(&["--flows", &rule, "--flows", "to=fd77::2"]);
    place.until("programs run", |status| {
        let runs = |flow: &Flow| status.flows.iter().any(|it| it.peer == flow.peer() && it.runs > 0);
        runs(&meant) && runs(&six)
    });
    // The flow came later than all others, so the kernel has looked at them before or with this one.
    let mut late = Flow::between("fd77::1", "fd77::2");
    late.until_algorithm(place.name());
    let on_program = [meant.algorithm(), six.algorithm()];
    assert_eq!(on_program, [place.name(), place.name()]);
    let others = [&other_peer, &other_port].map(|flow| flow.algorithm());
    assert_eq!(others, [place.by_default(); 2], "no rule names them");
    let ends = [&meant, &six, &late].map(Flow::algorithm_of_peer);
    assert_eq!(ends, [place.by_default(); 3], "the address of a rule is the peer's, not the host's");
    place.until("the late flow is listed", |status| status.flows.len() == 3);
    let text = place.good(&["status"]);
    let first = format!("{} is up (process {}): 3 flows, ", place.name(), up.id());
    assert!(text.starts_with(&first) && text.contains(&format!(" -> {}  ", six.peer())), "{text}");

    let why = place.refused_up(place.folder(), place.name());
    assert!(why.contains("it is up already: `towpath cc kernel status`, or `down` first"), "{why}");
    let elsewhere = tempfile::tempdir().unwrap();
    let why = place.refused_up(elsewhere.path(), place.name());
    assert!(why.contains(&format!("a congestion control `{}` already", place.name())), "{why}");
    assert_eq!(place.status().flows.len(), 3, "the first goes on");

    for flow in [&meant, &six, &late, &other_peer, &other_port] {
        flow.until_moved();
    }
    place.good(&["down"]);
    assert!(up.ends().success());
    // At once, not at some later acknowledgement.
    let had = [place.another(), place.by_default(), place.by_default()];
    assert_eq!([&meant, &six, &late].map(Flow::algorithm), had, "what each had");
    assert!(!place.has_algorithm(), "`down` leaves no algorithm behind");
    assert!(place.refusal(&["status"]).contains("nothing is up at"));
    for flow in [&mut meant, &mut six, &mut late, &mut other_peer, &mut other_port] {
        flow.until_moved();
        flow.ends();
    }
}

#[test]
fn up_after_kill_takes_idle_flows_off_what_the_killed_one_left() {
    in_namespace("killed");
}

fn killed() {
    let place = Place::new('k');
    let mut idle = Flow::between("10.77.0.1", "10.77.0.2");
    idle.choose(place.another());
    let _agent = place.start_agent();
    let mut up = place.up(&["--flows", "to=10.77.0.2"]);
    place.until("a program runs", |status| status.flows.iter().any(|flow| flow.runs > 0));
    idle.pause();
    up.kill();
    assert_eq!(idle.algorithm(), place.name(), "without an acknowledgement, no program of the kernel runs");
    let mut again = place.up(&[]);
    assert_eq!(idle.algorithm(), place.by_default(), "what it had went with the killed one");
    assert!(place.status().flows.is_empty());
    idle.resume();
    idle.until_moved();
    assert!(place.status().flows.is_empty());
    place.good(&["down"]);
    assert!(again.ends().success());
    assert!(!place.has_algorithm());
    idle.ends();
}

#[test]
fn flows_fall_back_while_their_agent_or_the_one_that_is_up_is_stopped() {
    in_namespace("stopped");
}

fn stopped() {
    let place = Place::new('s');
    let mut flow = Flow::between("10.77.0.1", "10.77.0.2");
    flow.choose(place.another());
    let agent = place.start_agent();
    let mut up = place.up(&["--flows", "to=10.77.0.2"]);
    let runs = |status: &ccp_linux::Status| {
        status.flows.iter().any(|flow| flow.runs > 0 && flow.standing.starts_with("program"))
    };
    place.until("a program runs", runs);
    let before = place.status().fallbacks;
    agent.signal(Signal::STOP);
    place.until("the flow fell back", |status| {
        status.fallbacks > before
            && status.flows.iter().all(|flow| flow.standing.starts_with("default: fell back"))
    });
    // The kernel has carried the command out, and the default algorithm decides now.
    place.until("the kernel did it", |status| {
        status.flows.iter().all(|flow| flow.commands_applied == flow.commands)
    });
    let shown = place.status().flows[0].runs;
    flow.until_moved();
    assert_eq!((flow.algorithm().as_str(), place.status().flows[0].runs), (place.name(), shown));
    agent.signal(Signal::CONT);
    place.until("the agent has it again", runs);

    up.signal(Signal::STOP);
    flow.until_algorithm(place.another());
    flow.until_moved();
    up.signal(Signal::CONT);
    flow.until_algorithm(place.name());
    // Ends as ^C ends it.
    up.signal(Signal::INT);
    assert!(up.ends().success());
    assert_eq!(flow.algorithm(), place.another());
    assert!(!place.has_algorithm());
    flow.ends();
}
