//! How long the messages of a load are, and when they come: draws from distributions, each from a seed.

use base::{Duration, Instant, Seed};

/// A distribution of lengths in bytes.
#[derive(Clone, PartialEq, Debug)]
pub enum Sizes {
    /// All of one length.
    Fixed(u64),
    /// Pareto's distribution, cut off at both ends.
    Pareto {
        /// The exponent, alpha: above 0.
        shape: f64,
        /// The shortest length, bytes.
        least: u64,
        /// The longest length, bytes.
        most: u64,
    },
    /// Lengths with the share of messages that are at most as long, ascending to 1; between two of them lengths are uniform.
    Empirical(Vec<(u64, f64)>),
}

/// The random process by which messages come.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arrivals {
    /// A Poisson process of so many messages per second.
    Poisson(f64),
    /// A Poisson process of so many messages per second while it is on. Times on and off are exponential, with these means.
    OnOff {
        /// Messages per second while on.
        per_second: f64,
        /// Mean length of a time in which messages come.
        on: Duration,
        /// Mean length of a time in which none come.
        off: Duration,
    },
}

/// A number from 0 (included) to 1 (not included).
fn uniform(rng: &mut Seed) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// A time with exponential distribution and this mean in seconds.
fn exponential(rng: &mut Seed, mean: f64) -> Duration {
    Duration::from_ns((-(1.0 - uniform(rng)).ln() * mean * 1e9) as u64)
}

impl Sizes {
    /// A length, at least 1.
    #[must_use]
    pub fn draw(&self, rng: &mut Seed) -> u64 {
        let bytes = match self {
            Self::Fixed(bytes) => *bytes,
            Self::Pareto { shape, least, most } => {
                let (u, low, high) = (uniform(rng), *least as f64, *most as f64);
                let ratio = (low / high).powf(*shape);
                (low / (1.0 - u * (1.0 - ratio)).powf(1.0 / shape)) as u64
            }
            Self::Empirical(points) => {
                let u = uniform(rng);
                let above = points.iter().position(|(_, share)| u < *share).unwrap_or(points.len() - 1);
                let (to, end) = points[above];
                let (from, begin) = above.checked_sub(1).map_or((0, 0.0), |below| points[below]);
                from + ((to - from) as f64 * (u - begin) / (end - begin).max(f64::MIN_POSITIVE)) as u64
            }
        };
        bytes.max(1)
    }

    /// The mean length in bytes.
    #[must_use]
    pub fn mean(&self) -> f64 {
        match self {
            Self::Fixed(bytes) => *bytes as f64,
            Self::Pareto { shape, least, most } => {
                let (a, low, high) = (*shape, *least as f64, *most as f64);
                let whole = 1.0 - (low / high).powf(a);
                if (a - 1.0).abs() < 1e-9 {
                    return low * (high / low).ln() / whole;
                }
                low.powf(a) / whole * a / (a - 1.0) * (low.powf(1.0 - a) - high.powf(1.0 - a))
            }
            Self::Empirical(points) => {
                let before = std::iter::once(&(0, 0.0)).chain(points);
                before
                    .zip(points)
                    .map(|((from, begin), (to, end))| (end - begin) * (from + to) as f64 / 2.0)
                    .sum()
            }
        }
    }
}

impl Arrivals {
    /// The times from `from` until just before `to`.
    #[must_use]
    pub fn draw(&self, rng: &mut Seed, from: Instant, to: Instant) -> Vec<Instant> {
        let mut times = Vec::new();
        match *self {
            Self::Poisson(per_second) => fill(rng, per_second, from, to, &mut times),
            Self::OnOff { per_second, on, off } => {
                let seconds = |time: Duration| time.as_ns() as f64 / 1e9;
                let share_on = seconds(on) / (seconds(on) + seconds(off));
                let (mut at, mut is_on) = (from, uniform(rng) < share_on);
                while at < to {
                    let end = at.plus(exponential(rng, seconds(if is_on { on } else { off }))).min(to);
                    if is_on {
                        fill(rng, per_second, at, end, &mut times);
                    }
                    (at, is_on) = (end, !is_on);
                }
            }
        }
        times
    }
}

fn fill(rng: &mut Seed, per_second: f64, from: Instant, to: Instant, times: &mut Vec<Instant>) {
    let mut at = from.plus(exponential(rng, 1.0 / per_second));
    while at < to {
        times.push(at);
        at = at.plus(exponential(rng, 1.0 / per_second));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_of(sizes: &Sizes) -> f64 {
        let mut rng = Seed::new(9);
        (0..400_000).map(|_| sizes.draw(&mut rng) as f64).sum::<f64>() / 400_000.0
    }

    #[test]
    fn draws_have_the_mean_and_the_bounds_of_their_distribution() {
        let pareto = Sizes::Pareto { shape: 1.2, least: 10_000, most: 10_000_000 };
        let empirical = Sizes::Empirical(vec![(1_000, 0.5), (10_000, 0.9), (1_000_000, 1.0)]);
        for sizes in [Sizes::Fixed(77), pareto, empirical] {
            let (got, want) = (mean_of(&sizes), sizes.mean());
            assert!((got / want - 1.0).abs() < 0.02, "{sizes:?}: {got} {want}");
        }
        let mut rng = Seed::new(2);
        let pareto = Sizes::Pareto { shape: 1.2, least: 10_000, most: 10_000_000 };
        assert!((0..100_000).all(|_| (9_999..=10_000_000).contains(&pareto.draw(&mut rng))));
        // P(X > 100 KB) of the unbounded distribution is 10^-1.2 = 6.3 %; the bound takes 1000^-1.2 of it away.
        let long = (0..100_000).filter(|_| pareto.draw(&mut rng) > 100_000).count();
        assert!((5_900..6_500).contains(&long), "{long}");
    }

    #[test]
    fn arrivals_have_their_rate() {
        let (from, to) = (Instant::from_ns(5), Instant::from_ns(100_000_000_005));
        let count = |arrivals: Arrivals| arrivals.draw(&mut Seed::new(3), from, to).len();
        let poisson = count(Arrivals::Poisson(500.0));
        assert!((49_000..51_000).contains(&poisson), "{poisson}");
        let (on, off) = (Duration::from_ms(10), Duration::from_ms(30));
        let on_off = count(Arrivals::OnOff { per_second: 2_000.0, on, off });
        assert!((46_000..54_000).contains(&on_off), "{on_off}");
        assert!(Arrivals::Poisson(500.0).draw(&mut Seed::new(3), from, to).is_sorted());
    }
}
