//! Each run of a program against the model: see `model`.

use super::MSS;
use super::model::{Expected, Model, Segment};
use base::Instant;
use ccp_vm::Primitive;
use sim::KeptReport;
use std::collections::BTreeMap;
use wire::TcpFlags;

/// What was compared, and what is left to compare.
#[derive(Default, Debug)]
pub struct Compared {
    pub runs: usize,
    pub round_trips: usize,
    pub rates: [usize; 2],
    pub misordered: u64,
    pub marked: u64,
    pub lost: u64,
    /// Runs at which the application had more to send, and at which it had nothing.
    pub pending: [usize; 2],
    /// Samples that the application did not limit, and that it did.
    pub limited: [usize; 2],
    pub sent_again: u64,
    pub timeouts: u64,
}

pub fn value(report: &KeptReport, signal: Primitive) -> u64 {
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

/// Holds each report against the model, and against what the application had written by then: times, and all bytes by each.
///
/// `limits`, if there are any: at each instant, the mark of the last sample.
pub fn compare(
    reports: &[KeptReport],
    segments: &[Segment],
    writes: &[(Instant, u64)],
    limits: &BTreeMap<Instant, bool>,
) -> Compared {
    let written = writes.last().map_or(0, |(_, total)| *total);
    let is_accurate = segments.iter().any(|s| s.flags.contains(TcpFlags::SYN) && s.flags.ace() == 7);
    let count = is_accurate.then_some(5);
    let (mut model, mut done) = (Model::new(count, writes), Compared::default());
    let (mut packets, mut bytes_of) = ([0u64; 3], [0u64; 3]);
    let mut next = 0;
    for report in &by_instant(reports) {
        let now = report.at;
        // What was sent at this instant was sent after the run, unless acknowledgements at the same instant follow it.
        let last_heard = segments.iter().rposition(|s| s.at <= now && !s.is_sent).map_or(0, |i| i + 1);
        let first_now = segments.iter().position(|s| s.at >= now).unwrap_or(segments.len());
        let until = last_heard.max(first_now).max(next);
        for segment in &segments[next..until] {
            model.pass(segment.at);
            if segment.is_sent { model.send(segment) } else { model.hear(segment) }
        }
        next = until;
        let get = |signal| value(report, signal);
        model.pass(now);
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
        if expected.rates.is_some() && !limits.is_empty() {
            assert_eq!(limits.get(&now), Some(&expected.is_limited), "limited by the application, {at}");
            done.limited[usize::from(expected.is_limited)] += 1;
        }
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
        check_pending(get(Primitive::BytesPending), now, writes, model.max, &mut done, &at);
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
    let (bytes, intervals) = expected.rates.unwrap();
    let rates = [Primitive::RateOutgoing, Primitive::RateIncoming].map(|signal| value(report, signal));
    for (i, (rate, us)) in rates.into_iter().zip(intervals).enumerate() {
        // All that was delivered at once was sent at once.
        if us == 0 {
            assert_eq!(rate, 0, "rate {i} in no time, {at}");
            continue;
        }
        let exact = bytes as f64 * 1e6 / us as f64;
        let error = (rate as f64 - exact).abs() / exact;
        assert!(error < 0.04, "rate {i}: {rate} for {exact}, {at}");
        done.rates[i] += 1;
    }
}

/// Bytes pending are what was written less what was sent. Of what is written at the very instant of the run, any part may be written before it.
fn check_pending(
    pending: u64,
    now: Instant,
    writes: &[(Instant, u64)],
    sent: u64,
    done: &mut Compared,
    at: &str,
) {
    let before = writes.iter().rfind(|(when, _)| *when < now).map_or(0, |(_, total)| *total);
    let mut meanwhile = writes.iter().filter(|(when, _)| *when == now).map(|(_, total)| *total);
    let is_so = |total: u64| total.checked_sub(sent) == Some(pending);
    assert!(is_so(before) || meanwhile.any(is_so), "{pending} pending, {before} written, {sent} sent, {at}");
    done.pending[usize::from(pending == 0)] += 1;
}
