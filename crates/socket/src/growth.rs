//! How much of our application region is present. One thread at a time makes more of it: what is announced to the service
//! must be there from the beginning, and a part that another thread is still working on is not.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Nobody is at it.
const IDLE: u32 = 0;
/// A thread is.
const GROWING: u32 = 1;
/// A thread is, and the service has asked for more meanwhile.
const AGAIN: u32 = 2;

/// How long to wait for another thread's growth. Populating 128 MiB takes about 50 ms; a signal handler that interrupts
/// the thread that grows would wait for ever.
const PATIENCE: Duration = Duration::from_millis(500);

/// How far the region is present.
#[derive(Debug)]
pub struct Growth {
    state: AtomicU32,
    bytes: AtomicU64,
}

impl Growth {
    /// The first `bytes` of each side are present.
    pub const fn new(bytes: u64) -> Self {
        Self { state: AtomicU32::new(IDLE), bytes: AtomicU64::new(bytes) }
    }

    /// Doubles what is present, to `limit` at most, by `populate(from, to)`, which says whether it succeeded. While another
    /// thread is at it, that thread does this growth, too, afterwards.
    pub fn demand(&self, limit: u64, populate: impl FnMut(u64, u64) -> bool) {
        let was = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            Some(if state == IDLE { GROWING } else { AGAIN })
        });
        if was == Ok(IDLE) {
            self.work(limit, populate);
        }
    }

    /// Like [`Growth::demand`], but another thread's growth will do: it is waited for.
    pub fn share(&self, limit: u64, populate: impl FnMut(u64, u64) -> bool) {
        let begin =
            || self.state.compare_exchange(IDLE, GROWING, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if begin() {
            return self.work(limit, populate);
        }
        let end = Instant::now() + PATIENCE;
        while self.state.load(Ordering::Acquire) != IDLE && Instant::now() < end {
            std::thread::yield_now();
        }
    }

    fn work(&self, limit: u64, mut populate: impl FnMut(u64, u64) -> bool) {
        loop {
            // Only the thread that is at it writes `bytes`; the next one comes after it by `state`.
            let from = self.bytes.load(Ordering::Relaxed);
            let to = (from * 2).min(limit);
            if to > from && populate(from, to) {
                self.bytes.store(to, Ordering::Relaxed);
            }
            if self.state.compare_exchange(GROWING, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return;
            }
            self.state.store(GROWING, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_announces_what_another_thread_is_still_populating() {
        const LIMIT: u64 = 1 << 30;
        let (growth, present) = (Growth::new(1 << 20), AtomicU64::new(1 << 20));
        let populate = |from: u64, to: u64| {
            assert_eq!(present.load(Ordering::SeqCst), from, "everything below is present already");
            std::thread::yield_now();
            assert_eq!(present.swap(to, Ordering::SeqCst), from, "nobody else is at it");
            true
        };
        std::thread::scope(|scope| {
            for i in 0..8 {
                let growth = &growth;
                scope.spawn(move || {
                    if i % 2 == 0 { growth.demand(LIMIT, populate) } else { growth.share(LIMIT, populate) }
                });
            }
        });
        assert!(present.load(Ordering::SeqCst) >= 2 << 20, "somebody was at it");
    }

    #[test]
    fn a_demand_while_growing_is_done_afterwards_by_the_same_thread() {
        let growth = Growth::new(1);
        let mut steps = Vec::new();
        growth.demand(1 << 20, |from, to| {
            if from == 1 {
                growth.demand(1 << 20, |_, _| panic!("only one thread is at it"));
            }
            steps.push((from, to));
            true
        });
        assert_eq!(steps, [(1, 2), (2, 4)]);
    }

    #[test]
    fn a_failed_growth_may_be_tried_again() {
        let growth = Growth::new(4);
        growth.demand(64, |_, _| false);
        let mut steps = Vec::new();
        growth.share(64, |from, to| {
            steps.push((from, to));
            true
        });
        assert_eq!(steps, [(4, 8)]);
    }
}
