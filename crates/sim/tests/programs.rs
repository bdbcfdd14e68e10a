//! Flows with programs over simulated links: a program that is wise gets its share, and reports tell all that happened.

use base::Duration;
use ccp_vm::{Builder, Flag, Primitive, Source, Variable};
use link::LinkConfig;
use sim::apps::Profile;
use sim::scenario::{Run, Setting};
use sim::{AgentSetting, Mind, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const MSS: u32 = 1448;

/// Reno in the datapath: slow start, a segment for each round trip, half of the window at losses of a round trip.
fn reno() -> Source {
    let mut program = Builder::new();
    let acked = program.volatile_report(0);
    let lost = program.volatile_report(0);
    let threshold = program.control(u32::MAX);
    let (sample, rtt) = (program.local(), program.local());
    program.always(|event| {
        let sum = event.add(acked, Primitive::BytesAcked);
        event.set(acked, sum);
        let sum = event.add(lost, Primitive::LostPackets);
        event.set(lost, sum);
        let is_sample = event.lt(Primitive::RttSample, u32::MAX);
        event.set_if(is_sample, sample, Primitive::RttSample);
        event.average(rtt, 8, sample);
        event.fallthrough();
    });
    program.always(|event| {
        let is_slow_start = event.lt(Variable::CWND, threshold);
        let doubled = event.add(Variable::CWND, Primitive::BytesAcked);
        let share = event.mul(Primitive::BytesAcked, MSS);
        let share = event.div(share, Variable::CWND);
        let grown = event.add(Variable::CWND, share);
        let is_avoidance = event.not(is_slow_start);
        event.set_if(is_slow_start, Variable::CWND, doubled);
        event.set_if(is_avoidance, Variable::CWND, grown);
    });
    // Losses of one window count once: `Micros` is the time since the last cut.
    program.when(
        |event| {
            let is_loss = event.gt(Primitive::LostPackets, 0);
            let is_new = event.gt(Variable::MICROS, rtt);
            event.and(is_loss, is_new)
        },
        |event| {
            let half = event.div(Variable::CWND, 2);
            let half = event.max(half, 2 * MSS);
            event.set(Variable::CWND, half);
            event.set(threshold, half);
            event.set(Variable::MICROS, 0);
            event.report();
        },
    );
    program.when(|_| Flag::WAS_TIMEOUT, |event| event.set(Variable::CWND, MSS));
    program.finish().unwrap()
}

fn agent(program: Source) -> AgentSetting {
    AgentSetting::new(Duration::from_us(20), Mind::Gives(Arc::new(program)))
}

/// The link of the evaluation: 24 Mbit/s, a round trip of 20 ms, a queue of one bandwidth-delay product.
#[test]
fn reno_as_a_program_fills_a_link() {
    let mut link = LinkConfig::rated(24_000_000, Duration::from_ms(10));
    link.queue_packets = Some(40);
    let bytes = 40_000_000;
    let mut setting = Setting::pair(1, &link, Profile::Bulk(bytes), 1);
    setting.machines.iter_mut().for_each(|machine| machine.agent = Some(agent(reno())));
    let mut run = Run::new(setting);
    let report = run.finish();
    assert_eq!(report.failure, None);
    assert!(report.dropped > 20, "the queue overflows again and again: {}", report.dropped);
    let share = report.goodput / 24e6;
    assert!(share > 0.90, "{share} of the link");
}

/// Sums of what is acknowledged and lost, reported at each run: whatever waits for the agent is merged.
fn counting() -> Source {
    let mut program = Builder::new();
    let acked = program.volatile_report(0);
    let runs = program.volatile_report(0);
    program.always(|event| {
        let sum = event.add(acked, Primitive::BytesAcked);
        event.set(acked, sum);
        let sum = event.add(runs, 1);
        event.set(runs, sum);
        event.report();
    });
    program.finish().unwrap()
}

/// The agent's socket takes ten datagrams, which take 5 ms: most reports find no room. All bytes are told of, once.
#[test]
fn reports_that_find_no_room_are_merged_and_none_is_lost() {
    let link = LinkConfig::rated(100_000_000, Duration::from_us(100));
    let mut setting = Setting::pair(2, &link, Profile::Bulk(3_000_000), 3);
    let mind = Mind::Gives(Arc::new(counting()));
    setting.machines[1].agent = Some(AgentSetting::new(Duration::from_ms(10), mind));
    let mut run = Run::new(setting);
    assert_eq!(run.finish().failure, None);
    let reports = run.network().machine(NodeId(1)).unwrap().host().unwrap().take_reports();
    let mut flows = BTreeMap::new();
    for report in &reports {
        let (acked, runs, count, ends) = flows.entry(report.flow).or_insert((0, 0, 0u64, 0));
        match report.values[..] {
            [bytes, n] => (*acked, *runs, *count) = (*acked + bytes, *runs + n, *count + 1),
            _ => *ends += 1,
        }
    }
    assert_eq!(flows.len(), 3);
    for (acked, runs, count, ends) in flows.into_values() {
        // The first bytes were acknowledged before the program had come.
        assert!((2_800_000..=3_000_100).contains(&acked), "{acked} bytes of 3,000,000 and a header");
        assert!(count * 3 < runs * 2 && count > 3, "{count} reports of {runs} runs");
        assert_eq!(ends, 1);
    }
}

/// A slow link acknowledges twice a second, and the program wants to report all the time, of which the budget lets it once a second: beside
/// the acknowledgements the program runs once for each report, not at each tick (ten times a second).
#[test]
fn a_program_does_not_run_for_a_report_that_cannot_be_taken() {
    let link = LinkConfig::rated(40_000, Duration::from_ms(10));
    let bytes = 60_000;
    let mut setting = Setting::pair(5, &link, Profile::Bulk(bytes), 1);
    let agent = agent(counting());
    setting.machines[1].agent = Some(AgentSetting { messages_per_second: 1, ..agent });
    let mut run = Run::new(setting);
    assert_eq!(run.finish().failure, None);
    let reports = run.network().machine(NodeId(1)).unwrap().host().unwrap().take_reports();
    let told: Vec<_> = reports.iter().filter(|report| report.values.len() == 2).collect();
    let (first, last) = (told.first().unwrap(), told.last().unwrap());
    let seconds = last.at.since(first.at).as_ms() / 1000;
    let runs: u64 = told[1..].iter().map(|report| report.values[1]).sum();
    assert!(seconds >= 5, "{seconds} s");
    assert!((2 * seconds..6 * seconds).contains(&runs), "{runs} runs in {seconds} s");
}

/// An agent that is so slow that its socket stays full loses its flows, and gets them again under new numbers once it reads.
#[test]
fn flows_fall_back_from_a_stalled_agent_and_return_to_it() {
    let mut link = LinkConfig::rated(100_000_000, Duration::from_us(100));
    // A flow falls back after three round trips: a long queue would make them longer than the agent is slow.
    link.queue_packets = Some(50);
    let mut setting = Setting::pair(4, &link, Profile::Bulk(6_000_000), 2);
    let mind = Mind::Gives(Arc::new(counting()));
    setting.machines[1].agent = Some(AgentSetting::new(Duration::from_ms(120), mind));
    let mut run = Run::new(setting);
    let report = run.finish();
    assert_eq!(report.failure, None);
    let reports = run.network().machine(NodeId(1)).unwrap().host().unwrap().take_reports();
    let numbers: BTreeSet<u32> = reports.iter().map(|report| report.flow).collect();
    assert!(numbers.len() >= 4, "2 flows under {} numbers", numbers.len());
    assert!(report.goodput > 50e6, "{} bit/s", report.goodput);
}
