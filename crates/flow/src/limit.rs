//! Limits of the rate at which the flows of many connections send together. Decides only when the next byte may go; the pacer holds back.
//!
//! ```text
//!   rule of the policy ─┐
//!   user ───────────────┤ one token bucket each, for all cores
//!   process ────────────┘
//!        └── Limits of an application's region: a segment goes when all of its buckets let it, and is taken out of each
//! ```

use base::{Duration, Instant};
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Bytes that may go at once after a pause: a super-frame.
const BURST: u64 = 64 << 10;

/// A token bucket that many flows share. It is kept as a time: when the next byte may go.
#[derive(Debug)]
pub struct RateLimit {
    /// Bytes of payload per second.
    rate: NonZeroU64,
    /// Nanoseconds; may be as far in the past as [`BURST`] bytes take.
    next: AtomicU64,
}

impl RateLimit {
    /// A full bucket that fills with `rate` bytes of payload per second.
    #[must_use]
    pub const fn new(rate: NonZeroU64) -> Self {
        Self { rate, next: AtomicU64::new(0) }
    }

    /// Bytes of payload per second.
    #[must_use]
    pub const fn rate(&self) -> NonZeroU64 {
        self.rate
    }

    fn time(&self, bytes: u64) -> Duration {
        Duration::from_ns(bytes.saturating_mul(1_000_000_000) / self.rate)
    }

    /// When the next byte may go.
    fn next(&self) -> Instant {
        // Relaxed: a number by itself. Cores that read it at once overdraw the bucket by a super-frame each.
        Instant::from_ns(self.next.load(Ordering::Relaxed))
    }

    /// Takes `bytes` out; the bucket may be overdrawn.
    fn take(&self, now: Instant, bytes: u64) {
        let earliest = now.as_ns().saturating_sub(self.time(BURST).as_ns());
        let cost = self.time(bytes).as_ns();
        let later = |next: u64| Some(next.max(earliest).saturating_add(cost));
        // Never fails: `later` always gives a value.
        let _ = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }
}

/// What bounds the sending of one application: the rate, and its share of the turns beside others.
#[derive(Clone, Debug)]
pub struct Limits {
    buckets: Box<[Arc<RateLimit>]>,
    share: u16,
}

impl Limits {
    /// No bound of the rate, and one share.
    #[must_use]
    pub fn none() -> Self {
        Self::new(Box::default(), 1)
    }

    /// Bounds by all of `buckets`. Where applications wait for each other, this one sends `share` times what one with the share 1 sends.
    #[must_use]
    pub const fn new(buckets: Box<[Arc<RateLimit>]>, share: u16) -> Self {
        Self { buckets, share }
    }

    /// How many parts this application gets where others have one.
    #[must_use]
    pub const fn share(&self) -> u16 {
        self.share
    }

    /// The least of the rates, bytes per second; `None`: the rate is not bounded.
    #[must_use]
    pub fn rate(&self) -> Option<NonZeroU64> {
        self.buckets.iter().map(|bucket| bucket.rate()).min()
    }

    /// When the application may send next; an instant that has passed: now.
    #[must_use]
    #[inline]
    pub fn next(&self) -> Instant {
        self.buckets.iter().map(|bucket| bucket.next()).max().unwrap_or(Instant::ZERO)
    }

    /// Notes that `bytes` of payload are sent at `now`.
    #[inline]
    pub fn take(&self, now: Instant, bytes: u32) {
        self.buckets.iter().for_each(|bucket| bucket.take(now, u64::from(bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(rate: u64) -> Arc<RateLimit> {
        Arc::new(RateLimit::new(NonZeroU64::new(rate).unwrap()))
    }

    /// Sends `len` bytes whenever `limits` allow it, from `from` to `to` in steps of a microsecond. Returns the bytes.
    fn send(limits: &Limits, len: u32, from: u64, to: u64) -> u64 {
        let mut sent = 0;
        for now in (from..to).map(|us| Instant::from_ns(us * 1000)) {
            if limits.next() <= now {
                limits.take(now, len);
                sent += u64::from(len);
            }
        }
        sent
    }

    #[test]
    fn as_many_bytes_go_as_the_rate_allows_and_a_pause_saves_up_one_burst() {
        let limits = Limits::new(Box::new([bucket(10_000_000)]), 1);
        for second in [1, 5] {
            let sent = send(&limits, 1000, second * 1_000_000, (second + 1) * 1_000_000);
            assert!((10_000_000 + BURST..10_000_000 + BURST + 2000).contains(&sent), "{sent}");
        }
    }

    #[test]
    fn the_least_of_an_applications_rates_bounds_it_and_what_it_sends_counts_for_all() {
        let (user, slow, fast) = (bucket(1_000_000), bucket(300_000), bucket(5_000_000));
        let one = Limits::new(Box::new([user.clone(), slow]), 1);
        let other = Limits::new(Box::new([user, fast]), 1);
        assert_eq!((one.rate(), other.rate()), (NonZeroU64::new(300_000), NonZeroU64::new(1_000_000)));
        let (mut first, mut second) = (0, 0);
        for ms in 0..4000 {
            first += send(&one, 1000, ms * 1000, (ms + 1) * 1000);
            second += send(&other, 1000, ms * 1000, (ms + 1) * 1000);
        }
        let burst = BURST + 2000;
        assert!(first + second <= 4_000_000 + burst && first + second >= 3_990_000, "{first} {second}");
        assert!(first <= 1_200_000 + burst, "{first}");
    }

    #[test]
    fn without_buckets_nothing_waits() {
        assert_eq!(
            (Limits::none().next(), Limits::none().rate(), Limits::none().share()),
            (Instant::ZERO, None, 1)
        );
        assert_eq!(send(&Limits::none(), 7, 0, 10), 70);
    }
}
