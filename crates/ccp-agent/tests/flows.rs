//! Flows, their programs, reports and timers.

use ccp::{Command, FlowId, Sent};
use ccp_agent::{Agent, Algorithm, Datapath, Duration, Error, Failure, Flow, FlowInfo, Report};

use ccp_wire::messages;

use crate::bench::{Bench, DATAPATH, Diary, MSS, RTT, Scripted, window};

/// Programs count from 2 on, behind the one for failures.
const COUNT: u32 = 2;
const OTHER: u32 = 3;

fn grow(datapath: &Datapath, report: &Report) -> Result<(), Failure> {
    datapath.update(&[("Cwnd", report.get("acked")?), ("Rate", 5_000_000_000)])?;
    Ok(())
}

#[test]
fn a_flow_gets_its_program_with_its_fields_as_a_whole() {
    let diary = Diary::default();
    let mut bench = Bench::with(Scripted::new("grow", &diary, grow));
    bench.open(1, "");
    assert_eq!(diary.take(), ["grow new 1 of 1448"]);
    let commands = bench.commands();
    let [Command::Program { flow: FlowId(1), number: COUNT, changes, .. }] = commands.as_slice() else {
        panic!("{commands:?}")
    };
    assert_eq!((changes.cwnd, changes.controls[0]), (Some(20 * u64::from(MSS)), Some(1 << 40)));
}

#[test]
fn a_report_is_answered_with_64_bits() {
    let diary = Diary::default();
    let mut bench = Bench::with(Scripted::new("grow", &diary, grow));
    bench.open(1, "");
    bench.commands();
    bench.report(1, COUNT, &[50_000, 2]);
    assert_eq!(diary.take()[1..], ["report [50000, 2]"]);
    let commands = bench.commands();
    let [Command::Change { flow: FlowId(1), changes }] = commands.as_slice() else { panic!("{commands:?}") };
    assert_eq!((changes.cwnd, changes.rate), (Some(50_000), Some(5_000_000_000)));
    let [view] = bench.agent.flows().try_into().expect("one flow");
    assert_eq!((view.reports, view.cwnd, view.rate), (1, 50_000, 5_000_000_000));
    assert_eq!((view.algorithm.as_str(), view.program.as_deref()), ("grow", Some("count")));
}

/// libccp reads one message of a datagram, so only a datapath that packs its own gets several at once.
#[test]
fn a_datapath_that_packs_its_messages_gets_packed_answers() {
    let mut bench = Bench::with(Scripted::new("grow", &Diary::default(), grow));
    bench.open(1, "");
    bench.open(2, "");
    let mut answers = |flows: &[u64]| {
        bench.now = bench.now.plus(Duration::from_ms(1));
        for flow in flows {
            bench.endpoint.report(FlowId(*flow), COUNT, RTT, &[50_000, 2]).expect("the flow runs a program");
        }
        let mut sent = Vec::new();
        bench.endpoint.drive(bench.now, &mut |_, bytes| {
            sent.push(bytes.to_vec());
            Sent::Taken
        });
        sent.iter().for_each(|bytes| bench.agent.receive(bench.now, DATAPATH, bytes));
        let answers = std::iter::from_fn(|| bench.agent.poll_outgoing());
        answers.map(|answer| messages(&answer.bytes).count()).collect::<Vec<_>>()
    };
    assert_eq!((answers(&[1]), answers(&[1, 2]), answers(&[2])), (vec![1], vec![2], vec![1]));
}

#[test]
fn flows_choose_among_several_algorithms_by_name() {
    let diary = Diary::default();
    let mut agent = Agent::new();
    agent.add(Scripted::new("first", &diary, grow)).expect("new");
    agent.add(Scripted::new("second", &diary, grow)).expect("new");
    let mut bench = Bench::new(agent);
    for (id, name) in [(1, "second"), (2, ""), (3, "third"), (4, "first")] {
        bench.open(id, name);
    }
    let expected =
        ["second new 1 of 1448", "first new 2 of 1448", "first new 3 of 1448", "first new 4 of 1448"];
    assert_eq!(diary.take(), expected);
    let asked: Vec<String> = bench.agent.flows().into_iter().map(|view| view.info.asked).collect();
    assert_eq!(asked, ["second", "", "third", "first"]);
    let numbers: Vec<u32> = bench
        .commands()
        .iter()
        .filter_map(
            |command| if let Command::Program { number, .. } = command { Some(*number) } else { None },
        )
        .collect();
    assert_eq!(numbers, [4, 2, 2, 2], "each algorithm has its own program `count`");
}

#[test]
fn a_flow_that_ends_is_closed_once_and_leaves_the_list() {
    let diary = Diary::default();
    let mut bench = Bench::with(Scripted::new("grow", &diary, grow));
    bench.open(1, "");
    bench.open(2, "");
    bench.close(1);
    bench.close(1);
    assert_eq!(diary.take()[2..], ["close"]);
    let left: Vec<u16> = bench.agent.flows().iter().map(|view| view.info.source.port()).collect();
    assert_eq!(left, [2]);
}

#[test]
fn a_report_of_a_program_that_the_flow_has_left_is_dropped() {
    let diary = Diary::default();
    let mut bench = Bench::with(Scripted::new("switch", &diary, |datapath, _| {
        datapath.set_program("other", &[])?;
        Ok(())
    }));
    bench.open(1, "");
    bench.report(1, COUNT, &[1, 0]);
    bench.report(1, COUNT, &[2, 0]);
    assert_eq!(diary.take()[1..], ["report [1, 0]"]);
    assert_eq!(bench.agent.counters().stale_reports, 1);
    bench.report(1, OTHER, &[3, 0]);
    assert_eq!(diary.take(), ["report [3, 0]"]);
}

#[test]
fn a_timer_comes_once_and_moves_when_it_is_set_again() {
    let diary = Diary::default();
    let mut bench = Bench::with(Scripted::new("timer", &diary, |datapath, report| {
        match report.get("acked")? {
            0 => datapath.cancel_timer()?,
            ms => datapath.set_timer(Duration::from_ms(ms))?,
        }
        Ok(())
    }));
    bench.open(1, "");
    bench.report(1, COUNT, &[10, 0]);
    bench.report(1, COUNT, &[30, 0]);
    assert_eq!(bench.agent.next_deadline(), bench.now.plus(Duration::from_ms(30)));
    bench.pass(Duration::from_ms(29));
    diary.take();
    bench.pass(Duration::from_ms(1));
    bench.pass(Duration::from_ms(100));
    assert_eq!(diary.take(), ["timer at 30 ms"]);
    bench.report(1, COUNT, &[10, 0]);
    bench.report(1, COUNT, &[0, 0]);
    bench.pass(Duration::from_ms(100));
    bench.report(1, COUNT, &[10, 0]);
    bench.close(1);
    assert_eq!(bench.agent.next_deadline(), ccp_agent::Instant::NEVER);
    bench.pass(Duration::from_ms(100));
    assert!(!diary.take().iter().any(|line| line.starts_with("timer")), "cancelled, and closed");
}

/// A handler that asks to be called again at once, for ever, stops neither its agent nor virtual time.
#[test]
fn a_timer_of_no_time_at_all_lets_time_pass() {
    let diary = Diary::default();
    let mut bench = Bench::with(Scripted::new("eager", &diary, |datapath, _| {
        datapath.set_timer(Duration::ZERO)?;
        Ok(())
    }));
    bench.open(1, "");
    bench.report(1, COUNT, &[1, 0]);
    assert_eq!(bench.agent.next_deadline(), bench.now.plus(ccp_agent::TIMER_MIN));
}

#[test]
fn what_cannot_be_set_or_read_says_its_name() {
    let diary = Diary::default();
    let mut bench = Bench::with(Scripted::new("wrong", &diary, |datapath, report| {
        let refused = [
            datapath.update(&[("Cwnd", 5), ("sise", 1)]).expect_err("no such field").to_string(),
            datapath.update(&[("Report.acked", 1)]).expect_err("a report variable").to_string(),
            datapath.set_program("count2", &[]).expect_err("no such program").to_string(),
            report.get("acke").expect_err("no such variable").to_string(),
        ];
        datapath.note(&refused.join("|"), &[]);
        Ok(())
    }));
    bench.open(1, "");
    bench.commands();
    bench.report(1, COUNT, &[10, 0]);
    assert!(bench.commands().iter().all(|command| window(command).is_none()), "nothing is done by halves");
    let note = bench.events().pop().expect("a note").to_string();
    for name in ["`sise`", "`Report.acked`", "`count2`", "`acke`"] {
        assert!(note.contains(name), "{note}");
    }
}

struct Named(&'static str, &'static [(&'static str, &'static str)]);

impl Algorithm for Named {
    fn name(&self) -> &str {
        self.0
    }

    fn programs(&self) -> Vec<(String, String)> {
        self.1.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn new_flow(&mut self, _: Datapath, _: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        Err("none".into())
    }
}

#[test]
fn an_algorithm_with_a_mistake_is_not_added() {
    const GOOD: &str = "(def) (when true (:= Cwnd 5))";
    let mut agent = Agent::new();
    let wrong = agent.add(Named("a", &[("p", "(def)\n(when true\n  (:= Cwnd Ack.bytes_aked))")]));
    let Err(wrong @ Error::Program { .. }) = wrong else { panic!("{wrong:?}") };
    assert!(wrong.to_string().contains("p:3:12"), "{wrong}");
    assert!(wrong.to_string().contains("did you mean `Ack.bytes_acked`?"), "{wrong}");
    assert_eq!(agent.add(Named("a", &[("p", GOOD), ("p", GOOD)])), Err(Error::SameName("p".to_owned())));
    for name in ["", "a\0", "0123456789012345678901234567890123456789012345678901234567890123"] {
        assert_eq!(agent.add(Named(name, &[])), Err(Error::BadName(name.to_owned())));
    }
    assert_eq!(agent.add(Named("a", &[("p", GOOD)])), Ok(()));
    assert_eq!(agent.add(Named("a", &[])), Err(Error::SameName("a".to_owned())));
    assert_eq!(agent.algorithms().collect::<Vec<_>>(), ["a"]);
}

#[test]
fn a_line_of_the_log_can_be_taken_apart() {
    let diary = Diary::default();
    let mut bench = Bench::with(Scripted::new("log", &diary, |datapath, _| {
        datapath.note("two words", &[("a", 1), ("b", 2)]);
        Ok(())
    }));
    bench.pass(Duration::from_ms(1500));
    bench.open(1, "");
    bench.report(1, COUNT, &[1, 2]);
    bench.close(1);
    let lines: Vec<String> = bench.events().iter().map(ToString::to_string).collect();
    let expected = [
        "t=0.000000 event=datapath address=/run/datapath",
        "t=1.500000 flow=0:1 event=opened algorithm=log asked=\"\" source=127.0.0.1:1 destination=127.0.0.1:80",
        "t=1.500000 flow=0:1 event=program name=count",
        "t=1.500000 flow=0:1 event=note text=\"two words\" a=1 b=2",
        "t=1.500000 flow=0:1 event=closed reports=1",
    ];
    assert_eq!(lines, expected);
}
