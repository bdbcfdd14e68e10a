//! A flow from its beginning to its end: programs, changes, reports, the budget, turns.

use std::collections::BTreeMap;

use base::Duration;
use ccp::{Changes, Command, Config, FlowId, NotTaken};

use crate::bench::{AGENT, Bench, OTHER, Read, change, config, control, cwnd, new_flow, rate, update};

const RTT: Duration = Duration::from_ms(1);

fn report(flow: u32, value: u64) -> Read {
    Read::Report { flow, program: 1, values: vec![value] }
}

#[test]
fn a_flow_is_created_programmed_reported_changed_and_closed() {
    let mut bench = Bench::with_agent();
    bench.open(1);
    let flow = bench.created(AGENT, 1);
    assert!(bench.commands().is_empty(), "on the default until the agent has chosen");
    bench.say(AGENT, 0, &change(flow, 1, &[control(0, 5), cwnd(20_000)]));
    let commands = bench.commands();
    let [Command::Program { flow: FlowId(1), program, number: 1, changes, .. }] = commands.as_slice() else {
        panic!("{commands:?}")
    };
    assert_eq!(program.report_len(), 1);
    assert_eq!((changes.controls[0], changes.cwnd, changes.rate), (Some(5), Some(20_000), None));
    assert_eq!(bench.report(1, 77), Ok(()));
    assert_eq!(bench.read(AGENT), [report(flow, 77)]);
    assert_eq!(bench.commands(), [Command::Accept { flow: FlowId(1) }]);
    bench.say(AGENT, 0, &update(flow, &[rate(9000), cwnd(3000), cwnd(4000)]));
    let changes = Changes { cwnd: Some(4000), rate: Some(9000), ..Changes::default() };
    assert_eq!(bench.commands(), [Command::Change { flow: FlowId(1), changes }], "the last value counts");
    bench.endpoint.close(FlowId(1));
    bench.drive();
    assert_eq!(bench.read(AGENT), [Read::End { flow }]);
    bench.say(AGENT, 0, &update(flow, &[cwnd(5000)]));
    assert!(bench.commands().is_empty());
    assert_eq!(bench.endpoint.counters().unknown_flows, 1);
}

#[test]
fn one_report_of_a_flow_waits_at_a_time() {
    let mut bench = Bench::with_agent();
    let flow = bench.running(1, RTT);
    bench.fill(AGENT);
    assert_eq!(bench.report(1, 5), Ok(()));
    assert_eq!(bench.report(1, 6), Err(NotTaken::Busy));
    bench.empty(AGENT);
    bench.pass(Duration::from_ms(1));
    assert_eq!(bench.read(AGENT), [report(flow, 5)]);
    assert_eq!(bench.commands(), [Command::Accept { flow: FlowId(1) }]);
    assert_eq!(bench.report(1, 6), Ok(()));
    assert_eq!(bench.read(AGENT), [report(flow, 6)]);
}

#[test]
fn reports_need_a_program_and_values() {
    let mut bench = Bench::with_agent();
    bench.open(1);
    let flow = bench.created(AGENT, 1);
    assert_eq!(bench.report(1, 5), Err(NotTaken::NoAgent));
    assert_eq!(bench.report(9, 5), Err(NotTaken::NoAgent));
    bench.say(AGENT, 0, &change(flow, 1, &[]));
    let mut report = |values: &[u64]| bench.endpoint.report(FlowId(1), 1, RTT, values);
    assert_eq!(report(&[]), Err(NotTaken::BadLength), "no values would close the flow");
    assert_eq!(report(&[0; 17]), Err(NotTaken::BadLength));
    assert_eq!(report(&[0; 16]), Ok(()));
}

#[test]
fn a_report_that_waits_goes_before_the_end_of_its_flow() {
    let mut bench = Bench::with_agent();
    let (one, two) = (bench.running(1, RTT), bench.running(2, RTT));
    bench.fill(AGENT);
    assert_eq!((bench.report(1, 5), bench.report(2, 6)), (Ok(()), Ok(())));
    bench.endpoint.close(FlowId(1));
    bench.endpoint.close(FlowId(2));
    bench.drive();
    bench.empty(AGENT);
    bench.pass(Duration::from_ms(1));
    let ends = [report(one, 5), Read::End { flow: one }, report(two, 6), Read::End { flow: two }];
    assert_eq!(bench.read(AGENT), ends);
}

/// A lone report goes at once, those behind a datagram of several gather, and a full datagram does not wait.
#[test]
fn reports_gather_behind_a_datagram_of_several() {
    let mut bench = Bench::with_agent();
    let numbers: Vec<u32> = (1..=60).map(|id| bench.running(id, RTT)).collect();
    for round in 0..3 {
        bench.report(1, round).expect("each goes at once");
        assert_eq!(bench.read(AGENT), [report(numbers[0], round)]);
    }
    for id in 1..=3 {
        bench.endpoint.report(FlowId(id), 1, RTT, &[7]).expect("room");
    }
    bench.drive();
    assert_eq!(bench.read(AGENT).len(), 3);
    bench.report(1, 8).expect("room");
    assert!(bench.read(AGENT).is_empty());
    assert_eq!(bench.endpoint.next_deadline(), bench.now.plus(Duration::from_us(400)));
    bench.pass_to_deadline();
    assert_eq!(bench.read(AGENT), [report(numbers[0], 8)]);
    for _ in 0..2 {
        (1..=60).for_each(|id| bench.endpoint.report(FlowId(id), 1, RTT, &[9]).expect("room"));
        bench.drive();
        assert!(bench.read(AGENT).len() > 20, "a full datagram goes");
        bench.pass(Duration::from_us(500));
        bench.read(AGENT);
    }
}

#[test]
fn a_flow_that_ends_before_its_create_has_gone_is_never_mentioned() {
    let mut bench = Bench::with_agent();
    bench.endpoint.open(new_flow(1, 0, "", RTT)).expect("room");
    bench.endpoint.close(FlowId(1));
    bench.drive();
    assert!(bench.read(AGENT).is_empty());
}

#[test]
fn many_messages_share_a_datagram() {
    let mut bench = Bench::with_agent();
    let flows: Vec<u64> = (0..40).collect();
    for id in &flows {
        bench.running(*id, RTT);
    }
    for id in &flows {
        assert_eq!(bench.endpoint.report(FlowId(*id), 1, RTT, &[*id]), Ok(()));
    }
    bench.drive();
    // Each report has 24 bytes, a datagram at most 1000: 41 of them fit.
    assert_eq!(bench.sockets.0[AGENT.as_bytes()].len(), 1);
    let values = bench.read(AGENT).into_iter().map(|read| match read {
        Read::Report { values, .. } => values[0],
        other => panic!("{other:?}"),
    });
    assert_eq!(values.collect::<Vec<_>>(), flows, "in the order in which they came");
}

/// Flows report as often as they may; the agent reads at once. Reports of each flow in `seconds`.
fn reports_of(flows: u64, per_second: u32, seconds: u64) -> BTreeMap<u32, u64> {
    let mut bench = Bench::new(Config { messages_per_second: per_second, ..config() });
    bench.join(AGENT, 0, &[]);
    for id in 0..flows {
        bench.open(id);
    }
    let mut creates = 0;
    while creates < flows {
        bench.pass(Duration::from_ms(1));
        for read in bench.read(AGENT) {
            if let Read::Create { flow, .. } = read {
                creates += 1;
                bench.say(AGENT, 0, &change(flow, 1, &[]));
            }
        }
    }
    bench.commands();
    let mut counts = BTreeMap::new();
    for _ in 0..seconds * 1000 {
        for id in 0..flows {
            let _ = bench.endpoint.report(FlowId(id), 1, RTT, &[1]);
        }
        bench.pass(Duration::from_ms(1));
        for read in bench.read(AGENT) {
            let Read::Report { flow, .. } = read else { panic!("{read:?}") };
            *counts.entry(flow).or_default() += 1;
        }
        bench.commands();
    }
    counts
}

#[test]
fn the_budget_is_kept_and_shared_evenly() {
    for (flows, per_second, seconds) in [(7, 100, 3), (300, 5000, 2), (1000, 20_000, 1)] {
        let counts = reports_of(flows, per_second, seconds);
        let total: u64 = counts.values().sum();
        let allowed = u64::from(per_second) * seconds;
        assert!(total <= allowed + u64::from(per_second) / 100 + 1, "{total} reports, {allowed} allowed");
        assert!(total + 2 >= allowed, "{total} reports, {allowed} allowed");
        let (least, most) = (counts.values().min(), counts.values().max());
        assert_eq!(counts.len() as u64, flows);
        assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{least:?} to {most:?}");
    }
}

#[test]
fn a_full_agent_holds_up_no_other() {
    let mut bench = Bench::with_agent();
    bench.running(1, RTT);
    bench.join(OTHER, 0, &["copa"]);
    let flow = bench.running_at(OTHER, 2, "copa", RTT);
    bench.fill(AGENT);
    assert_eq!((bench.report(1, 5), bench.report(2, 6)), (Ok(()), Ok(())));
    assert_eq!(bench.read(OTHER), [report(flow, 6)]);
}
