//! Cancellation points: calls in which a cancelled thread ends. The C library unwinds the stack from there, so no frame of this library
//! may hold anything to be dropped.

use crate::next;
use libc::{c_int, pthread_t};
use session::cancel;
use std::ptr;

/// The values of `PTHREAD_CANCEL_DEFERRED` and `PTHREAD_CANCEL_ASYNCHRONOUS` in `pthread.h`.
const DEFERRED: c_int = 0;
const ASYNCHRONOUS: c_int = 1;

unsafe extern "C-unwind" {
    /// See pthread_testcancel(3); `libc` does not name it.
    fn pthread_testcancel();
}

/// The result type of a C function.
pub trait Answer: Copy + PartialEq {
    /// The value for failure; errno has the reason.
    const FAILED: Self;
}

impl Answer for c_int {
    const FAILED: Self = -1;
}

impl Answer for isize {
    const FAILED: Self = -1;
}

/// True when a sleep ended only because the thread is, or may be, cancelled: the call is made again.
fn is_to_be_made_again<R: Answer>(answer: R) -> bool {
    // SAFETY: errno's address is valid for the calling thread.
    answer == R::FAILED && unsafe { *libc::__errno_location() } == cancel::RESTART.raw_os_error()
}

/// Makes a call that is a cancellation point.
#[inline(always)]
pub fn point<R: Answer>(mut call: impl FnMut() -> R) -> R {
    if !cancel::is_in_use() {
        let answer = call();
        if !is_to_be_made_again(answer) {
            return answer;
        }
    }
    carefully(call)
}

/// Makes a call that is no cancellation point but may sleep.
pub fn through<R: Answer>(mut call: impl FnMut() -> R) -> R {
    loop {
        let answer = call();
        if !is_to_be_made_again(answer) {
            return answer;
        }
    }
}

/// As [`point`], in a process that cancels threads. A thread with asynchronous cancellation ends before or after the call, but not inside
/// it, where it may hold this library's locks.
#[cold]
#[inline(never)]
fn carefully<R: Answer>(mut call: impl FnMut() -> R) -> R {
    let mut kind = DEFERRED;
    // SAFETY: a number, and a pointer to an int.
    unsafe { next::pthread_setcanceltype(DEFERRED, &mut kind) };
    loop {
        // SAFETY: no frame between here and the program has anything to be dropped.
        unsafe { pthread_testcancel() };
        let answer = call();
        if !is_to_be_made_again(answer) {
            // SAFETY: a number; it may end the thread, as above.
            unsafe { next::pthread_setcanceltype(kind, ptr::null_mut()) };
            return answer;
        }
    }
}

/// See pthread_cancel(3).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_cancel(thread: pthread_t) -> c_int {
    cancel::prepare(thread as usize);
    // SAFETY: C's contract. It may end the calling thread: nothing here has to be dropped.
    let result = unsafe { next::pthread_cancel(thread) };
    if result == 0 {
        cancel::wake(thread as usize);
    }
    result
}

/// See pthread_setcanceltype(3).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int {
    if kind == ASYNCHRONOUS {
        cancel::begin();
    }
    // SAFETY: C's contract.
    unsafe { next::pthread_setcanceltype(kind, old) }
}
