//! Which applications receive in bulk, and the sum of the windows of each: so that several of them share evenly what comes in. A flow is
//! bulk while its core says so; this counts, and decides about no flow.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// The number of a service's applications that have a bulk flow which receives.
#[derive(Clone, Debug, Default)]
pub struct Receivers(Arc<AtomicU32>);

impl Receivers {
    /// True when several applications receive in bulk.
    #[must_use]
    #[inline]
    pub fn are_several(&self) -> bool {
        // Relaxed, here and below: counts and sums, which order nothing. Two cores may count an application out before it is counted in.
        self.0.load(Ordering::Relaxed).cast_signed() > 1
    }
}

/// The bulk flows of one application that receive.
#[derive(Debug, Default)]
pub struct BulkFlows {
    flows: AtomicU32,
    /// The sum of their windows, bytes.
    windows: AtomicU64,
}

impl BulkFlows {
    /// Counts a flow in, whose window is `window` bytes.
    pub fn add(&self, window: u32, receivers: &Receivers) {
        self.windows.fetch_add(window.into(), Ordering::Relaxed);
        if self.flows.fetch_add(1, Ordering::Relaxed) == 0 {
            receivers.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts out a flow that was counted in, and whose window is `window` bytes now.
    pub fn remove(&self, window: u32, receivers: &Receivers) {
        self.windows.fetch_sub(window.into(), Ordering::Relaxed);
        if self.flows.fetch_sub(1, Ordering::Relaxed) == 1 {
            receivers.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The window of a flow that is counted in changes, from `before` to `after` bytes.
    pub fn resize(&self, before: u32, after: u32) {
        self.windows.fetch_add(after.into(), Ordering::Relaxed);
        self.windows.fetch_sub(before.into(), Ordering::Relaxed);
    }

    /// The sum of the flows' windows, bytes.
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.windows.load(Ordering::Relaxed)
    }

    /// True when a window of `window` bytes is more than a flow's part of `most`, and the sum, from which it differs by `more` bytes that
    /// are not counted yet, leaves no room for a second one. So flows that come late find something, and all that want more get the same.
    #[must_use]
    pub fn is_greedy(&self, window: u32, more: u32, most: u64) -> bool {
        let part = most / u64::from(self.flows.load(Ordering::Relaxed).max(1));
        u64::from(window) > part && self.windows() + u64::from(more) + u64::from(window) > most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_application_counts_as_long_as_it_has_a_bulk_flow() {
        let (receivers, one, other) = (Receivers::default(), BulkFlows::default(), BulkFlows::default());
        one.add(4096, &receivers);
        one.add(8192, &receivers);
        assert!(!receivers.are_several());
        other.add(65_536, &receivers);
        assert!(receivers.are_several());
        one.resize(8192, 16_384);
        assert_eq!((one.windows(), other.windows()), (20_480, 65_536));
        one.remove(4096, &receivers);
        assert!(receivers.are_several());
        one.remove(16_384, &receivers);
        assert!(!receivers.are_several() && one.windows() == 0);
    }

    #[test]
    fn a_part_is_never_greedy_and_more_than_that_only_without_room() {
        let (receivers, flows) = (Receivers::default(), BulkFlows::default());
        (0..10).for_each(|_| flows.add(100, &receivers));
        assert!(!flows.is_greedy(200, 0, 2000), "its part");
        assert!(!flows.is_greedy(201, 0, 2000), "there is room");
        assert!(flows.is_greedy(201, 800, 2000) && flows.is_greedy(1001, 0, 2000));
        assert!(!flows.is_greedy(200, 100_000, 2000));
    }
}
