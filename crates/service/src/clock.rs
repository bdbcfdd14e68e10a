//! The one clock of all threads: nanoseconds since the service started.

use std::time::Instant;

/// Since when time is counted.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// From now on.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The present, as the protocol crates count it.
    pub fn now(self) -> base::Instant {
        let ns = self.0.elapsed().as_nanos();
        base::Instant::from_ns(u64::try_from(ns).unwrap_or(u64::MAX - 1))
    }

    /// As the operating system counts it.
    pub fn system(self, at: base::Instant) -> Instant {
        self.0 + std::time::Duration::from_nanos(at.as_ns())
    }
}
