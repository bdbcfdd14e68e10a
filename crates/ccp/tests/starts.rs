//! Datapath and agent in any order of start, and which agent gets which flow.

use base::Duration;
use ccp::{Endpoint, FlowId, KNOCK, KNOCK_AGAIN, Notice, PROGRAMS_MAX, Standing, TooManyFlows};

use crate::bench::{AGENT, Bench, OTHER, Read, USER, change, config, install, new_flow};

#[test]
fn an_agent_that_starts_later_gets_the_live_flows() {
    let mut bench = Bench::new(config());
    bench.endpoint.add_agent(bench.now, AGENT.as_bytes(), &[]);
    bench.open(1);
    bench.open(2);
    assert_eq!(bench.endpoint.standing(FlowId(1)), Some(Standing::NoAgent));
    bench.bind(AGENT);
    bench.drive();
    assert!(bench.read(AGENT).is_empty(), "it was not there at the first try");
    assert_eq!(bench.endpoint.next_deadline(), bench.now.plus(KNOCK));
    bench.pass(KNOCK);
    assert_eq!(bench.read(AGENT), [Read::Ready]);
    bench.say(AGENT, 0, &install(1));
    let read = bench.read(AGENT);
    assert!(matches!(read.as_slice(), [Read::Create { id: 1, .. }, Read::Create { id: 2, .. }]), "{read:?}");
    assert_eq!(bench.endpoint.standing(FlowId(1)), Some(Standing::NoProgram));
    assert_eq!(bench.notices(), [Notice::AgentCame { agent: AGENT.into(), uid: 0 }]);
}

#[test]
fn an_agent_that_was_there_first_is_told_of_flows_when_they_begin() {
    let mut bench = Bench::with_agent();
    assert!(bench.read(AGENT).is_empty());
    bench.open(5);
    let flow = bench.created(AGENT, 5);
    bench.say(AGENT, 0, &change(flow, 1, &[]));
    assert_eq!(bench.endpoint.standing(FlowId(5)), Some(Standing::Running(1)));
    bench.pass(Duration::from_secs(10));
    assert!(bench.read(AGENT).is_empty(), "an agent that is there gets no READY");
}

#[test]
fn a_ready_that_is_not_answered_is_repeated() {
    let mut bench = Bench::new(config());
    bench.bind(AGENT);
    bench.endpoint.add_agent(bench.now, AGENT.as_bytes(), &[]);
    bench.drive();
    assert_eq!(bench.read(AGENT), [Read::Ready]);
    bench.pass(Duration::from_ms(999));
    assert!(bench.read(AGENT).is_empty());
    bench.pass_to_deadline();
    assert_eq!(bench.read(AGENT), [Read::Ready], "after {KNOCK_AGAIN:?}");
}

#[test]
fn a_flow_goes_to_the_agent_that_serves_its_name() {
    let mut bench = Bench::with_agent();
    bench.join(OTHER, 0, &["copa", "vegas"]);
    for (id, name, address) in [(1, "copa", OTHER), (2, "reno", AGENT), (3, "", AGENT), (4, "vegas", OTHER)] {
        bench.open_as(id, USER, name, Duration::from_ms(1));
        let read = bench.read(address);
        assert!(
            matches!(read.as_slice(), [Read::Create { id: shown, name: told, .. }] if *shown == id && told == name),
            "{name}: {read:?}"
        );
    }
}

#[test]
fn a_flow_waits_for_the_only_agent_that_serves_it() {
    let mut bench = Bench::new(config());
    bench.join(AGENT, 0, &["copa"]);
    bench.open_as(1, USER, "reno", Duration::from_ms(1));
    assert_eq!(bench.endpoint.standing(FlowId(1)), Some(Standing::NoAgent));
    assert!(bench.read(AGENT).is_empty());
    bench.endpoint.add_agent(bench.now, AGENT.as_bytes(), &["copa", "reno"]);
    bench.drive();
    bench.created(AGENT, 1);
}

#[test]
fn flows_beyond_the_limit_stay_on_the_default() {
    let mut endpoint = Endpoint::new(ccp::Config { flows_max: 1, ..config() });
    let flow = |id| new_flow(id, USER, "", Duration::from_ms(1));
    assert_eq!(endpoint.open(flow(1)), Ok(()));
    assert_eq!(endpoint.open(flow(2)), Err(TooManyFlows));
    endpoint.close(FlowId(1));
    assert_eq!(endpoint.open(flow(2)), Ok(()));
}

#[test]
fn the_program_that_was_not_chosen_longest_makes_room() {
    let mut bench = Bench::with_agent();
    for number in 2..=PROGRAMS_MAX as u32 {
        bench.say(AGENT, 0, &install(number));
    }
    bench.open(1);
    let flow = bench.created(AGENT, 1);
    bench.say(AGENT, 0, &change(flow, 1, &[]));
    assert_eq!(bench.commands().len(), 1, "program 1 was chosen last");
    bench.say(AGENT, 0, &install(1000));
    assert_eq!(bench.endpoint.programs_of(AGENT.as_bytes()), PROGRAMS_MAX);
    for (program, is_there) in [(1, true), (2, false), (3, true), (1000, true)] {
        bench.say(AGENT, 0, &change(flow, program, &[]));
        assert_eq!(bench.commands().len(), usize::from(is_there), "program {program}");
    }
}

/// A recording that begins when the agent is there already begins with these: a program of each number, as its agent has said it last.
#[test]
fn what_agents_have_installed_is_told_as_they_said_it() {
    let mut bench = Bench::with_agent();
    let told = |bench: &Bench| -> Vec<(Vec<u8>, Vec<u8>)> {
        bench.endpoint.installs().map(|(address, bytes)| (address.to_vec(), bytes.to_vec())).collect()
    };
    let said = |number| (AGENT.as_bytes().to_vec(), install(number));
    assert_eq!(told(&bench), [said(1)]);
    bench.say(AGENT, 0, &[install(7), install(7)].concat());
    assert_eq!(told(&bench), [said(1), said(7)]);
    bench.say("/another", 0, &install(8));
    assert_eq!(told(&bench).len(), 2, "what is no agent installs nothing");
    bench.endpoint.agent_died(bench.now, AGENT.as_bytes());
    assert_eq!(told(&bench), [], "a dead agent's programs are gone");
}
