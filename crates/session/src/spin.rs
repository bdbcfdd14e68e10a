//! Whether to spin before sleeping, and for how long: as long as it has paid lately.
//!
//! A wake-up costs about ten times a look at shared memory, but a spinning thread keeps a core from the thread that would bring
//! the news. So: spin only within a budget, and call `sched_yield` all the time meanwhile. The budget is judged by how long the
//! whole wait took, sleep included: two sides that both sleep answer each other in 30 to 70 us, and would never find out that
//! both spinning takes 7 us if each judged only its own spin.
//!
//! A spinning thread that yields its core to other busy threads gets it back only after their time slices, milliseconds later, and
//! a sleeping thread is woken before them. So when a spin loses its core again and again, spinning pauses, each time for longer.
//! A single loss is ignored: a daemon that runs for a millisecond may take any core now and then.
//!
//! A thread that waits for many sockets does not spin: it yields once, so that news can gather, and then sleeps. If the user has
//! allowed a spin longer than two wake-ups cost, it spins all the same: then an early answer is worth any processor time.

use crate::{config, detached};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A shorter spin is not worth its two reads of the clock.
const LEAST_NS: u64 = 1_000;
/// Cost of two wake-ups: a wait that exceeded the budget by no more than this might have been short if both sides had spun.
const WAKE_UPS_NS: u64 = 100_000;

/// Length of the first pause, after the core was lost a second time within `AGAIN_NS`. Each further loss doubles the pause, up to
/// [`CROWDED_MOST_NS`].
const CROWDED_NS: u64 = 100_000_000;
const CROWDED_MOST_NS: u64 = 3_200_000_000;
/// A loss counts as repeated when it comes within this time after the last loss, or after the end of the last pause.
const AGAIN_NS: u64 = 20_000_000;

/// A peer that brings news returns the core within this time; other threads keep it for a whole time slice.
const TURN: Duration = Duration::from_millis(1);

/// A spin asks the kernel for news that is not in shared memory at this interval, so such news comes half of it late on average.
const OUTSIDE_NS: u64 = 20_000;
/// [`OUTSIDE_NS`] for a patient spin; asking takes at most 1/[`OUTSIDE_SHARE`] of its time. Asking about one descriptor takes 0.3 us.
const OUTSIDE_PATIENT_NS: u64 = 2_000;
const OUTSIDE_SHARE: u64 = 8;
/// First estimate of what asking the kernel costs. Later estimates are the last measured cost, at most one and a half times the
/// previous estimate plus this constant: an interrupt during the call (10 to 20 us on a virtual machine, and often the very one that
/// is waited for) says nothing about the next call.
const ASKED_NS: u64 = 300;

/// After a single yield that lost the core for a time t, do not yield again for `PAUSE` * t.
const PAUSE: u64 = 50;

/// The spin budget of one thread, and the pauses after it lost its core.
#[derive(Debug)]
pub struct Spin {
    born: Instant,
    most_ns: u64,
    budget_ns: AtomicU64,
    /// End of the pause in nanoseconds after `born`; if the last loss caused no pause, the time of that loss. 0: none yet.
    crowded_until_ns: AtomicU64,
    /// Length of the last pause in nanoseconds; 0: the last loss caused none.
    pause_ns: AtomicU64,
    /// Estimated cost of asking the kernel for other news, in nanoseconds.
    asked_ns: AtomicU64,
}

impl Spin {
    /// `most_ns` is the largest budget in nanoseconds; the user's environment overrides it.
    #[must_use]
    pub fn new(most_ns: u64) -> Self {
        let most_ns = config::spin().map_or(most_ns, |d| d.as_nanos() as u64);
        Self {
            born: Instant::now(),
            most_ns,
            budget_ns: AtomicU64::new(most_ns),
            crowded_until_ns: AtomicU64::new(0),
            pause_ns: AtomicU64::new(0),
            asked_ns: AtomicU64::new(ASKED_NS),
        }
    }

    fn age_ns(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.born).as_nanos() as u64
    }

    /// True when spinning has paid lately.
    pub fn pays(&self) -> bool {
        self.budget_ns.load(Ordering::Relaxed) >= LEAST_NS
    }

    /// True when the user allows a spin longer than two wake-ups cost; then even a thread that waits for many sockets spins.
    pub fn is_patient(&self) -> bool {
        self.most_ns > WAKE_UPS_NS
    }

    /// Spins until `news` returns true, the budget or `limit` is used up, or `outside` returns true (it asks the kernel for other news;
    /// only a long spin calls it). Returns what `news` says at the end.
    ///
    /// # Errors
    /// As `outside`'s.
    pub fn until(
        &self,
        limit: Option<Duration>,
        mut news: impl FnMut() -> bool,
        mut outside: impl FnMut() -> Result<bool, Errno>,
    ) -> Result<bool, Errno> {
        let most = limit.map_or(u64::MAX, |l| l.as_nanos().min(u128::from(u64::MAX)) as u64);
        let budget = self.budget_ns.load(Ordering::Relaxed).min(most);
        if budget < LEAST_NS || !detached::may(libc::SYS_sched_yield) {
            return Ok(news());
        }
        let start = Instant::now();
        if self.age_ns(start) < self.crowded_until_ns.load(Ordering::Relaxed) {
            return Ok(news());
        }
        let pause_ns = if self.is_patient() { OUTSIDE_PATIENT_NS } else { OUTSIDE_NS };
        let mut outside_ns = pause_ns;
        loop {
            for _ in 0..16 {
                if news() {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            rustix::thread::sched_yield();
            let now = Instant::now();
            let spent = now.saturating_duration_since(start).as_nanos() as u64;
            if spent >= budget {
                if spent >= budget + WAKE_UPS_NS {
                    self.lost(self.age_ns(now));
                }
                break;
            }
            if spent >= outside_ns {
                if outside()? {
                    break;
                }
                let asked_ns = now.elapsed().as_nanos() as u64;
                outside_ns = spent + asked_ns + pause_ns.max(OUTSIDE_SHARE * self.asked(asked_ns));
            }
        }
        Ok(news())
    }

    /// Updates the estimate after asking the kernel took `took_ns`; returns the new estimate.
    fn asked(&self, took_ns: u64) -> u64 {
        let before = self.asked_ns.load(Ordering::Relaxed);
        let cost = took_ns.min(before + before / 2 + ASKED_NS);
        self.asked_ns.store(cost, Ordering::Relaxed);
        cost
    }

    /// Notes that other threads held the core during a spin; repeated losses begin a pause.
    fn lost(&self, age_ns: u64) {
        let last_ns = self.crowded_until_ns.load(Ordering::Relaxed);
        if last_ns != 0 && age_ns < last_ns + TURN.as_nanos() as u64 {
            // Another thread that shares this budget has noted the same loss.
            return;
        }
        let again = last_ns != 0 && age_ns.saturating_sub(last_ns) < AGAIN_NS;
        let longer = (2 * self.pause_ns.load(Ordering::Relaxed)).clamp(CROWDED_NS, CROWDED_MOST_NS);
        let pause_ns = if again { longer } else { 0 };
        self.pause_ns.store(pause_ns, Ordering::Relaxed);
        self.crowded_until_ns.store(age_ns + pause_ns, Ordering::Relaxed);
    }

    /// Yields the core once and returns what `news` says then: for a thread that waits for many sockets. Threads on this core then deliver
    /// all their news; a sleeper would be woken by the first piece and take the core from them.
    pub fn once(&self, limit: Option<Duration>, mut news: impl FnMut() -> bool) -> bool {
        let start = Instant::now();
        let is_crowded = self.age_ns(start) < self.crowded_until_ns.load(Ordering::Relaxed);
        let may = limit.is_none_or(|limit| limit >= TURN) && detached::may(libc::SYS_sched_yield);
        if is_crowded || !may {
            return false;
        }
        rustix::thread::sched_yield();
        let found = news();
        let now = Instant::now();
        let gone = now.saturating_duration_since(start);
        if gone >= TURN {
            // Where many threads want the core it comes back very late.
            let pause_ns = CROWDED_NS.max(PAUSE * gone.as_nanos() as u64);
            self.crowded_until_ns.store(self.age_ns(now) + pause_ns, Ordering::Relaxed);
        }
        found
    }

    /// Adjusts the budget after a wait (spin and sleep) that took `whole`.
    pub fn waited(&self, whole: Duration) {
        let soon = whole.as_nanos() < u128::from(self.most_ns + WAKE_UPS_NS);
        let budget = if soon { self.most_ns } else { self.budget_ns.load(Ordering::Relaxed) / 2 };
        self.budget_ns.store(budget, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_end_spinning_and_a_short_one_brings_it_back() {
        let spin = Spin::new(8_000);
        for _ in 0..4 {
            assert_eq!(spin.until(None, || false, || Ok(false)), Ok(false));
            spin.waited(Duration::from_millis(5));
        }
        assert!(!spin.pays());
        spin.waited(Duration::from_micros(70));
        assert_eq!(spin.budget_ns.load(Ordering::Relaxed), 8_000);
    }

    #[test]
    fn a_thread_that_yields_once_and_gets_the_core_back_late_does_not_yield_during_a_pause() {
        // Its age stays 0: the pause does not end, however late this thread runs.
        let spin = Spin { born: Instant::now() + Duration::from_secs(3600), ..Spin::new(8_000) };
        let looks = |pause: Duration| {
            let mut looks = 0;
            spin.once(None, || {
                looks += 1;
                std::thread::sleep(pause);
                true
            });
            looks
        };
        assert!(!spin.once(Some(TURN / 2), || true), "there is no time for it");
        assert_eq!(looks(TURN), 1);
        assert_eq!(looks(Duration::ZERO), 0);
        spin.crowded_until_ns.store(0, Ordering::Relaxed);
        assert_eq!(looks(Duration::ZERO), 1);
    }

    #[test]
    fn a_spin_that_lost_the_core_notes_it_and_one_in_a_pause_looks_once() {
        let spin = Spin::new(8_000);
        let looks = |slow: bool| {
            let mut looks = 0;
            let news = || {
                looks += 1;
                if slow {
                    // As long as the slice of another thread.
                    std::thread::sleep(Duration::from_micros(200));
                }
                false
            };
            assert_eq!(spin.until(None, news, || Ok(false)), Ok(false));
            looks
        };
        assert!(looks(true) > 1);
        assert_ne!(spin.crowded_until_ns.load(Ordering::Relaxed), 0);
        spin.crowded_until_ns.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(looks(false), 1);
        spin.crowded_until_ns.store(0, Ordering::Relaxed);
        assert!(looks(false) > 1);
    }

    #[test]
    fn a_thread_that_loses_the_core_whenever_it_spins_pauses_for_longer_each_time() {
        const MS: u64 = 1_000_000;
        let spin = Spin::new(8_000);
        let mut now = MS;
        let mut lost = |after: u64| {
            now = now.max(spin.crowded_until_ns.load(Ordering::Relaxed)) + after;
            spin.lost(now);
            spin.crowded_until_ns.load(Ordering::Relaxed) - now
        };
        let often: Vec<u64> = (0..9).map(|_| lost(3 * MS) / MS).collect();
        assert_eq!(often, [0, 100, 200, 400, 800, 1_600, 3_200, 3_200, 3_200]);
        let rarely: Vec<u64> = (0..3).map(|_| lost(30 * MS)).collect();
        assert_eq!(rarely, [0, 0, 0]);
        assert_eq!(lost(3 * MS), CROWDED_NS, "it begins anew");
    }

    #[test]
    fn one_slow_answer_of_the_kernels_does_not_make_a_spin_deaf() {
        let spin = Spin::new(1_000_000);
        assert_eq!(spin.asked(280), 280);
        assert_eq!(spin.asked(18_000), 280 + 140 + ASKED_NS);
        assert_eq!(spin.asked(280), 280);
        // A thousand descriptors take as long each time.
        for _ in 0..12 {
            spin.asked(18_000);
        }
        assert_eq!(spin.asked(18_000), 18_000);
    }

    #[test]
    fn a_long_spin_ends_with_what_shared_memory_does_not_tell() {
        let spin = Spin::new(60_000_000_000);
        assert!(spin.is_patient());
        let mut asked = 0;
        let mut outside = || {
            asked += 1;
            if asked < 3 { Ok(asked == 2) } else { Err(Errno::INTR) }
        };
        assert_eq!(spin.until(None, || false, &mut outside), Ok(false));
        assert_eq!(spin.until(None, || false, &mut outside), Err(Errno::INTR));
        assert_eq!(asked, 3);
        let usual = Spin::new(20_000);
        assert!(!usual.is_patient());
        assert_eq!(usual.until(None, || false, || unreachable!("it is over soon")), Ok(false));
    }
}
