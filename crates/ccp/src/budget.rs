//! A budget of messages per second, as a bucket of nanoseconds. It forgets what was not used within 10 ms.

use base::{Duration, Instant};

/// The bucket holds what 10 ms allow, so that a burst after a pause is no longer than the interval of the usual reports.
const BURST: Duration = Duration::from_ms(10);
const SECOND_NS: u64 = 1_000_000_000;

/// Messages that may go now.
#[derive(Clone, Debug)]
pub struct Budget {
    /// What one message costs.
    cost_ns: u64,
    /// The largest debt-free balance; at least one message.
    most_ns: u64,
    balance_ns: u64,
    last: Instant,
}

impl Budget {
    pub fn new(per_second: u32) -> Self {
        let cost_ns = SECOND_NS.div_ceil(u64::from(per_second.max(1)));
        let most_ns = BURST.as_ns().max(cost_ns);
        Self { cost_ns, most_ns, balance_ns: most_ns, last: Instant::ZERO }
    }

    /// Adds what the time since the last call allows.
    pub fn refill(&mut self, now: Instant) {
        let passed = now.since(self.last).as_ns();
        self.balance_ns = self.balance_ns.saturating_add(passed).min(self.most_ns);
        self.last = self.last.max(now);
    }

    /// True if one more message may go.
    pub fn has_room(&self) -> bool {
        self.balance_ns >= self.cost_ns
    }

    /// Takes one message out of the budget.
    pub fn take(&mut self) {
        self.balance_ns = self.balance_ns.saturating_sub(self.cost_ns);
    }

    /// When one more message may go.
    pub fn ready_at(&self) -> Instant {
        self.last.plus(Duration::from_ns(self.cost_ns.saturating_sub(self.balance_ns)))
    }
}
