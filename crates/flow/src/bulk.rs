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
#[derive(Debug)]
pub struct BulkFlows {
    flows: AtomicU32,
    /// The sum of their windows, bytes.
    windows: AtomicU64,
    /// The least round-trip time of one of them, microseconds; `u32::MAX`: none is known.
    rtt_us_min: AtomicU32,
}

impl Default for BulkFlows {
    fn default() -> Self {
        let rtt_us_min = AtomicU32::new(u32::MAX);
        Self { flows: AtomicU32::default(), windows: AtomicU64::default(), rtt_us_min }
    }
}

impl BulkFlows {
    /// Counts a flow in; its window is `window` bytes.
    pub fn add(&self, window: u32, receivers: &Receivers) {
        self.windows.fetch_add(window.into(), Ordering::Relaxed);
        if self.flows.fetch_add(1, Ordering::Relaxed) == 0 {
            receivers.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts out a flow that was counted in; its window is `window` bytes now.
    pub fn remove(&self, window: u32, receivers: &Receivers) {
        self.windows.fetch_sub(window.into(), Ordering::Relaxed);
        if self.flows.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.rtt_us_min.store(u32::MAX, Ordering::Relaxed);
            receivers.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The window of a flow that is counted in changes, from `before` to `after` bytes.
    pub fn resize(&self, before: u32, after: u32) {
        self.windows.fetch_add(after.into(), Ordering::Relaxed);
        self.windows.fetch_sub(before.into(), Ordering::Relaxed);
    }

    /// Notes that a round trip of a flow that is counted in takes no longer than this.
    pub fn note_rtt(&self, rtt_us: u32) {
        if rtt_us < self.rtt_us_min.load(Ordering::Relaxed) {
            self.rtt_us_min.fetch_min(rtt_us, Ordering::Relaxed);
        }
    }

    /// The least round-trip time of a flow, microseconds; `None` if none is known. The bytes that wait here lengthen the round trips of
    /// flows that are opened meanwhile, but seldom those of all.
    #[must_use]
    pub fn rtt_us_min(&self) -> Option<u32> {
        Some(self.rtt_us_min.load(Ordering::Relaxed)).filter(|us| *us < u32::MAX)
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
        [700, 300, 500].into_iter().for_each(|us| one.note_rtt(us));
        assert_eq!((one.rtt_us_min(), other.rtt_us_min()), (Some(300), None));
        one.resize(8192, 16_384);
        assert_eq!((one.windows(), other.windows()), (20_480, 65_536));
        one.remove(4096, &receivers);
        assert!(receivers.are_several());
        one.remove(16_384, &receivers);
        assert!(!receivers.are_several() && one.windows() == 0 && one.rtt_us_min().is_none());
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
