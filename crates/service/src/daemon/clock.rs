//! The one clock of all threads: nanoseconds since the service started.

use std::time::Instant;

/// The operating system's time at which the service's clock shows 0.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that shows 0 now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The operating system's time at which the clock shows 0.
    pub fn began(self) -> Instant {
        self.0
    }

    /// The present time, as the protocol crates count it.
    pub fn now(self) -> base::Instant {
        count(self.0, Instant::now())
    }
}

/// The operating system's time `at` as the protocol crates count it: from `began` on.
pub fn count(began: Instant, at: Instant) -> base::Instant {
    let ns = at.saturating_duration_since(began).as_nanos();
    base::Instant::from_ns(u64::try_from(ns).unwrap_or(u64::MAX - 1))
}
