//! Random choices from a seed: which key is requested, and when.

use base::Seed;

/// A random number in [0, 1).
fn uniform(random: &mut Seed) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Chooses keys by Zipf's law: the i-th most popular key with a probability proportional to 1/i^skew.
pub struct Zipf {
    /// For each key: the sum of its weight and the weights of all keys before it.
    sums: Vec<f64>,
}

impl Zipf {
    /// A distribution over `keys` keys (at least 1); `skew` is the exponent in hundredths.
    pub fn new(keys: u32, skew: u32) -> Self {
        let exponent = f64::from(skew) / 100.0;
        let mut sum = 0.0;
        let add = |i| {
            sum += f64::from(i).powf(-exponent);
            sum
        };
        Self { sums: (1..=keys).map(add).collect() }
    }

    /// A random key's number, from 0.
    pub fn pick(&self, random: &mut Seed) -> u32 {
        let all = self.sums.last().copied().unwrap_or(0.0);
        let wanted = uniform(random) * all;
        let key = self.sums.partition_point(|up_to| *up_to <= wanted);
        key.min(self.sums.len().saturating_sub(1)) as u32
    }
}

/// Times of a Poisson process: each interval is independent of all earlier intervals.
pub struct Poisson {
    random: Seed,
    mean_ns: f64,
    next_ns: u64,
}

impl Poisson {
    /// `rate` times per second; the first time is `start_ns` itself.
    pub fn new(seed: u64, start_ns: u64, rate: f64) -> Self {
        Self { random: Seed::new(seed), mean_ns: 1e9 / rate, next_ns: start_ns }
    }

    /// The next time, in nanoseconds.
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Moves on to the time after it.
    pub fn advance(&mut self) {
        // At least 1 ns, so that no time comes twice.
        self.next_ns += 1 + (-(1.0 - uniform(&mut self.random)).ln() * self.mean_ns) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_wanted_key_has_its_share() {
        const PICKED: u32 = 1 << 16;
        let (zipf, mut random) = (Zipf::new(100_000, 90), Seed::new(7));
        let picked: Vec<u32> = (0..PICKED).map(|_| zipf.pick(&mut random)).collect();
        let share = |key| picked.iter().filter(|k| **k == key).count() as f64 / f64::from(PICKED);
        // The sum of i^-0.9 up to 100,000 is about 22.2.
        assert!((share(0) * 22.2 - 1.0).abs() < 0.1, "{}", share(0));
        assert!(share(0) > share(9) && picked.iter().any(|key| *key > 50_000));
        assert_eq!(Zipf::new(1, 90).pick(&mut random), 0);
    }

    #[test]
    fn times_come_at_their_rate_and_never_twice() {
        let mut times = Poisson::new(3, 1_000, 50_000.0);
        let mut before = 0;
        for _ in 0..100_000 {
            assert!(times.next_ns() > before);
            before = times.next_ns();
            times.advance();
        }
        let seconds = times.next_ns() as f64 / 1e9;
        assert!((seconds - 2.0).abs() < 0.05, "{seconds}");
    }
}
