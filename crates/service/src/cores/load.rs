//! How busy each core is: time in rounds with work, counted by the cores, read by what decides how many cores something should use. Decides
//! nothing.

use base::{Duration, Instant};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number in a cache line of its own: cores write theirs in every round.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

/// Busy nanoseconds of each core since its start. Each core writes its own number.
#[derive(Clone, Debug)]
pub struct Loads(Arc<[Line]>);

impl Loads {
    /// The loads of so many cores.
    pub fn new(cores: usize) -> Self {
        Self((0..cores).map(|_| Line::default()).collect())
    }

    /// The core has worked for that time. Only the core itself calls it.
    pub fn add(&self, core: u8, time: Duration) {
        if let Some(Line(busy)) = self.0.get(usize::from(core)) {
            busy.store(busy.load(Ordering::Relaxed) + time.as_ns(), Ordering::Relaxed);
        }
    }

    /// Busy time of each core since the core's start.
    fn busy(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|Line(busy)| busy.load(Ordering::Relaxed))
    }
}

/// The share of time for which each core was busy between two looks.
#[derive(Debug)]
pub struct Shares {
    loads: Loads,
    before: Vec<u64>,
    since: Instant,
    /// Busy time per thousand, by core.
    shares: Vec<u32>,
}

impl Shares {
    /// Shares from `now` on.
    pub fn new(loads: Loads, now: Instant) -> Self {
        let before: Vec<u64> = loads.busy().collect();
        Self { shares: vec![0; before.len()], before, since: now, loads }
    }

    /// The shares between the last call and `now`, per thousand. Returns the time between the two.
    pub fn look(&mut self, now: Instant) -> Duration {
        let passed = now.since(self.since);
        let all = self.loads.busy().zip(&mut self.before).zip(&mut self.shares);
        for ((busy, before), share) in all {
            *share = ((busy - *before) * 1_000 / passed.as_ns().max(1)).min(1_000) as u32;
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

    #[test]
    fn a_share_is_the_busy_time_between_two_looks() {
        let loads = Loads::new(2);
        let at = |ms| Instant::ZERO.plus(Duration::from_ms(ms));
        let mut shares = Shares::new(loads.clone(), at(0));
        loads.add(1, Duration::from_ms(5));
        assert_eq!(shares.look(at(10)), Duration::from_ms(10));
        assert_eq!((shares.of(0), shares.of(1), shares.of(2)), (0, 500, 0));
        loads.add(1, Duration::from_ms(30));
        shares.look(at(20));
        assert_eq!(shares.of(1), 1_000, "a round that began before the last look");
    }
}
