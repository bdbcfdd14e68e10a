//! The processors that this process may use. Child processes inherit the set.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors this thread may use.
pub fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Restricts this thread, and the threads and processes that it starts from now on, to these processors.
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
