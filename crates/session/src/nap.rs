//! Naps ([`queue::nap`]): how a thread sleeps that has no context of its own. It has no descriptor to sleep on, so it hears nothing of the
//! control line. The threads of a process that nap take turns at looking there: each sleeps for one turn of each of them at most, so that
//! one of them looks twenty times a second, however many there are. A thread that was not woken, because the process that was about to
//! wake it was killed, looks at its connection then, too.

use endpoint::region::Mapped;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Time between two looks at the control line by the threads of a process that nap.
const TURN: Duration = Duration::from_millis(50);
/// Longest nap of a thread: others with which it shares the turns may have left.
const TURNS_MOST: Duration = Duration::from_secs(10);
/// Longest nap of a thread whose signals are put off meanwhile: it lets them in before each. No call sleeps on a word and lets signals in as it
/// falls asleep, as `ppoll` does on descriptors, which a thread that naps lacks. With many threads this grows, so that those of a process let
/// signals in a thousand times a second in all; a signal to the process is taken by the first that does.
const SIGNALS: Duration = Duration::from_millis(20);
const SIGNALS_APART: Duration = Duration::from_millis(1);
const SIGNALS_MOST: Duration = Duration::from_secs(1);
/// A thread that begins a nap looks first if none has looked for so long.
const OVERDUE_NS: u64 = 1_000_000_000;

/// Tells the naps of this process from each other.
static NAMES: AtomicU32 = AtomicU32::new(0);

/// A name for a nap at `slot`. Naps at slots that share a word of a doorbell have different ones, so that each is woken for itself.
pub fn name(slot: u32) -> u32 {
    let count = NAMES.fetch_add(1, Ordering::Relaxed);
    (count.wrapping_mul(64) | (slot % 64)) & !shm::NAP
}

/// Where a thread naps: the slot of a connection.
#[derive(Debug, Clone)]
pub struct Place {
    /// The region of the connection.
    pub mapped: Arc<Mapped>,
    /// The slot of the connection there.
    pub slot: u32,
}

impl Place {
    /// Wakes the threads that nap there, whatever the word says: other threads of this process write it, too.
    pub fn rouse(&self) {
        let own = self.mapped.halves(self.slot).0;
        let _ = queue::nap::rouse(own);
        self.mapped.host.process.rouse(own);
    }
}

/// The threads of one registration that nap.
#[derive(Debug, Default)]
pub struct Naps {
    asleep: AtomicU32,
    /// When a thread last looked at the control line (`cycles::now_ns`).
    looked: AtomicU64,
}

impl Naps {
    /// True when no thread has looked for long.
    pub fn is_overdue(&self) -> bool {
        cycles::now_ns().saturating_sub(self.looked.load(Ordering::Relaxed)) > OVERDUE_NS
    }

    /// A thread looks now.
    pub fn note_look(&self) {
        self.looked.store(cycles::now_ns(), Ordering::Relaxed);
    }

    /// One more thread naps. Returns how long it may before it looks.
    pub fn begin(&self) -> Duration {
        let sharing = self.asleep.fetch_add(1, Ordering::Relaxed) + 1;
        (TURN * sharing).min(TURNS_MOST)
    }

    /// How long a thread may nap whose signals are put off.
    pub fn between_signals(&self) -> Duration {
        (SIGNALS_APART * self.asleep.load(Ordering::Relaxed)).clamp(SIGNALS, SIGNALS_MOST)
    }

    /// A thread naps no more.
    pub fn end(&self) {
        self.asleep.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_that_put_signals_off_let_them_in_a_thousand_times_a_second_in_all() {
        let naps = Naps::default();
        for asleep in 1..=1_000 {
            naps.begin();
            let between = naps.between_signals();
            assert!(between >= SIGNALS_APART * asleep, "{asleep} threads, each after {between:?}");
            // A few threads are as quick as one, and no thread is much slower than it must be.
            assert!(between == SIGNALS || between == SIGNALS_APART * asleep, "{asleep}: {between:?}");
        }
        for _ in 0..5_000 {
            naps.begin();
        }
        assert_eq!(naps.between_signals(), SIGNALS_MOST);
        (0..6_000).for_each(|_| naps.end());
        assert_eq!(naps.between_signals(), SIGNALS);
    }
}
