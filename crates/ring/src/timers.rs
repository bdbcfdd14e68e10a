//! Moments at which a ring tells its program something.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// The timers of one ring, the earliest first. They are never taken back: a program ignores one that it needs no more.
#[derive(Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(Instant, u64)>>);

impl Timers {
    /// Adds a timer that is due at `at`.
    pub(crate) fn add(&mut self, at: Instant, token: u64) {
        self.0.push(Reverse((at, token)));
    }

    /// The moment of the earliest timer.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    /// The token of a timer that is due at `now`.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<u64> {
        self.next().filter(|at| *at <= now)?;
        self.0.pop().map(|Reverse((_, token))| token)
    }

    /// The shorter of `left` and the time until the earliest timer.
    pub(crate) fn limit(&self, left: Option<Duration>) -> Option<Duration> {
        let until = self.next().map(|at| at.saturating_duration_since(Instant::now()));
        match (left, until) {
            (Some(left), Some(until)) => Some(left.min(until)),
            (left, until) => left.or(until),
        }
    }
}
