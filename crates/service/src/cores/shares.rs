//! The share of time for which each core was busy between two looks. Decides nothing.

use base::{Duration, Instant};
use elastic::load::Loads;
use std::sync::Arc;

/// The share of time for which each core was busy between two looks.
#[derive(Debug)]
pub struct Shares {
    loads: Arc<Loads>,
    before: Vec<Duration>,
    since: Instant,
    /// Busy time per thousand, by core.
    shares: Vec<u32>,
}

impl Shares {
    /// Shares from `now` on.
    pub fn new(loads: Arc<Loads>, now: Instant) -> Self {
        let before = loads.busy();
        Self { shares: vec![0; before.len()], before, since: now, loads }
    }

    /// The shares between the last call and `now`, per thousand. Returns the time between the two.
    pub fn look(&mut self, now: Instant) -> Duration {
        let passed = now.since(self.since);
        let all = self.loads.busy().into_iter().zip(&mut self.before).zip(&mut self.shares);
        for ((busy, before), share) in all {
            let busy_ns = busy.as_ns() - before.as_ns();
            *share = (busy_ns * 1_000 / passed.as_ns().max(1)).min(1_000) as u32;
            *before = busy;
        }
        self.since = now;
        passed
    }

    /// Busy time of that core per thousand, as of the last look; 0 for a core that there is not.
    pub fn of(&self, core: usize) -> u32 {
        self.shares.get(core).copied().unwrap_or(0)
    }

    /// The numbers of all cores.
    pub fn cores(&self) -> std::ops::Range<usize> {
        0..self.shares.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elastic::load::LoadMeter;

    #[test]
    fn a_share_is_the_busy_time_between_two_looks() {
        let loads = Arc::new(Loads::new(2));
        let at = |ms| Instant::ZERO.plus(Duration::from_ms(ms));
        let mut shares = Shares::new(loads.clone(), at(0));
        let mut meter = LoadMeter::new(1);
        let mut busy = |from, to| {
            meter.begin(at(from), 0, &loads);
            meter.begin(at(to), 0, &loads);
            meter.idle();
        };
        busy(0, 5);
        assert_eq!(shares.look(at(10)), Duration::from_ms(10));
        assert_eq!((shares.of(0), shares.of(1), shares.of(2)), (0, 500, 0));
        busy(10, 40);
        shares.look(at(20));
        assert_eq!(shares.of(1), 1_000, "a round that began before the last look");
    }
}
