//! Whether to spin before sleeping, and for how long: as long as it has paid lately.
//!
//! A wake-up costs about ten times a look at shared memory, but a spinning thread keeps a core from whoever would bring
//! the news. So: spin only within a budget, and give the core away (`sched_yield`) all the time meanwhile. The budget is
//! judged by how long the whole wait took, sleep included: two sides that both sleep answer each other in 30 to 70 us, and
//! would never find out that both spinning takes 7 us if each judged only its own spin.
//!
//! Who gives a core away that others want, too, gets it back when they have had their slices, milliseconds later, and whoever
//! sleeps is woken before them: so where that happens again and again nobody spins for a while, each time for longer. Once is
//! chance: everybody's core is wanted now and then by a daemon that runs for a millisecond.
//!
//! Who has many to hear of does not spin: it gives the core away once, that news may gather, and then sleeps. Unless the user has
//! allowed more than two wake-ups cost: then an early answer is worth any processor time.

use crate::{config, locked};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Below this a spin is not worth the two looks at the clock.
const LEAST_NS: u64 = 1_000;
/// What two wake-ups cost: a wait that was longer than the budget by no more than this might have been short.
const WAKE_UPS_NS: u64 = 100_000;

/// Nobody spins for so long after the core was gone for long a second time, and for twice as long as the last time whenever that
/// happens again, at most [`CROWDED_MOST_NS`].
const CROWDED_NS: u64 = 100_000_000;
const CROWDED_MOST_NS: u64 = 3_200_000_000;
/// Again: so soon after the last time, or after spinning was taken up again.
const AGAIN_NS: u64 = 20_000_000;

/// Whoever brings news gives the core back sooner than this; others take it for a slice.
const TURN: Duration = Duration::from_millis(1);

/// What shared memory does not tell is asked for once in this time of a spin; whoever waits for it hears half of this time late.
const OUTSIDE_NS: u64 = 20_000;
/// The same of a patient spin, and at most so much of its time goes into asking: for one descriptor it takes some 0.3 us.
const OUTSIDE_PATIENT_NS: u64 = 2_000;
const OUTSIDE_SHARE: u64 = 8;
/// What asking is taken to cost at first. Later what it cost the last time, but half as much again as the time before, and this, at
/// most: an interrupt that came between (10 to 20 us on a virtual machine, and often the very one that is waited for) says nothing
/// about the next time.
const ASKED_NS: u64 = 300;

/// Nobody gives it away again for so many times as long as it was gone.
const PAUSE: u64 = 50;

/// One sleeper's budget.
#[derive(Debug)]
pub struct Spin {
    born: Instant,
    most_ns: u64,
    budget_ns: AtomicU64,
    /// Not before: nanoseconds after `born`. Without a pause, when the core was last gone for long; 0: never.
    crowded_until_ns: AtomicU64,
    /// How long the last pause was.
    pause_ns: AtomicU64,
    /// What asking for what shared memory does not tell costs.
    asked_ns: AtomicU64,
}

impl Spin {
    /// At most `most_ns`, or what the user's environment says.
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

    /// True when it has paid lately.
    pub fn pays(&self) -> bool {
        self.budget_ns.load(Ordering::Relaxed) >= LEAST_NS
    }

    /// True when the user prefers a late sleep to a late answer, however many there are to hear of.
    pub fn is_patient(&self) -> bool {
        self.most_ns > WAKE_UPS_NS
    }

    /// Looks until `news` says true (then true), the budget or `limit` is used up, or `outside` says that there is something for whoever
    /// sleeps: a long spin asks it now and then, a usual one is over before.
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
        if budget < LEAST_NS || !locked::may(libc::SYS_sched_yield) {
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

    /// Asking took so long: what it is taken to cost.
    fn asked(&self, took_ns: u64) -> u64 {
        let before = self.asked_ns.load(Ordering::Relaxed);
        let cost = took_ns.min(before + before / 2 + ASKED_NS);
        self.asked_ns.store(cost, Ordering::Relaxed);
        cost
    }

    /// A spin has come back from others that wanted the core.
    fn lost(&self, age_ns: u64) {
        let last_ns = self.crowded_until_ns.load(Ordering::Relaxed);
        if last_ns != 0 && age_ns < last_ns + TURN.as_nanos() as u64 {
            // Another thread that spins here has said so.
            return;
        }
        let again = last_ns != 0 && age_ns.saturating_sub(last_ns) < AGAIN_NS;
        let longer = (2 * self.pause_ns.load(Ordering::Relaxed)).clamp(CROWDED_NS, CROWDED_MOST_NS);
        let pause_ns = if again { longer } else { 0 };
        self.pause_ns.store(pause_ns, Ordering::Relaxed);
        self.crowded_until_ns.store(age_ns + pause_ns, Ordering::Relaxed);
    }

    /// Gives the core away once, and looks: for who has many to hear of. Those that share this core bring all they have meanwhile, where
    /// they would wake a sleeper with the first piece, and lose the core to it.
    pub fn once(&self, limit: Option<Duration>, mut news: impl FnMut() -> bool) -> bool {
        let start = Instant::now();
        let is_crowded = self.age_ns(start) < self.crowded_until_ns.load(Ordering::Relaxed);
        let may = limit.is_none_or(|limit| limit >= TURN) && locked::may(libc::SYS_sched_yield);
        if is_crowded || !may {
            return false;
        }
        rustix::thread::sched_yield();
        let found = news();
        let now = Instant::now();
        let gone = now.saturating_duration_since(start);
        if gone >= TURN {
            // Where many want the core it comes back very late.
            let pause_ns = CROWDED_NS.max(PAUSE * gone.as_nanos() as u64);
            self.crowded_until_ns.store(self.age_ns(now) + pause_ns, Ordering::Relaxed);
        }
        found
    }

    /// The spin was over, then came sleep, and the whole wait took so long.
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
    fn who_gives_the_core_away_once_and_gets_it_back_late_does_not_for_a_while() {
        let spin = Spin::new(8_000);
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
    fn who_has_lost_the_core_to_others_twice_looks_once_for_a_while() {
        let spin = Spin::new(8_000);
        let looks = |slow: bool| {
            let mut looks = 0;
            let news = || {
                looks += 1;
                if slow {
                    // As long as somebody else's slice.
                    std::thread::sleep(Duration::from_micros(200));
                }
                false
            };
            assert_eq!(spin.until(None, news, || Ok(false)), Ok(false));
            looks
        };
        assert!(looks(true) > 1);
        assert!(looks(false) > 1, "once is chance");
        assert!(looks(true) > 1);
        assert_eq!(looks(false), 1);
        spin.crowded_until_ns.store(0, Ordering::Relaxed);
        assert!(looks(false) > 1);
    }

    #[test]
    fn who_loses_the_core_whenever_it_spins_pauses_for_longer_each_time() {
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
