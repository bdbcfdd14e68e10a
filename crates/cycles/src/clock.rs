//! The counter: the processor's time-stamp counter if its rate is constant, else the monotonic clock.

use rustix::time::{ClockId, clock_gettime};
use std::sync::OnceLock;

/// The unit in which time is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ticks {
    /// Cycles of the time-stamp counter, the same on all processors.
    Tsc,
    /// Nanoseconds of the clock `CLOCK_MONOTONIC`.
    Nanoseconds,
}

impl Ticks {
    /// The unit to use on this machine.
    #[must_use]
    pub fn here() -> Self {
        static HERE: OnceLock<Ticks> = OnceLock::new();
        *HERE.get_or_init(|| {
            let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            if cfg!(target_arch = "x86_64") && is_even(&text) { Self::Tsc } else { Self::Nanoseconds }
        })
    }

    /// The counter's value. Not a barrier: the processor may execute neighbouring instructions before or after it.
    #[must_use]
    #[inline]
    pub fn now(self) -> u64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: every x86-64 processor has the instruction.
            Self::Tsc => unsafe { core::arch::x86_64::_rdtsc() },
            _ => now_ns(),
        }
    }

    /// The unit's name in results.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Tsc => "cycles",
            Self::Nanoseconds => "ns",
        }
    }
}

/// A number that grows with time and is cheap to read. It orders two moments less than a minute apart, approximately: nothing may depend
/// on the order being right. It wraps.
#[must_use]
#[inline]
pub fn moment() -> u32 {
    #[cfg(target_arch = "x86_64")]
    let now = Ticks::Tsc.now();
    #[cfg(not(target_arch = "x86_64"))]
    let now = now_ns();
    // Units of tens of nanoseconds: two calls of one thread are no closer.
    (now >> 6) as u32
}

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of a host share. Sections use the time-stamp counter if its rate is constant.
#[must_use]
#[cold]
pub fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}

/// True when every processor has a counter of constant rate that never stops. Counters of constant rate can be read on one processor
/// and compared with a value read on another.
fn is_even(cpuinfo: &str) -> bool {
    let mut flags = cpuinfo.lines().filter_map(|line| line.strip_prefix("flags")?.split_once(':')).peekable();
    let has = |all: &str, flag: &str| all.split_whitespace().any(|word| word == flag);
    flags.peek().is_some() && flags.all(|(_, all)| has(all, "constant_tsc") && has(all, "nonstop_tsc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_may_stop_is_not_used() {
        assert!(is_even("flags\t\t: fpu tsc constant_tsc nonstop_tsc\n"));
        assert!(!is_even("flags\t\t: fpu tsc constant_tsc\n"));
        assert!(!is_even("flags : constant_tsc nonstop_tsc\nflags : tsc constant_tsc nonstop_tsc_\n"));
        assert!(!is_even("processor : 0\n"));
    }

    #[test]
    fn both_counters_go_on() {
        for ticks in [Ticks::Tsc, Ticks::Nanoseconds] {
            let first = ticks.now();
            let reads = (0..1_000_000).find(|_| ticks.now() > first);
            assert!(reads.is_some(), "{ticks:?}");
        }
    }
}
