//! Every signal that a program gets, against a recomputation from the capture of the run: by segment and by acknowledgement, as Linux counts,
//! without anything that the fast path knows.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use base::{Duration, Instant};
use ccp_vm::{Builder, Primitive, Source, Variable};
use link::{Amount, LinkConfig, Loss, Outage, PacketRange, Probability, Reorder};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use sim::apps::Profile;
use sim::scenario::{Event, Report, Run, Setting};
use sim::{AgentSetting, Capture, KeptReport, Mind, NodeId};
use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use wire::{Body, Packet, RxChecksum, TcpFlags};

const MSS: u64 = 1448;
const SENDER: usize = 1;
const WINDOW: u32 = 120 * MSS as u32;
const OUTBOUND: u32 = 2;

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

/// A segment at the sender's interface.
struct Segment {
    at: Instant,
    is_sent: bool,
    seq: u32,
    ack: u32,
    len: u32,
    flags: TcpFlags,
    sack: Vec<(u32, u32)>,
}

/// The segments of the run, in order.
fn segments(capture: &[u8]) -> Vec<Segment> {
    let mut reader = PcapNgReader::new(capture).unwrap();
    let mut all = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else { continue };
        if packet.interface_id as usize != SENDER {
            continue;
        }
        let is_sent = packet
            .options
            .iter()
            .any(|option| matches!(option, EnhancedPacketOption::Flags(flags) if *flags == OUTBOUND));
        let at = Instant::from_ns(packet.timestamp.as_nanos() as u64);
        let Ok(Packet { body: Body::Tcp(tcp), .. }) = Packet::parse(&packet.data, RxChecksum::Verified)
        else {
            continue;
        };
        let sack = tcp.options.sack.as_slice().iter().map(|block| (block.left.0, block.right.0)).collect();
        all.push(Segment {
            at,
            is_sent,
            seq: tcp.header.seq.0,
            ack: tcp.header.ack.0,
            len: tcp.payload.len() as u32,
            flags: tcp.header.flags,
            sack,
        });
    }
    all
}

/// A run of bytes that one segment carried.
#[derive(Clone, Debug)]
struct Piece {
    left: u64,
    right: u64,
    at_us: u64,
    times: u32,
    is_delivered: bool,
    /// Bytes delivered when it was sent, when the last of them were, and when the data delivered last had been sent.
    then: (u64, u64, u64),
}

/// What the sender knows by its segments alone.
#[derive(Default)]
struct Model {
    isn: Option<u32>,
    pieces: Vec<Piece>,
    una: u64,
    max: u64,
    delivered: u64,
    delivered_us: u64,
    first_sent_us: u64,
    sent_again: u64,
    min_rtt_us: u64,
    /// Since the last run.
    acked: u64,
    misordered: u64,
    marked: u64,
    newest: Option<usize>,
    /// With accurate ECN: the peer's last count, modulo 8. Each acknowledgement here is of less than 8 packets.
    count: Option<u8>,
}

/// What is expected of a run.
struct Expected {
    acked: u64,
    misordered: u64,
    marked: u64,
    rtt_us: Option<u64>,
    rate_outgoing: Option<f64>,
    rate_incoming: Option<f64>,
    /// Bytes in flight, those that count as lost included.
    flight: u64,
}

impl Model {
    fn position(&self, seq: u32) -> u64 {
        let isn = self.isn.unwrap();
        u64::from(seq.wrapping_sub(isn).wrapping_sub(1))
    }

    fn send(&mut self, segment: &Segment) {
        if segment.flags.contains(TcpFlags::SYN) {
            self.isn = Some(segment.seq);
            return;
        }
        if segment.len == 0 {
            return;
        }
        let now_us = segment.at.as_us();
        let left = self.position(segment.seq);
        let right = left + u64::from(segment.len);
        if left < self.max {
            self.split(left);
            self.split(right);
            for piece in self.pieces.iter_mut().filter(|piece| left <= piece.left && piece.right <= right) {
                piece.times += 1;
            }
            self.sent_again += u64::from(segment.len);
            return;
        }
        if self.una == self.max {
            (self.first_sent_us, self.delivered_us) = (now_us, now_us);
        }
        let then = (self.delivered, self.delivered_us, self.first_sent_us);
        self.pieces.push(Piece { left, right, at_us: now_us, times: 1, is_delivered: false, then });
        self.max = right;
    }

    fn split(&mut self, at: u64) {
        if let Some(i) = self.pieces.iter().position(|piece| piece.left < at && at < piece.right) {
            let piece = self.pieces[i].clone();
            self.pieces[i].right = at;
            self.pieces.insert(i + 1, Piece { left: at, ..piece });
        }
    }

    /// Bytes of a range that were not known to be delivered.
    fn deliver(&mut self, left: u64, right: u64) -> u64 {
        self.split(left);
        self.split(right);
        let mut bytes = 0;
        for (i, piece) in self.pieces.iter_mut().enumerate() {
            if piece.is_delivered || piece.left < left || right < piece.right {
                continue;
            }
            piece.is_delivered = true;
            bytes += piece.right - piece.left;
            if piece.times == 1 {
                self.newest = self.newest.max(Some(i));
            }
        }
        bytes
    }

    fn hear(&mut self, segment: &Segment) {
        if segment.flags.contains(TcpFlags::SYN) || !segment.flags.contains(TcpFlags::ACK) {
            return;
        }
        let ack = self.position(segment.ack).min(self.max);
        if ack > self.una {
            let bytes = ack - self.una;
            self.delivered += self.deliver(self.una, ack);
            self.acked += bytes;
            let ace = segment.flags.ace();
            match &mut self.count {
                Some(count) => {
                    self.marked += u64::from(ace.wrapping_sub(std::mem::replace(count, ace)) % 8) * MSS;
                }
                None if segment.flags.contains(TcpFlags::ECE) => self.marked += bytes,
                None => {}
            }
            self.una = ack;
        }
        for (left, right) in &segment.sack {
            let (left, right) = (self.position(*left), self.position(*right));
            if self.una < left && left < right && right <= self.max {
                let bytes = self.deliver(left, right);
                self.misordered += bytes;
                self.delivered += bytes;
            }
        }
    }

    /// The program runs at `now_us`.
    fn run(&mut self, now_us: u64) -> Expected {
        let piece = self.newest.take().map(|i| self.pieces[i].clone());
        let mut expected = Expected {
            acked: std::mem::take(&mut self.acked),
            misordered: std::mem::take(&mut self.misordered),
            marked: std::mem::take(&mut self.marked),
            rtt_us: None,
            rate_outgoing: None,
            rate_incoming: None,
            flight: self.outstanding(),
        };
        if let Some(piece) = &piece {
            let rtt_us = now_us - piece.at_us;
            self.min_rtt_us = if self.min_rtt_us == 0 { rtt_us } else { self.min_rtt_us.min(rtt_us) };
            expected.rtt_us = Some(rtt_us);
            let (delivered, delivered_us, first_sent_us) = piece.then;
            let bytes = (self.delivered - delivered) as f64;
            let rate = |us: u64| (us > 0).then(|| bytes * 1e6 / us as f64);
            expected.rate_outgoing = rate(piece.at_us - first_sent_us);
            expected.rate_incoming = rate(now_us - delivered_us);
            self.first_sent_us = piece.at_us;
        }
        if expected.acked + expected.misordered > 0 {
            self.delivered_us = now_us;
        }
        expected
    }

    fn outstanding(&self) -> u64 {
        self.pieces.iter().filter(|piece| !piece.is_delivered).map(|piece| piece.right - piece.left).sum()
    }
}

/// What was compared, and what is left to compare.
#[derive(Default, Debug)]
struct Compared {
    runs: usize,
    round_trips: usize,
    rates: [usize; 2],
    misordered: u64,
    marked: u64,
    lost: u64,
    sent_again: u64,
    timeouts: u64,
}

fn value(report: &KeptReport, signal: Primitive) -> u64 {
    report.values[signal as usize]
}

/// One report for each instant at which the program ran.
fn by_instant(reports: &[KeptReport]) -> Vec<KeptReport> {
    let mut all: Vec<KeptReport> = Vec::new();
    for report in reports.iter().filter(|report| !report.values.is_empty()) {
        let Some(last) = all.last_mut().filter(|last| last.at == report.at) else {
            all.push(report.clone());
            continue;
        };
        for (sum, (value, (_, signal))) in
            last.values.iter_mut().zip(report.values.iter().zip(Primitive::NAMES))
        {
            match signal {
                Primitive::RttSample => *sum = (*sum).min(*value),
                Primitive::WasTimeout => *sum |= value,
                Primitive::RateIncoming | Primitive::RateOutgoing if *value == 0 => {}
                Primitive::Now
                | Primitive::BytesInFlight
                | Primitive::BytesPending
                | Primitive::PacketsInFlight
                | Primitive::RateIncoming
                | Primitive::RateOutgoing => *sum = *value,
                _ => *sum += value,
            }
        }
    }
    all
}

/// Holds each report against the model.
fn compare(reports: &[KeptReport], segments: &[Segment], written: u64) -> Compared {
    let is_accurate = segments.iter().any(|s| s.flags.contains(TcpFlags::SYN) && s.flags.ace() == 7);
    let count = is_accurate.then_some(5);
    let (mut model, mut done) = (Model { count, ..Model::default() }, Compared::default());
    let (mut packets, mut bytes_of) = ([0u64; 3], [0u64; 3]);
    let mut next = 0;
    for report in &by_instant(reports) {
        let now = report.at;
        // What was sent at this instant was sent after the run, unless acknowledgements at the same instant follow it.
        let last_heard = segments.iter().rposition(|s| s.at <= now && !s.is_sent).map_or(0, |i| i + 1);
        let first_now = segments.iter().position(|s| s.at >= now).unwrap_or(segments.len());
        let until = last_heard.max(first_now).max(next);
        for segment in &segments[next..until] {
            if segment.is_sent { model.send(segment) } else { model.hear(segment) }
        }
        next = until;
        let get = |signal| value(report, signal);
        let expected = model.run(now.as_us());
        let at = format!("run {} at {now:?}", done.runs);
        assert_eq!(get(Primitive::Now), now.as_us(), "{at}");
        assert_eq!(get(Primitive::BytesAcked), expected.acked, "acked, {at}");
        assert_eq!(get(Primitive::BytesMisordered), expected.misordered, "misordered, {at}");
        assert_eq!(get(Primitive::EcnBytes), expected.marked, "marked, {at}");
        let counted = [
            (Primitive::PacketsAcked, expected.acked),
            (Primitive::PacketsMisordered, expected.misordered),
            (Primitive::EcnPackets, expected.marked),
        ];
        for (i, (signal, bytes)) in counted.into_iter().enumerate() {
            packets[i] += get(signal);
            bytes_of[i] += bytes;
            assert!(packets[i] == bytes_of[i].div_ceil(MSS) || done.timeouts > 0, "{signal:?}, {at}");
        }
        check_samples(report, &expected, &model, &mut done, &at);
        done.lost += get(Primitive::LostPackets);
        done.timeouts += get(Primitive::WasTimeout);
        done.misordered += expected.misordered;
        done.marked += expected.marked;
        // What counts as lost is out of the network until it is sent again.
        let gone = (done.lost * MSS).saturating_sub(model.sent_again);
        let pipe = get(Primitive::BytesInFlight);
        // After timeouts the slow path suspects the path's MTU: segments are shorter, and what was lost by them counts as no loss. At the end
        // a FIN is in flight.
        if done.timeouts == 0 && model.max != written {
            assert_eq!(pipe, expected.flight.saturating_sub(gone), "pipe, {at}, {} lost", done.lost);
            assert_eq!(get(Primitive::PacketsInFlight), pipe.div_ceil(MSS), "{at}");
        }
        assert!(get(Primitive::BytesPending) <= written - model.max, "pending, {at}");
        done.runs += 1;
    }
    for segment in &segments[next..] {
        if segment.is_sent { model.send(segment) } else { model.hear(segment) }
    }
    done.sent_again = model.sent_again.div_ceil(MSS);
    done
}

/// Round-trip time and rates: to a 64th of the round trip, or 50 us, whichever is more.
fn check_samples(report: &KeptReport, expected: &Expected, model: &Model, done: &mut Compared, at: &str) {
    let rtt_us = value(report, Primitive::RttSample);
    let Some(exact) = expected.rtt_us else {
        assert_eq!(rtt_us, u64::from(u32::MAX), "no sample, {at}");
        return;
    };
    let resolution = (exact.max(2 * model.min_rtt_us) / 64).max(50);
    assert!((exact..=exact + resolution + 1).contains(&rtt_us), "{rtt_us} us for {exact}, {at}");
    done.round_trips += 1;
    let rates = [
        (Primitive::RateOutgoing, expected.rate_outgoing),
        (Primitive::RateIncoming, expected.rate_incoming),
    ];
    for (i, (signal, exact)) in rates.into_iter().enumerate() {
        let rate = value(report, signal);
        if let (Some(exact), true) = (exact, rate > 0) {
            let error = (rate as f64 - exact).abs() / exact;
            assert!(error < 0.04, "{signal:?} {rate} for {exact}, {at}");
            done.rates[i] += 1;
        }
    }
}

/// Runs one flow of `bytes` over `link`, and compares.
fn run(link: &LinkConfig, bytes: u64, change: impl FnOnce(&mut Setting)) -> (Compared, Report) {
    let (reports, segments, report) = record(link, bytes, change);
    let data = segments.iter().filter(|s| s.is_sent && s.len > 0);
    let isn = segments.iter().find(|s| s.is_sent).unwrap().seq;
    let written = data.map(|s| s.seq.wrapping_sub(isn) - 1 + s.len).max().unwrap();
    (compare(&reports, &segments, u64::from(written)), report)
}

/// Runs one flow of `bytes` over `link`: its program's reports, its segments, and how the run went.
fn record(
    link: &LinkConfig,
    bytes: u64,
    change: impl FnOnce(&mut Setting),
) -> (Vec<KeptReport>, Vec<Segment>, Report) {
    let mut setting = Setting::pair(3, link, Profile::Bulk(bytes), 1);
    let mind = Mind::Gives(Arc::new(all_signals()));
    setting.machines[SENDER].agent = Some(AgentSetting::new(Duration::ZERO, mind));
    change(&mut setting);
    let mut run = Run::new(setting);
    let buffer = Buffer::default();
    let names = run.network().names().to_vec();
    run.network().capture = Some(Capture::new(Box::new(buffer.clone()), &names).unwrap());
    let report = run.finish();
    assert_eq!(report.failure, None);
    run.take_capture().unwrap().finish().unwrap();
    let reports = run.network().machine(NodeId(SENDER)).unwrap().host().unwrap().take_reports();
    let segments = segments(&buffer.0.borrow());
    (reports, segments, report)
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

#[test]
fn signals_with_losses() {
    let lost = [40, 41, 90, 200, 201, 202, 203, 400, 650];
    let ranges = lost.map(|n| PacketRange { first: n, last: n });
    let link = LinkConfig { loss: Loss::List(ranges.to_vec()), ..plain() };
    let (done, _) = run(&link, 2_000_000, |setting| {
        // The way back loses nothing.
        setting.machines[SENDER].links[1].loss = Loss::None;
    });
    assert!(done.runs > 300 && done.round_trips > 250 && done.misordered > 100 * MSS, "{done:?}");
    // What was found lost is what was sent again; a repair that is late is sent once more.
    let most = lost.len() as u64 + 1;
    assert!(done.lost == done.sent_again && (most - 1..=most).contains(&done.lost), "{done:?}");
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
    let reorder = Reorder { probability: Probability::percent(3), extra: Duration::from_us(1500) };
    let (done, _) = run(&LinkConfig { reorder, ..plain() }, 2_000_000, |setting| {
        setting.machines[SENDER].links[1].reorder = Reorder::default();
    });
    assert!(done.runs > 300 && done.misordered > 20 * MSS && done.round_trips > 250, "{done:?}");
}

#[test]
fn signals_with_stretched_acknowledgements_and_segmentation_offload() {
    let (done, _) = run(&plain(), 3_000_000, |setting| {
        setting.machines[0].merges = true;
        setting.machines[0].moderation = Duration::from_ms(3);
        setting.machines[SENDER].has_offload = true;
        setting.machines[SENDER].moderation = Duration::from_us(700);
    });
    assert!(done.runs > 100 && done.round_trips > 100 && done.rates[1] > 80, "{done:?}");
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
    let (reports, segments, _) = record(link, 2_000_000, |setting| {
        setting.machines[SENDER].shared.runs_each_ack = is_each;
        // Acknowledgements come in batches: the machine stops for 5 ms again and again.
        let stop = |i: u64| (Duration::from_ms(40 + 10 * i), Event::Stop(SENDER, Duration::from_ms(5)));
        setting.events.extend((0..40).map(stop));
        // The way back loses nothing.
        setting.machines[SENDER].links[1].loss = Loss::None;
    });
    let mut model = Model::default();
    let mut heard = Vec::new();
    for segment in &segments {
        if segment.is_sent {
            model.send(segment);
        } else {
            model.hear(segment);
            let bytes = [std::mem::take(&mut model.acked), std::mem::take(&mut model.misordered)];
            heard.extend(Some(bytes).filter(|bytes| *bytes != [0, 0]));
        }
    }
    let (mut heard, mut missed) = (heard.into_iter(), 0);
    for report in reports.iter().filter(|report| !report.values.is_empty()) {
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
