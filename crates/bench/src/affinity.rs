//! On which processors we run. Children inherit it.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors this thread may use.
pub fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Keeps this thread, and what it starts from now on, on these processors.
///
/// # Errors
/// When the kernel refuses the set.
pub fn pin(cpus: &[usize]) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    sched_setaffinity(None, &set)
}
