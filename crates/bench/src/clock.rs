//! The clocks that measurements read, in nanoseconds.

use rustix::time::{ClockId, clock_gettime};

fn ns(id: ClockId) -> u64 {
    let t = clock_gettime(id);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Nanoseconds of the monotonic clock, which begins at an arbitrary moment.
#[inline]
pub fn now_ns() -> u64 {
    ns(ClockId::Monotonic)
}

/// Processor time of all threads of this process since its start.
pub fn process_cpu_ns() -> u64 {
    ns(ClockId::ProcessCPUTime)
}
