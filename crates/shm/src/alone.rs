//! A process with one thread: it needs no locked instructions for memory that no other process has.

#[cfg(not(loom))]
use core::ptr;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering};

/// Whether this process has one thread: a byte that is not 0 while it has (glibc's `__libc_single_threaded`).
#[cfg(not(loom))]
#[derive(Debug)]
pub struct SingleThreaded(AtomicPtr<u8>);

#[cfg(not(loom))]
impl SingleThreaded {
    /// There may be several threads.
    #[must_use]
    pub const fn unknown() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// True when [`Self::learn`] has been called with an address.
    pub fn is_known(&self) -> bool {
        !self.0.load(Relaxed).is_null()
    }

    /// Takes the byte's address; null: there may be several threads.
    ///
    /// # Safety
    /// The byte stays readable for ever. It is 0 from the time when a second thread is started, and the only thread writes it.
    pub unsafe fn learn(&self, byte: *const u8) {
        self.0.store(byte.cast_mut(), Relaxed);
    }

    /// True when there is certainly no other thread.
    #[inline]
    pub fn is_certain(&self) -> bool {
        let byte = self.0.load(Relaxed);
        // SAFETY: the promise made to `learn`; only this thread, the only one, can change it, by starting another.
        !byte.is_null() && unsafe { byte.read_volatile() } != 0
    }
}

/// `compare_exchange_weak` with `order` on success and Relaxed on failure.
#[cfg(loom)]
#[inline]
pub fn exchange(word: &AtomicU64, old: u64, new: u64, order: Ordering) -> Result<u64, u64> {
    word.compare_exchange_weak(old, new, order, Ordering::Relaxed)
}

/// `compare_exchange_weak` with `order` on success and Relaxed on failure.
#[cfg(all(not(loom), not(target_arch = "x86_64")))]
#[inline]
pub fn exchange(
    _: &SingleThreaded,
    word: &AtomicU64,
    old: u64,
    new: u64,
    order: Ordering,
) -> Result<u64, u64> {
    word.compare_exchange_weak(old, new, order, Ordering::Relaxed)
}

/// `compare_exchange_weak` with `order` on success and Relaxed on failure. In a process with one thread it is the same instruction without
/// its lock prefix, in a quarter of the time: signal handlers come before or after it, and there are no other threads.
#[cfg(all(not(loom), target_arch = "x86_64"))]
#[inline]
pub fn exchange(
    threads: &SingleThreaded,
    word: &AtomicU64,
    old: u64,
    new: u64,
    order: Ordering,
) -> Result<u64, u64> {
    if !threads.is_certain() {
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
