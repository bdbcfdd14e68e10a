//! Every signal that a program gets, against a recomputation from the capture of the run: by segment and by acknowledgement, as Linux counts,
//! without anything that the fast path knows.

mod compare;
mod model;

use base::{Duration, Instant};
use ccp_vm::{Builder, Primitive, Source, Variable};
use compare::{Compared, compare, value};
use link::{Amount, LinkConfig, Loss, Outage, PacketRange, Probability, Reorder};
use model::{Model, SENDER, Segment, segments};
use sim::apps::{Profile, Side};
use sim::scenario::{Event, Report, Run, Setting};
use sim::{AgentSetting, Capture, Fd, KeptReport, Mind, Network, NodeId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;

const MSS: u64 = 1448;

const WINDOW: u32 = 120 * MSS as u32;

/// All signals in each run's report: sums of what adds up, the least round-trip time, all else as it is. The window grows by what is
/// acknowledged, up to [`WINDOW`]. Behind the signals stands the number of runs.
fn all_signals() -> Source {
    let mut program = Builder::new();
    let variables = Primitive::NAMES.map(|(_, signal)| match signal {
        Primitive::RttSample => program.volatile_report(u32::MAX),
        _ => program.volatile_report(0),
    });
    let runs = program.volatile_report(0);
    program.always(|event| {
        let sum = event.add(runs, 1);
        event.set(runs, sum);
        for (variable, (_, signal)) in variables.into_iter().zip(Primitive::NAMES) {
            match signal {
                Primitive::Now
                | Primitive::BytesInFlight
                | Primitive::BytesPending
                | Primitive::PacketsInFlight
                | Primitive::RateIncoming
                | Primitive::RateOutgoing => event.set(variable, signal),
                Primitive::RttSample => {
                    let least = event.min(variable, signal);
                    event.set(variable, least);
                }
                Primitive::WasTimeout => {
                    let most = event.max(variable, signal);
                    event.set(variable, most);
                }
                _ => {
                    let sum = event.add(variable, signal);
                    event.set(variable, sum);
                }
            }
        }
        let grown = event.add(Variable::CWND, Primitive::BytesAcked);
        let bounded = event.min(grown, WINDOW);
        event.set(Variable::CWND, bounded);
        event.report();
    });
    program.finish().unwrap()
}

#[derive(Clone, Default)]
struct Buffer(Rc<RefCell<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs one flow of `bytes` over `link`, and compares.
fn run(link: &LinkConfig, bytes: u64, change: impl FnOnce(&mut Setting)) -> (Compared, Report) {
    run_profile(link, Profile::Bulk(bytes), change)
}

fn run_profile(link: &LinkConfig, profile: Profile, change: impl FnOnce(&mut Setting)) -> (Compared, Report) {
    let recorded = record(link, profile, change);
    (compare(&recorded.reports, &recorded.segments, &recorded.writes, &BTreeMap::new()), recorded.report)
}

/// What is left of a run.
struct Recorded {
    /// Those of the client's program, and of the server's if it has one.
    reports: Vec<KeptReport>,
    peers_reports: Vec<KeptReport>,
    /// Those at the client's interface.
    segments: Vec<Segment>,
    /// Times of the client's writes, and all bytes by each.
    writes: Vec<(Instant, u64)>,
    report: Report,
}

/// Runs one flow over `link`.
fn record(link: &LinkConfig, profile: Profile, change: impl FnOnce(&mut Setting)) -> Recorded {
    record_watched(link, profile, change, |_| {})
}

/// As [`record`]; `watch` may run the network as far as it likes.
fn record_watched(
    link: &LinkConfig,
    profile: Profile,
    change: impl FnOnce(&mut Setting),
    watch: impl FnOnce(&mut Network),
) -> Recorded {
    let mut setting = Setting::pair(3, link, profile, 1);
    let mind = Mind::Gives(Arc::new(all_signals()));
    setting.machines[SENDER].agent = Some(AgentSetting::new(Duration::ZERO, mind));
    change(&mut setting);
    let mut run = Run::new(setting);
    let buffer = Buffer::default();
    let names = run.network().names().to_vec();
    run.network().capture = Some(Capture::new(Box::new(buffer.clone()), &names).unwrap());
    run.network().ledger.writes = Some(Vec::new());
    watch(run.network());
    let report = run.finish();
    assert_eq!(report.failure, None);
    let writes = run.network().ledger.writes.take().unwrap();
    let writes = writes.iter().filter(|write| write.side == Side::Client);
    let writes = writes.map(|write| (write.at, write.total)).collect();
    run.take_capture().unwrap().finish().unwrap();
    let [peers_reports, reports] =
        [0, SENDER].map(|node| run.network().machine(NodeId(node)).unwrap().host().unwrap().take_reports());
    let segments = segments(&buffer.0.borrow());
    Recorded { reports, peers_reports, segments, writes, report }
}

/// 20 Mbit/s, a round trip of 20 ms, and room for the whole window.
fn plain() -> LinkConfig {
    LinkConfig { queue_packets: Some(500), ..LinkConfig::rated(20_000_000, Duration::from_ms(10)) }
}

#[test]
fn signals_with_delayed_acknowledgements() {
    let (done, _) = run(&plain(), 2_000_000, |_| {});
    assert!(done.runs > 300 && done.round_trips > 300 && done.rates.iter().all(|n| *n > 250), "{done:?}");
    assert_eq!((done.lost, done.sent_again, done.misordered), (0, 0, 0), "{done:?}");
}

/// Segments are cut by the sender's interface, and merged by the receiver's; both hear of packets late and together.
fn offload(setting: &mut Setting) {
    setting.machines[0].merges = true;
    setting.machines[0].moderation = Duration::from_ms(3);
    setting.machines[SENDER].has_offload = true;
    setting.machines[SENDER].moderation = Duration::from_us(700);
}

#[test]
fn signals_with_losses() {
    let done = with_losses(|_| {});
    assert!(done.runs > 300 && done.round_trips > 250 && done.rates.iter().all(|n| *n > 200), "{done:?}");
}

#[test]
fn signals_with_losses_and_offload() {
    let done = with_losses(offload);
    assert!(done.runs > 100 && done.round_trips > 100 && done.rates.iter().all(|n| *n > 80), "{done:?}");
}

fn with_losses(change: impl FnOnce(&mut Setting)) -> Compared {
    let lost = [40, 41, 90, 200, 201, 202, 203, 400, 650];
    let ranges = lost.map(|n| PacketRange { first: n, last: n });
    let link = LinkConfig { loss: Loss::List(ranges.to_vec()), ..plain() };
    let (done, _) = run(&link, 2_000_000, |setting| {
        // The way back loses nothing.
        setting.machines[SENDER].links[1].loss = Loss::None;
        change(setting);
    });
    assert!(done.misordered > 100 * MSS, "{done:?}");
    // What was found lost is what was sent again; a repair that is late is sent once more.
    let most = lost.len() as u64 + 1;
    assert!(done.lost == done.sent_again && (most - 1..=most).contains(&done.lost), "{done:?}");
    done
}

/// Nothing arrives for a second, the acknowledgements of what had arrived before do.
#[test]
fn signals_with_timeouts() {
    let from = Instant::from_ns(1_600_000_000);
    let link =
        LinkConfig { outages: vec![Outage { from, to: from.plus(Duration::from_secs(1)) }], ..plain() };
    let (done, report) = run(&link, 2_000_000, |setting| setting.machines[SENDER].links[1].outages.clear());
    assert!(done.timeouts > 0 && done.timeouts == report.timeouts, "{done:?}, {}", report.timeouts);
    assert!(done.lost >= u64::from(WINDOW) / MSS, "all that was in flight counts as lost: {done:?}");
}

#[test]
fn signals_with_reordering() {
    let done = with_reordering(|_| {});
    assert!(done.runs > 300 && done.round_trips > 250 && done.rates.iter().all(|n| *n > 200), "{done:?}");
}

#[test]
fn signals_with_reordering_and_offload() {
    let done = with_reordering(offload);
    assert!(done.runs > 100 && done.round_trips > 100 && done.rates.iter().all(|n| *n > 80), "{done:?}");
}

fn with_reordering(change: impl FnOnce(&mut Setting)) -> Compared {
    let reorder = Reorder { probability: Probability::percent(3), extra: Duration::from_us(1500) };
    let (done, _) = run(&LinkConfig { reorder, ..plain() }, 2_000_000, |setting| {
        setting.machines[SENDER].links[1].reorder = Reorder::default();
        change(setting);
    });
    assert!(done.misordered > 15 * MSS, "{done:?}");
    done
}

#[test]
fn signals_with_stretched_acknowledgements_and_segmentation_offload() {
    let (done, _) = run(&plain(), 3_000_000, offload);
    assert!(done.runs > 100 && done.round_trips > 100 && done.rates[1] > 80, "{done:?}");
}

/// Each request is more than a window, and its answer is awaited: the application has something to send at times, and at times nothing.
#[test]
fn signals_of_an_application_that_pauses() {
    for change in [|_: &mut Setting| {}, offload] {
        let (done, _) = run_profile(&plain(), Profile::PingPong(8, 300_000), change);
        assert!(done.pending.iter().all(|n| *n > 80) && done.rates.iter().all(|n| *n > 80), "{done:?}");
    }
}

/// What the last sample is marked with after each instant: the same as the record of each packet says.
#[test]
fn samples_that_the_application_limits_are_marked() {
    for change in [|_: &mut Setting| {}, offload] {
        let mut limits = BTreeMap::new();
        let watch = |network: &mut Network| {
            while !network.is_done() {
                let at = network.next_event();
                network.run_until(at);
                let host = network.machine(NodeId(SENDER)).unwrap().host().unwrap();
                let is_limited = (0..4).find_map(|fd| host.sight(Fd(fd))?.is_app_limited);
                limits.extend(is_limited.map(|is_limited| (at, is_limited)));
            }
        };
        let recorded = record_watched(&plain(), Profile::PingPong(8, 300_000), change, watch);
        let done = compare(&recorded.reports, &recorded.segments, &recorded.writes, &limits);
        assert!(done.limited.iter().all(|n| *n > 80), "{done:?}");
    }
}

#[test]
fn signals_with_marks() {
    let link = LinkConfig { ecn_threshold: Some(Amount::Packets(30)), ..plain() };
    let (done, report) = run(&link, 2_000_000, |setting| {
        for machine in &mut setting.machines {
            machine.algorithm = congestion::Algorithm::Dctcp;
        }
    });
    assert!(report.marked > 100 && done.marked > 100 * MSS, "{done:?}, {} marked", report.marked);
}

/// RFC 9768: the counts of the peer say exactly how many packets were marked, whatever algorithm it runs.
#[test]
fn signals_with_counted_marks() {
    let link = LinkConfig { ecn_threshold: Some(Amount::Packets(30)), ..plain() };
    let (done, report) = run(&link, 2_000_000, |setting| {
        for machine in &mut setting.machines {
            (machine.shared.ecn, machine.shared.accurate_ecn) = (true, true);
        }
    });
    assert!(report.marked > 100, "{done:?}, {} marked", report.marked);
    assert_eq!(done.marked, report.marked * MSS, "nothing was lost, so each mark was counted");
}

/// As before, with offloads at both ends: what a merged packet was made of, and what one acknowledgement tells of many packets, counts packet by
/// packet. One way, and both ways at once.
#[test]
fn signals_with_counted_marks_and_offload() {
    let link = LinkConfig { ecn_threshold: Some(Amount::Packets(30)), ..plain() };
    for profile in [Profile::Bulk(2_000_000), Profile::Both(2_000_000)] {
        let recorded = record(&link, profile, |setting| {
            setting.machines[0].agent = setting.machines[SENDER].agent.clone();
            for machine in &mut setting.machines {
                (machine.shared.ecn, machine.shared.accurate_ecn) = (true, true);
                (machine.merges, machine.has_offload) = (true, true);
                machine.moderation = Duration::from_ms(3);
            }
        });
        let heard = [&recorded.reports, &recorded.peers_reports].map(|reports| {
            let reports = reports.iter().filter(|report| !report.values.is_empty());
            reports.map(|report| value(report, Primitive::EcnPackets)).sum::<u64>()
        });
        let least = if profile == Profile::Both(2_000_000) { heard[1] } else { heard[0] };
        assert!(least > 100, "{profile:?}: {heard:?}");
        assert_eq!(
            heard[0] + heard[1],
            recorded.report.marked,
            "{profile:?}: nothing was lost, so each mark was counted"
        );
    }
}

/// With `runs_each_ack` a program runs once for each acknowledgement, however many a batch has.
#[test]
fn signals_of_each_acknowledgement() {
    // Acknowledgements come at intervals of 0.12 ms.
    let link = LinkConfig {
        loss: Loss::List(vec![PacketRange { first: 300, last: 302 }]),
        queue_packets: Some(500),
        ..LinkConfig::rated(200_000_000, Duration::from_ms(10))
    };
    assert!(missed(&link, false) > 20, "a batch is one run");
    assert_eq!(missed(&link, true), 0);
}

/// Segments with news in the capture for which the program did not run: the runs that each report tells of are held against the segments
/// that bring its bytes.
fn missed(link: &LinkConfig, is_each: bool) -> usize {
    let recorded = record(link, Profile::Bulk(2_000_000), |setting| {
        setting.machines[SENDER].shared.runs_each_ack = is_each;
        // Acknowledgements come in batches: the machine stops for 5 ms again and again.
        let stop = |i: u64| (Duration::from_ms(40 + 10 * i), Event::Stop(SENDER, Duration::from_ms(5)));
        setting.events.extend((0..40).map(stop));
        // The way back loses nothing.
        setting.machines[SENDER].links[1].loss = Loss::None;
    });
    let mut model = Model::default();
    let mut heard = Vec::new();
    for segment in &recorded.segments {
        if segment.is_sent {
            model.send(segment);
        } else {
            model.hear(segment);
            let bytes = [std::mem::take(&mut model.acked), std::mem::take(&mut model.misordered)];
            heard.extend(Some(bytes).filter(|bytes| *bytes != [0, 0]));
        }
    }
    let (mut heard, mut missed) = (heard.into_iter(), 0);
    for report in recorded.reports.iter().filter(|report| !report.values.is_empty()) {
        let told = [value(report, Primitive::BytesAcked), value(report, Primitive::BytesMisordered)];
        let (mut sum, mut count) = ([0, 0], 0);
        while sum != told {
            let bytes = heard.next().expect("no run tells of more than was heard");
            sum = [sum[0] + bytes[0], sum[1] + bytes[1]];
            count += 1;
        }
        let runs = *report.values.last().unwrap() as usize;
        missed += count - count.min(runs);
    }
    assert_eq!(heard.next(), None);
    missed
}
