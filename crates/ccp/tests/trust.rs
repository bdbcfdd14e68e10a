//! Which processes may be agents, which flows an agent sees, and what it may ask for.

use base::Duration;
use ccp::{Command, FlowId, Notice, Standing};
use ccp_vm::{Refusal, Register, Scope};
use ccp_wire::{Message, Update};

use crate::bench::{
    AGENT, Bench, MSS, OTHER, Read, SERVICE, USER, bad_install, change, config, control, cwnd, ids_of,
    install, new_flow, rate, update,
};

const RTT: Duration = Duration::from_ms(1);

#[test]
fn datagrams_of_unknown_addresses_and_other_users_are_dropped() {
    let mut bench = Bench::new(config());
    bench.endpoint.add_agent(bench.now, AGENT.as_bytes(), &[]);
    bench.bind(AGENT);
    bench.drive();
    bench.say("/tmp/ccp/elsewhere", 0, &install(1));
    bench.say(AGENT, 4242, &install(1));
    let counters = bench.endpoint.counters();
    assert_eq!((counters.unknown_senders, counters.refused_users, counters.installs), (1, 1, 0));
    bench.open(1);
    assert_eq!(bench.read(AGENT), [Read::Ready], "addresses of flows are told to agents only");
    for uid in [SERVICE, USER, 0] {
        bench.say(AGENT, uid, &install(1));
    }
    assert_eq!(bench.endpoint.counters().installs, 3);
}

#[test]
fn an_agent_sees_its_users_flows_and_root_sees_all() {
    let mut bench = Bench::new(config());
    bench.join(AGENT, USER, &[]);
    bench.open_as(1, USER, "", RTT);
    bench.open_as(2, USER + 1, "", RTT);
    bench.open_as(3, 0, "", RTT);
    bench.created(AGENT, 1);
    assert_eq!(bench.endpoint.standing(FlowId(2)), Some(Standing::OtherUser));
    bench.say(AGENT, 0, &install(1));
    let read = bench.read(AGENT);
    assert_eq!(ids_of(&read), [1, 2, 3], "{read:?}");
}

#[test]
fn an_agent_changes_only_its_own_flows() {
    let mut bench = Bench::with_agent();
    bench.join(OTHER, USER, &["copa"]);
    let flow = bench.running(1, RTT);
    for datagram in [change(flow, 1, &[]), update(flow, &[cwnd(9000)]), update(flow + 7, &[cwnd(9000)])] {
        bench.say(OTHER, USER, &datagram);
    }
    assert!(bench.commands().is_empty());
    assert_eq!(bench.endpoint.counters().unknown_flows, 3);
}

/// Numbers are given in order, so that an agent can guess the next one.
#[test]
fn an_agent_cannot_change_a_flow_before_it_was_told_of_it() {
    let mut bench = Bench::with_agent();
    let flow = bench.running(1, RTT);
    bench.fill(AGENT);
    assert_eq!(bench.report(1, 5), Ok(()));
    bench.open(2);
    bench.say(AGENT, 0, &change(flow + 1, 1, &[]));
    assert!(bench.commands().is_empty());
    assert_eq!(bench.endpoint.counters().unknown_flows, 1);
}

#[test]
fn windows_and_rates_are_moved_into_their_bounds_and_counted() {
    let mut bench = Bench::with_agent();
    let flow = bench.running(1, RTT);
    let least = u64::from(MSS);
    let table = [
        (cwnd(1), Some(least), None, 1),
        (cwnd(least), Some(least), None, 0),
        (cwnd(1_000_000), Some(1_000_000), None, 0),
        (cwnd(u64::MAX), Some(1_000_000), None, 1),
        (cwnd(0), None, None, 0),
        (rate(1), None, Some(least), 1),
        (rate(u64::MAX), None, Some(50_000_000), 1),
        (rate(0), None, None, 0),
    ];
    let mut clamps = 0;
    for (field, window, pace, more) in table {
        bench.say(AGENT, 0, &update(flow, &[field]));
        let commands = bench.commands();
        let [Command::Change { changes, .. }] = commands.as_slice() else { panic!("{commands:?}") };
        assert_eq!((changes.cwnd, changes.rate), (window, pace), "{field:?}");
        clamps += more;
        assert_eq!(bench.endpoint.counters().clamps, clamps, "{field:?}");
    }
    let told = bench.notices().into_iter().filter(|notice| *notice == Notice::Clamped { flow: FlowId(1) });
    assert_eq!(told.count() as u64, clamps);
}

#[test]
fn the_applications_own_limit_of_the_rate_counts() {
    let mut bench = Bench::with_agent();
    let mut new = new_flow(1, USER, "", RTT);
    new.rate_max = 20_000;
    bench.endpoint.open(new).expect("room");
    bench.drive();
    let flow = bench.created(AGENT, 1);
    bench.say(AGENT, 0, &change(flow, 1, &[rate(30_000)]));
    let commands = bench.commands();
    let [Command::Program { changes, bounds, .. }] = commands.as_slice() else { panic!("{commands:?}") };
    assert_eq!((changes.rate, bounds.rate_max), (Some(20_000), 20_000), "for the agent and for its program");
    assert_eq!(bench.endpoint.counters().clamps, 1);
    bench.endpoint.clamped(FlowId(1), 3);
    bench.endpoint.clamped(FlowId(9), 3);
    assert_eq!(bench.endpoint.counters().clamps, 4, "the program's, too, of flows that are open");
}

#[test]
fn what_is_wrong_changes_nothing_and_is_counted() {
    let mut bench = Bench::with_agent();
    bench.open(1);
    let flow = bench.created(AGENT, 1);
    let report = Update { register: Register::new(Scope::Report, 0), value: 1 };
    bench.say(AGENT, 0, &update(flow, &[cwnd(9000)]));
    bench.say(AGENT, 0, &change(flow, 9, &[]));
    assert_eq!(
        bench.endpoint.counters().unknown_programs,
        2,
        "no program yet, and one that is not installed"
    );
    for bad in [report, control(16, 1), Update { register: Register::new(Scope::Implicit, 3), value: 1 }] {
        bench.say(AGENT, 0, &change(flow, 1, &[cwnd(9000), bad]));
    }
    assert_eq!(bench.endpoint.counters().refused_fields, 3);
    assert!(bench.commands().is_empty());
    assert_eq!(bench.endpoint.standing(FlowId(1)), Some(Standing::NoProgram));
    bench.say(AGENT, 0, &bad_install(2));
    bench.say(AGENT, 0, &[2, 0, 9]);
    let mut ready = Vec::new();
    Message::Ready { datapath: 1 }.encode(&mut ready).expect("short");
    bench.say(AGENT, 0, &ready);
    let counters = bench.endpoint.counters();
    assert_eq!((counters.refused_programs, counters.malformed), (1, 2));
    let notices = bench.notices();
    let refusal = Refusal::UnwrittenTemp { instruction: 0, temp: 0 };
    assert!(
        notices.contains(&Notice::ProgramRefused { agent: AGENT.into(), program: 2, refusal }),
        "{notices:?}"
    );
    assert!(notices.iter().all(|notice| notice.to_string().contains(AGENT)));
}

#[test]
fn a_flood_of_mistakes_is_bounded() {
    let mut bench = Bench::with_agent();
    for _ in 0..10_000 {
        bench.say(AGENT, 0, &bad_install(2));
    }
    assert_eq!(bench.notices().len(), ccp::NOTICES_MAX);
    assert!(bench.endpoint.counters().notices_lost > 9_000);
}

/// A message of an agent about the same program and flow.
#[derive(Clone, Copy, Debug)]
enum Says {
    Install,
    Change,
    Update,
}

/// Five messages in each of their 120 orders, two of them repeated: a program is in force once it is installed and then chosen, and fields change
/// only from then on.
#[test]
fn messages_out_of_order_and_repeated_do_nothing_before_their_time() {
    const ALL: [Says; 5] = [Says::Install, Says::Change, Says::Update, Says::Install, Says::Change];
    let orders = (0..5_usize.pow(5)).map(|n| [0, 1, 2, 3, 4].map(|digit| n / 5_usize.pow(digit) % 5));
    let orders = orders.filter(|order| (0..5).all(|i| order.contains(&i)));
    let mut tried = 0;
    for order in orders {
        let mut bench = Bench::with_agent();
        bench.open(1);
        let flow = bench.created(AGENT, 1);
        let (mut is_installed, mut is_running, mut refused) = (false, false, 0);
        for says in order.map(|i| ALL[i]) {
            let (datagram, is_taken) = match says {
                Says::Install => (install(2), false),
                Says::Change => (change(flow, 2, &[]), is_installed),
                Says::Update => (update(flow, &[cwnd(9000)]), is_running),
            };
            bench.say(AGENT, 0, &datagram);
            let commands = bench.commands();
            match (says, commands.as_slice()) {
                (Says::Install, []) => is_installed = true,
                (Says::Change, [Command::Program { number: 2, .. }]) if is_taken => is_running = true,
                (Says::Update, [Command::Change { .. }]) if is_taken => {}
                (_, []) if !is_taken => refused += 1,
                _ => panic!("{says:?} in {order:?}: {commands:?}"),
            }
        }
        let counters = bench.endpoint.counters();
        assert_eq!((counters.unknown_programs, counters.installs), (refused, 3), "{order:?}");
        tried += 1;
    }
    assert_eq!(tried, 120);
}

/// A slot's next connection within a millisecond, while the agent's answer for the last one is under way.
#[test]
fn an_answer_about_a_flow_that_is_over_is_never_taken_for_the_next_ones() {
    let mut bench = Bench::with_agent();
    let mut last = bench.running(1, RTT);
    for id in 2..=1_000 {
        bench.endpoint.close(FlowId(id - 1));
        bench.open(id);
        bench.say(AGENT, 0, &update(last, &[cwnd(9000)]));
        bench.say(AGENT, 0, &change(last, 1, &[]));
        assert!(bench.commands().is_empty());
        let read = bench.read(AGENT);
        let [Read::End { flow: ended }, Read::Create { flow, id: shown, .. }] = read.as_slice() else {
            panic!("{read:?}")
        };
        assert_eq!((*ended, *shown), (last, id));
        bench.say(AGENT, 0, &change(*flow, 1, &[]));
        assert!(matches!(bench.commands().as_slice(), [Command::Program { number: 1, .. }]));
        last = *flow;
    }
    assert_eq!(bench.endpoint.counters().unknown_flows, 2 * 999);
}

/// One agent at two datapaths: what it says to one of them about a flow of the other is counted there, and changes nothing.
#[test]
fn a_flow_of_another_datapath_is_unknown() {
    let (mut one, mut other) = (Bench::with_agent(), Bench::with_agent());
    one.running(1, RTT);
    let flow = one.running(2, RTT);
    other.running(1, RTT);
    for datagram in [update(flow, &[cwnd(9000)]), change(flow, 1, &[cwnd(9000)])] {
        other.say(AGENT, 0, &datagram);
    }
    assert!(other.commands().is_empty());
    assert_eq!(other.endpoint.counters().unknown_flows, 2);
    one.say(AGENT, 0, &update(flow, &[cwnd(9000)]));
    assert!(matches!(one.commands().as_slice(), [Command::Change { .. }]));
}
