//! Nimbus' pulses and their detector: a Fourier transform of others' rates, which looks for the flow's own pulses. It decides nothing.

use std::collections::VecDeque;
use std::f64::consts::PI;

use rustfft::Fft;
use rustfft::num_complex::Complex;

/// Samples of one transform: 5 s, so that its bins are 0.2 Hz wide.
pub const SAMPLES: usize = 500;
/// Time between two samples, microseconds.
pub const INTERVAL_US: u64 = 10_000;
/// Pulses per second, and the bin of the transform in which they lie.
const PULSES: f64 = 5.0;
const PULSE_BIN: usize = 25;

/// The asymmetric pulse at a time, for a height of 1: half a wave up in a quarter of its time, and a flatter one down in the rest.
pub fn pulse(now_us: u64) -> f64 {
    let phase = (now_us as f64 / 1e6 * PULSES).fract();
    if phase < 0.25 { (PI * phase / 0.25).sin() } else { -(PI * (phase - 0.25) / 0.75).sin() / 3.0 }
}

/// The last 5 s of a rate, in samples at equal distances. Reports come at unequal ones: with the first acknowledgement after an interval, which is
/// later the slower the flow is. Taken as they come they would show the pulses at a frequency that depends on the flow's rate.
#[derive(Debug, Default)]
pub struct Series {
    /// Samples in the order of time, the newest at the end.
    samples: VecDeque<f64>,
    /// The last rate that was noted, with its time in microseconds.
    last: Option<(f64, f64)>,
    /// The time of the next sample, microseconds.
    next: f64,
}

impl Series {
    /// Notes the rate at `now`, microseconds; between two of them it is taken to change evenly.
    pub fn note(&mut self, now: f64, rate: f64) {
        let Some((before, old)) = self.last.replace((now, rate)) else {
            self.next = now + INTERVAL_US as f64;
            return self.push(rate);
        };
        // After a long silence only the samples of the last 5 s count.
        self.next = self.next.max(now - (SAMPLES as u64 * INTERVAL_US) as f64);
        while self.next <= now && before < now {
            self.push(old + (self.next - before) / (now - before) * (rate - old));
            self.next += INTERVAL_US as f64;
        }
    }

    fn push(&mut self, rate: f64) {
        self.samples.push_back(rate);
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
    }

    /// The mean of the last `count` samples, or of those that there are; 0 without any.
    pub fn mean(&self, count: usize) -> f64 {
        let count = count.min(self.samples.len());
        self.samples.iter().rev().take(count).sum::<f64>() / count.max(1) as f64
    }

    /// What the pulses' frequency has of the last 5 s; `None` with fewer samples.
    pub fn swing(&self, transform: &dyn Fft<f64>) -> Option<Swing> {
        if self.samples.len() < SAMPLES {
            return None;
        }
        let mean = self.mean(SAMPLES);
        let mut bins: Vec<Complex<f64>> =
            self.samples.iter().map(|rate| Complex::new(rate - mean, 0.0)).collect();
        transform.process(&mut bins);
        let highest =
            |range: std::ops::Range<usize>| bins[range].iter().map(|bin| bin.norm()).fold(1.0, f64::max);
        // The neighbours of the pulses' bin hold what leaks out of it.
        let pulses = highest(PULSE_BIN - 1..PULSE_BIN + 2);
        Some(Swing { pulses, beside: highest(PULSE_BIN + 2..2 * PULSE_BIN) })
    }
}

/// How much a rate swings: heights of bins of the transform, at least 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Swing {
    /// At the pulses' frequency.
    pub pulses: f64,
    /// The highest from there up to twice that frequency.
    pub beside: f64,
}

impl Swing {
    /// How far the pulses stand out of what is beside them.
    pub fn elasticity(self) -> f64 {
        self.pulses / self.beside
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustfft::FftPlanner;

    /// Elasticity of a rate that swings at 5 Hz beside a smaller swing at 8 Hz, noted each `every` microseconds.
    fn seen(every: u64) -> f64 {
        let mut series = Series::default();
        for us in (0..6_000_000).step_by(every as usize) {
            let turn = |hertz: f64| (us as f64 / 1e6 * hertz * std::f64::consts::TAU).sin();
            series.note(us as f64, 1e6 + 1e5 * turn(5.0) + 2e4 * turn(8.0));
        }
        let swing = series.swing(FftPlanner::new().plan_fft_forward(SAMPLES).as_ref());
        swing.expect("6 s of samples").elasticity()
    }

    #[test]
    fn pulses_are_found_whatever_the_distance_of_reports() {
        for every in [10_000, 10_700, 11_300, 13_000, 17_000] {
            let eta = seen(every);
            assert!((4.0..6.5).contains(&eta), "{eta} with reports each {every} us");
        }
    }

    #[test]
    fn a_silence_is_filled_and_a_time_that_stands_still_adds_nothing() {
        let mut series = Series::default();
        series.note(0.0, 100.0);
        series.note(40_000.0, 200.0);
        assert_eq!(series.samples, [100.0, 125.0, 150.0, 175.0, 200.0]);
        series.note(40_000.0, 300.0);
        assert_eq!((series.samples.len(), series.mean(1)), (5, 200.0));
        series.note(1e9, 300.0);
        assert_eq!((series.samples.len(), series.mean(SAMPLES)), (SAMPLES, 300.0));
    }
}
