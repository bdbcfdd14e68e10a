//! Agents that die, restart, stop reading, and come back.

use base::Duration;
use ccp::{Command, FlowId, GRACE_MIN, KNOCK, Notice, Reason, Standing};

use crate::bench::{AGENT, Bench, OTHER, Read, USER, change, cwnd, ids_of, install, update};

const RTT: Duration = Duration::from_ms(1);

fn default_of(id: u64, reason: Reason) -> Command {
    Command::Default { flow: FlowId(id), reason }
}

#[test]
fn all_flows_fall_back_when_the_process_ends() {
    let mut bench = Bench::with_agent();
    bench.running(1, RTT);
    bench.running(2, RTT);
    bench.open(3);
    bench.notices();
    assert_eq!(bench.endpoint.process_of(AGENT.as_bytes()), Some(100));
    bench.unbind(AGENT);
    bench.endpoint.agent_died(bench.now, AGENT.as_bytes());
    bench.drive();
    let expected = [1, 2].map(|id| default_of(id, Reason::AgentDied));
    assert_eq!(bench.commands(), expected, "flow 3 had no program yet");
    assert_eq!(bench.endpoint.standing(FlowId(1)), Some(Standing::FellBack(Reason::AgentDied)));
    assert_eq!(bench.endpoint.standing(FlowId(3)), Some(Standing::NoAgent));
    assert_eq!(
        bench.notices(),
        [Notice::AgentLost { agent: AGENT.into(), reason: Reason::AgentDied, flows: 3 }]
    );
    assert_eq!(bench.endpoint.process_of(AGENT.as_bytes()), None);
}

#[test]
fn a_send_that_finds_no_socket_is_a_death() {
    let mut bench = Bench::with_agent();
    bench.running(1, RTT);
    bench.unbind(AGENT);
    assert_eq!(bench.report(1, 5), Ok(()));
    assert_eq!(bench.commands(), [default_of(1, Reason::AgentDied)]);
}

#[test]
fn a_new_agent_gets_the_flows_under_new_numbers_and_must_install_again() {
    let mut bench = Bench::with_agent();
    let old = bench.running(1, RTT);
    bench.endpoint.agent_died(bench.now, AGENT.as_bytes());
    bench.commands();
    bench.drive();
    assert_eq!(bench.read(AGENT), [Read::Ready]);
    bench.say_as(AGENT, 0, 555, &install(2));
    let new = bench.created(AGENT, 1);
    assert_ne!(old, new);
    bench.say_as(AGENT, 0, 555, &update(old, &[cwnd(9000)]));
    bench.say_as(AGENT, 0, 555, &change(new, 1, &[]));
    assert!(bench.commands().is_empty(), "neither the old number nor the old program");
    bench.say_as(AGENT, 0, 555, &change(new, 2, &[]));
    assert!(matches!(bench.commands().as_slice(), [Command::Program { number: 2, .. }]));
}

/// The address was bound again before the death was seen.
#[test]
fn another_process_at_the_address_is_another_agent() {
    let mut bench = Bench::with_agent();
    let old = bench.running(1, RTT);
    bench.say_as(AGENT, 0, 555, &install(1));
    assert_eq!(bench.commands(), [default_of(1, Reason::AgentDied)]);
    let new = bench.created(AGENT, 1);
    assert_ne!(old, new);
}

#[test]
fn another_agent_that_serves_the_flow_takes_it_over() {
    let mut bench = Bench::with_agent();
    bench.join(OTHER, 0, &["copa"]);
    bench.running_at(OTHER, 1, "copa", RTT);
    bench.endpoint.remove_agent(bench.now, OTHER.as_bytes());
    bench.drive();
    assert_eq!(bench.commands(), [default_of(1, Reason::AgentRemoved)]);
    bench.created(AGENT, 1);
    assert_eq!(bench.endpoint.standing(FlowId(1)), Some(Standing::NoProgram));
}

/// Found by the fuzz target `ccp_endpoint`: the flow's CREATE waited for the next input.
#[test]
fn flows_of_an_agent_that_is_gone_are_told_to_another_at_once() {
    let mut bench = Bench::with_agent();
    bench.join(OTHER, 0, &["copa"]);
    bench.unbind(OTHER);
    bench.open_as(1, USER, "copa", RTT);
    bench.created(AGENT, 1);
    assert_eq!(bench.endpoint.next_deadline(), bench.now.plus(KNOCK), "no socket is there to knock at");
}

#[test]
fn a_flow_falls_back_when_its_report_found_no_room_for_too_long() {
    for (rtt, grace) in [(Duration::from_us(50), GRACE_MIN), (Duration::from_ms(20), Duration::from_ms(60))] {
        let mut bench = Bench::with_agent();
        bench.running(1, rtt);
        bench.running(2, rtt);
        bench.fill(AGENT);
        let begin = bench.now;
        assert_eq!(bench.endpoint.report(FlowId(1), 1, rtt, &[5]), Ok(()));
        bench.drive();
        let last = begin.plus(grace);
        while bench.endpoint.next_deadline() < last {
            bench.pass_to_deadline();
            assert!(bench.commands().is_empty(), "before its time");
        }
        assert_eq!(bench.endpoint.next_deadline(), last);
        bench.pass_to_deadline();
        assert_eq!(bench.commands(), [default_of(1, Reason::AgentStalled)], "flow 2 has nothing to report");
        assert_eq!(bench.endpoint.standing(FlowId(1)), Some(Standing::FellBack(Reason::AgentStalled)));
    }
}

#[test]
fn an_agent_that_reads_in_time_keeps_its_flows() {
    let mut bench = Bench::with_agent();
    let flow = bench.running(1, RTT);
    bench.fill(AGENT);
    assert_eq!(bench.report(1, 5), Ok(()));
    bench.pass(Duration::from_ms(9));
    bench.empty(AGENT);
    bench.pass(Duration::from_ms(1));
    assert_eq!(bench.commands(), [Command::Accept { flow: FlowId(1) }]);
    assert_eq!(bench.read(AGENT), [Read::Report { flow, program: 1, values: vec![5] }]);
    bench.fill(AGENT);
    assert_eq!(bench.report(1, 6), Ok(()));
    bench.pass(Duration::from_ms(9));
    assert!(bench.commands().is_empty(), "the time counts anew");
}

#[test]
fn an_agent_that_reads_again_hears_of_the_end_and_gets_its_flows_back() {
    let mut bench = Bench::with_agent();
    let (one, two) = (bench.running(1, RTT), bench.running(2, RTT));
    bench.fill(AGENT);
    assert_eq!((bench.report(1, 5), bench.report(2, 6)), (Ok(()), Ok(())));
    bench.pass(GRACE_MIN);
    assert_eq!(bench.commands(), [1, 2].map(|id| default_of(id, Reason::AgentStalled)));
    bench.open(3);
    bench.empty(AGENT);
    while bench.sockets.0[AGENT.as_bytes()].is_empty() {
        bench.pass_to_deadline();
    }
    let read = bench.read(AGENT);
    let Some(([first, ends @ ..], creates)) = read.split_last_chunk::<3>() else { panic!("{read:?}") };
    assert_eq!(*first, Read::Report { flow: one, program: 1, values: vec![5] }, "it lay in the datagram");
    let two_ends = [Read::Report { flow: two, program: 1, values: vec![6] }, Read::End { flow: two }];
    assert_eq!(ends, [&[Read::End { flow: one }], &two_ends[..]].concat());
    assert_eq!(ids_of(creates), [1, 2, 3]);
    bench.say(AGENT, 0, &update(one, &[cwnd(9000)]));
    assert!(bench.commands().is_empty(), "late answers to old numbers are dropped");
    assert_eq!(bench.endpoint.counters().unknown_flows, 1);
}

#[test]
fn a_stopped_agent_is_tried_seldom() {
    let mut bench = Bench::with_agent();
    bench.running(1, RTT);
    bench.fill(AGENT);
    assert_eq!(bench.report(1, 5), Ok(()));
    bench.pass(GRACE_MIN);
    let end = bench.now.plus(Duration::from_secs(10));
    let mut tries = 0;
    while bench.endpoint.next_deadline() < end {
        bench.pass_to_deadline();
        tries += 1;
    }
    assert!((90..=110).contains(&tries), "{tries} in 10 s");
}
