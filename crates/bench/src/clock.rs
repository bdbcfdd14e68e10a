//! Clocks of this process, in nanoseconds.

use rustix::time::{ClockId, clock_gettime};

fn ns(id: ClockId) -> u64 {
    let t = clock_gettime(id);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Since some moment in the past.
#[inline]
pub fn now_ns() -> u64 {
    ns(ClockId::Monotonic)
}

/// Processor time of all threads of this process.
pub fn process_cpu_ns() -> u64 {
    ns(ClockId::ProcessCPUTime)
}
