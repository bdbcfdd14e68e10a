//! Nimbus' detector: a Fourier transform of others' rates, which looks for the flow's own pulses. It decides nothing.

use std::collections::VecDeque;

use rustfft::Fft;
use rustfft::num_complex::Complex;

/// Samples of one transform: 5 s, so that its bins are 0.2 Hz wide.
pub const SAMPLES: usize = 500;
/// The bin of the transform in which the pulses lie: 5 Hz.
const PULSE_BIN: usize = 25;

/// How far the pulses' bin stands above the bins up to twice its frequency; 0 with too few samples.
pub fn elasticity(transform: &dyn Fft<f64>, samples: &VecDeque<f64>) -> f64 {
    if samples.len() < SAMPLES {
        return 0.0;
    }
    let mean = samples.iter().sum::<f64>() / SAMPLES as f64;
    let mut bins: Vec<Complex<f64>> = samples.iter().map(|rate| Complex::new(rate - mean, 0.0)).collect();
    transform.process(&mut bins);
    let highest =
        |range: std::ops::Range<usize>| bins[range].iter().map(|bin| bin.norm()).fold(0.0, f64::max);
    // The neighbours of the pulses' bin hold what leaks out of it.
    highest(PULSE_BIN - 1..PULSE_BIN + 2) / highest(PULSE_BIN + 2..2 * PULSE_BIN).max(1.0)
}
