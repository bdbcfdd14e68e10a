//! Whether to spin before sleeping, and for how long: as long as it has paid lately.
//!
//! A wake-up costs about ten times a look at shared memory, but a spinning thread keeps a core from whoever would bring
//! the news. So: spin only within a budget that grows when news came in time and shrinks when it did not, and give the
//! core away (`sched_yield`) all the time meanwhile.

use crate::config;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Below this a spin is not worth the two looks at the clock.
const LEAST_NS: u64 = 1_000;

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

    /// Looks until `news` says true (then true) or the budget or `limit` is used up.
    pub fn until(&self, limit: Option<Duration>, mut news: impl FnMut() -> bool) -> bool {
        let most = limit.map_or(u64::MAX, |l| l.as_nanos().min(u128::from(u64::MAX)) as u64);
        let budget = self.budget_ns.load(Ordering::Relaxed).min(most);
        if budget < LEAST_NS {
            // Now and then a try at the least budget, or it could never grow again.
            self.grow_from_nothing();
            return news();
        }
        let start = Instant::now();
        loop {
            for _ in 0..16 {
                if news() {
                    self.paid();
                    return true;
                }
                std::hint::spin_loop();
            }
            rustix::thread::sched_yield();
            if start.elapsed().as_nanos() as u64 >= budget {
                break;
            }
        }
        self.failed();
        news()
    }

    fn paid(&self) {
        let now = self.budget_ns.load(Ordering::Relaxed);
        if now < self.most_ns {
            self.budget_ns.store((now * 2).clamp(LEAST_NS, self.most_ns), Ordering::Relaxed);
        }
    }

    fn failed(&self) {
        let now = self.budget_ns.load(Ordering::Relaxed);
        self.budget_ns.store(now / 2, Ordering::Relaxed);
    }

    fn grow_from_nothing(&self) {
        if self.most_ns >= LEAST_NS {
            let now = self.budget_ns.load(Ordering::Relaxed);
            self.budget_ns.store((now + LEAST_NS / 16).min(self.most_ns), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_pay_is_done_less() {
        let spin = Spin { most_ns: 8_000, budget_ns: AtomicU64::new(8_000) };
        for _ in 0..4 {
            assert!(!spin.until(None, || false));
        }
        assert!(spin.budget_ns.load(Ordering::Relaxed) < LEAST_NS);
        for _ in 0..17 {
            assert!(spin.until(None, || true));
        }
        assert!(spin.budget_ns.load(Ordering::Relaxed) >= LEAST_NS);
    }
}
