//! Sleep and wake-up on a word of a region that several processes map: the kernel's futexes, without a descriptor.

use core::sync::atomic::AtomicU32;
use rustix::thread::futex;

/// Most threads that one [`wake`] wakes. A hostile process may have any number of threads sleep on a word, and the waker pays for each.
const WAKE_MOST: u32 = 64;

/// Wakes the threads of all processes that sleep on `word`, `WAKE_MOST` at most.
pub fn wake(word: &AtomicU32) {
    // An error: the page is gone with the region's end, and no thread sleeps there.
    let _ = futex::wake(word, futex::Flags::empty(), WAKE_MOST);
}
