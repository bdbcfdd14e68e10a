//! Handlers that fail, and datagrams of any content.

use ccp::{Command, FlowId, Standing};
use ccp_agent::{Agent, Algorithm, Datapath, Failure, Flow, FlowInfo, What};
use ccp_vm::{Invocation, Machine, Signals};
use ccp_wire::{Message, Values};

use crate::bench::{Bench, DATAPATH, Diary, MSS, Scripted};

const FALLBACK: u32 = 1;
const COUNT: u32 = 2;

fn failed(bench: &mut Bench) -> Vec<(&'static str, String)> {
    let events = bench.events();
    let failed = events.into_iter().filter_map(|event| match event.what {
        What::Failed { handler, why, .. } => Some((handler, why)),
        _ => None,
    });
    failed.collect()
}

fn falls_back(handle: fn(&Datapath, &ccp_agent::Report) -> ccp_agent::Outcome, why: &str) {
    let diary = Diary::default();
    let mut bench = Bench::with(Scripted::new("bad", &diary, handle));
    bench.open(1, "");
    bench.open(2, "");
    bench.commands();
    bench.report(1, COUNT, &[0, 0]);
    assert_eq!(failed(&mut bench), [("on_report", why.to_owned())]);
    let commands = bench.commands();
    let [Command::Program { flow: FlowId(1), number: FALLBACK, changes, .. }] = commands.as_slice() else {
        panic!("{commands:?}")
    };
    assert_eq!(changes.controls[0], Some(u64::from(MSS)));
    assert_eq!(diary.take()[2..], ["report [0, 0]", "close"], "the object hears of its end");
    // The other flow goes on, and the end of the first one is no surprise.
    bench.report(2, COUNT, &[1, 0]);
    assert_eq!(diary.take(), ["report [1, 0]"]);
    assert_eq!(bench.endpoint.standing(FlowId(1)), Some(Standing::Running(FALLBACK)));
    let states: Vec<bool> = bench.agent.flows().iter().map(|view| view.has_failed).collect();
    assert_eq!(states, [true, false]);
    bench.close(1);
    assert!(diary.take().is_empty() && bench.agent.flows().len() == 1);
}

#[test]
fn a_handler_that_fails_costs_its_flow_only() {
    falls_back(
        |_, report| if report.get("acked")? == 0 { Err("no bytes".into()) } else { Ok(()) },
        "no bytes",
    );
}

#[test]
fn a_handler_that_panics_costs_its_flow_only() {
    let handle = |_: &Datapath, report: &ccp_agent::Report| {
        assert!(report.get("acked")? > 0, "nothing acknowledged");
        Ok(())
    };
    falls_back(handle, "panic: nothing acknowledged");
}

#[test]
fn a_handle_of_a_failed_flow_changes_nothing() {
    struct Keeps(std::sync::Arc<std::sync::Mutex<Option<Datapath>>>);
    impl Algorithm for Keeps {
        fn name(&self) -> &str {
            "keeps"
        }
        fn programs(&self) -> Vec<(String, String)> {
            Vec::new()
        }
        fn new_flow(&mut self, datapath: Datapath, _: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
            *self.0.lock().unwrap() = Some(datapath);
            Err("cannot serve it".into())
        }
    }
    let kept = std::sync::Arc::default();
    let mut bench = Bench::with(Keeps(std::sync::Arc::clone(&kept)));
    bench.open(1, "");
    assert_eq!(failed(&mut bench), [("new_flow", "cannot serve it".to_owned())]);
    assert!(matches!(bench.commands().as_slice(), [Command::Program { number: FALLBACK, .. }]));
    let datapath = kept.lock().unwrap().take().expect("a handle");
    let over = Err(ccp_agent::Error::FlowIsOver);
    assert_eq!(datapath.update(&[("Cwnd", 5)]), over);
    assert_eq!(datapath.set_timer(ccp_agent::Duration::from_ms(1)), over);
    bench.close(1);
    assert_eq!(datapath.set_program("x", &[]), over);
    bench.pump();
    assert!(bench.commands().is_empty());
}

/// The program of a flow with a failed algorithm, and its machine.
fn fallback() -> (std::sync::Arc<ccp_vm::Program>, Machine) {
    let mut bench = Bench::with(Scripted::new("bad", &Diary::default(), |_, _| Err("always".into())));
    bench.open(1, "");
    bench.report(1, COUNT, &[0, 0]);
    let program = match bench.commands().pop() {
        Some(Command::Program { program, number: FALLBACK, .. }) => program,
        other => panic!("{other:?}"),
    };
    let mut machine = Machine::new(&program, 0);
    assert!(machine.set_control(0, u64::from(MSS)));
    (program, machine)
}

/// What a flow with a failed algorithm does from then on.
#[test]
fn the_fallback_is_reno_in_the_datapath() {
    let (mss, (program, mut machine)) = (u64::from(MSS), fallback());
    let mut run = |cwnd: u64, rate: u64, signals: Signals| {
        let decision =
            machine.run(&program, &Invocation { signals: &signals, cwnd, rate }).expect("no fault");
        assert!(!machine.is_report_due(), "an agent that failed hears nothing");
        (decision.cwnd, decision.rate)
    };
    let acked = |now_us, bytes_acked| Signals { now_us, bytes_acked, rtt_us: 20_000, ..Signals::default() };
    let first = Signals { bytes_in_flight: 4 * mss, ..acked(0, mss) };
    assert_eq!(run(5 * mss, 0, first), (6 * mss, 0), "below ten segments it doubles");
    assert_eq!(run(40 * mss, 0, acked(1, 41 * mss)), (41 * mss, 0), "one segment for each window");
    let lost = |now_us| Signals { lost_packets: 1, ..acked(now_us, 0) };
    assert_eq!(run(40 * mss, 0, lost(1000)).0, 20 * mss);
    assert_eq!(run(20 * mss, 0, lost(2000)).0, 20 * mss, "of the same round trip");
    assert_eq!(run(20 * mss, 0, Signals { was_timeout: true, ..lost(90_000) }).0, mss);
    let (cwnd, rate) = run(20 * mss, 1, acked(200_000, 0));
    assert_eq!(rate, cwnd * 2_000_000 / 20_000, "an old rate does not bind");
}

/// A window of which an application or the peer's window leaves most unused stays as it is (RFC 7661).
#[test]
fn the_fallback_does_not_grow_a_window_that_is_not_used() {
    let (mss, (program, mut machine)) = (u64::from(MSS), fallback());
    let mut after_ten_windows = |cwnd: u64, flight: u64| {
        (0..10).fold(cwnd, |cwnd, i| {
            let signals = Signals { now_us: i, bytes_acked: flight, rtt_us: 20_000, ..Signals::default() };
            machine.run(&program, &Invocation { signals: &signals, cwnd, rate: 0 }).expect("no fault").cwnd
        })
    };
    assert_eq!(after_ten_windows(4 * mss, mss), 4 * mss, "in slow start");
    assert_eq!(after_ten_windows(40 * mss, 20 * mss), 40 * mss, "after it");
    assert!(after_ten_windows(40 * mss, 40 * mss) > 45 * mss, "a window that is used grows");
}

#[test]
fn messages_that_no_datapath_sends_are_counted() {
    let mut bench = Bench::with(Scripted::new("a", &Diary::default(), |_, _| Ok(())));
    let mut bytes = Vec::new();
    Message::Measure { flow: 77, program: COUNT, values: Values::of(&[1, 2]) }
        .encode(&mut bytes)
        .expect("short");
    bench.agent.receive(bench.now, DATAPATH, &bytes);
    assert_eq!(bench.agent.counters().unknown_flows, 1);
    let update = [3, 0, 12, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    for bytes in [&[9, 9, 9][..], &[77, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0], &update] {
        bench.agent.receive(bench.now, DATAPATH, bytes);
    }
    assert_eq!(bench.agent.counters().malformed, 3);
}

/// A report with another number of values than its program has.
#[test]
fn a_report_of_the_wrong_length_is_dropped() {
    let diary = Diary::default();
    let mut bench = Bench::with(Scripted::new("a", &diary, |_, _| Ok(())));
    bench.open(1, "");
    bench.report(1, COUNT, &[1]);
    bench.report(1, COUNT, &[1, 2, 3]);
    assert_eq!((diary.take().len(), bench.agent.counters().stale_reports), (1, 2));
}

#[test]
fn datagrams_of_any_content_end_in_counters() {
    let mut agent = Agent::new();
    agent.add(Scripted::new("a", &Diary::default(), |_, _| Ok(()))).expect("new");
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    for _ in 0..20_000 {
        let len = 12 + 4 * (random() % 24) as u8;
        let mut bytes = vec![(random() % 7) as u8, 0, len, 0];
        bytes.extend((4..len).map(|_| if random() % 2 == 0 { 0 } else { random() as u8 % 4 }));
        let from = [b'a' + (random() % 3) as u8];
        agent.receive(ccp_agent::Instant::from_ns(u64::from(random())), &from, &bytes);
        while agent.poll_outgoing().is_some() || agent.poll_event().is_some() {}
    }
    let counters = agent.counters();
    assert!(counters.malformed > 0 && counters.unknown_flows > 0, "{counters:?}");
}
