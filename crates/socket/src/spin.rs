//! Whether to spin before sleeping, and for how long: as long as it has paid lately.
//!
//! A wake-up costs about ten times a look at shared memory, but a spinning thread keeps a core from whoever would bring
//! the news. So: spin only within a budget, and give the core away (`sched_yield`) all the time meanwhile. The budget is
//! judged by how long the whole wait took, sleep included: two sides that both sleep answer each other in 30 to 70 us, and
//! would never find out that both spinning takes 7 us if each judged only its own spin.

use crate::{config, locked};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Below this a spin is not worth the two looks at the clock.
const LEAST_NS: u64 = 1_000;
/// What two wake-ups cost: a wait that was longer than the budget by no more than this might have been short.
const WAKE_UPS_NS: u64 = 100_000;

/// One sleeper's budget.
#[derive(Debug)]
pub struct Spin {
    most_ns: u64,
    budget_ns: AtomicU64,
}

impl Spin {
    /// At most `most_ns`, or what the user's environment says.
    #[must_use]
    pub fn new(most_ns: u64) -> Self {
        let most_ns = config::spin().map_or(most_ns, |d| d.as_nanos() as u64);
        Self { most_ns, budget_ns: AtomicU64::new(most_ns) }
    }

    /// True when it has paid lately.
    pub fn pays(&self) -> bool {
        self.budget_ns.load(Ordering::Relaxed) >= LEAST_NS
    }

    /// Looks until `news` says true (then true) or the budget or `limit` is used up.
    pub fn until(&self, limit: Option<Duration>, mut news: impl FnMut() -> bool) -> bool {
        let most = limit.map_or(u64::MAX, |l| l.as_nanos().min(u128::from(u64::MAX)) as u64);
        let budget = self.budget_ns.load(Ordering::Relaxed).min(most);
        if budget < LEAST_NS || !locked::may(libc::SYS_sched_yield) {
            return news();
        }
        let start = Instant::now();
        loop {
            for _ in 0..16 {
                if news() {
                    return true;
                }
                std::hint::spin_loop();
            }
            rustix::thread::sched_yield();
            if start.elapsed().as_nanos() as u64 >= budget {
                break;
            }
        }
        news()
    }

    /// The spin was over, then came sleep, and the whole wait took so long.
    pub fn waited(&self, whole: Duration) {
        let soon = whole.as_nanos() < u128::from(self.most_ns + WAKE_UPS_NS);
        let budget = if soon { self.most_ns } else { self.budget_ns.load(Ordering::Relaxed) / 2 };
        self.budget_ns.store(budget, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_end_spinning_and_a_short_one_brings_it_back() {
        let spin = Spin { most_ns: 8_000, budget_ns: AtomicU64::new(8_000) };
        for _ in 0..4 {
            assert!(!spin.until(None, || false));
            spin.waited(Duration::from_millis(5));
        }
        assert!(!spin.pays());
        spin.waited(Duration::from_micros(70));
        assert_eq!(spin.budget_ns.load(Ordering::Relaxed), 8_000);
    }
}
