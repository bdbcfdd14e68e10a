//! A rate limit: so many times a second, and as many at once.

use base::Instant;

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    per_second: u32,
    tokens: u32,
    filled_at: Instant,
}

impl Limit {
    pub(crate) fn new(per_second: u32, now: Instant) -> Self {
        Self { per_second, tokens: per_second, filled_at: now }
    }

    /// True, and one token less, when the limited action may be done now.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let ns = now.since(self.filled_at).as_ns().min(1_000_000_000);
        let earned = (ns * u64::from(self.per_second) / 1_000_000_000) as u32;
        if earned > 0 {
            self.tokens = self.tokens.saturating_add(earned).min(self.per_second);
            self.filled_at = now;
        }
        let may = self.tokens > 0;
        self.tokens -= u32::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Duration;

    #[test]
    fn at_most_so_many_a_second() {
        let mut limit = Limit::new(10, Instant::ZERO);
        assert_eq!((0..100).filter(|_| limit.take(Instant::ZERO)).count(), 10);
        let later = |ms| Instant::ZERO.plus(Duration::from_ms(ms));
        assert_eq!((0..10).filter(|_| limit.take(later(250))).count(), 2);
        assert_eq!((0..100).filter(|_| limit.take(later(60_000))).count(), 10);
    }
}
