//! How much of an application region is present. One thread at a time makes more of it present. What is announced to the
//! service must be present up to its end, so a part that another thread is still working on is not announced.

use crate::host::Host;
use base::limits::{BUFFER_INITIAL_DEFAULT, FIRST_WINDOWS};
use std::sync::atomic::{AtomicU64, Ordering};

/// No thread is growing the region. Else: 1 + the generation of that thread's process; a forked child lacks the thread.
const IDLE: u64 = 0;

/// The first window: what a peer may send over a port before it is told of more. Present from a connection's beginning, for the first
/// [`FIRST_WINDOWS`]. Bytes that come at once on more connections than there is memory for are lost, and some of these stay behind for
/// long.
const FIRST_WINDOW: u64 = BUFFER_INITIAL_DEFAULT as u64;
/// Connections for which first windows are present before they come: programs open several at once, and making memory present takes time.
const AHEAD: u64 = 16;
/// Bytes present for each of the others: ten segments (RFC 6928), which a peer sends before it has heard anything.
const FIRST_BURST: u64 = 16 << 10;
/// Most bytes present for connections on which nothing has come yet.
const FIRST_MOST: u64 = 32 << 20;

/// How far the region is present, as this process knows.
#[derive(Debug)]
pub struct Growth {
    host: &'static Host,
    owner: AtomicU64,
    present: AtomicU64,
    wanted: AtomicU64,
}

impl Growth {
    /// The first `bytes` of each side are present.
    pub const fn new(host: &'static Host, bytes: u64) -> Self {
        Self { host, owner: AtomicU64::new(IDLE), present: AtomicU64::new(bytes), wanted: AtomicU64::new(0) }
    }

    /// Bytes of each side that are present.
    #[inline]
    pub fn present(&self) -> u64 {
        self.present.load(Ordering::Relaxed)
    }

    /// Makes the first `bytes` present by `populate(from, to)`, which says whether it succeeded. If another thread is growing the region,
    /// that thread does this growth, too, afterwards.
    pub fn demand(&self, bytes: u64, mut populate: impl FnMut(u64, u64) -> bool) {
        // SeqCst: here `wanted` is stored before `owner` is taken; an ending thread stores `owner`, then looks at `wanted`. One sees the
        // other.
        self.wanted.fetch_max(bytes, Ordering::SeqCst);
        while self.wanted.load(Ordering::SeqCst) > self.present() && self.begin() {
            loop {
                // Only the growing thread writes `present`; the next one comes after it by `owner`.
                let (from, to) = (self.present(), self.wanted.load(Ordering::Relaxed));
                if to <= from {
                    break;
                }
                if !populate(from, to) {
                    self.wanted.store(0, Ordering::Relaxed);
                    break;
                }
                self.present.store(to, Ordering::Relaxed);
            }
            self.owner.store(IDLE, Ordering::SeqCst);
        }
    }

    /// Like [`Growth::demand`], and waits for another thread that is growing the region.
    pub fn share(&self, bytes: u64, populate: impl FnMut(u64, u64) -> bool) {
        self.demand(bytes, populate);
        self.host.process.wait_for(&mut || self.owner.load(Ordering::Acquire) != self.us());
    }

    /// `owner` for a thread of this process.
    fn us(&self) -> u64 {
        1 + u64::from(self.host.generation())
    }

    fn begin(&self) -> bool {
        let begin =
            |owner| self.owner.compare_exchange(owner, self.us(), Ordering::SeqCst, Ordering::SeqCst).is_ok();
        match self.owner.load(Ordering::SeqCst) {
            owner if owner == self.us() => false,
            owner => begin(owner),
        }
    }
}

/// Bytes to be present when the connection in `slot` begins. The lowest free slot is taken, so there are as many connections.
pub fn expected(slot: u32) -> u64 {
    let connections = u64::from(slot) + AHEAD;
    let first = connections.min(FIRST_WINDOWS.into()) * FIRST_WINDOW;
    first.max((connections * FIRST_BURST).min(FIRST_MOST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Solitary;

    static HOST: Host = Host::new(&Solitary);

    #[test]
    fn memory_for_first_windows_and_then_for_first_bursts_is_expected() {
        let mib = |slot| expected(slot) >> 20;
        assert_eq!([0, 8, 100, 128, 1_024, 1_500, 2_048, 65_535].map(mib), [2, 3, 14, 16, 16, 23, 32, 32]);
    }

    #[test]
    fn nobody_announces_what_another_thread_is_still_populating() {
        let (growth, present) = (Growth::new(&HOST, 1 << 20), AtomicU64::new(1 << 20));
        let populate = |from: u64, to: u64| {
            assert_eq!(present.load(Ordering::SeqCst), from, "everything below is present already");
            std::thread::yield_now();
            assert_eq!(present.swap(to, Ordering::SeqCst), from, "nobody else is at it");
            true
        };
        std::thread::scope(|scope| {
            for i in 0..8u64 {
                let growth = &growth;
                scope.spawn(move || {
                    let bytes = (i + 2) << 20;
                    if i % 2 == 0 { growth.demand(bytes, populate) } else { growth.share(bytes, populate) }
                });
            }
        });
        assert_eq!((growth.present(), present.into_inner()), (9 << 20, 9 << 20));
    }

    #[test]
    fn a_demand_while_growing_is_done_afterwards_by_the_same_thread() {
        let growth = Growth::new(&HOST, 1);
        let mut steps = Vec::new();
        growth.demand(2, |from, to| {
            if from == 1 {
                growth.demand(8, |_, _| panic!("only one thread is at it"));
            }
            steps.push((from, to));
            true
        });
        assert_eq!(steps, [(1, 2), (2, 8)]);
        growth.demand(8, |_, _| panic!("it is there"));
    }

    #[test]
    fn a_failed_growth_may_be_tried_again() {
        let growth = Growth::new(&HOST, 4);
        growth.demand(64, |_, _| false);
        let mut steps = Vec::new();
        growth.share(8, |from, to| {
            steps.push((from, to));
            true
        });
        assert_eq!(steps, [(4, 8)]);
    }
}
