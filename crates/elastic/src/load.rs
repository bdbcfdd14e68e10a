//! The load of cores: each core's thread writes its own, the control thread reads all. Says when a core is so busy that the control thread must
//! look.

use crate::scaler::WINDOW;
use base::{Duration, Instant};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A core is busy from this share of the window on, percent.
const BUSY_FROM: u64 = 80;

/// What one core has done since it started. A cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Load {
    busy_ns: AtomicU64,
    work: AtomicU64,
}

/// The loads of all cores.
#[derive(Debug)]
pub struct Loads {
    of: Box<[Load]>,
    /// A core is busy, and the control thread has not looked since.
    is_busy: AtomicBool,
    /// Whether the control thread wants to know that: cores come and go with load.
    is_watched: AtomicBool,
}

impl Loads {
    /// Loads of so many cores. Busy cores wake the control thread once it [watches](Self::watch).
    pub fn new(cores: usize) -> Self {
        let of = (0..cores).map(|_| Load::default()).collect();
        Self { of, is_busy: AtomicBool::new(false), is_watched: AtomicBool::new(false) }
    }

    /// From now on busy cores wake the control thread, or do not.
    pub fn watch(&self, is_watched: bool) {
        self.is_watched.store(is_watched, Relaxed);
    }

    /// Time that each core has been busy since it started: in rounds that found something to do.
    pub fn busy(&self) -> Vec<Duration> {
        self.of.iter().map(|load| Duration::from_ns(load.busy_ns.load(Relaxed))).collect()
    }

    /// Number of packets and segments that all cores have handled.
    pub fn work(&self) -> u64 {
        self.of.iter().map(|load| load.work.load(Relaxed)).sum()
    }

    /// True when a core was busy since the last call.
    pub fn take_busy(&self) -> bool {
        self.is_busy.load(Relaxed) && self.is_busy.swap(false, Relaxed)
    }
}

/// One core's own account of its load.
#[derive(Debug)]
pub struct LoadMeter {
    index: usize,
    round_at: Instant,
    is_busy: bool,
    busy_ns: u64,
    /// Beginning of the window, and the busy time then.
    window: (Instant, u64),
}

impl LoadMeter {
    /// The account of core `index`.
    pub fn new(index: u8) -> Self {
        Self {
            index: usize::from(index),
            round_at: Instant::ZERO,
            is_busy: false,
            busy_ns: 0,
            window: (Instant::ZERO, 0),
        }
    }

    /// A round begins; `work` is the core's count of packets and segments. True: the core has become busy, and the caller wakes the control
    /// thread.
    #[inline]
    pub fn begin(&mut self, now: Instant, work: u64, loads: &Loads) -> bool {
        let Some(own) = loads.of.get(self.index) else { return false };
        if self.is_busy {
            self.busy_ns += now.since(self.round_at).as_ns();
            // Relaxed: the numbers stand for themselves.
            own.busy_ns.store(self.busy_ns, Relaxed);
            own.work.store(work, Relaxed);
        }
        (self.round_at, self.is_busy) = (now, true);
        WINDOW <= now.since(self.window.0) && self.end_window(now, loads)
    }

    /// The round that has begun found nothing to do.
    #[inline]
    pub fn idle(&mut self) {
        self.is_busy = false;
    }

    #[cold]
    fn end_window(&mut self, now: Instant, loads: &Loads) -> bool {
        let (since, before) = std::mem::replace(&mut self.window, (now, self.busy_ns));
        let is_busy = (self.busy_ns - before) * 100 >= now.since(since).as_ns() * BUSY_FROM;
        is_busy && loads.is_watched.load(Relaxed) && !loads.is_busy.swap(true, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of 100 us for so long, of which every `every`th finds something. True when the control thread was to be woken.
    fn run(meter: &mut LoadMeter, loads: &Loads, from_ms: u64, ms: u64, every: u64) -> bool {
        let mut says = false;
        for round in 0..ms * 10 {
            let now = Instant::from_ns(from_ms * 1_000_000 + round * 100_000);
            says |= meter.begin(now, round, loads);
            if round % every != 0 {
                meter.idle();
            }
        }
        says
    }

    #[test]
    fn only_rounds_that_found_something_count_and_a_busy_core_says_so_once() {
        let (loads, mut meter) = (Loads::new(2), LoadMeter::new(1));
        loads.watch(true);
        assert!(!run(&mut meter, &loads, 1_000, 1_000, 2), "half busy is not busy");
        assert!((499..=500).contains(&loads.busy()[1].as_ms()), "{:?}", loads.busy());
        assert!(run(&mut meter, &loads, 2_000, 100, 1));
        assert!(!run(&mut meter, &loads, 2_100, 100, 1), "the control thread has not looked yet");
        assert!(loads.take_busy() && !loads.take_busy());
        assert!(run(&mut meter, &loads, 2_200, 100, 1));
        assert_eq!((loads.busy()[0], loads.work() > 0), (Duration::ZERO, true));
        let quiet = Loads::new(2);
        assert!(!run(&mut meter, &quiet, 2_300, 1_000, 1));
    }
}
