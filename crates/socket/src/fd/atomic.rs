//! The atomics of the table: the processor's, or loom's when the model is checked.

#[cfg(loom)]
pub use shm::alone::exchange;
pub use shm::alone::{AtomicU64, Ordering};

/// `compare_exchange_weak` with `order` on success and Relaxed on failure; cheap in a process with one thread.
#[cfg(not(loom))]
#[inline]
pub fn exchange(word: &AtomicU64, old: u64, new: u64, order: Ordering) -> Result<u64, u64> {
    shm::alone::exchange(&session::host::HOST.threads, word, old, new, order)
}
