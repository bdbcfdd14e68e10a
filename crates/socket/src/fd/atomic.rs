//! The atomics of the table: the processor's, or loom's when the model is checked.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering};

/// `compare_exchange_weak` with `order` on success and Relaxed on failure.
#[cfg(any(loom, not(target_arch = "x86_64")))]
#[inline]
pub fn exchange(word: &AtomicU64, old: u64, new: u64, order: Ordering) -> Result<u64, u64> {
    word.compare_exchange_weak(old, new, order, Ordering::Relaxed)
}

/// `compare_exchange_weak` with `order` on success and Relaxed on failure. In a process with one thread it is the same instruction without
/// its lock prefix, in a quarter of the time: signal handlers come before or after it, and there are no other threads.
#[cfg(all(not(loom), target_arch = "x86_64"))]
#[inline]
pub fn exchange(word: &AtomicU64, old: u64, new: u64, order: Ordering) -> Result<u64, u64> {
    if !crate::sys::is_single_threaded() {
        return word.compare_exchange_weak(old, new, order, Ordering::Relaxed);
    }
    let seen: u64;
    // SAFETY: the address is that of eight aligned bytes that other threads may change; there are none: this thread is the only one.
    unsafe {
        core::arch::asm!(
            "cmpxchg qword ptr [{word}], {new}",
            word = in(reg) word.as_ptr(),
            new = in(reg) new,
            inout("rax") old => seen,
            options(nostack),
        );
    }
    if seen == old { Ok(seen) } else { Err(seen) }
}
