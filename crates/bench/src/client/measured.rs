//! The results of one run of a client.

use super::QUANTILES;
use crate::samples::{Sample, Samples};
use anyhow::bail;

/// The results of one run.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// Requests per second.
    pub rate: f64,
    /// Latencies in microseconds, one for each of [`QUANTILES`], then the longest.
    latencies_us: Vec<f64>,
    /// Processor time per request, of all processes that took part, in nanoseconds.
    pub cpu_ns: f64,
    cores: f64,
}

impl Measured {
    /// Reads the client's answer (see [`Window::answer`](super::Window::answer)).
    ///
    /// # Errors
    /// When the answer has fewer than three numbers.
    pub fn new(answer: &[f64]) -> anyhow::Result<Self> {
        let [requests, ns, cpu_ns, latencies @ ..] = answer else { bail!("no answer of the client") };
        Ok(Self {
            rate: requests * 1e9 / ns,
            latencies_us: latencies.iter().map(|ns| ns / 1e3).collect(),
            cpu_ns: cpu_ns / requests,
            cores: cpu_ns / ns,
        })
    }

    /// The better value of the two runs for each number separately.
    #[must_use]
    pub fn better(&self, other: &Self) -> Self {
        let pairs = self.latencies_us.iter().zip(&other.latencies_us);
        Self {
            rate: self.rate.max(other.rate),
            latencies_us: pairs.map(|(a, b)| a.min(*b)).collect(),
            cpu_ns: self.cpu_ns.min(other.cpu_ns),
            cores: self.cores.min(other.cores),
        }
    }

    /// `value` as a sample, with the cores and processor time of this run.
    pub fn sample(&self, value: f64) -> Sample {
        Sample { value, cores: Some(self.cores), cpu_ns: Some(self.cpu_ns) }
    }

    /// Adds the rate, median and 99th percentile.
    pub fn add_rate(&self, case: &str, system: &str, samples: &mut Samples) {
        samples.add(case, system, "rate", "1/s", self.sample(self.rate));
        for (share, us) in QUANTILES.iter().zip(&self.latencies_us) {
            if [0.5, 0.99].contains(share) {
                samples.add(case, system, &percentile(*share), "us", self.sample(*us));
            }
        }
    }

    /// Adds all quantiles and the longest latency.
    pub fn add_latencies(&self, case: &str, system: &str, samples: &mut Samples) {
        let names = QUANTILES.iter().map(|share| percentile(*share)).chain(["max".to_owned()]);
        for (name, us) in names.zip(&self.latencies_us) {
            samples.add(case, system, &name, "us", self.sample(*us));
        }
    }
}

/// The name of a quantile: `p99.9` for 0.999.
fn percentile(share: f64) -> String {
    // Round: the float is not exact, and four digits after the percentage's point suffice.
    format!("p{}", (share * 1e6).round() / 1e4)
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentiles_have_their_usual_names() {
        let names: Vec<String> = super::QUANTILES.iter().map(|share| percentile(*share)).collect();
        assert_eq!(names, ["p50", "p75", "p90", "p99", "p99.9", "p99.99"]);
    }
}
