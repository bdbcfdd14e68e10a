//! The allocator of a test program, which counts the calls of a thread while that thread is armed, and the bytes that the thread has. It hands
//! each call to the system allocator unchanged.
#![allow(dead_code)] // A test asks for calls or for bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    // Of each thread, because the thread of the test harness allocates at times of its own.
    static ARMED: Cell<bool> = const { Cell::new(false) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

/// Whether calls of this thread count from now on.
pub fn arm(is_armed: bool) {
    ARMED.set(is_armed);
}

/// Number of this thread's calls so far that have counted.
pub fn count() -> u64 {
    COUNT.get()
}

/// Number of bytes that this thread has allocated and not freed, armed or not.
pub fn bytes() -> i64 {
    BYTES.get()
}

fn note(bytes: i64) {
    BYTES.set(BYTES.get() + bytes);
    COUNT.set(COUNT.get() + u64::from(ARMED.get()));
}

// SAFETY: hands every call to the system allocator unchanged. The cells have constant first values and nothing to drop, so `note` neither
// allocates nor fails at the end of a thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        note(-(layout.size() as i64));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
