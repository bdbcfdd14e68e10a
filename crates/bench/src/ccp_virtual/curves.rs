//! Numbers from what a run has seen of its flows over time: periods, dips, cuts, spreads, quartiles.

use base::{Duration, Seed};
use ccp_try::{Race, Sample};
use sim::statistics::percentile;

/// Bytes of payload in a full segment.
pub const SEGMENT: f64 = 1448.0;
/// A rise above the median by this share is a pulse's.
const PULSE: f64 = 1.1;
/// A window of at most so many segments is a dip.
const DIP: f64 = 4.5;
/// A window that falls below this share of the last one was cut.
const CUT: f64 = 0.9;
/// The seed of the first trace: the same on every machine.
const TRACE_SEED: u64 = 0x6365_6C6B;
/// Length of the trace; it repeats.
const TRACE_MS: u64 = 60_000;
/// Least and greatest rate of the trace, bytes per millisecond, and how long it keeps each.
const TRACE_RATES: [f64; 2] = [250.0, 3_000.0];
const TRACE_STEP_MS: u64 = 100;

/// Values of the first flow, each with its time in seconds.
pub fn of_flow(race: &Race, value: fn(&Sample) -> f64) -> Vec<(f64, f64)> {
    let every = race.every.as_ns() as f64 / 1e9;
    let samples = race.flows.first().map_or(&[][..], |flow| &flow.samples);
    samples.iter().zip(1..).map(|(sample, look)| (f64::from(look) * every, value(sample))).collect()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    percentile(&sorted, 0.5).unwrap_or(f64::NAN)
}

/// Times at which a curve begins to be `is_so`, from `from` seconds on.
fn beginnings(curve: &[(f64, f64)], from: f64, is_so: impl Fn(f64) -> bool) -> Vec<f64> {
    let pairs = curve.iter().zip(curve.iter().skip(1));
    pairs.filter(|(a, b)| b.0 >= from && !is_so(a.1) && is_so(b.1)).map(|(_, b)| b.0).collect()
}

/// The mean distance of these times; `None` for fewer than two.
fn distance(times: &[f64]) -> Option<f64> {
    let (first, last) = (times.first()?, times.last()?);
    (times.len() > 1).then(|| (last - first) / (times.len() - 1) as f64)
}

/// The mean time between two pulses of a curve, seconds.
pub fn period(curve: &[(f64, f64)], from: f64) -> Option<f64> {
    let usual = median(curve.iter().filter(|(at, _)| *at >= from).map(|(_, value)| *value));
    distance(&beginnings(curve, from, |value| value > PULSE * usual))
}

/// The mean time between dips of a window, seconds, and the least window, segments.
pub fn dips(windows: &[(f64, f64)], from: f64) -> (Option<f64>, f64) {
    let least =
        windows.iter().filter(|(at, _)| *at >= from).map(|(_, window)| *window).fold(f64::NAN, f64::min);
    (distance(&beginnings(windows, from, |window| window <= DIP)), least)
}

/// The median of what is left of a window after it was cut.
pub fn back_off(windows: &[(f64, f64)]) -> Option<f64> {
    let pairs = windows.iter().zip(windows.iter().skip(1));
    let cuts: Vec<f64> =
        pairs.filter(|(a, _)| a.1 > 0.0).map(|(a, b)| b.1 / a.1).filter(|share| *share < CUT).collect();
    (!cuts.is_empty()).then(|| median(cuts.into_iter()))
}

/// The window of the first flow at each look since it began, up to so many round trips; times in round trips.
pub fn since_begin(race: &Race, round_trips: usize) -> Vec<(f64, f64)> {
    let rtt = race.setting.path.rtt.as_ns() as f64 / 1e9;
    let windows = of_flow(race, |sample| f64::from(sample.cwnd));
    let began = windows.iter().find(|(_, window)| *window > 0.0).map_or(0.0, |(at, _)| *at);
    let since = windows.iter().map(|(at, window)| ((at - began) / rtt, *window));
    since.filter(|(at, _)| *at >= 0.0 && *at <= round_trips as f64).collect()
}

/// The value of a curve at a time: that of the last look before it.
fn at(curve: &[(f64, f64)], time: f64) -> f64 {
    curve.iter().take_while(|(at, _)| *at <= time).last().map_or(0.0, |(_, value)| *value)
}

/// The largest difference of two windows in the middle of their round trips, over the second one.
pub fn off(own: &[(f64, f64)], other: &[(f64, f64)]) -> f64 {
    let last = other.last().map_or(0.0, |(at, _)| *at);
    let middles = (0..).map(|n| f64::from(n) + 0.5).take_while(|time| *time < last);
    middles.map(|time| (at(own, time) / at(other, time) - 1.0).abs()).fold(0.0, f64::max)
}

/// How much later the first window is as large as the second one, at most, in round trips: in the middle of each round trip.
pub fn behind(own: &[(f64, f64)], other: &[(f64, f64)]) -> f64 {
    let last = other.last().map_or(0.0, |(at, _)| *at) - 1.5;
    let middles = (0..).map(|n| f64::from(n) + 0.5).take_while(|time| *time < last);
    let late = |time: f64| {
        let reached = own.iter().find(|(_, window)| *window >= 0.95 * at(other, time));
        reached.map_or(f64::INFINITY, |(when, _)| (when - time).max(0.0))
    };
    middles.map(late).fold(0.0, f64::max)
}

/// The largest difference between windows of a run at one look, segments, from two round trips after the last flow began.
pub fn spread(race: &Race) -> f64 {
    let last = race.flows.iter().map(|flow| flow.began.as_ns()).max().unwrap_or(0);
    let from = (last + 2 * race.setting.path.rtt.as_ns()).div_ceil(race.every.as_ns()) as usize;
    let at = |look: usize| race.flows.iter().filter_map(move |flow| flow.samples.get(look)).map(|s| s.cwnd);
    let looks = from..race.queue.len();
    let of_look = |look| at(look).max().unwrap_or(0) - at(look).min().unwrap_or(0);
    looks.map(|look| f64::from(of_look(look)) / SEGMENT).fold(0.0, f64::max)
}

/// Quartiles of the throughput of the first flow between looks, Mbit/s, and of the path's round-trip time with what the bottleneck's queue adds,
/// milliseconds; without the first two seconds. The flow's own round-trip time is no measure: how many samples its datapath takes, and so how fast it
/// follows, depends on the algorithm.
pub fn distributions(race: &Race) -> ([f64; 3], [f64; 3]) {
    let every = race.every.as_ns() as f64 / 1e9;
    let samples = race.flows.first().map_or(&[][..], |flow| &flow.samples);
    let seen = samples.get((2.0 / every) as usize..).unwrap_or_default();
    let rates = seen
        .iter()
        .zip(seen.iter().skip(1))
        .map(|(a, b)| (b.received - a.received) as f64 * 8.0 / every / 1e6);
    let ms = |time: &Duration| time.as_ns() as f64 / 1e6;
    let waits = race.waits.get((2.0 / every) as usize..).unwrap_or_default();
    let delays = waits.iter().map(|wait| ms(&race.setting.path.rtt) + ms(wait));
    (quartiles_of(rates.collect()), quartiles_of(delays.collect()))
}

fn quartiles_of(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [0.25, 0.5, 0.75].map(|share| percentile(&values, share).unwrap_or(f64::NAN))
}

/// The text of a made trace: the rate of a line wanders between 2 and 24 Mbit/s, in the manner of a cellular line's. Each seed has
/// its own: a minute has only half a dozen losses.
pub fn cell_trace(seed: u64) -> String {
    let mut rng = Seed::new(TRACE_SEED + seed);
    let [least, most] = TRACE_RATES;
    let (mut rate, mut credit, mut text) = (most / 2.0, 0.0, String::new());
    for ms in 1..=TRACE_MS {
        if ms % TRACE_STEP_MS == 0 {
            // A factor from 0.7 to 1.43.
            let u = rng.below(1 << 20) as f64 / f64::from(1 << 20);
            rate = (rate * (0.7_f64.ln() * (1.0 - 2.0 * u)).exp()).clamp(least, most);
        }
        credit += rate / 1_500.0;
        while credit >= 1.0 {
            credit -= 1.0;
            text.push_str(&format!("{ms}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(of: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (0..1000).map(|look| f64::from(look) / 100.0).map(|at| (at, of(at))).collect()
    }

    #[test]
    fn pulses_dips_and_cuts_are_counted() {
        let pulses = curve(|at| if at % 0.5 < 0.05 { 1.25 } else { 1.0 });
        assert!((period(&pulses, 1.0).expect("pulses") - 0.5).abs() < 0.01);
        assert_eq!(period(&curve(|_| 1.0), 0.0), None);
        let windows = curve(|at| if at % 3.0 < 0.1 { 4.0 } else { 100.0 });
        let (distance, least) = dips(&windows, 1.0);
        assert!((distance.expect("dips") - 3.0).abs() < 0.01 && least == 4.0);
        let saw = curve(|at| 70.0 + 30.0 * (at % 1.0));
        assert!((back_off(&saw).expect("cuts") - 0.7).abs() < 0.02);
        assert_eq!(back_off(&curve(|_| 1.0)), None);
    }

    #[test]
    fn a_late_curve_is_behind_and_another_one_is_off() {
        let doubling = curve(|at| 2.0_f64.powf(at.floor()));
        let late = curve(|at| 2.0_f64.powf((at - 0.75).max(0.0).floor()));
        assert_eq!((off(&doubling, &doubling), behind(&doubling, &doubling)), (0.0, 0.0));
        assert!((off(&late, &doubling) - 0.5).abs() < 0.01);
        assert!((0.2..0.3).contains(&behind(&late, &doubling)));
    }

    #[test]
    fn the_trace_is_a_trace_of_changing_rates() {
        let text = cell_trace(1);
        let trace = link::Trace::parse("cell", &text).expect("a trace");
        assert!((2_000_000..24_000_000).contains(&trace.rate_mean()), "{}", trace.rate_mean());
        assert_eq!(text, cell_trace(1));
        assert_ne!(text, cell_trace(2));
    }
}
