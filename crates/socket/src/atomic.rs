//! The atomics of the table: the processor's, or loom's when the model is checked.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering};

/// `compare_exchange_weak`, with the orders given: of the success and, relaxed, of the failure.
#[cfg(any(loom, not(target_arch = "x86_64")))]
#[inline]
pub fn exchange(word: &AtomicU64, old: u64, new: u64, order: Ordering) -> Result<u64, u64> {
    word.compare_exchange_weak(old, new, order, Ordering::Relaxed)
}

/// `compare_exchange_weak`, with the orders given: of the success and, relaxed, of the failure. Where the process has one thread, the same
/// instruction without its lock prefix, a quarter of its time: signal handlers come before or after it, and others are none.
#[cfg(all(not(loom), target_arch = "x86_64"))]
#[inline]
pub fn exchange(word: &AtomicU64, old: u64, new: u64, order: Ordering) -> Result<u64, u64> {
    if !crate::sys::is_single_threaded() {
        return word.compare_exchange_weak(old, new, order, Ordering::Relaxed);
    }
    let seen: u64;
    // SAFETY: the address is that of eight aligned bytes which anybody may change; nobody does meanwhile, for this thread is the only one.
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
