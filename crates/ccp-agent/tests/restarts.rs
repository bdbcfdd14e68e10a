//! Any order of start, and restarts of either side.

use ccp::{Command, FlowId, Reason, Standing};
use ccp_agent::{Agent, Duration, What};

use crate::bench::{Bench, DATAPATH, Diary, Scripted, endpoint};

fn agent(diary: &Diary) -> Agent {
    let mut agent = Agent::new();
    agent.add(Scripted::new("a", diary, |_, _| Ok(()))).expect("new");
    agent
}

#[test]
fn an_agent_that_starts_last_gets_the_flows_that_are_there() {
    let diary = Diary::default();
    let mut bench =
        Bench { endpoint: endpoint(), agent: Agent::new(), now: ccp_agent::Instant::from_ns(1), pid: 1 };
    let new = |bench: &mut Bench| bench.agent = agent(&diary);
    bench.endpoint.add_agent(bench.now, crate::bench::AGENT, &[]);
    new(&mut bench);
    bench.open(1, "");
    bench.open(2, "");
    bench.pass(Duration::from_secs(2));
    assert_eq!(diary.take().len(), 2);
    assert_eq!(bench.endpoint.standing(FlowId(2)), Some(Standing::Running(2)));
}

#[test]
fn a_new_agent_process_takes_the_flows_over() {
    let diary = Diary::default();
    let mut bench = Bench::new(agent(&diary));
    bench.open(1, "");
    bench.commands();
    diary.take();
    (bench.agent, bench.pid) = (agent(&diary), 2);
    // It hears of the datapath by a report of a flow that it does not know.
    bench.report(1, 2, &[1, 2]);
    assert_eq!(diary.take(), ["a new 1 of 1448"]);
    let commands = bench.commands();
    let [Command::Default { reason: Reason::AgentDied, .. }, Command::Program { number: 2, .. }] =
        commands.as_slice()
    else {
        panic!("{commands:?}")
    };
}

#[test]
fn a_datapath_that_restarts_gets_all_programs_again() {
    let diary = Diary::default();
    let mut bench = Bench::new(agent(&diary));
    bench.open(1, "");
    diary.take();
    bench.events();
    bench.endpoint = endpoint();
    bench.pump();
    assert_eq!(diary.take(), ["close"]);
    assert!(bench.events().iter().any(|event| event.what == What::DatapathGone { flows: 1 }));
    assert_eq!(bench.endpoint.programs_of(crate::bench::AGENT), 3);
    bench.open(1, "");
    assert_eq!(diary.take(), ["a new 1 of 1448"]);
    // Also without flows.
    bench.close(1);
    bench.endpoint = endpoint();
    bench.pump();
    assert_eq!(bench.endpoint.programs_of(crate::bench::AGENT), 3);
}

#[test]
fn flows_of_a_datapath_that_is_gone_are_over() {
    let diary = Diary::default();
    let mut bench = Bench::new(agent(&diary));
    bench.open(1, "");
    diary.take();
    bench.agent.gone(bench.now, b"/run/unknown");
    assert!(diary.take().is_empty());
    bench.agent.gone(bench.now, DATAPATH);
    assert_eq!(diary.take(), ["close"]);
    assert!(bench.agent.flows().is_empty() && bench.agent.poll_outgoing().is_none());
}

#[test]
fn a_number_that_is_given_twice_is_another_flow() {
    let diary = Diary::default();
    let mut bench = Bench::new(agent(&diary));
    bench.open(1, "");
    let mut create = vec![0, 0, 96, 0, 1, 0, 0, 0];
    create.resize(96, 0);
    bench.agent.receive(bench.now, DATAPATH, &create);
    assert_eq!(diary.take()[1..], ["close", "a new 0 of 1"]);
    assert_eq!(bench.agent.flows().len(), 1);
}
